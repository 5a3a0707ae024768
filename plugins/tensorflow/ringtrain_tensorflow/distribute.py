"""Estimator and strategies with `tf.estimator`'s names, which the plugin ringtrain-graphcore provides."""

from ringtrain.shared.plugins import provide

provide(__name__, "ringtrain_graphcore.distribute")
