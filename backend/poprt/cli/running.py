"""The option --run: run a compiled model on random data, timed on this machine's CPU."""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from model_runtime import DataDesc, ModelRunner, ModelRunnerConfig

import popef
from popef._tools.arrays import Array
from poprt.compile.executable import Executable

_SECONDS = 1.0
_MAX_RUNS = 100


@dataclass(frozen=True, slots=True)
class Timing:
    """Number of rows of a run, its median time in seconds, and rows per second."""

    batch_size: int
    latency_seconds: float
    throughput: float

    def describe(self) -> list[str]:
        """Return the real tool's three lines."""
        return [
            f"Bs: {self.batch_size}",
            f"Latency: {self.latency_seconds * 1e3:.2f}ms",
            f"Tput: {self.throughput:.0f}",
        ]


def time_runs(executable: Executable) -> Timing:
    """Run the executable for about a second, one run at a time, after a warm-up run."""
    with tempfile.TemporaryDirectory(prefix="poprt-") as folder:
        path = Path(folder, "executable.popef")
        executable.export(path)
        with ModelRunner(path, ModelRunnerConfig(index_check="clamp")) as runner:
            fed = {desc.name: _make_up(desc) for desc in runner.getExecuteInputs()}
            runner.execute(fed)
            taken: list[float] = []
            while len(taken) < _MAX_RUNS and sum(taken) < _SECONDS:
                start = time.perf_counter()
                runner.execute(fed)
                taken.append(time.perf_counter() - start)
    rows = max(1, executable.batch_size)
    return Timing(rows, statistics.median(taken), rows * len(taken) / sum(taken))


def _make_up(desc: DataDesc) -> Array:
    """Return random values for an input; in a fused model the first model is selected."""
    if desc.name == popef.INDEX:
        return np.zeros(desc.shape, desc.numpy_data_type())
    rng = np.random.default_rng(0)
    dtype = desc.numpy_data_type()
    drawn = rng.random(desc.shape) if dtype.kind == "f" else rng.integers(0, 2, desc.shape)
    return np.asarray(drawn).astype(dtype)
