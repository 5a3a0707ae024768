"""Train on a Spark cluster: `ringtrain.spark.run(train, num_proc=4)` runs a function as ranks in Spark's tasks.

Maturity: Beta.
"""

from importlib.util import find_spec

if find_spec("pyspark") is None:
    raise ModuleNotFoundError(
        "ringtrain.spark needs pyspark, which is not installed: pip install 'ringtrain[spark]'", name="pyspark"
    )

from ringtrain_clusters.spark.elastic import run_elastic
from ringtrain_clusters.spark.runner import run

__all__ = ["run", "run_elastic"]
