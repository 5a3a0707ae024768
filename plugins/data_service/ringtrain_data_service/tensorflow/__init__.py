"""TensorFlow's data service (tf.data on other processes), with Horovod's names for modules and functions."""
