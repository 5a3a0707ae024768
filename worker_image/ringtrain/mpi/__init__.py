"""MPI jobs without sshd: mpirun's daemons are started through the agents, ranks are counted by their wrapper.

In the order of a job's life: `job` (the launcher's part) prepares mpirun's command line and environment
(`implementation`, `command_line`, `hosts`) and runs it; mpirun calls `rsh_client` in the place of ssh, which hands
its streams to the launcher's `broker`; `remote` asks the worker's agent over mTLS; there `daemons` starts it.
Each rank is started inside `rank_wrapper`, which tells the agent's `rank_desk` that it lives and how it ended.
"""
