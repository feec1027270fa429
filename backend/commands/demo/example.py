"""What every demonstration of a model offers, and nothing about any one of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

# Half precision: 11 bits of mantissa through a hundred layers; the decision must be the same as well.
HALF_TOLERANCE = 2e-2

Array = npt.NDArray[Any]
Tensors = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Case:
    """One request: a batch for each input, by its name in `config.pbtxt`, in the original ONNX model's
    dtype."""

    title: str
    inputs: Tensors
    subjects: tuple[str, ...]

    @property
    def rows(self) -> int:
        """How many rows each input has; one for each subject."""
        return len(self.subjects)


class Example(Protocol):
    """Real inputs for a model of the repository, and its answers in words."""

    @property
    def model(self) -> str:
        """The model's name in the repository."""

    @property
    def half_tolerance(self) -> float:
        """How far an output in half may be from ONNX Runtime's in float, of its largest value; the answers
        must be the same."""

    def cases(self) -> list[Case]:
        """The requests to send; the same in every call."""

    def decide(self, outputs: Tensors, /) -> list[str]:
        """The answer to each row without its confidence: what may not differ between two ways to compute
        it."""

    def describe(self, outputs: Tensors, case: Case, /) -> list[str]:
        """The answers in words, outputs by their names in `config.pbtxt`."""


def together(cases: list[Case]) -> Case:
    """All rows of some cases in one request."""
    names = cases[0].inputs
    inputs = {name: np.concatenate([case.inputs[name] for case in cases]) for name in names}
    return Case("all together", inputs, tuple(subject for case in cases for subject in case.subjects))


def read_lines(path: Path) -> list[str]:
    """The lines of a text file; only line feeds end them, for a line may be any other single character."""
    with path.open(encoding="utf-8", newline="\n") as file:
        return file.read().removesuffix("\n").split("\n")
