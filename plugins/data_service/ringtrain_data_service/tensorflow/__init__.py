"""TensorFlow's data service, with Horovod's names: `compute_service` and `compute_worker`."""
