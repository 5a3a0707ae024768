"""Train on a Ray cluster: `ringtrain.ray.run(train, num_workers=4)` runs a function as ranks in Ray's actors.

Maturity: Experimental.
"""

from importlib.util import find_spec

if find_spec("ray") is None:
    raise ModuleNotFoundError(
        "ringtrain.ray needs ray, which is not installed: pip install 'ringtrain[ray]'", name="ray"
    )

from ringtrain_clusters.ray.executor import RayExecutor
from ringtrain_clusters.ray.runner import run

__all__ = ["RayExecutor", "run"]
