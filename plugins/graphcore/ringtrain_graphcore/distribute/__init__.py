"""Strategies and an Estimator for TensorFlow 2, with the API of Graphcore's multi-host training.

    import ringtrain.tensorflow.distribute as distribute

Scripts for `IPUMultiWorkerStrategy`, `IPUHorovodStrategy` and an Estimator (`tf.estimator`) whose `host_call` updates
weights on the host need few changes.

Maturity: Beta. Tested on CPUs, never on an IPU.
"""

import tensorflow as tf

from ringtrain_graphcore.distribute.estimator import Estimator
from ringtrain_graphcore.distribute.specs import EstimatorSpec, EvalSpec, ModeKeys, RunConfig, TrainSpec
from ringtrain_graphcore.distribute.strategy import HorovodStrategy, MultiWorkerStrategy
from ringtrain_graphcore.distribute.train_and_evaluate import train_and_evaluate

InputContext = tf.distribute.InputContext

__all__ = [
    "Estimator",
    "EstimatorSpec",
    "EvalSpec",
    "HorovodStrategy",
    "InputContext",
    "ModeKeys",
    "MultiWorkerStrategy",
    "RunConfig",
    "TrainSpec",
    "train_and_evaluate",
]
