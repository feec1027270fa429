"""Compiles random models about rows and compares every way to compute them with ONNX Runtime's
answers.

`make row-models` checks 5,000 of them. Rules are tested alone: the dry run, which would find a
wrong one, is left out, and asked afterwards whether it does.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from model_runtime import Session
from onnx import numpy_helper
from oracles import unoptimised_session
from poprt import Compiler, CompilerOptions, Converter
from poprt.compile.dry_run import dry_run
from poprt.compile.executable import Executable
from row_steps import make_row_model
from simipu import CompileError

Array = npt.NDArray[Any]

BOUND, HALF_BOUND = 1e-4, 2.0**-6
"""Tolerance of answers, relative to 1 or the largest; in half, between a row's result and its own
in the whole batch."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a model.

    It is equal, whole (rows depend on each other, and the rules say so), refused (rows are
    independent, but no rule says so), uncompiled, or wrong.
    """

    kind: str
    reason: str = ""
    is_found: bool = True
    """True if the dry run finds a wrong one."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model with two batches of rows, and ONNX Runtime's answers for the first."""

    model: onnx.ModelProto
    batch: int
    axis: int
    rows: Mapping[str, Array]
    others: Mapping[str, Array]
    expected: Sequence[Array]

    @property
    def names(self) -> list[str]:
        """The outputs."""
        return [value.name for value in self.model.graph.output]

    def take(self, numbers: Sequence[int]) -> dict[str, Array]:
        """Return some of the rows, as the model takes them."""
        return {name: value.take(numbers, self.axis) for name, value in self.rows.items()}

    def beside(self, number: int) -> dict[str, Array]:
        """Return one of the rows beside others."""
        mixed = {name: value.copy() for name, value in self.others.items()}
        for name, value in mixed.items():
            np.moveaxis(value, self.axis, 0)[number] = np.moveaxis(self.rows[name], self.axis, 0)[
                number
            ]
        return mixed

    def run(self, session: Session, feeds: Mapping[str, Array]) -> list[Array]:
        """Return a session's results for rows, along the first axis."""
        found = session.run(
            {name: np.moveaxis(value, self.axis, 0) for name, value in feeds.items()}
        )
        return [found[name] for name in self.names]


def check(seed: int, precision: str = "fp32") -> Outcome:
    """Return the outcome of the model of a seed.

    In half its rows are compared with those of its own batch.
    """
    model, batch, axis = make_row_model(seed)
    random = np.random.default_rng(seed)
    rows, others = (_draw(model, batch, axis, random) for _ in range(2))
    try:
        case = Case(model, batch, axis, rows, others, compute(model, rows))
    except _REFUSALS as error:
        return Outcome("invalid", str(error).splitlines()[0])
    options = CompilerOptions(skip_dry_run=True, show_compilation_progress_bar=False)
    try:
        converted = Converter(batch_size=batch, batch_axis=axis, precision=precision).convert(model)
        compiled = Compiler.compile(converted, None, options, batch_axis=axis)
    except CompileError as error:
        return Outcome("uncompiled", str(error).splitlines()[0])
    session = Session(compiled.getPopefModel())
    session.runLoadPrograms()
    try:
        if precision == "fp16":
            wrong = "" if compiled.rows.dependence else _find_wrong_half(case, session)
        elif compiled.rows.dependence is not None:
            return _check_whole(case, compiled, session)
        else:
            wrong = _find_wrong(case, compiled, session)
    finally:
        session.unloadFromDevice()
    return Outcome("wrong", wrong, dry_run(compiled) is not None) if wrong else Outcome("equal")


def _draw(
    model: onnx.ModelProto, batch: int, axis: int, random: np.random.Generator
) -> dict[str, Array]:
    drawn = {}
    for value in model.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        shape[axis] = batch
        drawn[value.name] = random.standard_normal(shape).astype(np.float32)
    return drawn


_REFUSALS = (
    onnxruntime.capi.onnxruntime_pybind11_state.Fail,
    onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument,
    onnxruntime.capi.onnxruntime_pybind11_state.InvalidGraph,
    onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented,
    onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException,
)


