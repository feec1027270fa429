"""Bulk inference with Dask: a worker process per core, each with the model open.

    python examples/bulk_dask.py executable.popef rows/ answers/

Reads Parquet files with a column `id` and the features of a row, and writes `id` and the model's
output `y`. A worker that dies is started again with the model, and its partitions are computed
again.
"""

from __future__ import annotations

import os
import sys

import dask
import dask.dataframe
import numpy as np
import pandas as pd
from dask.distributed import Client, LocalCluster, Worker, WorkerPlugin, get_worker
from model_runtime import ModelRunner, ModelRunnerConfig

CONFIG = ModelRunnerConfig(batching_dim=0, timeout_ns=1, num_threads=1)
"""Any number of rows, of which none waits for others, on one core."""


class Predictor:
    """The model in one process."""

    def __init__(self, model: str) -> None:
        self.runner = ModelRunner(model, CONFIG)

    def __call__(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the answers of some rows."""
        x = np.ascontiguousarray(rows.drop(columns="id").to_numpy(np.float32))
        y = self.runner.execute({"x": x})["y"]
        return pd.DataFrame({"id": rows["id"], "y": y[:, 0]})


class OpenModel(WorkerPlugin):
    """Opens the model when a worker starts, and when one is started again."""

    def __init__(self, model: str, predictor: type[Predictor]) -> None:
        self.model, self.predictor = model, predictor

    def setup(self, worker: Worker) -> None:
        """Called in the worker's process."""
        worker.predictor = self.predictor(self.model)


def predict(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the answers of a partition."""
    return get_worker().predictor(rows)


def run(
    model: str, source: str, target: str, cores: int, predictor: type[Predictor] = Predictor
) -> None:
    """Compute the answers of the rows in the folder `source`."""
    with LocalCluster(n_workers=cores, threads_per_worker=1) as cluster, Client(cluster) as client:
        client.register_plugin(OpenModel(model, predictor))
        rows = dask.dataframe.read_parquet(source)
        rows.map_partitions(predict, meta={"id": "int64", "y": "float32"}).to_parquet(target)


if __name__ == "__main__":
    run(*sys.argv[1:4], os.cpu_count() or 1)
