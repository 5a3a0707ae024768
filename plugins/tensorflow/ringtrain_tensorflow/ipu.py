"""Names of Graphcore's `tensorflow.python.ipu`, from the plugin ringtrain-graphcore."""

from ringtrain.shared.plugins import provide

provide(__name__, "ringtrain_graphcore.ipu")
