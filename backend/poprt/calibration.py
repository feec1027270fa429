"""The calibration run: a model in half computes once at compile time, to find the nodes whose results half cannot hold.

On the chip such a result is clipped or NaN (see `Numerics`), and what follows from it is wrong: a user should know before.
"""

from __future__ import annotations

import io
import logging
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper
from simipu import CompileError, Direction, GraphOptions, LoadError, Program, RunError, Stream
from simipu.graph import lower_program, make_graph
from simipu.numerics import Numerics
from simipu.numerics.graphs import Chain
from simipu.numerics.lowering import GROWING_OPERATORS, unrounded_results

Array = npt.NDArray[Any]

HALF_LIMIT = 65_520.0
"""The least float that rounds to more than the largest half, 65,504."""

_ZERO = "calibration/zero"

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


def find_overflows(
    program: Program, weights: Mapping[str, Array], data: Mapping[str, Array] | None = None
) -> tuple[Overflow, ...]:
    """The nodes of a MAIN program whose results are too large for half, in order.

    `data` has rows for each input, any number of them; without, the inputs are made up: normally distributed numbers, ones
    where they are whole. Raises CompileError for data that do not fit the inputs. Where a graph cannot be computed here, that
    is logged and nothing found.
    """
    # In the type that the graph takes they need not be written into it and read again.
    wide = {name: value.astype(np.float32) if value.dtype == np.float16 else value for name, value in weights.items()}
    serialized, values = lower_program(program, wide, Numerics(half_partials=False))
    lowered = onnx.load_model_from_string(serialized)
    watched = unrounded_results(lowered.graph)
    if not watched:
        return ()
    inputs = [stream for stream in program.streams if stream.direction is Direction.HOST_TO_DEVICE]
    batches = _iter_batches(inputs, data) if data is not None else iter([_make_up(inputs)])
    del lowered.graph.output[:]
    lowered.graph.initializer.append(numpy_helper.from_array(np.zeros((), np.float32), _ZERO))
    for name, node in watched.items():
        _watch(lowered.graph, name, growing=node.op_type in GROWING_OPERATORS)
    names = [value.name for value in lowered.graph.output]
    largest = np.zeros(len(names))
    try:
        options = GraphOptions(prepack=False)
        with closing(make_graph(lowered.SerializeToString(), values, options, "of the calibration run")) as graph:
            for feeds in batches:
                largest = np.fmax(largest, np.array(graph.run(names, feeds), float))
    except (LoadError, RunError, ValueError) as error:
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
    chain = Chain(f"{name}/watched")
    size = chain.add("Abs", name)
    if not growing:
        size = chain.add("Where", chain.add("IsInf", name), _ZERO, size)
    largest = chain.add("ReduceMax", size, keepdims=0)
    graph.node.extend(chain.nodes)
    graph.output.append(helper.make_tensor_value_info(largest, onnx.TensorProto.FLOAT, []))


def _make_up(inputs: Sequence[Stream]) -> dict[str, Array]:
    random = np.random.default_rng(0)
    values = {}
    for stream in inputs:
        value = random.standard_normal(stream.shape) if stream.dtype.kind == "f" else np.ones(stream.shape)
        values[stream.tensor] = value.astype(stream.dtype)
    return values


def _iter_batches(inputs: Sequence[Stream], data: Mapping[str, Array]) -> Iterator[dict[str, Array]]:
    """The rows of `data` in batches of the compiled size, the last filled up with the first rows."""
    for stream in inputs:
        found = data[stream.tensor].shape if stream.tensor in data else ()
        if len(found) != len(stream.shape) or found[1:] != stream.shape[1:] or 0 in found:
            raise CompileError(
                f"calibration data for input {stream.tensor!r}: expected rows of shape {list(stream.shape[1:])}, found "
                f"{list(found) if found else 'none'}; the inputs are {', '.join(each.tensor for each in inputs)}"
            )
    rows = max(len(data[stream.tensor]) for stream in inputs)
    for start in range(0, rows, inputs[0].shape[0]):
        yield {stream.tensor: _take(data[stream.tensor], start, stream) for stream in inputs}


def _take(rows: Array, start: int, stream: Stream) -> Array:
    taken: Array = rows[np.arange(start, start + stream.shape[0]) % len(rows)]
    return taken.astype(stream.dtype)
