"""Steps that add operators which move elements: shapes, cuts, gathers and scatters."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import TensorProto, numpy_helper

from random_graphs.drawing import ANY, FLOATS, NUMBERS, Drawing, UnfitError
from random_graphs.elementwise import Builder


def _factor(d: Drawing, size: int) -> list[int]:
    """Return sizes whose product is `size`."""
    shape: list[int] = []
    while size > 1 and len(shape) < 3:
        shape.append(int(d.choice([each for each in range(1, size + 1) if size % each == 0])))
        size //= shape[-1]
    shape.insert(d.integer(0, len(shape)), size)
    return shape


def reshape(d: Drawing, op_type: str) -> None:
    """Add a reshape to any shape, sometimes with -1 and 0 in it; it mostly keeps the rows."""
    source = d.pick(ANY)
    shape = d[source].shape
    if shape and shape[0] and d.chance(0.6):
        made = [shape[0], *_factor(d, d[source].value.size // shape[0])]
    else:
        made = _factor(d, d[source].value.size)
    if made[0] == (shape[0] if shape else None) and d.chance(0.3):
        made[0] = 0
    if d.chance(0.4):
        made[d.integer(0, len(made) - 1)] = -1
    d.add(op_type, source, d.longs(made), allowzero=None)


def flatten(d: Drawing, op_type: str) -> None:
    """Add a flatten at any axis."""
    source = d.pick(ANY if d.opset >= 9 else FLOATS)
    rank = d[source].value.ndim
    d.add(op_type, source, axis=d.choice([None, d.integer(-rank if d.opset >= 11 else 0, rank)]))


def with_axes(d: Drawing, op_type: str, source: str, axes: Sequence[int], since: int) -> str:
    """Add a node with axes, as an attribute or an input."""
    if d.opset < since:
        return d.add(op_type, source, axes=list(axes) or None)
    return d.add(op_type, source, d.longs(list(axes))) if axes else d.add(op_type, source)


def squeeze(d: Drawing, op_type: str) -> None:
    """Add a squeeze of some axes of one element, or all."""
    source = d.pick(ANY, fits=lambda each: 1 in each.shape)
    ones = [axis for axis, size in enumerate(d[source].shape) if size == 1 and d.chance(0.7)]
    if d.opset >= 11 and d.chance(0.4):
        ones = [axis - d[source].value.ndim for axis in ones]
    with_axes(d, op_type, source, ones, 13)


def unsqueeze(d: Drawing, op_type: str) -> None:
    """Add new axes of one element."""
    source = d.pick(ANY, ranks=range(5))
    count = d.integer(1, 2)
    rank = d[source].value.ndim + count
    axes = sorted(int(each) for each in d.rng.permutation(rank)[:count])
    if d.opset >= 11 and d.chance(0.4):
        axes = [axis - rank for axis in axes]
    with_axes(d, op_type, source, axes, 13)


def transpose(d: Drawing, op_type: str) -> None:
    """Add a transpose of any order; without one, the reverse."""
    source = d.pick(ANY)
    order = [int(each) for each in d.rng.permutation(d[source].value.ndim)]
    d.add(op_type, source, perm=None if d.chance(0.2) or not order else order)


def expand(d: Drawing, op_type: str) -> None:
    """Add an expansion along axes of one element, and new ones."""
    source = d.pick(ANY)
    shape = [d.dimension() if size == 1 else d.choice([size, 1]) for size in d[source].shape]
    d.add(op_type, source, d.longs([*d.choice([[], [], [2]]), *shape]))


def tile(d: Drawing, op_type: str) -> None:
    """Repeat along any axis."""
    source = d.pick(NUMBERS)
    d.add(op_type, source, d.longs([d.choice([1, 1, 2]) for _ in d[source].shape]))


def concat(d: Drawing, op_type: str) -> None:
    """Add a concatenation of two to three tensors that agree, or of one and a constant."""
    one = d.pick(ANY, ranks=range(1, 5))
    shape = d[one].shape
    axis = d.axis(len(shape)) if d.opset >= 11 else d.integer(0, len(shape) - 1)
    place = axis % len(shape)
    kept = (*shape[:place], *shape[place + 1 :])

    def fits(other: object) -> bool:
        found = getattr(other, "shape", ())
        return len(found) == len(shape) and (*found[:place], *found[place + 1 :]) == kept

    parts = [one]
    for _ in range(d.integer(0, 2)):
        if d.chance(0.6):
            parts.append(d.pick([d[one].kind], ranks=[len(shape)], fits=fits))
        else:
            made = (*shape[:place], d.dimension(), *shape[place + 1 :])
            parts.append(d.constant(d.numbers(made, d[one].kind)))
    d.add(op_type, *parts, axis=axis)


def split(d: Drawing, op_type: str) -> None:
    """Add a split into equal parts or given ones."""
    source = d.pick(NUMBERS, ranks=range(1, 5))
    rank = d[source].value.ndim
    axis = d.axis(rank) if d.opset >= 11 else d.integer(0, rank - 1)
    size = d[source].shape[axis]
    if size < 2:
        raise UnfitError("nothing to split")
    count = d.integer(2, min(3, size))
    sizes = [1] * (count - 1) + [size - count + 1]
    even = size % count == 0 and d.chance(0.5)
    if even or (d.opset >= 18 and d.chance(0.3)):
        d.add_all(op_type, [source], [True] * count, axis=axis, num_outputs=count)
    elif d.opset < 13:
        d.add_all(op_type, [source], [True] * count, axis=axis, split=sizes)
    else:
        d.add_all(op_type, [source, d.longs(sizes)], [True] * count, axis=axis)


def cut(d: Drawing, op_type: str) -> None:
    """Add a slice with steps, from behind, beyond the ends, with some axes left out."""
    source = d.pick(ANY if d.opset >= 10 else NUMBERS, ranks=range(1, 5))
    shape = d[source].shape
    axes = sorted(int(each) for each in d.rng.permutation(len(shape))[: d.integer(1, len(shape))])
    starts, ends, steps = [], [], []
    for axis in axes:
        size = shape[axis]
        start, end = (
            d.integer(-size - 1, size - 1),
            d.choice([size, 2**31 - 1, d.integer(-size, size + 2)]),
        )
        step = d.choice([1, 1, 2]) if d.opset >= 10 else 1
        if d.opset >= 10 and d.chance(0.2):
            start, end, step = (
                d.choice([size, -1]),
                d.choice([-size - 1, -(2**31)]),
                d.choice([-1, -2]),
            )
        starts.append(start)
        ends.append(end)
        steps.append(step)
    if d.opset < 10:
        d.add(op_type, source, starts=starts, ends=ends, axes=axes)
        return
    if d.chance(0.3):
        axes = [axis - len(shape) for axis in axes]
    inputs = [source, d.longs(starts), d.longs(ends)]
    if axes != list(range(len(axes))) or set(steps) != {1} or d.chance(0.5):
        inputs.append(d.longs(axes))
        inputs += [d.longs(steps)] if set(steps) != {1} or d.chance(0.3) else []
    d.add(op_type, *inputs)


def pad(d: Drawing, op_type: str) -> None:
    """Add a pad in every mode: negative pads, with or without a value, on some axes only."""
    source = d.pick(FLOATS if d.opset < 13 else NUMBERS, ranks=range(1, 5))
    shape = d[source].shape
    modes = ["constant", "constant", "edge", "reflect", *(["wrap"] if d.opset >= 19 else [])]
    mode = d.choice(modes)
    pads = [d.choice([0, 0, 1, 2] if mode != "reflect" else [0, 1]) for _ in range(2 * len(shape))]
    if mode == "constant" and d.chance(0.2):
        pads[0] = -1
    given = mode if mode != "constant" or d.chance(0.5) else None
    if d.opset < 11:
        d.add(op_type, source, mode=given, pads=pads, value=d.choice([None, 1.5]))
        return
    inputs = [source]
    axes: list[int] = []
    if d.opset >= 18 and d.chance(0.4):
        axes = [int(each) for each in d.rng.permutation(len(shape))[: d.integer(1, len(shape))]]
        pads = [pads[each] for each in axes] + [pads[each + len(shape)] for each in axes]
        axes = [each - len(shape) if d.chance(0.3) else each for each in axes]
    inputs.append(d.longs(pads))
    if d.chance(0.5):
        inputs.append(d.constant(1, d[source].kind))
    elif axes:
        inputs.append("")
    d.add(op_type, *inputs, *([d.longs(axes)] if axes else []), mode=given)


def _indices(d: Drawing, shape: Sequence[int], size: int) -> str:
    low = -size if d.opset >= 11 and d.chance(0.4) else 0
    if not size:
        raise UnfitError("nothing to gather")
    value = d.rng.integers(low, size, shape)
    return d.constant(value, "int32" if d.chance(0.3) else "int64")


def gather(d: Drawing, op_type: str) -> None:
    """Add a gather by constant or computed indices."""
    source = d.pick(ANY, ranks=range(1, 5))
    axis = d.axis(d[source].value.ndim)
    size = d[source].shape[axis]
    shape = d.choice([(), (d.dimension(),), (d.dimension(), d.dimension())])
    if d.chance(0.3) and d.opset >= 10 and size:
        whole = d.pick(["int32", "int64"])
        indices = d.add("Mod", whole, d.constant(size, d[whole].kind))
    else:
        indices = _indices(d, shape, size)
    d.add(op_type, source, indices, axis=axis)


def gather_elements(d: Drawing, op_type: str) -> None:
    """Add a gather with one index for each element."""
    source = d.pick(ANY, ranks=range(1, 5))
    axis = d.axis(d[source].value.ndim)
    shape = [size if d.chance(0.7) else max(1, size - 1) for size in d[source].shape]
    d.add(op_type, source, _indices(d, shape, d[source].shape[axis]), axis=axis)


def gather_points(d: Drawing, op_type: str) -> None:
    """Add a gather by points, of the whole tensor or of each part of its batch."""
    source = d.pick(NUMBERS, ranks=range(1, 5))
    shape = d[source].shape
    batch = d.integer(0, len(shape) - 1) if d.opset >= 12 and d.chance(0.4) else 0
    depth = d.integer(1, len(shape) - batch)
    count = (*shape[:batch], d.dimension())
    points = np.stack(
        [d.rng.integers(0, max(1, size), count) for size in shape[batch : batch + depth]], -1
    )
    d.add(op_type, source, d.longs(points), batch_dims=batch or None)


def scatter_elements(d: Drawing, op_type: str) -> None:
    """Add a scatter with a place for every element, which is added, multiplied or put there."""
    source = d.pick(FLOATS, ranks=range(1, 4))
    shape = d[source].shape
    axis = d.axis(len(shape))
    reductions = (
        [None] if d.opset < 16 else [None, "add", "mul", *(["min", "max"] if d.opset >= 18 else [])]
    )
    reduction = d.choice(reductions)
    place = axis % len(shape)
    order = np.argsort(d.rng.random(shape), axis=place)
    count = d.integer(1, max(1, shape[place]))
    order = np.take(order, range(count), axis=place)
    updates = d.constant(d.numbers(order.shape))
    d.add(op_type, source, d.longs(order), updates, axis=axis, reduction=reduction)


def scatter_points(d: Drawing, op_type: str) -> None:
    """Add a scatter to points, none of them twice."""
    source = d.pick(FLOATS, ranks=range(1, 4))
    shape = d[source].shape
    depth = d.integer(1, len(shape))
    places = np.stack([each.ravel() for each in np.indices(shape[:depth])], -1)
    chosen = places[d.rng.permutation(len(places))[: d.integer(1, len(places))]]
    updates = d.constant(d.numbers((len(chosen), *shape[depth:])))
    reduction = d.choice([None, "add", "mul"]) if d.opset >= 16 else None
    d.add(op_type, source, d.longs(chosen), updates, reduction=reduction)


def one_hot(d: Drawing, op_type: str) -> None:
    """Add a one-hot encoding, also of indices beyond the depth."""
    whole = d.pick(["int32", "int64"], ranks=range(3))
    values = d.constant(d.numbers([2]))
    axis = d.choice([None, 0, -1, d[whole].value.ndim])
    d.add(op_type, whole, d.longs(d.dimension()), values, axis=axis)


def shape_of(d: Drawing, op_type: str) -> None:
    """Add the shape of a tensor, or a part of it."""
    source = d.pick(ANY)
    start = d.choice([None, 1, -1]) if d.opset >= 15 else None
    d.add(
        op_type,
        source,
        start=start,
        end=d.choice([None, None, 2, -1]) if start is not None else None,
    )


def constant_of_shape(d: Drawing, op_type: str) -> None:
    """Add a constant filled with zeros or a value."""
    source = d.pick(ANY)
    shape = d.add("Shape", source) if d.chance(0.5) else d.longs(d.shape(d.integer(0, 3)))
    value = d.choice([None, np.array([1.5], np.float32), np.array([3], np.int64), np.array([True])])
    d.add(op_type, shape, value=None if value is None else numpy_helper.from_array(value))


def constant(d: Drawing, op_type: str) -> None:
    """Add a node that makes a constant, in every form."""
    value = d.numbers(d.shape(d.integer(0, 3)))
    form = d.integer(0, 4) if d.opset >= 12 else 0
    if form == 1:
        d.add(op_type, value_float=float(value.ravel()[0]) if value.size else 0.5)
    elif form == 2:
        d.add(op_type, value_ints=[1, 2, d.integer(0, 9)])
    elif form == 3:
        d.add(op_type, value_floats=[0.5, 1.5])
    elif form == 4:
        d.add(op_type, value_int=d.integer(-3, 3))
    else:
        d.add(op_type, value=numpy_helper.from_array(value))


def range_of(d: Drawing, op_type: str) -> None:
    """Add numbers in steps."""
    kind = d.choice(["float32", "int32", "int64"])
    start, step = d.integer(-2, 2), d.choice([1, 2])
    d.add(op_type, *(d.constant(each, kind) for each in (start, start + d.integer(1, 5), step)))


def eye(d: Drawing, op_type: str) -> None:
    """Add ones along a diagonal."""
    source = d.pick(NUMBERS, ranks=[2])
    d.add(op_type, source, k=d.choice([None, 1, -1]), dtype=d.choice([None, TensorProto.FLOAT]))


def triangle(d: Drawing, op_type: str) -> None:
    """Add the upper or the lower triangle."""
    source = d.pick(NUMBERS, ranks=range(2, 5))
    inputs = [source, *([d.longs(d.integer(-2, 2))] if d.chance(0.6) else [])]
    d.add(op_type, *inputs, upper=d.choice([None, 0, 1]))


def blocks(d: Drawing, op_type: str) -> None:
    """Add depth to space or its inverse."""
    size = 2
    height = 2 if op_type == "SpaceToDepth" else d.dimension()
    channels = 4 * d.integer(1, 2) if op_type == "DepthToSpace" else d.dimension()
    wanted = d.choice(
        [
            name
            for name, each in d.tensors.items()
            if each.kind == "float32" and _fits_blocks(op_type, each.shape)
        ]
        or [d.add_input("float32", (d.size, channels, height, 2))]
    )
    d.add(op_type, wanted, blocksize=size, mode=d.choice([None, "DCR", "CRD"]))


def _fits_blocks(op_type: str, shape: Sequence[int]) -> bool:
    if len(shape) != 4:
        return False
    return shape[1] % 4 == 0 if op_type == "DepthToSpace" else shape[2] % 2 == shape[3] % 2 == 0


def reverse(d: Drawing, op_type: str) -> None:
    """Add a reversal of the first elements of each sequence."""
    source = d.pick(ranks=range(2, 5))
    batch = d.integer(0, 1)
    shape = d[source].shape
    lengths = d.longs(d.rng.integers(1, max(2, shape[1 - batch] + 1), shape[batch]))
    d.add(op_type, source, lengths, batch_axis=batch, time_axis=1 - batch)


def centre(d: Drawing, op_type: str) -> None:
    """Add a crop or pad to a shape."""
    source = d.pick(ranks=range(1, 4))
    axes = d.choice([None, [d.axis(d[source].value.ndim)]])
    d.add(op_type, source, d.longs([d.dimension() for _ in axes or d[source].shape]), axes=axes)


def _scales(d: Drawing, rank: int) -> list[float]:
    return [1.0, 1.0, *(d.choice([1.0, 2.0, 0.5, 1.5]) for _ in range(rank - 2))]


def upsample(d: Drawing, op_type: str) -> None:
    """Add the resize of older opsets."""
    source = d.pick(ranks=[4])
    scales = [max(1.0, each) for each in _scales(d, 4)]
    mode = d.choice([None, "nearest", "linear"])
    if d.opset < 9:
        d.add(op_type, source, mode=mode, scales=scales)
    else:
        d.add(op_type, source, d.constant(scales, "float32"), mode=mode)


def resize(d: Drawing, op_type: str) -> None:
    """Add a resize by scales or sizes, in all modes."""
    source = d.pick(ranks=[3, 4])
    shape = d[source].shape
    scales = _scales(d, len(shape))
    mode = d.choice(
        [None, "nearest", "linear", "cubic"] if len(shape) == 4 else [None, "nearest", "linear"]
    )
    if d.opset < 11:
        d.add(
            op_type, source, d.constant(scales, "float32"), mode=mode if mode != "cubic" else None
        )
        return
    by_scales = d.chance(0.6)
    roi = "" if d.opset >= 13 else d.constant([], "float32")
    sizes = [*shape[:2], *(d.dimension() for _ in shape[2:])]
    if by_scales:
        inputs = [source, roi, d.constant(scales, "float32")]
    else:
        inputs = [source, roi, "" if d.opset >= 13 else d.constant([], "float32"), d.longs(sizes)]
    ways = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel", None]
    d.add(
        op_type,
        *inputs,
        mode=mode,
        coordinate_transformation_mode=d.choice(ways),
        nearest_mode=d.choice([None, "floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]),
        exclude_outside=d.choice([None, 1]) if mode == "cubic" else None,
        antialias=d.choice([None, None, 1]) if mode in ("linear", "cubic") else None,
    )


def size_of(d: Drawing, op_type: str) -> None:
    """Add the number of elements."""
    d.add(op_type, d.pick(ANY))


def columns(d: Drawing, op_type: str) -> None:
    """Add an image put together from blocks."""
    source = d.add_input("float32", (d.size, 4 * d.integer(1, 2), 4))
    d.add(op_type, source, d.longs([3, 3]), d.longs([2, 2]))


BUILDERS: dict[str, Builder] = {
    "CenterCropPad": centre,
    "Col2Im": columns,
    "Concat": concat,
    "Constant": constant,
    "ConstantOfShape": constant_of_shape,
    "DepthToSpace": blocks,
    "Expand": expand,
    "EyeLike": eye,
    "Flatten": flatten,
    "Gather": gather,
    "GatherElements": gather_elements,
    "GatherND": gather_points,
    "OneHot": one_hot,
    "Pad": pad,
    "Range": range_of,
    "Reshape": reshape,
    "Resize": resize,
    "ReverseSequence": reverse,
    "Scatter": scatter_elements,
    "ScatterElements": scatter_elements,
    "ScatterND": scatter_points,
    "Shape": shape_of,
    "Size": size_of,
    "Slice": cut,
    "SpaceToDepth": blocks,
    "Split": split,
    "Squeeze": squeeze,
    "Tile": tile,
    "Transpose": transpose,
    "Trilu": triangle,
    "Unsqueeze": unsqueeze,
    "Upsample": upsample,
}
