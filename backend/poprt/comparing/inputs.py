"""Inputs of the calibration run: the user's data, or random data that are varied and in range.

`ranges` finds the range or the size of an input by following it to the operators that use it;
floats may be indices, too. An index must be inside its table, or a run fails. A mask of only ones,
or bytes that are all 1, would show nothing of the effect of half precision on a model. Nor would
samples of about 1 where a model takes 16 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import onnx
from simipu import CompileError, Stream

from popef._tools.arrays import Array
from popef._tools.text import name_some
from poprt.comparing.ranges import Range, Size, find_range

MIN_ROWS = 15
"""Minimum number of rows of random data: some of each kind."""
_BLOCK = 8
"""Number of pixels of the edges of a picture's blocks."""
SOUND = 32_767.0
"""Largest sample of sound of 16 bits."""
_MIN_SAMPLES = 400
"""Least length of a row that looks like sound: 25 ms at 16 kHz."""
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
        batch_rows = {
            stream.tensor: rows[stream.tensor].take(numbers % len(rows[stream.tensor]), 0)
            for stream in inputs
        }
        yield {
            s.tensor: _place(batch_rows[s.tensor], s)
            if batch_size
            else batch_rows[s.tensor][0].astype(_dtype(s))
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
    shape = None if given is None else np.shape(given)
    if shape is not None and 0 not in shape:
        array, axis = np.asarray(given), stream.batch_axis
        if shape[1:] == row and len(shape) == 1 + len(row):
            return array
        if not batch_size and shape == row:
            return array[None]
        if batch_size and shape[1:] == stream.shape:
            return np.moveaxis(array, axis + 1, 1).reshape(-1, *row)
        if (
            batch_size
            and len(shape) == len(stream.shape)
            and (*shape[:axis], *shape[axis + 1 :]) == row
        ):
            return np.moveaxis(array, axis, 0)
    raise CompileError(
        f"calibration data for input {stream.tensor!r}: expected rows of shape {list(row)}, found "
        f"{'none' if shape is None else list(shape)}; the inputs are "
        f"{', '.join(source.tensor for source in inputs)}"
    )


def iter_made_up(
    model: onnx.ModelProto,
    inputs: Sequence[Stream],
    batch_size: int,
    num_rows: int = MIN_ROWS,
    weights: Mapping[str, Array] | None = None,
) -> Iterator[dict[str, Array]]:
    """Yield batches of rows of all kinds, at least `num_rows` rows in all.

    Floats are normally distributed, between 0 and 1, waves, blocks with edges, or quiet, of the
    size that the graph suggests, or else about 1. Indices cover their tables, and integers of 8 and
    16 bits cover their types. Masks are all true, or true at the beginning. `weights` are the
    values of the model's initializers without data, as far as they are available.
    """
    random = np.random.default_rng(0)
    ranges = {
        stream.tensor: find_range(model, stream.tensor, weights)
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


def make_loud(
    model: onnx.ModelProto,
    inputs: Sequence[Stream],
    batch_size: int,
    batch: Mapping[str, Array],
    weights: Mapping[str, Array] | None = None,
) -> dict[str, Array] | None:
    """Return a batch whose sound is of 16 bits; None if no input looks like sound of unknown size.

    Sound of 16 bits and sound between -1 and 1 are both usual, and few graphs say which they take.
    """
    loud = dict(batch)
    for stream in inputs:
        shape = stream.row_shape if batch_size else stream.shape
        is_line = math.prod(shape) == max(shape, default=0) >= _MIN_SAMPLES
        if stream.dtype.kind != "f" or not is_line or "mask" in stream.tensor.lower():
            continue
        input_range = find_range(model, stream.tensor, weights)
        largest = float(np.abs(batch[stream.tensor]).max())
        if largest and not input_range.is_known and input_range.size == Size():
            loud[stream.tensor] = batch[stream.tensor] * np.float32(SOUND / largest)
    return loud if any(loud[name] is not batch[name] for name in batch) else None


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
    is_wide = kind in "iu" and stream.dtype.itemsize > _SAMPLE_BYTES
    is_sample = is_wide and found.size.spread > 1
    if kind == "b" or "mask" in name or (is_wide and found.is_truth and not is_sample):
        return _make_mask(shape, row)
    if is_sample:
        return np.clip(np.rint(_make_floats(random, shape, row, found.size)), *_limits(stream))
    if kind in "iu":
        return _make_whole(random, stream, shape)
    return _make_floats(random, shape, row, found.size)


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
    num_true = length if row % 2 == 0 else max(1, length * (1 + row // 2 % 3) // 4)
    return np.broadcast_to(np.arange(length) < num_true, shape) if shape else np.ones(())


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


def _make_floats(
    random: np.random.Generator, shape: tuple[int, ...], row: int, size: Size
) -> Array:
    noise: Array = np.asarray(random.standard_normal(shape))
    values: Array = _KINDS[row % len(_KINDS)](random, noise)
    if size.is_bounded:
        values = np.clip(values, -1, 1)
    if size.is_positive:
        values = np.abs(values)
    return size.center + size.spread * values


def describe_ranges(batches: Sequence[Mapping[str, Array]]) -> str:
    """Return the smallest and the largest value of each input over all batches, in one line."""
    parts = []
    for name in batches[0] if batches else ():
        arrays = [batch[name] for batch in batches if batch[name].size]
        if arrays:
            least = min(float(array.min()) for array in arrays)
            greatest = max(float(array.max()) for array in arrays)
            parts.append(f"{name}: {least:.6g} to {greatest:.6g}")
    return name_some(parts)


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
