"""Outcome of a random graph: compiled, loaded and run through the runtime, beside ONNX Runtime
without optimisers.

In float the answers are equal within FLOAT_BOUND of the largest value, whole numbers exactly. In
half they are within HALF_FACTOR times what rounding each result to half moves them, plus HALF_BOUND
of the largest. Results that may be anything in half (such as an index of the largest) are not
compared. Half answers have the same bits with the kernels and without.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from model_runtime import ModelRunner, ModelRunnerConfig
from oracles import unoptimised_session
from poprt import Compiler, CompilerOptions, Converter
from poprt.compile.executable import Executable
from simipu import CompileError, GraphOptions, SimIpuError
from simipu.engines.computed import ORT_ERRORS, Lowered
from simipu.engines.opening import open_lowered
from simipu.engines.program_graphs import lower_program
from simipu.numerics import KernelUse

from random_graphs import Drawn
from random_graphs.drawing import Array, Tensor

FLOAT_BOUND, HALF_FACTOR, HALF_BOUND = 1e-4, 8.0, 0.02
PRECISIONS = ("fp32", "fp16")
MAIN = 5
_ROWS = ModelRunnerConfig(batching_dim=0, num_threads=1, load_seconds=20.0)
_WHOLE = ModelRunnerConfig(num_threads=1, load_seconds=20.0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of a graph in one precision: EQUAL, or another of the words below, and the reason."""

    word: str
    why: str = ""


EQUAL, SKIPPED, REFUSED, DIFFERS, FAILS, CRASHES = (
    "equal",
    "skipped",  # ONNX Runtime refuses the graph as a whole
    "refused",  # by a compile error
    "differs",
    "fails",  # compiles, and neither loads nor runs
    "crashes",  # raises an error that is not ours, ends its process, or takes too long
)
WRONG = (DIFFERS, FAILS, CRASHES)


class DifferenceError(Exception):
    """An answer that differs from the expected one."""


def judge(drawn: Drawn, precision: str) -> Outcome:
    """Compile a graph, run it, and compare."""
    logging.disable(logging.WARNING)
    names = list(drawn.outputs)
    try:
        answers = unoptimised_session(drawn.model).run(names, dict(drawn.feeds))
    except ORT_ERRORS as error:
        return Outcome(SKIPPED, describe(error))
    expected, compiled = dict(zip(names, answers, strict=True)), None
    try:
        converted = Converter(precision=precision).convert(drawn.model)
        compiled = Compiler.compile(converted, None, CompilerOptions())
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "executable.popef")
            compiled.export(path)
            main = compiled.executable.program(MAIN)
            dependence = main.row_dependence
            by_rows = not dependence and not any(stream.batch_axis for stream in main.streams)
            _check_runs(path, drawn, expected, precision, by_rows)
            if dependence.startswith("in the dry run"):
                raise DifferenceError(f"a row rule is wrong: {dependence}")
        if precision == "fp16":
            _check_kernels(compiled, drawn)
    except CompileError as error:
        does_not_run = str(error).startswith("the compiled model")
        return Outcome(FAILS if does_not_run else REFUSED, describe(error))
    except DifferenceError as error:
        return Outcome(DIFFERS, str(error))
    except SimIpuError as error:
        return Outcome(FAILS, describe(error))
    except Exception as error:  # noqa: BLE001  whatever is no error of ours is an outcome
        return Outcome(
            CRASHES, ("runs: " if compiled is not None else "compiles: ") + describe(error)
        )
    return Outcome(EQUAL)


