"""Runner that takes a case of ONNX's backend test-suite through Converter, Compiler and
ModelRunner.

Cases run in a worker process: one that crashes or takes too long ends alone.
"""

from __future__ import annotations

import logging
import multiprocessing
import re
import signal
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from model_runtime.runner import ModelRunner, ModelRunnerConfig
from poprt import Compiler, CompilerOptions, Converter
from simipu import CompileError
from suite_cases import Case, DataSet

MAX_SECONDS = 60.0
"""Time limit of one case."""
_HALF = 2e-2
"""Error of half that is allowed, of the larger of 1 and the expected value: some roundings in a
row."""
_QUOTED = re.compile(r"'([^']*)'")
_VALUES = "on the values of"
_DEPENDS = "depends on the data"

Array = npt.NDArray[Any]


class Status(str, Enum):
    """Outcome of a case."""

    PASSED = "passed"
    REFUSED = "refused"
    """The compiler does not take the model, and says why."""
    DIFFERS = "differs"
    FAILED = "failed"
    """The model was compiled, and then not loaded or run; or the error is not one of the compiler's
    own."""
    CRASHED = "crashed"
    """The process ended, or took longer than it may."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Status of a case and its details.

    `fixed` are the inputs that had to become constants. `error` is the largest error of a case that
    differs, relative to the largest expected value.
    """

    status: Status
    found: str = ""
    fixed: tuple[str, ...] = ()
    error: float = 0.0


def run_case(case: Case, precision: str) -> Outcome:
    """Convert, compile and run a case in this process, and compare its outputs.

    An input whose value determines a shape is made a constant, as the compiler's message requests.
    """
    model, sets = case.read()
    names = [value.name for value in model.graph.input]
    fixed: dict[str, Array] = {}
    while True:
        try:
            difference, largest = _run(case, model, names, sets, fixed, precision)
            status = Status.DIFFERS if difference else Status.PASSED
            return Outcome(status, difference, tuple(fixed), largest)
        except CompileError as error:
            feeds = dict(zip(names, sets[0][0], strict=False))
            deciding = _find_deciding(str(error), feeds, fixed)
            if not deciding or len(sets) != 1:
                return Outcome(Status.REFUSED, str(error), tuple(fixed))
            fixed |= {name: np.asarray(feeds[name]) for name in sorted(deciding)}
        except Exception as error:  # noqa: BLE001 - an outcome too
            return Outcome(Status.FAILED, f"{type(error).__name__}: {error}", tuple(fixed))


def _find_deciding(message: str, given: Mapping[str, Any], fixed: Mapping[str, Any]) -> set[str]:
    """Return further inputs of whose values a message says that shapes depend on them: those that
    it names, or, where it names none, all of whole numbers, and then all."""
    named_inputs = set(_QUOTED.findall(message.partition(_VALUES)[2])) & given.keys()
    if named_inputs - fixed.keys() or _DEPENDS not in message:
        return named_inputs - fixed.keys()
    integer_inputs = {
        name for name, value in given.items() if np.asarray(value).dtype.kind in "biu"
    }
    return integer_inputs - fixed.keys() or given.keys() - fixed.keys()


def _run(
    case: Case,
    model: onnx.ModelProto,
    names: Sequence[str],
    sets: Sequence[DataSet],
    fixed: dict[str, Array],
    precision: str,
) -> tuple[str, float]:
    shapes = _find_open_shapes(model, sets[0][0])
    converter = Converter(
        precision=precision, input_shape=shapes, fix_inputs=fixed, disable_progress_bar=True
    )
    executable = Compiler.compile(converter.convert(model), None, CompilerOptions())
    config = ModelRunnerConfig(timeout_ns=1_000, num_threads=1)
    with ModelRunner(executable.getPopefModel(), config) as runner, np.errstate(all="ignore"):
        dtypes = {
            description.name: description.numpy_data_type()
            for description in runner.getExecuteInputs()
        }
        for inputs, expected in sets:
            named_inputs = zip(names, inputs, strict=False)
            feeds = {
                name: np.asarray(value).astype(dtypes[name])
                for name, value in named_inputs
                if name in dtypes
            }
            outputs = runner.execute(feeds)
            for value, array in zip(model.graph.output, expected, strict=True):
                result = np.asarray(outputs[value.name])
                if difference := compare(result, array, case, precision):
                    return f"{value.name}: {difference}", find_error(result, np.asarray(array))
    return "", 0.0


