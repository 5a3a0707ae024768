"""Replacement for Graphcore's `tensorflow.python.ipu`, which the plugin ringtrain-graphcore provides."""

from ringtrain.shared.plugins import provide

provide(__name__, "ringtrain_graphcore.ipu")
