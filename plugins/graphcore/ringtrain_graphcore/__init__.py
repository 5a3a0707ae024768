"""Graphcore's API on top of Ringtrain: PopART, device sessions, IPU strategies, tf.estimator."""
