"""Steps that add operators on elements, reductions and normalisations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from random_graphs.drawing import ANY, FLOATS, NUMBERS, SIGNED, Drawing, UnfitError

Builder = Callable[[Drawing, str], object]

_UNARY = (
    "Acos Acosh Asin Asinh Atan Atanh Celu Ceil Cos Cosh Elu Erf Exp Floor Gelu HardSigmoid "
    "HardSwish LeakyRelu Log Mish Reciprocal Round Selu Sigmoid Sin Sinh Softplus Softsign Sqrt "
    "Swish Tan Tanh ThresholdedRelu Shrink IsInf IsNaN LpNormalization"
)
_NUMERIC_UNARY = "Abs Neg Sign Relu Identity"
_DOMAINS = {
    "Acos": (-1, 1),
    "Acosh": (1, 99),
    "Asin": (-1, 1),
    "Atanh": (-0.9, 0.9),
    "Log": (0.125, 999),
    "Sqrt": (0, 999),
    "Reciprocal": (0.25, 99),
}
"""Ranges where functions of reals are defined, and far enough from where they are infinite."""
_NUMERIC_BINARY = "Add Sub Mul Min Max"
_COMPARISONS = "Equal Greater GreaterOrEqual Less LessOrEqual"
_REDUCTIONS = (
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
    "ReduceSum ReduceSumSquare"
)


def unary(d: Drawing, op_type: str) -> None:
    """Add a function of reals, within its domain."""
    source = d.pick()
    if op_type in _DOMAINS:
        low, high = _DOMAINS[op_type]
        source = clip_to(d, source, low, high)
    alpha = d.choice([None, 0.25, 0.5, 1.5])
    if op_type == "LpNormalization":
        return void(
            d.add(op_type, source, p=d.choice([None, 1, 2]), axis=d.axis(d[source].value.ndim))
        )
    approximate = d.choice([None, "none", "tanh"])
    return void(
        d.add(op_type, source, alpha=alpha, lambd=d.choice([None, 0.5]), approximate=approximate)
    )


def void(_: object) -> None:
    """Discard the value of an expression."""


def clip_to(d: Drawing, source: str, low: float, high: float) -> str:
    """Clip a tensor, in the form that the opset has."""
    if d.opset < 11:
        return d.add("Clip", source, min=float(low), max=float(high))
    return d.add("Clip", source, d.constant(low, "float32"), d.constant(high, "float32"))


def clip(d: Drawing, op_type: str) -> None:
    """Add a Clip with one bound, both or none."""
    source = d.pick(FLOATS if d.opset < 12 else NUMBERS)
    kind = d[source].kind
    low, high = (d.choice([-1, -2]), d.choice([1, 2])) if d.chance(0.9) else (2, 1)
    if d.opset < 11:
        d.add(op_type, source, min=float(low) if d.chance(0.7) else None, max=float(high))
        return
    inputs = [source, *(d.constant(each, kind) if d.chance(0.7) else "" for each in (low, high))]
    while not inputs[-1] and d.chance(0.7):
        inputs.pop()
    d.add(op_type, *inputs)


def numeric_unary(d: Drawing, op_type: str) -> None:
    """Add a function that whole numbers have, too."""
    d.add(op_type, d.pick((*NUMBERS, "int8") if op_type != "Identity" else ANY))


def numeric_binary(d: Drawing, op_type: str) -> None:
    """Add an operator on two operands that broadcast; some take any number of them."""
    one = d.pick((*NUMBERS, "int8", "uint8"))
    operands = [one, d.pick_like(one)]
    if op_type in ("Min", "Max", "Mean", "Sum"):
        operands = operands[: d.integer(1, 2)]
        if d.chance(0.3):
            operands.append(d.pick_like(one))
    elif d.chance(0.4):
        operands.reverse()
    d.add(op_type, *operands)


def many(d: Drawing, op_type: str) -> None:
    """Add an operator on any number of floats."""
    one = d.pick()
    d.add(op_type, *[one, *(d.pick_like(one) for _ in range(d.integer(0, 2)))])


def _divisor(d: Drawing, one: str) -> str:
    """Return a constant without zeros that broadcasts."""
    shape = tuple(size if d.chance(0.6) else 1 for size in d[one].shape)
    value = d.numbers(shape[d.integer(0, len(shape)) :], d[one].kind)
    return d.constant(np.where(value == 0, value.dtype.type(2), value))


def divide(d: Drawing, op_type: str) -> None:
    """Divide by values that are not zero."""
    one = d.pick(NUMBERS)
    fmod = int(d.chance(0.5) or d[one].kind == "float32") if op_type == "Mod" else None
    d.add(op_type, one, _divisor(d, one), fmod=fmod)


def power(d: Drawing, op_type: str) -> None:
    """Add powers of positive numbers, and small whole powers of any."""
    one = d.pick(FLOATS if d.opset < 12 else (*FLOATS, "int32"))
    if d[one].kind != "float32" or d.chance(0.5):
        kind = d[one].kind if d.opset < 12 else d.choice(["float32", "int64", "int32"])
        d.add(op_type, one, d.constant(d.integer(0, 3), kind))
        return
    base = clip_to(d, one, 0.25, 4)
    d.add(op_type, base, d.constant(d.numbers(d[one].shape[-1:] if d.chance(0.5) else ())))


def compare(d: Drawing, op_type: str) -> None:
    """Add a comparison of numbers; Equal takes truths, too."""
    kinds: tuple[str, ...] = (*NUMBERS, "bool") if op_type == "Equal" else NUMBERS
    if d.opset < 9:
        kinds = ("int32", "int64", "bool") if op_type == "Equal" else FLOATS
    one = d.pick(kinds)
    d.add(op_type, one, d.pick_like(one))


def logic(d: Drawing, op_type: str) -> None:
    """Add an operator on truths."""
    one = d.pick(["bool"])
    d.add(op_type, *([one] if op_type == "Not" else [one, d.pick_like(one)]))


def bits(d: Drawing, op_type: str) -> None:
    """Add an operator on bits."""
    if op_type == "BitShift":
        one = d.pick(["uint8", "uint32"] if d.chance(0.5) else ["uint8"])
        other = d.constant(d.integer(0, 7), d[one].kind)
        d.add(op_type, one, other, direction=d.choice(["LEFT", "RIGHT"]))
        return
    one = d.pick([*SIGNED, "int8", "uint8"])
    d.add(op_type, *([one] if op_type == "BitwiseNot" else [one, d.pick_like(one)]))


def where(d: Drawing, op_type: str) -> None:
    """Choose by a truth."""
    one = d.pick(NUMBERS)
    d.add(op_type, d.pick_like(d.pick(["bool"])), one, d.pick_like(one))


def slope(d: Drawing, op_type: str) -> None:
    """Add an operator with a slope for each element of the last axes, or for each channel."""
    one = d.pick(ranks=range(1, 5))
    shape = d[one].shape
    made = d.choice(
        [shape[1:], shape[-1:], (1,), (shape[1], *[1] * (len(shape) - 2)) if shape[1:] else (1,)]
    )
    d.add(op_type, one, d.constant(d.numbers(made)))


def cast(d: Drawing, op_type: str) -> None:
    """Add a cast to any type; a float loses its sign before a cast to whole numbers."""
    one = d.pick((*ANY, "int16", "uint16", "float64"))
    kinds = ["float32", "int32", "int64", "bool", "int8", "uint8"]
    kind = d.choice([*kinds, "float16", "float64"] if d.chance(0.3) else kinds)
    if d[one].kind in ("float32", "float64") and kind.startswith(("u", "i")):
        one = d.add("Abs", one)
    if op_type == "CastLike":
        d.add(op_type, one, d.constant(d.numbers([1], "float32"), kind))
        return
    d.add(
        op_type,
        one,
        to=getattr(TensorProto, {"float32": "FLOAT", "float64": "DOUBLE"}.get(kind, kind.upper())),
    )


def dropout(d: Drawing, op_type: str) -> None:
    """Add a dropout of inference: the identity, and a mask of truths."""
    source = d.pick()
    inputs = [source]
    if d.opset >= 12 and d.chance(0.5):
        inputs.append(d.constant(0.5, "float32"))
        if d.chance(0.5):
            inputs.append(d.constant(False, "bool"))
    d.add_all(op_type, inputs, [True, d.chance(0.3) and d.opset >= 10], ratio=d.choice([None, 0.3]))


def reduce(d: Drawing, op_type: str) -> None:
    """Add a reduction along some axes, all, or none; axes are an attribute or an input."""
    source = d.pick(
        (*FLOATS, "int32") if "L" not in op_type[6:] and op_type != "ReduceMean" else FLOATS
    )
    rank = d[source].value.ndim
    if op_type == "ReduceLogSum":
        source = clip_to(d, source, 0.125, 9)
    count = d.integer(0, rank)
    axes = [
        int(axis) - (rank if d.chance(0.3) and d.opset >= 11 else 0)
        for axis in d.rng.permutation(rank)
    ]
    axes = axes[:count]
    keepdims = d.choice([None, 0, 1])
    if d.opset < (13 if op_type == "ReduceSum" else 18):
        d.add(op_type, source, axes=axes or None, keepdims=keepdims)
        return
    inputs = [source, d.longs(axes)] if axes or d.chance(0.3) else [source]
    d.add(op_type, *inputs, keepdims=keepdims, noop_with_empty_axes=d.choice([None, 0, 1]))


def arg(d: Drawing, op_type: str) -> None:
    """Add the index of the largest or smallest element, first or last."""
    source = d.pick((*FLOATS, "int32") if d.opset >= 12 else FLOATS, ranks=range(1, 5))
    rank = d[source].value.ndim
    axis = d.axis(rank) if d.opset >= 11 else d.integer(0, max(0, rank - 1))
    d.add(
        op_type,
        source,
        axis=axis,
        keepdims=d.choice([None, 0, 1]),
        select_last_index=d.choice([None, 0, 1]),
    )


def softmax(d: Drawing, op_type: str) -> None:
    """Add a softmax along an axis; in older opsets, along it and all behind it."""
    source = d.pick(ranks=range(1, 5))
    rank = d[source].value.ndim
    axis = d.axis(rank) if d.opset >= 11 else d.integer(0, rank - 1)
    d.add(op_type, source, axis=None if d.chance(0.3) else axis)


def running_sum(d: Drawing, op_type: str) -> None:
    """Add the sums up to each element."""
    source = d.pick((*FLOATS, "int32", "int64"), ranks=range(1, 5))
    axis = d.constant(d.axis(d[source].value.ndim), d.choice(["int32", "int64"]))
    d.add(op_type, source, axis, exclusive=d.choice([None, 1]), reverse=d.choice([None, 1]))


def top(d: Drawing, op_type: str) -> None:
    """Add the largest or smallest elements, with their indices."""
    source = d.pick(ranks=range(1, 4))
    axis = d.axis(d[source].value.ndim) if d.opset >= 11 else d.integer(0, d[source].value.ndim - 1)
    k = d.integer(1, d[source].shape[axis]) if d[source].value.size else 1
    wanted = [True, d.chance(0.7)]
    if d.opset < 10:
        d.add_all(op_type, [source], [True, True], axis=axis, k=k)
        return
    d.add_all(op_type, [source, d.longs([k])], wanted, axis=axis, largest=d.choice([None, 0, 1]))


def normalise(d: Drawing, op_type: str) -> None:
    """Add a normalisation over channels, groups or the last axes."""
    source = d.pick(ranks=range(2, 5))
    shape = d[source].shape
    epsilon = d.choice([None, 0.125])
    channels = [d.constant(np.abs(d.numbers(shape[1:2])) + 0.5, "float32") for _ in range(4)]
    if op_type == "BatchNormalization":
        wanted = [True]
        d.add_all(
            op_type, [source, *channels], wanted, epsilon=epsilon, momentum=d.choice([None, 0.5])
        )
    elif op_type == "InstanceNormalization":
        if len(shape) < 3:
            raise UnfitError("no space")
        d.add(op_type, source, *channels[:2], epsilon=epsilon)
    elif op_type == "GroupNormalization":
        groups = d.choice([each for each in range(1, shape[1] + 1) if shape[1] % each == 0])
        of = shape[1] if d.opset >= 21 else groups
        scale, bias = (d.constant(d.numbers([of])) for _ in range(2))
        d.add(op_type, source, scale, bias, num_groups=groups, epsilon=epsilon)
    elif op_type == "LRN":
        d.add(
            op_type,
            source,
            size=d.choice([1, 3]),
            alpha=d.choice([None, 0.5]),
            bias=d.choice([None, 2.0]),
        )
    elif op_type == "MeanVarianceNormalization":
        axes = d.choice([None, [1], [0, 1], [len(shape) - 1], [1, len(shape) - 1]])
        if axes is None and len(shape) != 4:
            axes = [1]
        d.add(op_type, source, axes=axes)
    else:
        axis = d.axis(len(shape))
        kept = shape[axis if axis >= 0 else len(shape) + axis :]
        kept = kept if d.chance(0.7) else tuple(size if d.chance(0.7) else 1 for size in kept)
        scales = [d.constant(d.numbers(kept)) for _ in range(1 if op_type.startswith("RMS") else 2)]
        d.add(
            op_type,
            source,
            *scales[: d.integer(1, 2)],
            axis=None if axis == -1 else axis,
            epsilon=epsilon,
        )


BUILDERS: dict[str, Builder] = {
    **dict.fromkeys(_UNARY.split(), unary),
    **dict.fromkeys(_NUMERIC_UNARY.split(), numeric_unary),
    **dict.fromkeys(_NUMERIC_BINARY.split(), numeric_binary),
    **dict.fromkeys(_COMPARISONS.split(), compare),
    **dict.fromkeys(("And", "Or", "Xor", "Not"), logic),
    **dict.fromkeys(("BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"), bits),
    **dict.fromkeys(_REDUCTIONS.split(), reduce),
    **dict.fromkeys(("Div", "Mod"), divide),
    **dict.fromkeys(("Mean", "Sum"), many),
    **dict.fromkeys(("ArgMax", "ArgMin"), arg),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), softmax),
    **dict.fromkeys(("Cast", "CastLike"), cast),
    **dict.fromkeys(
        (
            "BatchNormalization GroupNormalization InstanceNormalization LayerNormalization LRN "
            "MeanVarianceNormalization RMSNormalization"
        ).split(),
        normalise,
    ),
    "Clip": clip,
    "CumSum": running_sum,
    "Dropout": dropout,
    "Pow": power,
    "PRelu": slope,
    "TopK": top,
    "Where": where,
}
