"""Horovod's MNIST example for the data service on Spark in the same structure: ranks run in Spark's tasks.

spark-submit --master "local[2]" --py-files mnist_data_service.py spark_data_service.py compute.json
"""

import sys

from mnist_data_service import train_compute_side
from pyspark.sql import SparkSession

from ringtrain.spark import run
from ringtrain_data_service.tensorflow.compute_service import TfDataServiceConfig

if __name__ == "__main__":
    compute_config = TfDataServiceConfig.read(sys.argv[1], wait_for_file_creation=True)
    ranks = SparkSession.builder.getOrCreate().sparkContext.defaultParallelism
    run(
        train_compute_side,
        args=(compute_config,),
        kwargs={"reuse_dataset": True, "round_robin": False},
        num_proc=ranks,
        stdout=sys.stdout,
        stderr=sys.stderr,
    )
    compute_config.compute_client(verbose=2).shutdown()
