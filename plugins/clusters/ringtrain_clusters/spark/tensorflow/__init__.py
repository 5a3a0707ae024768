"""TensorFlow's data service on a Spark cluster: the program `compute_worker`."""
