"""The models that hostile requests go to: their files, their valid requests and the right
answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from life_cycle_models import QUICKLY, exchange
from poprt import Compiler, Converter
from poprt.triton.model_folder import write_triton_model
from sample_models import gather_model, linear_model

Array = npt.NDArray[Any]

TABLE = np.arange(30, dtype=np.float32).reshape(10, 3)
MAX_ROWS = 64
"""max_batch_size of all models: a request of more rows than that is small."""
DELAY_MS = 100
"""Delay of the models that hold up their requests.

Triton 2.51 (24.10) ends if a call over gRPC is cancelled, or its deadline passes, at the moment in
which it is answered, with any backend (24.12 fixes it). The clients' deadlines end long before
that.
"""
OPTIONS = [QUICKLY, "--log-error=false", "--log-warning=false"]
"""Options of the server. Triton logs some rejected requests, with names as they came."""


REGION, REGION_BYTES = "hostile_region", 256
"""Shared memory that the server knows of; no request here may read or write beyond it."""

SIZES = (0, -1, -(2**31), -(2**63), 2**31 - 1, 2**31, 2**32, 2**40, MAX_ROWS + 1)
JSON_SHAPES = (
    [0, 4],
    [-1, 4],
    [-4, 4],
    [-1, -1],
    [-(2**63), 4],
    [2**62, 4],
    [2**32, 2**32],
    [1000, 1000],
    [3, 3],
    [0, 0],
)
"""Shapes of data in JSON. Triton 2.51 allocates such data by their shape alone: a shape of 2^40
fits into its integers but into no memory, and ends it, with any backend."""
TYPES = (
    "BOOL",
    "UINT8",
    "INT16",
    "INT32",
    "INT64",
    "UINT64",
    "FP16",
    "FP32",
    "FP64",
    "BF16",
    "BYTES",
    "",
    "fp32",
    "TYPE_FP32",
)
VALUES = (
    b"NaN",
    b"Infinity",
    b"-Infinity",
    b"1e999",
    b"-0",
    b"1e400",
    b"18446744073709551616",
    b"-1.5",
    b"01",
    b"true",
)
NAMES = (
    "",
    "\x1b[2J",
    "line\nline",
    "nul\0nul",
    "\"'\\`$(id)",
    "%s%n%x",
    "../../etc/passwd",
    "\u202e\u2028",
    "n" * 100_000,
    "é" * 3000,
)


class Wanted(Enum):
    """Required outcome of a case."""

    REFUSED = "refused"
    ANSWERED = "answered rightly"
    EITHER = "either"


ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "131072"}
"""Environment of the server: a fixed threshold at glibc's initial value.

Otherwise glibc raises the size above which memory is returned at once. Blocks of hundreds of
kilobytes between smaller ones then look like a leak of some 6 KB a request.
"""


@dataclass(frozen=True, slots=True)
class Served:
    """One model with a single input, of rows of `width` values."""

    name: str
    input: str
    datatype: str
    width: int
    output: str

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.int32 if self.datatype == "INT32" else np.float32)

    @property
    def takes_indices(self) -> bool:
        return self.datatype == "INT32"

    def make_rows(self, random: Random, rows: int | None = None) -> Array:
        """Return an input that the model computes."""
        numbers = [random.randrange(10) for _ in range((rows or random.randint(1, 5)) * self.width)]
        return np.array(numbers, self.dtype).reshape(-1, self.width)

    def compute(self, rows: Array) -> Array:
        """Return the answer that `rows` must get, in `output`."""
        return TABLE[rows] if self.takes_indices else 2 * rows


def _gather(name: str) -> Served:
    return Served(name, "ids", "INT32", 2, "rows")


def _linear(name: str) -> Served:
    return Served(name, "x", "FP32", 4, "z")


GATHERING = (_gather("gather_sync"), _gather("gather_async"), _gather("gather_isolated"))
LINEAR = (_linear("linear_sync"), _linear("linear_async"))
SLOW = (_linear("slow_sync"), _linear("slow_async"))
MODELS = (*GATHERING, *LINEAR)


def write_repository(repository: Path) -> None:
    """Write all models, of every mode."""
    _write(repository, gather_model(), (*GATHERING,))
    _write(repository, linear_model(), (*LINEAR, *SLOW))


def _write(repository: Path, model: onnx.ModelProto, models: tuple[Served, ...]) -> None:
    compiled = Compiler.compile(Converter(batch_size=8).convert(model))
    for served in models:
        parameters = {"synchronous_execution": str(int(served.name.endswith("_sync")))}
        if served.name.endswith("_isolated"):
            parameters["sim_isolation"] = "process"
        if served.name.startswith("slow"):
            parameters["execute_delay_ms"] = str(DELAY_MS)
        folder = repository / served.name
        write_triton_model(compiled, folder)
        config = folder / "config.pbtxt"
        entries = [
            f'{{ key: "{key}" value: {{ string_value: "{value}" }} }}'
            for key, value in parameters.items()
        ]
        tensors = config.read_text().partition("parameters {")[0]
        config.write_text(
            f"{tensors}parameters [{', '.join(entries)}]\ninstance_group [{{ kind: KIND_CPU }}]\n"
        )
        exchange(config, "max_batch_size: 8000", f"max_batch_size: {MAX_ROWS}")
