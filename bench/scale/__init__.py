"""Cost of the launcher, the operator and ranks by the number of workers."""
