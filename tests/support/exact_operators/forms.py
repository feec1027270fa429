"""A model of one operator with its inputs and the expected outputs, and the outcome of compiling and
running it."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from model_runtime import ModelRunner, ModelRunnerConfig
from onnx import helper, numpy_helper
from poprt import Compiler, CompilerOptions, Converter
from random_graphs.judging import (
    CRASHES,
    DIFFERS,
    EQUAL,
    FAILS,
    HALF_BOUND,
    REFUSED,
    Outcome,
    describe,
)
from simipu import CompileError, SimIpuError

Array = npt.NDArray[Any]
_WHOLE = ModelRunnerConfig(num_threads=1, load_seconds=20.0)
_IR_VERSIONS = ((10, 9), (21, 10), (23, 11), (24, 12), (26, 13))
"""First opsets, each with the version of the format for it."""


@dataclass(frozen=True, slots=True)
class Case:
    """A model, its inputs, its expected outputs by name, and the allowed error of floats."""

    name: str
    model: onnx.ModelProto
    feeds: Mapping[str, Array]
    expected: Mapping[str, Array]
    error: float = 0.0


def make_case(
    name: str,
    node: tuple[str, Mapping[str, Any]],
    inputs: Sequence[Array | None],
    expected: Sequence[Array],
    opset: int,
    *,
    constants: Sequence[int] = (),
    error: float = 0.0,
) -> Case:
    """Return the case of an operator and its attributes. The inputs of the indices `constants` are
    weights; None is an omitted input."""
    op_type, attributes = node
    names = [f"i{place}" if value is not None else "" for place, value in enumerate(inputs)]
    values = {f"i{place}": value for place, value in enumerate(inputs) if value is not None}
    weights = {f"i{place}" for place in constants}
    infos = [_declare(name, value) for name, value in values.items() if name not in weights]
    outputs = {f"y{place}": value for place, value in enumerate(expected)}
    tensors = [numpy_helper.from_array(values[name], name) for name in values if name in weights]
    graph = helper.make_graph(
        [helper.make_node(op_type, names, list(outputs), **attributes)],
        "one_operator",
        infos,
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(value.dtype), [None] * value.ndim
            )
            for name, value in outputs.items()
        ],
        tensors,
    )
    ir_version = next((version for first, version in _IR_VERSIONS if opset < first), 13)
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=min(ir_version, 11))
    feeds = {name: value for name, value in values.items() if name not in weights}
    return Case(f"{name}, opset {opset}", model, feeds, outputs, error)


def _declare(name: str, value: Array) -> onnx.ValueInfoProto:
    kind = helper.np_dtype_to_tensor_dtype(value.dtype)
    return helper.make_tensor_value_info(name, kind, value.shape)


def judge(case: Case, precision: str = "fp32") -> Outcome:
    """Compile a case, run it, and compare the shapes and values of its outputs."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        return _judge(case, precision)
    finally:
        logging.disable(disabled)


def _judge(case: Case, precision: str) -> Outcome:
    try:
        converted = Converter(precision=precision).convert(case.model)
        compiled = Compiler.compile(converted, None, CompilerOptions())
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "executable.popef")
            compiled.export(path)
            with ModelRunner(path, _WHOLE) as runner:
                kinds = {value.name: value.numpy_data_type() for value in runner.getExecuteInputs()}
                feeds = {name: np.asarray(case.feeds[name], kinds[name]) for name in kinds}
                results = runner.execute(feeds)
    except CompileError as error:
        does_not_run = str(error).startswith("the compiled model")
        return Outcome(FAILS if does_not_run else REFUSED, describe(error))
    except SimIpuError as error:
        return Outcome(FAILS, describe(error))
    except Exception as error:  # noqa: BLE001  whatever is no error of ours is an outcome
        return Outcome(CRASHES, describe(error))
    for name, expected in case.expected.items():
        bound = case.error if precision == "fp32" else max(case.error, HALF_BOUND)
        if fault := _compare(name, np.asarray(results[name]), expected, bound):
            return Outcome(DIFFERS, fault)
    return Outcome(EQUAL)


def _compare(name: str, result: Array, expected: Array, error: float) -> str:
    if result.shape != expected.shape:
        return f"{name!r} has shape {result.shape}, expected {expected.shape}"
    if expected.dtype.kind in "iub":
        is_equal = np.array_equal(result.astype(np.int64), expected.astype(np.int64))
        is_equal &= result.dtype.kind == expected.dtype.kind or result.size == 0
    else:
        real, true = result.astype(np.float64), expected.astype(np.float64)
        largest = max(1.0, float(np.abs(true[np.isfinite(true)]).max(initial=0)))
        is_equal = np.allclose(real, true, rtol=0, atol=error * largest, equal_nan=True)
    if is_equal:
        return ""
    shown = (" ".join(np.array2string(value.ravel()[:8]).split()) for value in (result, expected))
    return "{!r} is {}, expected {}".format(name, *shown)
