"""Agent: PID 1 of a worker pod. It registers with the launcher, runs the ranks and sends their output."""
