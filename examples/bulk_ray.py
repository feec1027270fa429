"""Bulk inference with Ray Data: an actor per core, each with the model open.

    python examples/bulk_ray.py executable.popef rows/ answers/

Reads Parquet files with a column `id` and the features of a row, and writes `id` and the model's
output `y`. An actor that dies is started again, and its batches are computed again.
"""

from __future__ import annotations

import os
import sys

import numpy as np
import pandas as pd
import ray
from model_runtime import ModelRunner, ModelRunnerConfig

CONFIG = ModelRunnerConfig(batching_dim=0, timeout_ns=1, num_threads=1)
"""Any number of rows, of which none waits for others, on one core."""
BATCH_ROWS = 32_768


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
    ray.init(num_cpus=cores + 1)  # a core per actor, and one for the tasks that read and write
    answers = ray.data.read_parquet(source).map_batches(
        predictor,
        fn_constructor_args=(model,),
        batch_size=BATCH_ROWS,
        batch_format="pandas",
        compute=ray.data.ActorPoolStrategy(size=cores),
        num_cpus=1,
    )
    answers.write_parquet(target)
    ray.shutdown()


if __name__ == "__main__":
    run(*sys.argv[1:4], os.cpu_count() or 1)
