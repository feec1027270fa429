"""Interface of every demonstration of a model, independent of any one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from popef._tools.arrays import Array

# Half precision: 11 bits of mantissa through a hundred layers; the decision must be the same as
# well.
HALF_TOLERANCE = 2e-2

Tensors = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Case:
    """One request: a batch for each input, by its name in `config.pbtxt`, in the original ONNX
    model's dtype."""

    title: str
    inputs: Tensors
    subjects: tuple[str, ...]

    @property
    def rows(self) -> int:
        """Number of rows of each input; one for each subject."""
        return len(self.subjects)


class Example(Protocol):
    """Real inputs for a model of the repository, and its answers in words."""

    @property
    def model(self) -> str:
        """Name of the model in the repository."""

    @property
    def half_tolerance(self) -> float:
        """Maximum difference of a half-precision output from ONNX Runtime's float output, relative
        to its largest value. The answers must be the same."""

    def cases(self) -> list[Case]:
        """Return the requests to send; they are the same in every call."""

    def decide(self, outputs: Tensors, /) -> list[str]:
        """Return the answer to each row without its confidence. Two ways to compute it must agree
        on this."""

    def describe(self, outputs: Tensors, case: Case, /) -> list[str]:
        """Describe the answers in words; `outputs` have their names in `config.pbtxt`."""


def together(cases: list[Case]) -> Case:
    """Join all rows of some cases into one request."""
    names = cases[0].inputs
    inputs = {name: np.concatenate([case.inputs[name] for case in cases]) for name in names}
    return Case(
        "all together", inputs, tuple(subject for case in cases for subject in case.subjects)
    )


def read_lines(path: Path) -> list[str]:
    """Return the lines of a text file. Only a line feed ends a line, because a line may be any
    other single character."""
    with path.open(encoding="utf-8", newline="\n") as file:
        return file.read().removesuffix("\n").split("\n")
