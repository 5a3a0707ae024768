"""Graphcore's names on Ringtrain: PopART, device sessions, IPU strategies, tf.estimator."""
