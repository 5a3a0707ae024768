"""Ways in which the ranks of a process set exchange tensors, behind one seam (`base.Communicator`).

`exchange` over the network, `shm` among the ranks of one pod, `hierarchical` for pods of several ranks, `mpi`
through the MPI library. `choose` picks one.
"""
