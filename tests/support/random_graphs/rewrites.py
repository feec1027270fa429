"""Graphs around the patterns of ONNX Runtime's optimisers, continued (`patterns`): convolutions,
moves, casts, and what is eliminated."""

from __future__ import annotations

from typing import Any

import numpy as np

from random_graphs.drawing import Drawing, UnfitError
from random_graphs.patterns import ACTIVATIONS, Family, make, reduce, source, swap, weight

_CAST_TYPES = {"float32": 1, "uint8": 2, "int32": 6, "int64": 7, "bool": 9, "float16": 10, "float64": 11}  # fmt: skip
"""Types of a Cast, with their numbers in the standard."""


def _bottom(d: Drawing, axes: int) -> tuple[str, int]:
    """Return a field with channels of some number, and its channels."""
    channels = d.choice([1, 2, 3, 4, 8, 16, 17])
    shape = (d.dimension(), channels, *(d.integer(3, 6) for _ in range(axes)))
    return make(d, d.numbers(shape), role="given"), channels


def _convolve(d: Drawing, x: str, channels: int, *, outputs: int = 0) -> str:
    axes = d[x].value.ndim - 2
    group = d.choice([1] * 4 + [channels] * (channels > 1))
    made = outputs or d.choice([1, 2, 8, 16]) * group
    kernel = [d.integer(1, 3) for _ in range(axes)]
    filters = d.numbers((made, channels // group, *kernel)) / 4
    inputs = [x, make(d, filters, role="constant" if d.chance(0.9) else "given")]
    if d.chance(0.5):
        inputs.append(make(d, d.numbers((made,)), role=d.choice(["constant"] * 4 + ["given"])))
    pads = d.choice([None, [1] * 2 * axes, [0] * axes + [1] * axes])
    settings: dict[str, Any] = {"pads": pads} if d.chance(0.8) else {"auto_pad": "SAME_UPPER"}
    if d.chance(0.2):
        settings["dilations"] = [2] + [1] * (axes - 1)
    elif d.chance(0.3):
        settings["strides"] = [2] * axes
    return d.add("Conv", *inputs, group=group, kernel_shape=kernel, **settings)


def _per_channel(d: Drawing, x: str) -> str:
    """Return a constant for each channel, or of another shape."""
    shape, ones = d[x].shape, (1,) * (d[x].value.ndim - 2)
    channels = shape[1]
    chosen = d.choice(
        [(channels, *ones)] * 4
        + [
            (1, channels, *ones),
            (),
            (1,),
            shape[-1:],
            shape,
            (1, 1, *shape[2:]),
            (2, channels, *ones),
        ]
    )
    return make(d, d.numbers(chosen))


def conv(d: Drawing) -> None:
    """ConvAddFusion, ConvMulFusion, ConvBNFusion, ConvActivationFusion, ConvAddActivationFusion,
    Pad_Fusion: what stands before and behind a convolution or a pool."""
    x, _ = _bottom(d, d.choice([1, 2, 2, 2, 3]))
    axes = d[x].value.ndim - 2
    if d.chance(0.3):
        places = [d.integer(0, 1) if d.chance(0.7) else d.integer(-1, 1) for _ in range(2 * axes)]
        batch = [0, 0] if d.chance(0.9) else [0, 1]
        pads = [*batch, *places[:axes], 0, 0, *places[axes:]]
        mode = d.choice(["constant"] * 4 + ["edge", "reflect"])
        if d.opset < 11:
            x = d.add("Pad", x, pads=pads, mode=mode, value=d.choice([None, 1.0]))
        else:
            value = [] if d.chance(0.5) else [make(d, d.choice([0.0, 1.0]))]
            x = d.add("Pad", x, d.longs(pads), *value, mode=mode)
        if d.chance(0.3):
            kinds = ["MaxPool", "AveragePool"]
            size = [2] * axes
            d.add(d.choice(kinds), x, kernel_shape=size, pads=d.choice([None, [1] * 2 * axes]))
            return
    y = _convolve(d, x, d[x].shape[1])
    for _ in range(d.integer(1, 3)):
        how = d.integer(0, 5)
        if how <= 1:
            y = swap(d, "Add" if how else "Mul", y, _per_channel(d, y))
        elif how == 2:
            of = (d[y].shape[1],)
            values = [np.abs(d.numbers(of)) + 0.5 for _ in range(4)]
            constants = [make(d, value, role="constant" if d.chance(0.9) else "") for value in values]  # fmt: skip
            y = d.add("BatchNormalization", y, *constants, epsilon=d.choice([None, 0.125]))
        elif how == 3:
            y = d.add(d.choice(ACTIVATIONS), y)
        elif how == 4:
            low, high = d.choice([(0.0, 6.0), (-1.0, 1.0), (2.0, 1.0)])
            if d.opset < 11:
                y = d.add("Clip", y, min=low, max=high)
            else:
                bounds = [make(d, value) if d.chance(0.85) else "" for value in (low, high)]
                y = d.add("Clip", y, *bounds)
        else:
            other = y if d.chance(0.3) else make(d, d.numbers(d[y].shape), role="given")
            y = d.add("Relu", swap(d, "Add", y, other))


def blocked_layout(d: Drawing) -> None:
    """NchwcTransformer and NhwcTransformer: convolutions and pools with what keeps their layout."""
    x, channels = _bottom(d, 2)
    ends = [_convolve(d, x, channels, outputs=d.choice([8, 16, 32]))]
    for _ in range(d.integer(1, 4)):
        y = d.choice(ends)
        shape, how = d[y].shape, d.integer(0, 9)
        if how <= 1:
            ends.append(_convolve(d, y, shape[1], outputs=d.choice([8, 16])))
        elif how == 2:
            kind = d.choice(["MaxPool", "AveragePool"])
            settings = {"count_include_pad": 1} if kind == "AveragePool" and d.chance(0.5) else {}
            ends.append(d.add(kind, y, kernel_shape=[2, 2], pads=[1] * 4, **settings))
        elif how == 3:
            ends.append(d.add(d.choice(["GlobalAveragePool", "GlobalMaxPool"]), y))
        elif how == 4:
            same = [each for each in ends if d[each].shape == shape]
            ends.append(d.add("Add" if d.chance(0.8) else "Sum", y, d.choice(same)))
        elif how == 5:
            fits = [each for each in ends if d[each].shape[2:] == shape[2:]]
            ends.append(d.add("Concat", y, d.choice(fits), axis=1))
        elif how == 6:
            ends.append(d.add(d.choice(ACTIVATIONS), y))
        elif how == 7:
            of = (shape[1],)
            values = [np.abs(d.numbers(of)) + 0.5 for _ in range(4)]
            ends.append(d.add("BatchNormalization", y, *(make(d, v, role="constant") for v in values)))  # fmt: skip
        elif how == 8:
            ends.append(swap(d, "Mul", y, _per_channel(d, y)))
        else:
            order = d.choice([[0, 2, 3, 1], [0, 1, 3, 2]])
            d.add("Transpose", y, perm=order)


def quotient(d: Drawing) -> None:
    """DivMulFusion: 1 / x times y, with a 1 of any rank."""
    kind = d.choice(_CAST_KINDS)
    x = make(d, np.abs(np.asarray(d.numbers(d.shape(d.integer(0, 3)), kind))) + 1, kind, "given")
    one = d.choice([()] * 3 + [(1,), (1, 1, 1, 1), d[x].shape, (2, *(1 for _ in d[x].shape))])
    number = make(d, np.full(one, d.choice([1] * 8 + [2])), kind)
    inverse = swap(d, "Div", number, x, 0.05)
    swap(d, "Mul", inverse, make(d, weight(d, inverse) if d[inverse].shape else 3, kind))


_CAST_KINDS = ("float32",) * 5 + ("float64", "int32", "int64")


def clipped(d: Drawing) -> None:
    """FuseReluClip: a Relu in front of a Clip, with bounds of any sign, or none."""
    x = d.add("Relu", source(d, kind=d.choice(["float32"] * 4 + ["float64"])))
    kind = d[x].kind
    low, high = d.choice([(-1, 1), (0, 6), (1, 2), (-3, -1), (2, 1)])
    if d.opset < 11:
        d.add("Clip", x, min=float(low) if d.chance(0.7) else None, max=float(high))
        return
    d.add("Clip", x, *(make(d, each, kind) if d.chance(0.7) else "" for each in (low, high)))


def denied(d: Drawing) -> None:
    """NotWhereFusion: a Where of a Not."""
    x = source(d, 1, 3)
    truths = make(d, np.asarray(d.numbers(d[x].shape[-1:], "bool")), "bool", "given")
    no = d.add("Not", truths)
    d.add("Where", no, x, make(d, weight(d, x), d[x].kind))
    if d.chance(0.4):
        d.add("Where", no, make(d, 1, d[x].kind), x)


def nothing(d: Drawing) -> None:
    """NoopElimination and the other eliminations: steps that seem to do nothing."""
    y = source(d, 0, 4, d.choice(["float32", "float64", "int32", "int64"]))
    for _ in range(d.integer(1, 4)):
        kind, rank, shape = d[y].kind, d[y].value.ndim, d[y].shape
        how = d.integer(0, 8)
        if how <= 2:
            op_type, value = d.choice([("Add", 0), ("Sub", 0), ("Mul", 1), ("Div", 1)])
            of = d.choice([(), (), (1,), (1,) * rank, (1,) * (rank + 1), (2, *(1 for _ in shape)), shape])  # fmt: skip
            y = swap(d, op_type, y, make(d, np.full(of, value if d.chance(0.9) else 1), kind), 0.3 if op_type not in ("Div",) else 0.0)  # fmt: skip
        elif how == 3:
            sizes = d.choice([shape, (1,) * rank, (1,), (2, *shape), shape[-1:]])
            y = d.add("Expand", y, d.longs(sizes))
        elif how == 4:
            y = d.add("Identity", y)
        elif how == 5:
            y = d.add("Dropout", y) if kind == "float32" else d.add("Cast", y, to=_CAST_TYPES[kind])
        elif how == 6 and rank and d.opset >= 10:
            axis = d.integer(0, rank - 1)
            end = d.choice([2**31 - 1, 2**63 - 1, shape[axis], shape[axis] - 1, -1])
            start, step = d.choice([0, 0, 0, -shape[axis], 1]), d.choice([1, 1, 2])
            y = d.add("Slice", y, *(d.longs([each]) for each in (start, end, axis, step)))
        elif how == 7:
            constant = d.constant(d.numbers(d.shape(2), kind))
            axes = d.choice([[0], [-1], [0, 2], [1]])
            wide = (
                d.add("Unsqueeze", constant, axes=axes)
                if d.opset < 13
                else d.add("Unsqueeze", constant, d.longs(axes))
            )
            d.add("Add", wide, make(d, 1, kind))
        else:
            kind = d.choice(["float32", "int32", "int64", "float64"])
            y = d.add("Cast", y, to=_CAST_TYPES[kind])
            if d.chance(0.5):
                d.add("Shape", y)


def cast(d: Drawing) -> None:
    """CastElimination, RemoveDuplicateCastTransformer, CastFloat16Transformer and the folding of
    casts: chains of casts, wider and narrower."""
    y = source(d, 1, 3, d.choice(["float32", "float64", "int32"]))
    y = swap(d, "Mul", y, make(d, 1.3 if d[y].kind != "int32" else 3, d[y].kind))
    kinds = ["float32", "float64", "int32", "bool"]
    for _ in range(d.integer(1, 4)):
        y = d.add("Cast", y, to=_CAST_TYPES[d.choice(kinds)])
        if d[y].kind in ("float32", "float64") and d.chance(0.4):
            swap(d, "Add", y, make(d, 0.1, d[y].kind))
        if d[y].kind in ("float32", "float64") and d.chance(0.3):
            y = d.add("Exp" if d.chance(0.2) else "Neg", y)


def same(d: Drawing) -> None:
    """ConstantSharing, CommonSubexpressionElimination and ConstantFolding: the same nodes twice,
    with small differences, and constants of one value and several types."""
    x = source(d, 2, 3, "float32")
    results = []
    for _ in range(d.integer(2, 3)):
        value, shape = d.choice([0.0, 1.0, -0.0, 0.5]), d.choice([(), (1,), (1, 1)])
        kind = d.choice(["float32", "float32", "float64"])
        constant = make(d, np.full(shape, value), kind, "constant")
        if kind == "float64":
            constant = d.add("Cast", constant, to=1)
        y = d.add(d.choice(["Add", "Add", "Sub", "Mul"]), x, constant)
        y = d.add("Softmax", y, axis=d.choice([1, 1, d[y].value.ndim - 1]))
        y = reduce(d, "ReduceSum", y, [d.choice([0, 1])], 1)
        y = d.add("Transpose", y, perm=d.choice([None, list(range(d[y].value.ndim))]))
        if d.chance(0.5):
            folded = d.add("Div", constant if kind == "float32" else make(d, 1.0), make(d, 0.5))
            y = d.add("Add", y, folded)
        results.append(y)
    for other in results[1:]:
        if d[other].shape == d[results[0]].shape:
            d.add("Sub", results[0], other)


def reshape(d: Drawing) -> None:
    """ReshapeFusion: a Concat of sizes of tensors and numbers is the shape of a Reshape."""
    x = source(d, 2, 4, "float32")
    other = x if d.chance(0.8) else source(d, 2, 4, "float32")
    shape = list(d[x].shape)
    if d.chance(0.4):
        shape[-2:] = [shape[-2] * shape[-1]]
    elif d.chance(0.4):
        shape.insert(len(shape) - 1, 1)
    if d.chance(0.4):
        shape[d.integer(0, len(shape) - 1)] = -1
    parts = []
    for place, size in enumerate(shape):
        if size in d[other].shape and d.chance(0.6):
            axis = d.choice([at for at, length in enumerate(d[other].shape) if length == size])
            axis = place if place < len(d[other].shape) and d[other].shape[place] == size else axis
            scalar = d.chance(0.7)
            sizes = d.add("Shape", other)
            if d.chance(0.2) and d.opset >= 10:
                part = d.add("Slice", sizes, d.longs([axis]), d.longs([axis + 1]))
            else:
                part = d.add("Gather", sizes, d.longs(axis if scalar else [axis]), axis=0)
                if scalar and d.opset < 13:
                    part = d.add("Unsqueeze", part, axes=[0])
                elif scalar:
                    part = d.add("Unsqueeze", part, d.longs([0]))
        else:
            part = d.longs([size])
        if d.chance(0.05):
            part = d.add("Mul", part, d.longs([1]))
        parts.append(part)
    d.add("Reshape", x, d.add("Concat", *parts, axis=0))


def blocks(d: Drawing) -> None:
    """SliceConcatToSpaceToDepthFusion: slices with a step, joined along the channels."""
    if d.opset < 10:
        raise UnfitError("a Slice has no step")
    x = make(d, d.numbers((d.dimension(), d.integer(1, 3), 4, d.choice([4, 6]))), role="given")
    step = d.choice([2] * 5 + [1])
    starts = [(0, 0), (1, 0), (0, 1), (1, 1)]
    if d.chance(0.3):
        starts = [starts[int(place)] for place in d.rng.permutation(4)]
    if d.chance(0.2):
        starts = starts[:-1]
    parts = []
    for row, column in starts:
        part = x
        if d.chance(0.5):
            part = d.add("Slice", part, d.longs([row]), d.longs([2**31 - 1]), d.longs([2]), d.longs([step]))  # fmt: skip
            part = d.add("Slice", part, d.longs([column]), d.longs([2**31 - 1]), d.longs([3 if d.chance(0.95) else 2]), d.longs([step]))  # fmt: skip
        else:
            part = d.add("Slice", part, d.longs([row, column]), d.longs([2**31 - 1] * 2), d.longs([2, 3]), d.longs([step] * 2))  # fmt: skip
        parts.append(part)
    y = d.add("Concat", *parts, axis=d.choice([1] * 5 + [0, -3]))
    if d.chance(0.5):
        _convolve(d, y, d[y].shape[1])


def gathered(d: Drawing) -> None:
    """GatherSliceToSplitFusion and GatherToSliceFusion: all parts of an axis, one by one."""
    x = source(d, 2, 4, d.choice(["float32", "int32"]))
    rank = d[x].value.ndim
    axis = d.integer(0, rank - 1)
    size = d[x].shape[axis]
    places = [int(each) for each in d.rng.permutation(size)] if d.chance(0.5) else range(size)
    for place in places:
        at = place - size if d.chance(0.2) else place
        named = axis - rank if d.chance(0.2) and d.opset >= 11 else axis
        if d.chance(0.25) and d.opset >= 10:
            end = place + 1 if d.chance(0.8) else 2**31 - 1
            d.add("Slice", x, d.longs([place]), d.longs([end]), d.longs([named]))
        else:
            d.add("Gather", x, d.longs(at if d.chance(0.7) else [at]), axis=named)
    if d.chance(0.5) and d.opset >= 11:
        along = d.add("Range", d.longs(0), d.longs(size), d.longs(1))
        d.add("Gather", x, along, axis=axis)


def bias_softmax(d: Drawing) -> None:
    """BiasSoftmaxFusion: a Softmax of a sum with a mask that broadcasts."""
    x = source(d, 2, 4, "float32")
    shape = d[x].shape
    mask = tuple(size if d.chance(0.6) else 1 for size in shape)
    mask = mask[d.integer(0, 2) :] if d.chance(0.3) else mask
    total = swap(d, "Add", x, make(d, d.numbers(mask), role=d.choice(["given", "constant"])))
    rank = len(shape)
    axis = d.choice([None, rank - 1, d.integer(0, rank - 1)])
    d.add("Softmax", total, axis=axis if d.opset < 11 or d.chance(0.6) else -1)


def transposed(d: Drawing) -> None:
    """TransposeOptimizer: Transposes around all kinds of nodes."""
    y = d.add("Transpose", source(d, 3, 4), perm=None)
    for _ in range(d.integer(1, 4)):
        if not d[y].value.ndim:
            return
        y = d.choice(_BETWEEN_TRANSPOSES)(d, y)


def _turn(d: Drawing, y: str) -> str:
    return d.add("Transpose", y, perm=[int(axis) for axis in d.rng.permutation(d[y].value.ndim)])


def _combine(d: Drawing, y: str) -> str:
    return swap(d, d.choice(["Add", "Mul", "Sub"]), y, make(d, weight(d, y), d[y].kind))


def _reduce_some(d: Drawing, y: str) -> str:
    op_type = d.choice(["ReduceMean", "ReduceSum", "ReduceMax"])
    axes = d.choice([None, [_axis(d, y)]])
    return reduce(d, op_type, y, axes, d.choice([0, 1]))


def _axis(d: Drawing, y: str) -> int:
    return d.integer(0, d[y].value.ndim - 1)


def _soften(d: Drawing, y: str) -> str:
    op_type = d.choice(["Softmax", "LogSoftmax"]) if d[y].kind == "float32" else "Neg"
    return d.add(op_type, y, axis=_axis(d, y))


def _double(d: Drawing, y: str) -> str:
    return d.add("Concat", y, d.add("Neg", y), axis=_axis(d, y))


def _cut(d: Drawing, y: str) -> str:
    axis = _axis(d, y)
    if d.opset < 10:
        return d.add("Neg", y)
    end = max(1, d[y].shape[axis] - 1)
    return d.add("Slice", y, d.longs([0]), d.longs([end]), d.longs([axis]))


def _pad(d: Drawing, y: str) -> str:
    pads = [d.integer(0, 1) for _ in range(2 * d[y].value.ndim)]
    return d.add("Pad", y, d.longs(pads)) if d.opset >= 11 else d.add("Neg", y)


def _insert(d: Drawing, y: str) -> str:
    axis = _axis(d, y)
    if d.opset < 13:
        return d.add("Unsqueeze", y, axes=[axis])
    y = d.add("Unsqueeze", y, d.longs([axis]))
    return d.add("Squeeze", y, d.longs([axis])) if d.chance(0.6) else y


def _repeat(d: Drawing, y: str) -> str:
    return d.add("Tile", y, d.longs([d.integer(1, 2) for _ in range(d[y].value.ndim)]))


def _pick(d: Drawing, y: str) -> str:
    return d.add("Gather", y, d.longs([0, -1] if d.opset >= 11 else [0, 0]), axis=_axis(d, y))


def _reshape(d: Drawing, y: str) -> str:
    shape = d[y].shape[::-1]
    return d.add("Reshape", d.add("Reshape", y, d.longs([-1])), d.longs(shape))


_BETWEEN_TRANSPOSES = (
    _turn,
    _turn,
    _combine,
    _reduce_some,
    _soften,
    _double,
    _cut,
    _pad,
    _insert,
    _repeat,
    _pick,
    _reshape,
)


FAMILIES: dict[str, Family] = {
    "conv": conv,
    "blocked layout": blocked_layout,
    "quotient": quotient,
    "clipped": clipped,
    "denied": denied,
    "nothing": nothing,
    "cast": cast,
    "same": same,
    "reshape": reshape,
    "blocks": blocks,
    "gathered": gathered,
    "bias softmax": bias_softmax,
    "transposed": transposed,
}