def compute(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """Return the answers of ONNX Runtime without its optimisers."""
    return list(unoptimised_session(model).run(None, dict(feeds)))


def _parts(batch: int) -> Iterator[list[int]]:
    for size in range(1, min(3, batch) + 1):
        yield from (list(range(first, first + size)) for first in range(batch - size + 1))
    yield list(reversed(range(batch)))


def _find_wrong(case: Case, compiled: Executable, session: Session) -> str:
    """Return which rows get another answer than in ONNX Runtime's batch, or alone; "" for none."""
    axes = [compiled.rows.axis(name) for name in case.names]

    def stack(answers: Sequence[Array]) -> list[Array]:
        return [np.moveaxis(value, axis, 0) for value, axis in zip(answers, axes, strict=True)]

    whole = stack(case.expected)
    for numbers in _parts(case.batch):
        feeds = case.take(numbers)
        found = case.run(session, feeds)
        apart = _find_apart(found, [value[numbers] for value in whole], case.names)
        if apart:
            return f"rows {numbers} of {apart}"
        try:
            alone = compute(case.model, feeds)
        except _REFUSALS:
            continue  # its constants are of the whole batch
        if any(one.ndim != other.ndim for one, other in zip(alone, case.expected, strict=True)):
            continue  # a Squeeze has taken the axis of a lone row
        if any(len(value) != len(numbers) for value in stack(alone)):
            continue  # an Expand has made a whole batch of it
        apart = _find_apart(found, stack(alone), case.names)
        if apart:
            return f"rows {numbers} alone of {apart}"
    for number in range(case.batch):
        found = case.run(session, case.beside(number))
        apart = _find_apart([v[number] for v in found], [v[number] for v in whole], case.names)
        if apart:
            return f"row {number} beside others of {apart}"
    return ""


def _find_apart(
    found: Sequence[Array], expected: Sequence[Array], names: Sequence[str], bound: float = BOUND
) -> str:
    for name, one, other in zip(names, found, expected, strict=True):
        if one.shape != other.shape:
            return f"{name}: shape {one.shape} for {other.shape}"
        finite = np.isfinite(other)
        scale = max(1.0, float(np.abs(other[finite]).max(initial=0)))
        if not np.allclose(one, other, rtol=0, atol=bound * scale, equal_nan=True):
            return name
    return ""


def _find_wrong_half(case: Case, session: Session) -> str:
    """Return which rows get another answer in half than in their batch; "" for none."""
    dtype = np.float16
    halves = replace(
        case,
        rows={name: value.astype(dtype) for name, value in case.rows.items()},
        others={name: value.astype(dtype) for name, value in case.others.items()},
    )
    whole = halves.run(session, halves.rows)
    for numbers in _parts(case.batch):
        found = halves.run(session, halves.take(numbers))
        apart = _find_apart(found, [value[numbers] for value in whole], case.names, HALF_BOUND)
        if apart:
            return f"rows {numbers} of {apart} in half"
    for number in range(case.batch):
        found = halves.run(session, halves.beside(number))
        one, other = ([value[number] for value in values] for values in (found, whole))
        if apart := _find_apart(one, other, case.names, HALF_BOUND):
            return f"row {number} beside others of {apart} in half"
    return ""


def _check_whole(case: Case, compiled: Executable, session: Session) -> Outcome:
    """Check the whole batch, and whether its rows depend on each other."""
    reason = compiled.rows.dependence or ""
    if _draws(case.model):
        return Outcome("whole", reason)
    # If rows depend on each other, the batch is the first axis, if all tensors have it.
    is_stacked = bool(session.batch_size)
    found = session.run(
        {name: value if is_stacked else value[None] for name, value in case.rows.items()}
    )
    results = [found[name] if is_stacked else found[name][0] for name in case.names]
    apart = _find_apart(results, case.expected, case.names)
    if apart:
        return Outcome("wrong", f"the whole batch of {apart}")
    return Outcome("refused" if _is_independent(case) else "whole", reason)


def _draws(model: onnx.ModelProto) -> bool:
    """Return whether a Dropout trains, whose answers differ from run to run."""
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    return any(
        node.op_type == "Dropout" and bool(values[node.input[2]]) for node in model.graph.node
    )


def _is_independent(case: Case) -> bool:
    """Return whether rows give the same results at another place, beside other rows, and alone
    where a model can be run so, along one axis each."""
    order = np.roll(np.arange(case.batch), 1).tolist()
    try:
        turned, mixed = compute(case.model, case.take(order)), compute(case.model, case.beside(0))
    except _REFUSALS:
        return False
    try:
        alone = compute(case.model, case.take([0]))
    except _REFUSALS:
        alone = []

    def is_alike_alone(number: int, value: Array) -> bool:
        if not alone or alone[number].shape != value.shape:
            return True
        return not _find_apart([alone[number]], [value], ["y"])

    def is_moved(number: int) -> bool:
        value = case.expected[number]
        return any(
            value.shape[axis] == case.batch
            and not _is_constant(value, axis)
            and not _find_apart([turned[number]], [value.take(order, axis)], ["y"])
            and not _find_apart([mixed[number].take([0], axis)], [value.take([0], axis)], ["y"])
            and is_alike_alone(number, value.take([0], axis))
            for axis in range(value.ndim)
        )

    return all(is_moved(number) for number in range(len(case.expected)))


def _is_constant(value: Array, axis: int) -> bool:
    return bool((value == value.take([0], axis)).all())


def main() -> int:
    """Check many models and print the outcomes; 1 if an answer is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--precision", default="fp32", choices=["fp32", "fp16"])
    parser.add_argument("--reasons", action="store_true", help="print why models are refused")
    options = parser.parse_args()
    logging.getLogger("poprt").setLevel(logging.ERROR)
    counts: Counter[str] = Counter()
    for seed in range(options.first, options.first + options.count):
        try:
            outcome = check(seed, options.precision)
        except Exception as error:  # noqa: BLE001  whatever it is, it is printed
            outcome = Outcome("error", f"{type(error).__name__}: {error}")
        counts[outcome.kind] += 1
        if outcome.kind in ("wrong", "error") or (
            options.reasons and outcome.kind in ("refused", "uncompiled")
        ):
            found = "" if outcome.is_found else " (not found by the dry run)"
            print(f"seed {seed}: {outcome.kind}: {outcome.reason}{found}", flush=True)
    print(", ".join(f"{number} {kind}" for kind, number in sorted(counts.items())))
    return int(bool(counts["wrong"] + counts["error"]))


if __name__ == "__main__":
    sys.exit(main())
