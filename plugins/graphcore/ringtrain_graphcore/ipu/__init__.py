"""Replacement for Graphcore's `tensorflow.python.ipu` in scripts that train on many hosts: `from ringtrain.tensorflow
import ipu`.

    tf.estimator = ipu.estimator       # TensorFlow has none any more

Functions that choose and configure IPUs are accepted without effect: TensorFlow's own devices are used.

Maturity: Beta. Tested on CPUs, never on an IPU.
"""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from ringtrain_graphcore import distribute as estimator

__all__ = [
    "estimator",
    "ipu_estimator",
    "ipu_multi_worker_strategy",
    "ipu_run_config",
    "utils",
]


@dataclass(frozen=True)
class IpuRunConfig(estimator.RunConfig):
    """`distribute.RunConfig` that accepts and ignores `ipu_run_config`."""

    ipu_run_config: Any = None


def _accepted(*args: Any, **kwargs: Any) -> SimpleNamespace:
    """Accept any options and return the keyword options as attributes; they have no effect."""
    return SimpleNamespace(**kwargs)


ipu_estimator = SimpleNamespace(IPUEstimator=estimator.Estimator, IPUEstimatorSpec=estimator.EstimatorSpec)
ipu_multi_worker_strategy = SimpleNamespace(IPUMultiWorkerStrategy=estimator.MultiWorkerStrategy)
ipu_run_config = SimpleNamespace(IPURunConfig=_accepted, RunConfig=IpuRunConfig)
utils = SimpleNamespace(
    auto_select_ipus=_accepted,
    configure_ipu_system=_accepted,
    create_ipu_config=_accepted,
    select_ipus=_accepted,
)
