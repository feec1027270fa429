"""Inputs of the calibration run: the user's data, or random data that are varied and in range.

The range of an input is found by following it to the operators that use it; floats may be indices,
too. An index must be inside its table, or a run fails. A mask of only ones, or bytes that are all
1, would show nothing of the effect of half precision on a model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto
from onnxgraph import attribute, graph_values, has_data, infer_shapes, read_array
from simipu import CompileError, Stream

from popef._tools.arrays import Array

MIN_ROWS = 15
"""Minimum number of rows of random data: some of each kind."""
_BLOCK = 8
"""Number of pixels of the edges of a picture's blocks."""
_SAMPLE_BYTES = 2
"""Maximum number of bytes of integers that are samples of sound or pictures; wider integers are
counts, choices or quantities."""


def iter_given(
    inputs: Sequence[Stream], data: Mapping[str, Array], batch_size: int
) -> Iterator[dict[str, Array]]:
    """Yield the rows of `data` in batches of the compiled size; floats are not narrowed.

    The last batch is filled up with the first rows. Raises CompileError for data that do not fit
    the inputs.
    """
    rows = {
        stream.tensor: _to_rows(stream, data.get(stream.tensor), batch_size, inputs)
        for stream in inputs
    }
    for start in range(0, max(map(len, rows.values())), batch_size or 1):
        numbers = np.arange(start, start + (batch_size or 1))
        taken = {
            stream.tensor: rows[stream.tensor].take(numbers % len(rows[stream.tensor]), 0)
            for stream in inputs
        }
        yield {
            s.tensor: _place(taken[s.tensor], s)
            if batch_size
            else taken[s.tensor][0].astype(_dtype(s))
            for s in inputs
        }


def _to_rows(
    stream: Stream, given: Array | None, batch_size: int, inputs: Sequence[Stream]
) -> Array:
    """Return an input's data as rows along the leading axis.

    They may be given in this form, in the compiled shape, or as several arrays of the compiled
    shape.
    """
    row = stream.row_shape if batch_size else stream.shape
    found = None if given is None else np.shape(given)
    if found is not None and 0 not in found:
        array, axis = np.asarray(given), stream.batch_axis
        if found[1:] == row and len(found) == 1 + len(row):
            return array
        if not batch_size and found == row:
            return array[None]
        if batch_size and found[1:] == stream.shape:
            return np.moveaxis(array, axis + 1, 1).reshape(-1, *row)
        if (
            batch_size
            and len(found) == len(stream.shape)
            and (*found[:axis], *found[axis + 1 :]) == row
        ):
            return np.moveaxis(array, axis, 0)
    raise CompileError(
        f"calibration data for input {stream.tensor!r}: expected rows of shape {list(row)}, found "
        f"{'none' if found is None else list(found)}; the inputs are "
        f"{', '.join(each.tensor for each in inputs)}"
    )


def iter_made_up(
    model: onnx.ModelProto, inputs: Sequence[Stream], batch_size: int, num_rows: int = MIN_ROWS
) -> Iterator[dict[str, Array]]:
    """Yield batches of rows of all kinds, at least `num_rows` rows in all.

    Floats are normally distributed, between 0 and 1, waves, blocks with edges, or quiet. Indices
    cover their tables, and integers of 8 and 16 bits cover their types. Masks are all true, or true
    at the beginning.
    """
    random = np.random.default_rng(0)
    ranges = {
        stream.tensor: find_range(model, stream.tensor)
        for stream in inputs
        if stream.dtype.kind in "iuf"
    }
    for first in range(0, num_rows, batch_size or 1):
        batch = {}
        for stream in inputs:
            shape = stream.row_shape if batch_size else stream.shape
            rows = [
                _make_row(random, stream, shape, ranges.get(stream.tensor, Range()), first + row)
                for row in range(batch_size or 1)
            ]
            batch[stream.tensor] = (
                _place(np.stack(rows), stream) if batch_size else rows[0].astype(_dtype(stream))
            )
        yield batch


def _place(rows: Array, stream: Stream) -> Array:
    return np.ascontiguousarray(np.moveaxis(rows, 0, stream.batch_axis)).astype(_dtype(stream))


def _dtype(stream: Stream) -> npt.DTypeLike:
    """Return the type of the values; floats are float32, to measure the effect of half."""
    return np.float32 if stream.dtype.kind == "f" else stream.dtype


