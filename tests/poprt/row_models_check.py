"""Compiles random models about rows and compares every way to compute them with ONNX Runtime's answers.

`python tests/poprt/row_models_check.py --count 5000` is what `make row-models` runs. Rules are tested alone: the
dry run, which would find a wrong one, is left out, and asked afterwards whether it does.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from model_runtime import Session
from onnx import numpy_helper
from poprt import Compiler, CompilerOptions, Converter
from poprt.dry_run import dry_run
from poprt.executable import Executable
from simipu import CompileError

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from row_models import make_row_model

Array = npt.NDArray[Any]

BOUND = 1e-4
"""How far answers may lie apart, of 1 or the largest."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a model: equal, whole (rows depend on each other, as they do), refused (rows do not, but
    no rule says so), uncompiled, or wrong."""

    kind: str
    reason: str = ""
    is_found: bool = True
    """Whether the dry run finds a wrong one."""


def check(seed: int) -> Outcome:
    """Return what becomes of the model of a seed."""
    model, batch = make_row_model(seed)
    random = np.random.default_rng(seed)
    rows, others = (_draw(model, batch, random) for _ in range(2))
    try:
        expected = compute(model, rows)
    except _REFUSALS as error:
        return Outcome("invalid", str(error).splitlines()[0])
    options = CompilerOptions(skip_dry_run=True, show_compilation_progress_bar=False)
    try:
        converted = Converter(batch_size=batch).convert(model)
        compiled = Compiler.compile(converted, None, options)
    except CompileError as error:
        return Outcome("uncompiled", str(error).splitlines()[0])
    session = Session(compiled.getPopefModel())
    session.runLoadPrograms()
    try:
        if compiled.rows.dependence is not None:
            return _check_whole(model, compiled, session, rows, others, expected, batch)
        wrong = _find_wrong(model, compiled, session, rows, others, expected, batch)
    finally:
        session.unloadFromDevice()
    if not wrong:
        return Outcome("equal")
    return Outcome("wrong", wrong, dry_run(compiled) is not None)


def _draw(model: onnx.ModelProto, batch: int, random: np.random.Generator) -> dict[str, Array]:
    shapes = {
        value.name: [batch, *(dim.dim_value for dim in value.type.tensor_type.shape.dim[1:])]
        for value in model.graph.input
    }
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


_REFUSALS = (
    onnxruntime.capi.onnxruntime_pybind11_state.Fail,
    onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument,
    onnxruntime.capi.onnxruntime_pybind11_state.InvalidGraph,
    onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented,
    onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException,
)


def compute(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """Return the answers of ONNX Runtime without its optimisers."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, dict(feeds)))


def _parts(batch: int) -> Iterator[list[int]]:
    for size in range(1, min(3, batch) + 1):
        yield from (list(range(first, first + size)) for first in range(batch - size + 1))
    yield list(reversed(range(batch)))


def _find_wrong(
    model: onnx.ModelProto,
    compiled: Executable,
    session: Session,
    rows: Mapping[str, Array],
    others: Mapping[str, Array],
    expected: Sequence[Array],
    batch: int,
) -> str:
    """Return which rows get another answer than in ONNX Runtime's batch, or alone; "" for none."""
    names = [value.name for value in model.graph.output]
    axes = [compiled.rows.axis(name) for name in names]
    whole = [np.moveaxis(value, axis, 0) for value, axis in zip(expected, axes, strict=True)]
    for numbers in _parts(batch):
        feeds = {name: value[numbers] for name, value in rows.items()}
        found = session.run(feeds)
        apart = _find_apart([found[name] for name in names], [value[numbers] for value in whole], names)
        if apart:
            return f"rows {numbers} of {apart}"
        try:
            alone = compute(model, feeds)
        except _REFUSALS:
            continue  # its constants are of the whole batch
        if any(one.ndim != other.ndim for one, other in zip(alone, expected, strict=True)):
            continue  # a Squeeze has taken the axis of a lone row
        moved = [np.moveaxis(value, axis, 0) for value, axis in zip(alone, axes, strict=True)]
        if any(len(value) != len(numbers) for value in moved):
            continue  # an Expand has made a whole batch of it
        apart = _find_apart([found[name] for name in names], moved, names)
        if apart:
            return f"rows {numbers} alone of {apart}"
    mixed = {name: np.concatenate([others[name][:1], value[1:]]) for name, value in rows.items()}
    found = session.run(mixed)
    apart = _find_apart([found[name][1:] for name in names], [value[1:] for value in whole], names)
    return f"rows beside others of {apart}" if apart else ""


def _find_apart(found: Sequence[Array], expected: Sequence[Array], names: Sequence[str]) -> str:
    for name, one, other in zip(names, found, expected, strict=True):
        if one.shape != other.shape:
            return f"{name}: shape {one.shape} for {other.shape}"
        finite = np.isfinite(other)
        scale = max(1.0, float(np.abs(other[finite]).max(initial=0)))
        if not np.allclose(one, other, rtol=0, atol=BOUND * scale, equal_nan=True):
            return name
    return ""


def _check_whole(
    model: onnx.ModelProto,
    compiled: Executable,
    session: Session,
    rows: Mapping[str, Array],
    others: Mapping[str, Array],
    expected: Sequence[Array],
    batch: int,
) -> Outcome:
    """Check the whole batch, and whether its rows depend on each other."""
    reason = compiled.rows.dependence or ""
    if _draws(model):
        return Outcome("whole", reason)
    names = [value.name for value in model.graph.output]
    is_stacked = bool(session.batch_size)
    found = session.run({name: value if is_stacked else value[None] for name, value in rows.items()})
    results = [found[name] if is_stacked else found[name][0] for name in names]
    apart = _find_apart(results, expected, names)
    if apart:
        return Outcome("wrong", f"the whole batch of {apart}")
    return Outcome("refused" if _is_independent(model, rows, others, expected, batch) else "whole", reason)


def _draws(model: onnx.ModelProto) -> bool:
    """Return whether a Dropout trains, whose answers differ from run to run."""
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    return any(node.op_type == "Dropout" and bool(values[node.input[2]]) for node in model.graph.node)


def _is_independent(
    model: onnx.ModelProto,
    rows: Mapping[str, Array],
    others: Mapping[str, Array],
    expected: Sequence[Array],
    batch: int,
) -> bool:
    """Return whether rows give the same results at another place, and beside other rows, along one axis each."""
    order = np.roll(np.arange(batch), 1)
    beside = {name: np.concatenate([value[:1], others[name][1:]]) for name, value in rows.items()}
    try:
        turned = compute(model, {name: value[order] for name, value in rows.items()})
        mixed = compute(model, beside)
    except _REFUSALS:
        return False

    def is_moved(number: int) -> bool:
        value = expected[number]
        return any(
            value.shape[axis] == batch
            and not _is_constant(value, axis)
            and not _find_apart([turned[number]], [value.take(order, axis)], ["y"])
            and not _find_apart([mixed[number].take([0], axis)], [value.take([0], axis)], ["y"])
            for axis in range(value.ndim)
        )

    return all(is_moved(number) for number in range(len(expected)))


def _is_constant(value: Array, axis: int) -> bool:
    return bool((value == value.take([0], axis)).all())


def main() -> int:
    """Check many models and print the outcomes; 1 if an answer is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--reasons", action="store_true", help="print why models are refused")
    options = parser.parse_args()
    logging.getLogger("poprt").setLevel(logging.ERROR)
    counts: Counter[str] = Counter()
    for seed in range(options.first, options.first + options.count):
        try:
            outcome = check(seed)
        except Exception as error:
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
