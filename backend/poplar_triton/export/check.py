"""Comparison of an exported model, run by its own engine, with this project's runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from model_runtime import Session
from poprt.comparing import MIN_ROWS, iter_made_up, measure_difference
from simipu import RunError, read_static

from popef._tools.arrays import Array
from poplar_triton.errors import ExportError
from poplar_triton.export.source import ExportSource, Port

Answers = dict[str, Array]
Run = Callable[[Answers], Answers]
"""Function that computes the outputs of a request, by the names that clients use."""
FLOAT_LIMIT, HALF_LIMIT = 1e-4, 2.0**-8
"""Maximum difference of an output, relative to its largest value: engines add in different orders,
and a half that falls on the other side of a tie differs by 2^-10 of itself."""


@dataclass(slots=True)
class AnswerDifference:
    """Greatest difference of each output, relative to its largest value, over all requests."""

    worst: dict[str, float]
    num_rows: int = 0

    @property
    def greatest(self) -> float:
        """Greatest of all."""
        return max(self.worst.values(), default=0.0)

    def find_fault(self, dtypes: Mapping[str, np.dtype[Any]]) -> str:
        """Return the first output that differs by more than its type allows, or ""."""
        limits = {"f2": HALF_LIMIT, "f4": FLOAT_LIMIT, "f8": FLOAT_LIMIT}
        for name, difference in self.worst.items():
            limit = limits.get(dtypes[name].str[1:], 0.0)
            if not difference <= limit:
                return (
                    f"output {name!r}: expected a difference of at most {limit:g}, found "
                    f"{difference:g}"
                )
        return ""


@dataclass(frozen=True, slots=True)
class AnswerComparison:
    """Difference between an exported model and this project's runtime: with the same rounding, and
    with that of the served model if it is another one."""

    engine: str
    same: AnswerDifference
    served: AnswerDifference | None


def compare(source: ExportSource, engine: str, run: Run, numerics: str) -> AnswerComparison:
    """Compare an exported model on generated requests.

    Raises ExportError if an answer differs by more than the engines' order of additions explains,
    and if the model rejects all generated requests.
    """
    served = source.state.parameters.sim_numerics
    twin = source.session if served == numerics else source.open_session(numerics)
    requests = list(iter_requests(source))
    answers = [run_onnx(engine, run, request) for request in requests]
    same = _measure(source, twin, requests, answers)
    dtypes = {port.name: np.dtype(port.stream.dtype) for port in source.outputs}
    if fault := same.find_fault(dtypes):
        raise ExportError(
            f"model {source.name!r}, computed by {engine}, differs from this project's runtime: "
            f"{fault} (of the output's largest value); --no-check writes it without a comparison"
        )
    other = None if twin is source.session else _measure(source, source.session, requests, answers)
    return AnswerComparison(engine, same, other)


def open_onnx(file: Path, threads: int) -> tuple[str, Run]:
    """Return ONNX Runtime's name, and a function that runs the model of a file with it."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    try:
        session = onnxruntime.InferenceSession(file, options, ["CPUExecutionProvider"])
    except Exception as error:  # its classes have no common base
        raise ExportError(f"ONNX Runtime cannot load the exported model: {error}") from error
    names = [result.name for result in session.get_outputs()]

    def run(request: Answers) -> Answers:
        return dict(zip(names, session.run(names, request), strict=True))

    return f"ONNX Runtime {onnxruntime.__version__}", run


def run_onnx(engine: str, run: Run, request: Answers) -> Answers:
    """Return what the engine computes; raises ExportError for what it cannot."""
    try:
        return run(request)
    except Exception as error:  # the engines' classes have no common base
        raise ExportError(f"{engine} cannot run the exported model: {error}") from error


def iter_requests(source: ExportSource) -> Iterator[Answers]:
    """Yield requests as clients send them: whole batches, and if possible one row, and one more
    than a batch."""
    program, batch = source.program, source.program.batch_size
    requests = [
        {stream.tensor: values[stream.tensor].astype(stream.dtype) for stream in program.inputs}
        for values in iter_made_up(read_static(program), program.inputs, batch, MIN_ROWS)
    ]
    accepted = [request for request in requests if _is_accepted(source, request)]
    if not accepted:
        raise ExportError(
            f"model {source.name!r} rejects all generated inputs, so that no answers can be "
            "compared; --no-check writes it without a comparison"
        )
    for request in accepted:
        yield {port.name: _to_wire(port, request[port.stream.tensor]) for port in source.inputs}
    if source.is_open and batch > 1 and source.inputs:
        for count in (1, batch + 1):
            numbers = np.arange(count) % batch
            yield {
                port.name: _to_wire(
                    port,
                    accepted[0][port.stream.tensor].take(numbers, port.stream.batch_axis),
                )
                for port in source.inputs
            }


def _is_accepted(source: ExportSource, feeds: Mapping[str, Array]) -> bool:
    """Return whether the model computes inputs: random indices may lie outside of a table that
    another input selects."""
    request = {port.name: _to_wire(port, feeds[port.stream.tensor]) for port in source.inputs}
    try:
        _answer(source, source.session, request)
    except RunError:
        return False
    return True


def _to_wire(port: Port, value: Array) -> Array:
    """Return a tensor of the graph in the shape that a request has."""
    if len(port.wire_shape) == value.ndim:
        return value
    return value.reshape(_sizes(port.wire_shape, value))


def _sizes(shape: tuple[int, ...], value: Array) -> tuple[int, ...]:
    """Return a shape with its open axis settled."""
    return shape if value.size else tuple(max(0, size) for size in shape)


def _answer(source: ExportSource, session: Session, request: Mapping[str, Array]) -> Answers:
    """Return this project's answers to a request, in the shapes of the graph."""
    batched = bool(source.program.batch_size)
    rows = {}
    for port in source.inputs:
        value = request[port.name].reshape(_sizes(port.shape, request[port.name]))
        anchor = source.state.inputs[port.name].anchor
        rows[anchor] = np.moveaxis(value, port.stream.batch_axis, 0) if batched else value[None]
    outputs = session.run(rows)
    answers = {}
    for port in source.outputs:
        value = outputs[source.state.outputs[port.name].anchor]
        answers[port.name] = np.moveaxis(value, 0, port.stream.batch_axis) if batched else value[0]
    return answers


def _measure(
    source: ExportSource, session: Session, requests: list[Answers], answers: list[Answers]
) -> AnswerDifference:
    difference = AnswerDifference(dict.fromkeys((port.name for port in source.outputs), 0.0))
    for request, answer in zip(requests, answers, strict=True):
        expected = _answer(source, session, request)
        for port in source.outputs:
            value = expected[port.name]
            actual = answer[port.name]
            if actual.size != value.size or actual.dtype != value.dtype:
                raise ExportError(
                    f"output {port.name!r}: expected {value.dtype} of shape {value.shape}, found "
                    f"{actual.dtype} of shape {actual.shape}"
                )
            worst = difference.worst[port.name]
            difference.worst[port.name] = max(
                worst, measure_difference(actual.reshape(value.shape), value)
            )
        difference.num_rows += count_rows(source, request)
    return difference


def count_rows(source: ExportSource, request: Mapping[str, Array]) -> int:
    """Return the number of rows of a request; 1 for a model without a batch."""
    port = next(iter(source.inputs), None)
    if port is None or not source.program.batch_size:
        return 1
    return int(request[port.name].size // max(1, int(np.prod(port.stream.row_shape))))
