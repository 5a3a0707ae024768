"""Code shared by Spark and Ray: start the launcher, an agent with its rank in each task, and collect the results."""
