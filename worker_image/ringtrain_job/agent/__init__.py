"""PID 1 of a worker pod: joins the gang, runs the ranks, sends their output to the launcher."""