def _make_row(
    random: np.random.Generator, stream: Stream, shape: tuple[int, ...], found: Range, row: int
) -> Array:
    kind, name = stream.dtype.kind, stream.tensor.lower()
    if found.is_known:
        lowest, highest = _limits(stream) if kind in "iu" else (-math.inf, math.inf)
        least, greatest = int(max(found.least, lowest)), int(min(found.greatest, highest))
        return _make_indices(random, shape, least, max(least, greatest), row)
    is_switch = kind in "iu" and found.is_truth and stream.dtype.itemsize > _SAMPLE_BYTES
    if kind == "b" or "mask" in name or is_switch:
        return _make_mask(shape, row)
    if kind in "iu":
        return _make_whole(random, stream, shape)
    return _make_floats(random, shape, row)


def _make_indices(
    random: np.random.Generator, shape: tuple[int, ...], least: int, greatest: int, row: int
) -> Array:
    """Return indices of one of four kinds, by row.

    The kinds are: all over the range; from a narrow part of it, as words and letters come;
    counting; and a few values, repeated.
    """
    count = greatest - least + 1
    match row % 4:
        case 0:
            return random.integers(least, greatest, shape, endpoint=True)
        case 1:
            return least + random.integers(count // 8, max(count // 8 + 1, count // 2), shape)
        case 2:
            return least + np.arange(math.prod(shape)).reshape(shape) % count
        case _:
            few: Array = random.integers(least, greatest, 5, endpoint=True)
            return few.take(random.integers(0, len(few), shape))


def _make_mask(shape: tuple[int, ...], row: int) -> Array:
    """Return a mask.

    It is all true in every other row, and otherwise true for beginnings of several lengths.
    """
    # Rows 1, 3 and 5 keep one, two and three quarters of the length, and so on again.
    length = shape[-1] if shape else 1
    kept = length if row % 2 == 0 else max(1, length * (1 + row // 2 % 3) // 4)
    return np.broadcast_to(np.arange(length) < kept, shape) if shape else np.ones(())


def _make_whole(random: np.random.Generator, stream: Stream, shape: tuple[int, ...]) -> Array:
    if stream.dtype.itemsize > _SAMPLE_BYTES:
        return np.ones(shape)  # a length, a rate or a count without a known range
    return random.integers(*_limits(stream), shape, endpoint=True)


def _limits(stream: Stream) -> tuple[int, int]:
    """Return the smallest and the largest integer of the stream's type."""
    bits = 8 * stream.dtype.itemsize
    return (
        (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if stream.dtype.kind == "i" else (0, 2**bits - 1)
    )


def _make_floats(random: np.random.Generator, shape: tuple[int, ...], row: int) -> Array:
    noise: Array = np.asarray(random.standard_normal(shape))
    return _KINDS[row % len(_KINDS)](random, noise)


def _make_waves(random: np.random.Generator, noise: Array) -> Array:
    steps = (
        np.arange(noise.shape[-1] if noise.ndim else 1) * 2 * math.pi * random.uniform(0.005, 0.2)
    )
    waves: Array = (np.sin(steps) if noise.ndim else np.sin(1)) / 2 + noise / 100
    return waves


def _make_blocks(random: np.random.Generator, noise: Array) -> Array:
    """Return light and dark blocks along the last two axes, as in pictures of writing."""
    # A coarse picture of -1 and 1, each of whose points becomes a block; the last one may be cut.
    axes = range(max(0, noise.ndim - 2), noise.ndim)
    coarse = [-(-size // _BLOCK) if axis in axes else 1 for axis, size in enumerate(noise.shape)]
    blocks: Array = np.asarray(random.integers(0, 1, coarse, endpoint=True) * 2.0 - 1)
    for axis in axes:
        blocks = np.repeat(blocks, _BLOCK, axis).take(range(noise.shape[axis]), axis)
    pictures: Array = blocks + noise / 100
    return pictures


_KINDS: tuple[Callable[[np.random.Generator, Array], Array], ...] = (
    lambda _random, noise: noise,
    lambda random, noise: random.random(noise.shape),
    _make_waves,
    _make_blocks,
    lambda _random, noise: noise / 100,
)


_PASSING = frozenset(
    (
        "Cast Concat Expand Flatten Gather HCSR Identity Pad Remap Reshape Slice Split Squeeze "
        "Tile Transpose Unsqueeze"
    ).split()
)
"""Operators that pass on the values of their first input, or of all inputs."""
_TABLES = frozenset({"Gather", "GatherElements", "ScatterElements"})
"""Operators whose second input indexes the elements of the first along an axis."""
_OF_TRUTH = frozenset(
    (
        "And AttentionMask Equal Greater GreaterOrEqual Less LessOrEqual Mul Not NotZero Or Sub "
        "Where WhereV2 Xor"
    ).split()
)
"""Operators that are applied to masks."""
_SWITCH = 2
"""Maximum number of values of a constant with which an input is compared to switch between the
two."""
_SMALL = 4_096


@dataclass(slots=True)
class Range:
    """Smallest and largest value of an integer input, if the graph determines them.

    Otherwise `is_truth` says whether the input looks like a mask.
    """

    least: float = -np.inf
    greatest: float = np.inf
    is_truth: bool = False

    @property
    def is_known(self) -> bool:
        """Return whether both bounds are finite."""
        return bool(np.isfinite(self.least) and np.isfinite(self.greatest))


@dataclass(slots=True)
class _Users:
    """Users of each tensor, and the known shapes and constants."""

    shapes: Mapping[str, tuple[int, ...]]
    constants: Mapping[str, TensorProto]
    users: dict[str, list[tuple[onnx.NodeProto, int]]] = field(default_factory=dict)


def find_range(model: onnx.ModelProto, name: str) -> Range:
    """Return the range of input `name` of a static model."""
    graph = model.graph
    shapes = {each: value.shape for each, value in graph_values(infer_shapes(model).graph).items()}
    known = _Users(shapes, {t.name: t for t in graph.initializer})
    for node in graph.node:
        for index, taken in enumerate(node.input):
            known.users.setdefault(taken, []).append((node, index))
    found = Range()
    waiting, seen = [(name, 0.0)], {name}
    while waiting:
        tensor, added = waiting.pop()
        for node, index in known.users.get(tensor, []):
            passed = _look(node, index, known, found, added)
            if passed is not None:
                waiting += [(result, passed) for result in node.output if result not in seen]
                seen.update(node.output)
    return found


def _look(
    node: onnx.NodeProto, index: int, known: _Users, found: Range, added: float
) -> float | None:
    """Narrow the range by what one node does with the input, to which `added` has been added.

    Returns what has been added to the node's results; None if the results are unrelated values.
    """
    if node.op_type in _TABLES and index == 1:
        shape = known.shapes.get(node.input[0], ())
        if shape:
            _narrow(found, 0, shape[attribute(node, "axis", 0)] - 1, added)
        return None
    if node.op_type == "OneHot" and index == 0:
        depth = _constant(known, node.input[1])
        if depth is not None:
            _narrow(found, 0, float(depth.max()) - 1, added)
        return None
    if node.op_type in ("Add", "Sub"):
        return _pass_offset(node, index, known, found, added)
    if node.op_type == "Equal":
        other = _constant(known, node.input[1 - index])
        if other is not None and other.size > _SWITCH:  # a one-hot encoding, written out
            _narrow(found, float(other.min()), float(other.max()), added)
            return None
    if node.op_type in _OF_TRUTH:
        found.is_truth = True
        return None
    passes = node.op_type in _PASSING and (index == 0 or node.op_type == "Concat")
    return added if passes else None


def _pass_offset(
    node: onnx.NodeProto, index: int, known: _Users, found: Range, added: float
) -> float | None:
    """Return the offset of the result of a sum or a difference; None for an unrelated value."""
    other = _constant(known, node.input[1 - index])
    if other is None and node.op_type == "Add":
        return added  # most likely the offset that lets negative indices count from the end
    if other is None or (node.op_type == "Sub" and index):
        found.is_truth |= node.op_type == "Sub"
        return None
    # The largest offset keeps all values inside the table.
    return added + float(other.max() if node.op_type == "Add" else -other.min())


def _narrow(found: Range, least: float, greatest: float, added: float) -> None:
    # least <= input + added <= greatest; several users of an input must all be satisfied.
    found.least, found.greatest = (
        max(found.least, least - added),
        min(found.greatest, greatest - added),
    )


def _constant(known: _Users, name: str) -> Array | None:
    tensor = known.constants.get(name)
    if tensor is None or int(np.prod(tensor.dims)) > _SMALL or not has_data(tensor):
        return None  # the values of a streamed weight are elsewhere
    values = read_array(tensor)
    return values if values.size and values.dtype.kind in "iuf" else None
