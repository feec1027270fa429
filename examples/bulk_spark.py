"""Bulk inference with Spark: `mapInPandas`, a Python worker per core, the model open for each
partition.

    python examples/bulk_spark.py executable.popef rows/ answers/

Reads Parquet files with a column `id` and the features of a row, and writes `id` and the model's
output `y`. The partition of a worker that dies is computed again. Spark needs Java 17 or later, on
PATH or in JAVA_HOME.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import numpy as np
import pandas as pd
from model_runtime import ModelRunner, ModelRunnerConfig
from pyspark.sql import SparkSession

CONFIG = ModelRunnerConfig(batching_dim=0, timeout_ns=1, num_threads=1)
"""Any number of rows, of which none waits for others, on one core."""
BATCH_ROWS, MAX_FAILURES = 32_768, 4


class Predictor:
    """The model in one process."""

    def __init__(self, model: str) -> None:
        self.runner = ModelRunner(model, CONFIG)

    def __call__(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the answers of some rows."""
        x = np.ascontiguousarray(rows.drop(columns="id").to_numpy(np.float32))
        y = self.runner.execute({"x": x})["y"]
        return pd.DataFrame({"id": rows["id"], "y": y[:, 0]})


def run(
    model: str, source: str, target: str, cores: int, predictor: type[Predictor] = Predictor
) -> None:
    """Compute the answers of the rows in the folder `source`."""

    def predict(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        opened = predictor(model)  # once for a partition
        return map(opened, batches)

    # Workers run the python3 on PATH otherwise, which may be another environment's.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # In local mode a failed task is not tried again unless the master says how often.
    builder = SparkSession.builder.master(f"local[{cores},{MAX_FAILURES}]")
    spark = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", BATCH_ROWS).getOrCreate()
    answers = spark.read.parquet(source).mapInPandas(predict, "id long, y float")
    answers.write.parquet(target)
    spark.stop()


if __name__ == "__main__":
    run(*sys.argv[1:4], os.cpu_count() or 1)
