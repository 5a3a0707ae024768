"""MPI jobs without sshd: programs that mpirun and the ranks start, and code shared by agent and launcher.

In the order of a job's life: `launcher/job` prepares mpirun's command line and environment and runs it. mpirun calls
`rsh_client` instead of ssh, which passes its streams to `launcher/broker`. `launcher/remote` calls the worker's agent
over mTLS, where `agent/daemons` starts mpirun's daemon. Each rank runs inside `rank_wrapper`, which reports its start
and its end to the agent's `rank_registry`.
"""
