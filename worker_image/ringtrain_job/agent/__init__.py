"""PID 1 of a worker pod: joins the gang, runs the ranks, ships what they write."""
