"""TensorFlow data workers on Spark: `spark-submit --master "local[4]" …/spark/tensorflow/compute_worker.py CONFIG`."""

from __future__ import annotations

import logging
import signal
import sys
from pathlib import Path
from typing import Any

import click
from pyspark.sql import SparkSession

from ringtrain.errors import RingtrainError
from ringtrain_clusters.spark import run
from ringtrain_data_service.tensorflow.compute_worker import TfDataComputeOptions, compute_options, tf_data_directory


def serve_rank(plain: dict[str, Any]) -> None:
    """Run a rank of the compute job (data worker, maybe dispatcher) in its Spark task. `plain`: TfDataServiceConfig."""
    from ringtrain_data_service.tensorflow.compute_service import TfDataServiceConfig, compute_worker_fn
    from ringtrain_data_service.tensorflow.servers import TfDataServerProcesses

    config = TfDataServiceConfig.from_dict(plain)
    compute_worker_fn(config, TfDataServerProcesses(config.timeout, forked=True))


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@compute_options
@click.option("--log-dir", type=click.Path(file_okay=False, path_type=Path), default=Path("runs"), show_default=True)
def main(options: TfDataComputeOptions, log_dir: Path) -> None:
    """Serve TensorFlow datasets from all task slots of a Spark cluster to the training job that reads CONFIGFILE.

    The driver writes CONFIGFILE. The compute job ends when the training job ends it.
    """
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s ringtrain data: %(message)s")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    spark = SparkSession.builder.getOrCreate()
    try:
        ranks = spark.sparkContext.defaultParallelism
        with tf_data_directory(options, ranks) as plain:
            run(serve_rank, args=(plain,), num_proc=ranks, log_dir=log_dir)
    except RingtrainError as error:
        raise click.ClickException(str(error)) from error
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
