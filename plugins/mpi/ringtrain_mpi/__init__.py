"""MPI jobs without sshd: the parts that mpirun and the ranks start, and what agent and launcher share.

In the order of a job's life: `launcher/job` prepares mpirun's command line and environment and runs it;
mpirun calls `rsh_client` in the place of ssh, which hands its streams to `launcher/broker`;
`launcher/remote` asks the worker's agent over mTLS; there `agent/daemons` starts it. Each rank is started
inside `rank_wrapper`, which tells the agent's `rank_registry` that it lives and how it ended.
"""
