"""Implementations of collectives among the ranks of a process set, behind one interface (`base.Communicator`).

`exchange` uses the network, `shm` the shared memory of one pod, `hierarchical` both for pods of several ranks. `choose`
selects one of them, or that of a plugin.
"""