def describe(error: Exception) -> str:
    """Return the error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]


def _check_runs(
    path: Path, drawn: Drawn, expected: Mapping[str, Array], precision: str, by_rows: bool
) -> None:
    with ModelRunner(path, _ROWS if by_rows else _WHOLE) as runner:
        types = {each.name: each.numpy_data_type() for each in runner.getExecuteInputs()}
        feeds = {name: np.asarray(drawn.feeds[name], types[name]) for name in types}
        axes = {
            name: runner.session.batch_axes[anchor.handle()]
            for anchor in runner.session.getUserOutputAnchors()
            for name in [anchor.name()]
        }
        _compare(runner.execute(feeds), expected, drawn.outputs, precision, "the whole batch")
        batch = runner.session.batch_size
        for rows in _iter_rows(batch) if by_rows else ():
            part = {name: np.ascontiguousarray(value[rows]) for name, value in feeds.items()}
            wanted = {name: value.take(rows, axes[name]) for name, value in expected.items()}
            tensors = {
                name: Tensor(
                    each.value.take(rows, axes[name]),
                    each.half.take(rows, axes[name]),
                    each.unsteady,
                )
                for name, each in drawn.outputs.items()
            }
            _compare(runner.execute(part), wanted, tensors, precision, f"rows {rows} of {batch}")


def _iter_rows(batch: int) -> Iterator[list[int]]:
    """Yield rows of the batch: the last alone, and several in another order."""
    if batch:
        yield [batch - 1]
        yield [batch - 1, 0, *range(batch)]


def _compare(
    found: Mapping[str, Array],
    expected: Mapping[str, Array],
    outputs: Mapping[str, Tensor],
    precision: str,
    what: str,
) -> None:
    for name, wanted in expected.items():
        value, tensor = np.asarray(found[name]), outputs[name]
        if value.shape != wanted.shape:
            raise DifferenceError(
                f"{what}: {name!r} has shape {value.shape}, expected {wanted.shape}"
            )
        if precision == "fp16" and tensor.unsteady:
            continue
        if wanted.dtype.kind != "f":
            moved = not np.array_equal(tensor.half, tensor.value)
            if not np.array_equal(value.astype(np.int64), wanted.astype(np.int64)) and not (
                precision == "fp16" and moved
            ):
                raise DifferenceError(
                    f"{what}: {name!r} is {_show(value)}, expected {_show(wanted)}"
                )
            continue
        real, true = value.astype(np.float64), wanted.astype(np.float64)
        largest = max(1.0, float(np.abs(true[np.isfinite(true)]).max(initial=0)))
        bound = FLOAT_BOUND * largest
        if precision == "fp16":
            moved_by = np.abs(tensor.half.astype(np.float64) - tensor.value.astype(np.float64))
            bound = HALF_FACTOR * float(moved_by.max(initial=0)) + HALF_BOUND * largest
        if not np.allclose(real, true, rtol=0, atol=bound, equal_nan=True):
            error = float(np.nanmax(np.abs(real - true))) / largest
            shown = f"{_show(value)}, expected {_show(wanted)}"
            raise DifferenceError(f"{what}: {name!r} is off by {error:.2g} of the largest: {shown}")


def _show(value: Array) -> str:
    return " ".join(np.array2string(value.ravel()[:6], precision=4).split())


def _check_kernels(compiled: Executable, drawn: Drawn) -> None:
    """Compare bits with the kernels and without."""
    executable = compiled.executable
    main, weights = (
        executable.program(MAIN),
        {each.name: each.array() for each in executable.constants},
    )
    options = GraphOptions(num_threads=1, exact=False)
    types = {stream.tensor: stream.dtype for stream in main.streams}
    feeds = {
        name: np.asarray(value, types[name]) for name, value in drawn.feeds.items() if name in types
    }
    names = list(drawn.outputs)
    answers = []
    for kernels in (KernelUse.FUSED, KernelUse.NONE):

        def make(use: KernelUse, kernels: KernelUse = kernels) -> Lowered:
            return lower_program(main, weights, options, executable.numerics, kernels)

        graph = open_lowered(make, options, "of a random graph", kernels)
        answers.append(graph.run(names, feeds))
        graph.close()
    for name, one, other in zip(names, *answers, strict=True):
        if not np.array_equal(one, other, equal_nan=one.dtype.kind == "f"):
            raise DifferenceError(
                f"kernels: {name!r} is {_show(one)} with the kernels, {_show(other)} without"
            )