def _find_open_shapes(model: onnx.ModelProto, given: Sequence[Any]) -> dict[str, list[int]]:
    """Return the shapes of the inputs that the model leaves open, as they are given."""
    return {
        value.name: list(np.shape(array))
        for value, array in zip(model.graph.input, given, strict=False)
        if value.type.HasField("tensor_type")
        and any(not dim.dim_value for dim in value.type.tensor_type.shape.dim)
    }


def compare(found: Array, expected: Any, case: Case, precision: str) -> str:
    """Return how an output differs from the suite's, or "" if it does not.

    A model in half is compared with half's tolerance, regardless of the suite's.
    """
    reference = np.asarray(expected)
    if found.shape != reference.shape:
        return f"shape {list(found.shape)}, expected {list(reference.shape)}"
    if reference.dtype.kind in "OUS":
        return "" if (found == reference).all() else "other values"
    in_half = precision != "fp32" or found.dtype == np.float16
    rtol, atol = (_HALF, _HALF) if in_half else (case.rtol, case.atol)
    if reference.dtype.kind in "biu":
        wrong = found.astype(object) != reference.astype(object)
    else:
        left, right = found.astype(np.float64), reference.astype(np.float64)
        wrong = ~np.isclose(left, right, rtol=rtol, atol=atol, equal_nan=True)
    if not wrong.any():
        return ""
    at = int(np.argmax(wrong))
    example = f"{found.ravel()[at]} for {reference.ravel()[at]}"
    return (
        f"{int(wrong.sum())} of {wrong.size} elements, e.g. {example} ({found.dtype} for "
        f"{reference.dtype})"
    )


def find_error(found: Array, expected: Array) -> float:
    """Return the largest error, relative to the largest expected value; infinity if it is
    undefined."""
    if found.shape != expected.shape or expected.dtype.kind in "OUS" or not expected.size:
        return float("inf")
    with np.errstate(all="ignore"):
        left, right = found.astype(np.float64), expected.astype(np.float64)
        error = np.abs(left - right).max() / np.abs(right).max()
    return float(error) if np.isfinite(error) else float("inf")


class Worker:
    """A process that runs one case after the other, and another one where it has ended."""

    def __init__(
        self, cases: Sequence[Case], precision: str, max_seconds: float = MAX_SECONDS
    ) -> None:
        self._cases, self._precision, self._max_seconds = cases, precision, max_seconds
        self._context = multiprocessing.get_context("fork")
        self._start()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def run(self) -> Iterator[tuple[Case, Outcome]]:
        """Yield every case with its outcome."""
        for number, case in enumerate(self._cases):
            yield case, self._run(number)

    def _run(self, number: int) -> Outcome:
        self._connection.send(number)
        try:
            if self._connection.poll(self._max_seconds):
                outcome: Outcome = self._connection.recv()
                return outcome
            reason = f"it took longer than {self._max_seconds:g} s"
        except EOFError:
            self._process.join()
            code = self._process.exitcode or 0
            reason = f"the process ended with {signal.Signals(-code).name if code < 0 else code}"
        self._end()
        self._start()
        return Outcome(Status.CRASHED, reason)

    def _start(self) -> None:
        self._connection, theirs = self._context.Pipe()
        self._process = self._context.Process(
            target=_serve, args=(theirs, self._cases, self._precision), daemon=True
        )
        self._process.start()
        theirs.close()

    def _end(self) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()


def _serve(connection: Connection, cases: Sequence[Case], precision: str) -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    while True:
        connection.send(run_case(cases[connection.recv()], precision))
