"""Model repositories of a fleet, and questions whose answers identify the version that gave them.

Every model is y = factor * x. x holds whole numbers drawn for one request, of so few bits that the
product is exact in half precision too. So a right answer is right to the bit, and fits no other
request.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
from life_cycle_models import SYNCHRONOUS, WIDTH, exchange, scale_model
from poprt import Compiler, Converter
from poprt.triton.model_folder import write_triton_model

Array = npt.NDArray[Any]

LARGEST = 400
"""Largest number in an input; five times that is exact in half."""
FACTORS = {1: 2, 2: 3, 3: 5}
"""Factor of the model by version."""


@dataclass(frozen=True, slots=True)
class Model:
    """Options with which one of the models is compiled and served."""

    name: str
    precision: str = "fp32"
    instances: int = 1
    is_synchronous: bool = True
    is_isolated: bool = False
    delay_ms: int = 0
    """Extra duration of every run, so that there is always a request in progress when a process is
    killed."""
    max_batch_size: int | None = None
    """Maximum rows of a run; None for the compiler's choice."""

    def draw(self, random: Random) -> Array:
        """Return an input that no other request has: 512 numbers."""
        rows = np.frombuffer(random.randbytes(4 * WIDTH), np.uint32).reshape(1, WIDTH)
        numbers: Array = (rows % (2 * LARGEST + 1)).astype(np.int64) - LARGEST
        return numbers.astype(self.dtype)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type of its input and output."""
        return np.dtype(np.float16 if self.precision == "fp16" else np.float32)

    def find_version(self, x: Array, y: Array) -> int | None:
        """Return the version that answers `x` with `y`; None if none does."""
        for version, factor in FACTORS.items():
            if y.dtype == x.dtype and np.array_equal(y, x * x.dtype.type(factor)):
                return version
        return None


PLAIN = Model("plain", delay_ms=20)
MIXED = (
    Model("single_instances", instances=2),
    Model("half", precision="fp16"),
    Model("isolated", is_isolated=True),
    Model("isolated_half", precision="fp16", is_isolated=True),
    Model("queued", is_synchronous=False),
    Model("queued_half_instances", precision="fp16", instances=2, is_synchronous=False),
)
"""Models of the soak."""
SLOW = Model("slow", delay_ms=50, max_batch_size=4)
"""Computes at most 80 requests a second."""


def write_version(folder: Path, model: Model, version: int) -> Path:
    """Write a model folder that has only this version.

    Its configuration has the model's options and serves two versions.
    """
    factor = FACTORS[version]
    compiled = Compiler.compile(
        Converter(batch_size=4, precision=model.precision).convert(scale_model(factor))
    )
    write_triton_model(compiled, folder)
    (folder / "1").rename(folder / str(version))
    config = folder / "config.pbtxt"
    if not model.is_synchronous:
        exchange(config, SYNCHRONOUS, "")
    if model.max_batch_size is not None:
        text = config.read_text()
        config.write_text(
            re.sub(r"max_batch_size: \d+", f"max_batch_size: {model.max_batch_size}", text)
        )
    parameters = {
        "sim_isolation": "process" if model.is_isolated else "",
        "execute_delay_ms": model.delay_ms,
    }
    lines = [_parameter(name, str(value)) for name, value in parameters.items() if value]
    exchange(config, "instance_group", "\n".join([*lines, "instance_group"]))
    exchange(config, "{ kind: KIND_CPU }", f"{{ kind: KIND_CPU count: {model.instances} }}")
    with config.open("a") as file:
        file.write("version_policy { latest { num_versions: 2 } }\n")
    return folder


def _parameter(name: str, value: str) -> str:
    return f'parameters {{ key: "{name}" value {{ string_value: "{value}" }} }}'
