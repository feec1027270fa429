"""The calibration run: a model in half computes once at compile time, to find the nodes whose results half cannot hold.

On the chip such a result is clipped or NaN (see `Numerics`), and what follows from it is wrong: a user should know before.
"""

from __future__ import annotations

import io
import logging
import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper
from simipu import CompileError, GraphOptions, SimIpuError
from simipu.graph import make_graph
from simipu.numerics import Numerics, lower
from simipu.numerics.lowering import GROWING_OPERATORS, unrounded_results

Array = npt.NDArray[Any]

HALF_LIMIT = 65_520.0
"""The least float that rounds to more than the largest half, 65,504."""

_log = logging.getLogger("poprt")


@dataclass(frozen=True, slots=True)
class Overflow:
    """A node of a graph in half whose result, computed in float, is too large; `largest` is its largest magnitude."""

    node: str
    op_type: str
    largest: float


def read_calibration_data(path: str | Path) -> dict[str, Array]:
    """Arrays by input name: of an .npz file, or of a pickled dict as `--data_preprocess` takes it.

    A pickle may hold arrays and plain values, nothing else. Raises CompileError for another file.
    """
    content = Path(path).read_bytes()
    try:
        if content[:2] == b"PK":
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                return dict(arrays)
        found = _ArrayUnpickler(io.BytesIO(content)).load()
        return {str(name): np.asarray(value) for name, value in found.items()}
    except (pickle.UnpicklingError, AttributeError, EOFError, IndexError, ValueError, ImportError) as error:
        raise CompileError(f"{path}: expected arrays by input name, an .npz file or a pickled dict; found {error}") from error


class _ArrayUnpickler(pickle.Unpickler):
    """Loads what arrays are made of; anything else could run code."""

    def find_class(self, module: str, name: str) -> Any:
        wanted = (module.replace("numpy._core", "numpy.core"), name)
        if wanted in {("numpy", "ndarray"), ("numpy", "dtype"), ("numpy.core.multiarray", "_reconstruct")} | {
            ("numpy.core.numeric", "_frombuffer"),
            ("numpy.core.multiarray", "scalar"),
        }:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name}, which is no array")


def find_overflows(model: onnx.ModelProto, data: Mapping[str, Array] | None = None) -> tuple[Overflow, ...]:
    """The nodes of a static graph in the chip's types whose results are too large for half, in order.

    `data` has rows for each input, any number of them; without, the inputs are made up: normally distributed numbers, ones
    where they are whole. Raises CompileError for data that do not fit the inputs. Where a graph cannot be computed here, that
    is logged and nothing found.
    """
    lowered = lower(model, Numerics(half_partials=False))
    watched = unrounded_results(lowered.graph)
    if not watched:
        return ()
    batches = _iter_batches(model.graph, data) if data is not None else iter([_make_up(model.graph)])
    del lowered.graph.output[:]
    for name, node in watched.items():
        _watch(lowered.graph, name, growing=node.op_type in GROWING_OPERATORS)
    names = [value.name for value in lowered.graph.output]
    largest = np.zeros(len(names))
    try:
        graph = make_graph(lowered.SerializeToString(), {}, GraphOptions(), "of the calibration run")
        try:
            for feeds in batches:
                largest = np.fmax(largest, np.array(graph.run(names, feeds), float))
        finally:
            graph.close()
    except (SimIpuError, ValueError) as error:
        if isinstance(error, CompileError):
            raise
        _log.warning("the calibration run failed, so nothing is known of overflow in half: %s", error)
    found = zip(watched.values(), largest, strict=True)
    return tuple(Overflow(node.name, node.op_type, float(size)) for node, size in found if size >= HALF_LIMIT)


def report(overflows: tuple[Overflow, ...], *, made_up: bool) -> None:
    """Warn of each node by name."""
    inputs = "made-up inputs" if made_up else "the calibration data"
    for overflow in overflows:
        _log.warning(
            "node %r (%s): with %s its result reaches %.4g, but the largest half is 65504: it overflows on the chip, too. Keep "
            "such operators in float with fp16_skip_op_types, or scale the values down",
            overflow.node,
            overflow.op_type,
            inputs,
            overflow.largest,
        )


def _watch(graph: onnx.GraphProto, name: str, *, growing: bool) -> None:
    """Add an output: the largest magnitude of tensor `name`. An infinity that another went into is not one of its own."""
    nodes = [helper.make_node("Abs", [name], [f"{name}/size"])]
    result = f"{name}/size"
    if not growing:
        nodes.append(helper.make_node("IsInf", [name], [f"{name}/infinite"]))
        nodes.append(helper.make_node("Where", [f"{name}/infinite", "calibration/zero", result], [f"{name}/finite"]))
        result = f"{name}/finite"
    nodes.append(helper.make_node("ReduceMax", [result], [f"{name}/largest"], keepdims=0))
    if not any(tensor.name == "calibration/zero" for tensor in graph.initializer):
        graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((), np.float32), "calibration/zero"))
    graph.node.extend(nodes)
    graph.output.append(helper.make_tensor_value_info(f"{name}/largest", onnx.TensorProto.FLOAT, []))


def _make_up(graph: onnx.GraphProto) -> dict[str, Array]:
    random = np.random.default_rng(0)
    feeds = {}
    for value in graph.input:
        dtype, shape = _describe(value)
        feeds[value.name] = (random.standard_normal(shape) if dtype.kind == "f" else np.ones(shape)).astype(dtype)
    return feeds


def _iter_batches(graph: onnx.GraphProto, data: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """The rows of `data` in batches of the compiled size, the last filled up with the first rows."""
    described = {value.name: _describe(value) for value in graph.input}
    rows = 0
    for name, (_, shape) in described.items():
        found = data[name].shape if name in data else None
        if found is None or len(found) != len(shape) or found[1:] != shape[1:] or not found[0]:
            raise CompileError(
                f"calibration data for input {name!r}: expected rows of shape {list(shape[1:])}, found "
                f"{'none' if found is None else list(found)}; the inputs are {', '.join(described)}"
            )
        rows = max(rows, found[0])
    batch = max(1, next((shape[0] for _, shape in described.values()), 1))
    for start in range(0, rows, batch):
        yield {
            name: data[name][np.arange(start, start + shape[0]) % len(data[name])].astype(dtype)
            for name, (dtype, shape) in described.items()
        }


def _describe(value: onnx.ValueInfoProto) -> tuple[np.dtype[Any], tuple[int, ...]]:
    tensor = value.type.tensor_type
    return np.dtype(helper.tensor_dtype_to_np_dtype(tensor.elem_type)), tuple(dim.dim_value for dim in tensor.shape.dim)
