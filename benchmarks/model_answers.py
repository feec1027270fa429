"""Differences between a served model's answers and those of ONNX Runtime on the original file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as states

Array = npt.NDArray[np.generic]
Arrays = Mapping[str, Array]

ORIGINAL_ERRORS = (
    states.Fail,
    states.InvalidArgument,
    states.InvalidGraph,
    states.NotImplemented,
    states.RuntimeException,
)
"""Errors that ONNX Runtime raises for a file or an input that it does not accept."""
FLOAT_TOLERANCE = 1e-4
"""Tolerance in float, relative to max(1, largest value)."""
HALF_TOLERANCE = 0.02
"""Tolerance in half, relative to the largest value: the compiler must warn of an answer that is
further off."""
CLASSES = re.compile("softmax|prob|logit|label", re.IGNORECASE)
SUM_TOLERANCE = 1e-3


@dataclass(slots=True)
class Difference:
    """Differences over all answers of one output.

    They are the largest error, the largest expected value, the number of values that are not finite
    although expected (or the other way round), and the number of agreeing labels, if the output
    looks like classes.
    """

    error: float = 0.0
    largest: float = 0.0
    misplaced: int = 0
    labels: int = 0
    agreeing: int = 0

    @property
    def relative(self) -> float:
        """The error over the largest value; infinite where values are misplaced."""
        if self.misplaced:
            return float("inf")
        return self.error / self.largest if self.largest else float(self.error > 0)

    @property
    def scaled(self) -> float:
        """The error over max(1, largest value)."""
        return float("inf") if self.misplaced else self.error / max(1.0, self.largest)

    def add(self, name: str, right: Array, found: Array) -> None:
        """Count an answer in; both of one shape."""
        expected_values, actual_values = right.astype(np.float64), found.astype(np.float64)
        finite = np.isfinite(expected_values) & np.isfinite(actual_values)
        same = (
            finite
            | (expected_values == actual_values)
            | (np.isnan(expected_values) & np.isnan(actual_values))
        )
        self.misplaced += int(np.count_nonzero(~same))
        if finite.any():
            self.error = max(
                self.error, float(np.abs(expected_values[finite] - actual_values[finite]).max())
            )
            self.largest = max(self.largest, float(np.abs(expected_values[finite]).max()))
        if looks_like_classes(name, right):
            agree = expected_values.argmax(-1) == actual_values.argmax(-1)
            self.labels += agree.size
            self.agreeing += int(np.count_nonzero(agree))


@dataclass(slots=True)
class Differences:
    """The outputs of a model, and the first answer that could not be compared at all."""

    outputs: dict[str, Difference] = field(default_factory=dict)
    requests: int = 0
    problem: str = ""

    def add(self, right: Arrays, found: Arrays) -> None:
        """Count one request's answer in."""
        self.requests += 1
        for name, expected in right.items():
            actual = (
                found[name].reshape(expected.shape)
                if expected.size == found[name].size == 1
                else found[name]
            )
            if actual.shape != expected.shape:
                self.problem = (
                    self.problem
                    or f"{name} has shape {list(actual.shape)}, expected {list(expected.shape)}"
                )
                continue
            self.outputs.setdefault(name, Difference()).add(name, expected, actual)

    def worst(self) -> Difference:
        """Return the output with the largest relative difference."""
        return max(self.outputs.values(), key=lambda each: each.relative, default=Difference())

    @property
    def scaled(self) -> float:
        """The largest error over max(1, largest value of its output)."""
        return max((output.scaled for output in self.outputs.values()), default=0.0)

    @property
    def agreement(self) -> float | None:
        """The part of the labels that agree; None where no output looks like classes."""
        labels = sum(output.labels for output in self.outputs.values())
        return sum(output.agreeing for output in self.outputs.values()) / labels if labels else None


def looks_like_classes(name: str, values: Array) -> bool:
    """Return whether the last axis has a number for each of several classes.

    It does if its name says so, or if it sums to one.
    """
    if (
        values.ndim == 0
        or values.shape[-1] <= 1
        or values.dtype.kind != "f"
        or not np.isfinite(values).all()
    ):
        return False
    return bool(CLASSES.search(name)) or bool(
        np.greater_equal(values, 0).all()
        and np.allclose(values.sum(-1), 1, rtol=0, atol=SUM_TOLERANCE)
    )


class Original:
    """An ONNX file in ONNX Runtime, in fp32.

    `axes` gives by tensor the axis of rows that are computed one by one (or as many at a time as
    the file has fixed). It is None if the tensors of a request are computed as they are.
    """

    def __init__(self, file: Path, axes: Mapping[str, int] | None) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # errors
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        self._session = onnxruntime.InferenceSession(
            str(file), options, providers=["CPUExecutionProvider"]
        )
        self._axes = axes
        self.types = {
            model_input.name: _dtype(model_input.type) for model_input in self._session.get_inputs()
        }

    def run(self, feeds: Arrays, outputs: list[str]) -> dict[str, Array]:
        """Return the expected outputs."""
        if self._axes is None:
            return self._run(feeds, outputs)
        chunk = self._chunk()
        rows = next(
            array.shape[self._axes[name]] for name, array in feeds.items() if name in self._axes
        )
        parts = []
        for start in range(0, rows, chunk):
            # The last chunk of a fixed size is filled up with rows that are there already.
            numbers = np.arange(start, start + chunk) % rows
            part = {
                k: array.take(numbers, self._axes[k]) if k in self._axes else array
                for k, array in feeds.items()
            }
            parts.append(self._run(part, outputs))
        return {name: self._join([part[name] for part in parts], name, rows) for name in outputs}

    def _join(self, parts: list[Array], name: str, rows: int) -> Array:
        """Join the rows of an output; an output without rows is the same in all parts."""
        assert self._axes is not None
        if name not in self._axes:
            return parts[0]
        axis = self._axes[name]
        return np.concatenate([np.atleast_1d(part) for part in parts], axis).take(
            np.arange(rows), axis
        )

    def _run(self, feeds: Arrays, outputs: list[str]) -> dict[str, Array]:
        return dict(zip(outputs, self._session.run(outputs, dict(feeds)), strict=True))

    def _chunk(self) -> int:
        assert self._axes is not None
        fixed = [
            model_input.shape[self._axes[model_input.name]]
            for model_input in self._session.get_inputs()
            if model_input.name in self._axes
            and isinstance(model_input.shape[self._axes[model_input.name]], int)
        ]
        return max(fixed, default=1)


def _dtype(text: str) -> np.dtype[np.generic]:
    """Return the dtype of ONNX Runtime's name of a tensor type, such as `tensor(int64)`."""
    name = text.removeprefix("tensor(").removesuffix(")")
    return np.dtype({"float": "float32", "double": "float64"}.get(name, name))
