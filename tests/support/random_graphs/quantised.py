"""Graphs around the patterns of ONNX Runtime's optimisers for quantised tensors: operators and moves
between DequantizeLinear and QuantizeLinear, pairs of both, and branches that read them.

Most scales are powers of 2, with which sums of floats are exact: a value between two codes is then
between them in every order of summation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from onnx import helper

from random_graphs.drawing import Drawing, UnfitError, make_value_info
from random_graphs.patterns import Family, make

_OPSETS = (10, 12, 13, 17, 19, 20, 21, 22, 23, 24)
_BODY_RESULT = "r"
_Parameters = tuple[str, ...]
"""Names of a scale and a zero point, which may be omitted."""


def _parameters(d: Drawing, kind: str, channels: int = 0) -> _Parameters:
    """Return a scale and a zero point, or one of each for every channel."""
    shape = (channels,) if channels else ()
    if d.chance(0.8):
        scale = np.asarray(2.0 ** d.rng.integers(-5, 2, shape))
    else:
        scale = np.asarray(d.rng.uniform(0.02, 2.0, shape))
    if d.chance(0.1) and (kind == "uint8" or d.opset >= 21):
        zero = ""
    else:
        limits = np.iinfo(kind)
        centre = (int(limits.min) + int(limits.max) + 1) // 2
        values = np.full(shape, centre) if d.chance(0.3) else d.rng.integers(
            max(limits.min, centre - 60), min(limits.max, centre + 60), shape)  # fmt: skip
        zero = make(d, values, kind, "constant")
    return (make(d, scale, "float32", "constant"), *filter(None, [zero]))


def _kind(d: Drawing) -> str:
    wide = ["uint16", "int16"] if d.opset >= 21 else []
    return str(d.choice(["uint8"] * 4 + ["int8"] * 4 + wide))


def _codes(d: Drawing, shape: Sequence[int], kind: str, role: str = "given") -> str:
    limits = np.iinfo(kind)
    if d.chance(0.3):
        values = d.choice([limits.min, limits.max, limits.max // 2]) + np.zeros(shape)
    else:
        values = d.rng.integers(limits.min, limits.max + 1, shape)
    return make(d, values, kind, role)


def _dequantise(d: Drawing, x: str, parameters: _Parameters, axis: int | None = None) -> str:
    if len(parameters) == 1 and d[x].kind != "uint8" and d.opset < 10:
        raise UnfitError("no zero point")
    return d.add("DequantizeLinear", x, *parameters, axis=axis)


def _quantise(d: Drawing, x: str, parameters: _Parameters, kind: str) -> str:
    """Add a QuantizeLinear to a type: by its zero point, or by its attribute."""
    number = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    named = len(parameters) == 1 or d.chance(0.2)
    if len(parameters) == 1 and d.opset < 21 and kind != "uint8":
        raise UnfitError("the opset has no type of a result")
    return d.add("QuantizeLinear", x, *parameters, output_dtype=number if named else None)


def _input(d: Drawing, shape: Sequence[int], kind: str, role: str = "given") -> str:
    return _dequantise(d, _codes(d, shape, kind, role), _parameters(d, kind))


def _shape(d: Drawing) -> tuple[int, ...]:
    return (*d.shape(d.integer(0, 3)), d.choice([1, 3, 16, 33]))


def _elementwise(d: Drawing, kind: str) -> str:
    shape = _shape(d)
    inputs = [_input(d, shape, kind)]
    op_type = d.choice("Add Mul Add Mul Sub Div Min Max Sum Mean PRelu".split())
    other = shape if d.chance(0.6) else [size if d.chance(0.5) else 1 for size in shape]
    if d.chance(0.2):
        inputs.append(inputs[0])
    elif d.chance(0.8):
        inputs.append(_input(d, other, kind, d.choice(["given", "constant"])))
    else:
        inputs.append(make(d, d.numbers(other), "float32", "constant"))
    return d.add(op_type, *(inputs if d.chance(0.5) or op_type == "PRelu" else inputs[::-1]))


def _function(d: Drawing, kind: str) -> str:
    op_type = d.choice(
        "Sigmoid LeakyRelu Softmax Softmax Relu Tanh LogSoftmax Clip Exp Abs Neg HardSigmoid "
        "HardSwish Elu Softplus Erf Gelu Ceil Round Sqrt".split()
    )
    x = _input(d, _shape(d), kind)
    if op_type in ("Softmax", "LogSoftmax"):
        return d.add(op_type, x, axis=d.choice([-1, d.axis(d[x].value.ndim)]))
    return d.add(op_type, x)


def _window(d: Drawing, kind: str) -> str:
    op_type = d.choice(
        "AveragePool GlobalAveragePool MaxPool GlobalMaxPool ReduceMean ReduceMax".split()
    )
    x = _input(d, (d.dimension(), d.dimension(), 5, 4), kind)
    if op_type.startswith("Global"):
        return d.add(op_type, x)
    if op_type.startswith("Reduce"):
        axes = d.choice([[2, 3], [-1], [1]])
        if d.opset < 18:
            return d.add(op_type, x, axes=axes, keepdims=d.integer(0, 1))
        return d.add(op_type, x, d.longs(axes), keepdims=d.integer(0, 1))
    return d.add(
        op_type, x, kernel_shape=[2, 3], strides=d.choice([None, [2, 1]]), pads=d.choice([None, [1] * 4]),
        count_include_pad=d.choice([None, 1]) if op_type == "AveragePool" else None,
    )  # fmt: skip


def _weight(d: Drawing, shape: Sequence[int], channel: int) -> str:
    kind = d.choice(["uint8", "int8"])
    role = "constant" if d.chance(0.8) else "given"
    codes = _codes(d, shape, kind, role)
    if d.chance(0.3) and d.opset >= 13:
        return _dequantise(d, codes, _parameters(d, kind, shape[channel]), channel)
    return _dequantise(d, codes, _parameters(d, kind))


def _bias(d: Drawing, size: int) -> str:
    if d.chance(0.3):
        return make(d, d.numbers((size,)), "float32", "constant")
    codes = make(d, d.rng.integers(-99, 99, (size,)), "int32", "constant")
    return d.add("DequantizeLinear", codes, make(d, 2.0 ** -d.integer(0, 6), role="constant"))


def _product(d: Drawing, kind: str) -> str:
    rows, inner, columns = (d.dimension() for _ in range(3))
    lead = d.choice([(), (), (2,), (2, 3)])
    op_type = d.choice(["MatMul", "MatMul", "Gemm"])
    if op_type == "Gemm":
        inputs = [_input(d, (rows, inner), kind), _weight(d, (columns, inner), 0)]
        if d.chance(0.6) or d.opset < 11:
            inputs.append(_bias(d, columns))
        return d.add("Gemm", *inputs, transB=1, alpha=d.choice([None, None, 0.5]))
    right = _input(d, (inner, columns), kind) if d.chance(0.3) else _weight(d, (inner, columns), 1)
    result = d.add("MatMul", _input(d, (*lead, rows, inner), kind), right)
    return d.add("Add", result, _bias(d, columns)) if d.chance(0.3) else result


def _convolution(d: Drawing, kind: str) -> str:
    channels = d.choice([1, 2, 4, 16])
    group = d.choice([1, 1, channels])
    outputs = d.choice([1, 4]) * group
    inputs = [_input(d, (d.dimension(), channels, 5, 4), kind)]
    if d.chance(0.15):
        inputs.append(_weight(d, (channels, outputs // group, 3, 3), 1 if group == 1 else 0))
        return d.add("ConvTranspose", *inputs, group=group)
    inputs.append(_weight(d, (outputs, channels // group, 3, 3), 0))
    if d.chance(0.5):
        inputs.append(_bias(d, outputs))
    return d.add("Conv", *inputs, group=group, pads=d.choice([None, [1] * 4]))


def _join(d: Drawing, kind: str) -> str:
    shape = d.shape(d.integer(1, 3))
    return d.add("Concat", *(_input(d, shape, kind) for _ in range(d.integer(2, 3))), axis=0)


def _select(d: Drawing, kind: str) -> str:
    shape = d.shape(d.integer(1, 3))
    condition = make(d, d.numbers(shape, "bool"), "bool", "given")
    pair = [_input(d, shape, kind)]
    if d.chance(0.4):
        pair.append(_input(d, shape, kind))
    else:
        pair.append(make(d, d.numbers(d.choice([(), (), shape])), "float32", "constant"))
    return d.add("Where", condition, *(pair if d.chance(0.5) else pair[::-1]))


_COMPUTED: Sequence[Callable[[Drawing, str], str]] = (
    _elementwise, _elementwise, _function, _window, _product, _convolution, _join, _select)  # fmt: skip


def quantised(d: Drawing) -> None:
    """QDQSelectorActionTransformer, EnsureUniqueDQForNodeUnit, WeightBiasQuantization, WhereDummyDq:
    an operator between dequantised operands and quantised results."""
    d.opset = d.choice(_OPSETS)
    kind = _kind(d)
    result = d.choice(_COMPUTED)(d, kind)
    if d.chance(0.3):
        result = d.add(d.choice(["Relu", "Clip", "LeakyRelu", "Neg", "Dropout"]), result)
    if d.chance(0.2):
        result = _move(d, result)
    if d.chance(0.85):
        _finish(d, result, kind)


def _finish(d: Drawing, x: str, kind: str) -> None:
    """Quantise a result, once or twice, and dequantise it."""
    for _ in range(d.choice([1, 1, 1, 2])):
        parameters = _parameters(d, kind)
        codes = _quantise(d, x, parameters, kind if d.chance(0.9) else _kind(d))
        if d.chance(0.5):
            d.add("DequantizeLinear", codes, *parameters)


def _turn(d: Drawing, x: str) -> str:
    return d.add("Transpose", x, perm=[int(axis) for axis in d.rng.permutation(d[x].value.ndim)])


def _reshape(d: Drawing, x: str) -> str:
    shape = d[x].shape
    return d.add("Reshape", x, d.longs(d.choice([[-1], shape[::-1], [-1, 1], [1, *shape]])))


def _add_axis(d: Drawing, x: str) -> str:
    return d.add("Unsqueeze", x, axes=[0]) if d.opset < 13 else d.add("Unsqueeze", x, d.longs([0]))


def _drop_axis(d: Drawing, x: str) -> str:
    axes = [axis for axis, size in enumerate(d[x].shape) if size == 1][:1]
    return d.add("Squeeze", x, axes=axes) if d.opset < 13 else d.add("Squeeze", x, d.longs(axes))


def _cut(d: Drawing, x: str) -> str:
    return d.add("Slice", x, d.longs([0]), d.longs([2]), d.longs([d.axis(d[x].value.ndim)]))


def _pool(d: Drawing, x: str) -> str:
    return d.add("MaxPool", x, kernel_shape=[1] * (d[x].value.ndim - 2))


def _gather(d: Drawing, x: str) -> str:
    return d.add("Gather", x, d.longs([0, 0]), axis=d.axis(d[x].value.ndim))


def _split(d: Drawing, x: str) -> str:
    return d.add("Split", x, axis=0, num_outputs=1)


def _enlarge(d: Drawing, x: str) -> str:
    factors = d.constant([1.0] * (d[x].value.ndim - 1) + [2.0], "float32")
    return d.add("Resize", x, d.constant([], "float32"), factors)


def _pad(d: Drawing, x: str) -> str:
    return d.add("Pad", x, d.longs([0] * (2 * d[x].value.ndim - 1) + [1]))


def _expand(d: Drawing, x: str) -> str:
    return d.add("Expand", x, d.longs([2, *d[x].shape]))


def _keep(d: Drawing, x: str) -> str:
    return d.add(d.choice(["Flatten", "Relu", "Identity"]), x)


_MOVES = (
    _turn, _turn, _reshape, _add_axis, _drop_axis, _cut, _pool, _gather, _split, _enlarge, _pad,
    _expand, _keep, lambda d, x: d.add("Concat", x, x, axis=0),
)  # fmt: skip


def _move(d: Drawing, x: str) -> str:
    """Add an operator that moves or selects elements."""
    return str(d.choice(_MOVES)(d, x))


def _branch(d: Drawing, x: str) -> None:
    """Add an If whose branches read a tensor from outside."""
    branches: dict[str, Any] = {}
    for place, (name, op_type) in enumerate((("then_branch", "Neg"), ("else_branch", "Abs"))):
        result = f"{_BODY_RESULT}{len(d.nodes)}_{place}"
        info = make_value_info(result, d[x].value)
        node = helper.make_node(op_type, [x], [result], name=f"{result}_{op_type}")
        branches[name] = helper.make_graph([node], name, [], [info])
    d.add("If", make(d, d.chance(0.5), "bool", "given"), **branches)


def quantised_moves(d: Drawing) -> None:
    """QDQPropagationTransformer, DoubleQDQPairsRemover and the transpose optimisers: moves behind a
    DequantizeLinear, before a QuantizeLinear, or between pairs of them."""
    d.opset = d.choice(_OPSETS)
    kind, shape = _kind(d), d.shape(d.integer(1, 4))
    parameters = _parameters(d, kind)
    if d.chance(0.5):
        x = _dequantise(d, _codes(d, shape, kind), parameters)
    else:
        x = make(d, d.numbers(shape) * d.choice([1, 8, 64]), "float32", "given")
        x = d.add(d.choice(["Neg", "Abs", "Exp", "Relu"]), x) if d.chance(0.4) else x
    for _ in range(d.integer(1, 4)):
        what = d.integer(0, 9)
        if what < 5:
            x = _move(d, x)
        elif what < 8:
            if d.chance(0.5):
                parameters = _parameters(d, kind)
            codes = _quantise(d, x, parameters, kind)
            if d.chance(0.2):
                codes = _move(d, codes)
            others = parameters if d.chance(0.9) else _parameters(d, kind)
            x = d.add("DequantizeLinear", codes, *others)
        elif what == 8:
            _branch(d, x)
        else:
            d.add(d.choice(["Neg", "Abs"]), x)
    if d.chance(0.6):
        _quantise(d, x, parameters, kind)


def pair(d: Drawing) -> None:
    """QDQFinalCleanupTransformer and DoubleQDQPairsRemover: codes that are dequantised and quantised
    again, with scales of any size and sign."""
    d.opset, d.output_chance = d.choice(_OPSETS), 0.01
    kind = d.choice(["uint8", "int8"])
    number = d.choice([0.5, 0.5, 0.1, -0.25, 1e36, 3e37, 1e-44, 0.0, np.inf])
    scale = make(d, number, "float32", "constant")
    zero = make(d, d.choice([0, 3, 100]), kind, "constant")
    shape = d.shape(d.integer(1, 3))
    if d.chance(0.3):
        x = d.add("QuantizeLinear", make(d, d.numbers(shape), role="given"), scale, zero)
    else:
        x = _codes(d, shape, kind)
    if d.chance(0.3):
        x = d.add("Transpose", x)
    result = d.add("DequantizeLinear", x, scale, zero)
    if d.chance(0.2):
        result = _move(d, result)
    others = [scale, zero] if d.chance(0.9) else [*_parameters(d, kind)]
    result = d.add("QuantizeLinear", result, *others)
    how = d.integer(0, 3)
    if how == 0:
        d.add("Cast", result, to=1)
    elif how == 1:
        d.add("DequantizeLinear", result, *others)


def moved_product(d: Drawing) -> None:
    """QDQPropagationTransformer: a product of codes that are moved after they were dequantised."""
    d.opset, d.output_chance = d.choice([13, 17, 20, 21, 21, 22, 24]), 0.02
    kind = d.choice(["int8", "int8", "uint8"])
    rows, inner, columns = (d.dimension() for _ in range(3))
    shape = d.choice([(rows, inner), (inner, rows), (1, rows, inner), (rows * inner,)])
    x = _codes(d, shape, kind)
    if d.chance(0.2):
        x = d.add("Transpose", x)
    scale = d.choice([0.125, 0.125, 0.1, -0.5, 1e37, 0.0])
    parameters: _Parameters = (make(d, np.full(d.choice([(), (), (1,)]), scale), role="constant"),)
    if kind == "uint8" or d.chance(0.9):
        parameters += (make(d, d.integer(-9 * (kind == "int8"), 9), kind, "constant"),)
    x = _dequantise(d, x, parameters)
    for _ in range(d.integer(0, 2)):
        x = d.choice([_turn, _add_axis, _reshape])(d, x)
    x = d.add("Reshape", x, d.longs(d.choice([(rows, inner), (1, rows, inner), (-1, inner)])))
    right = _weight(d, (inner, columns), 1)
    if d.chance(0.2):
        right = d.add("Reshape", right, d.longs([inner, columns]))
    if d.chance(0.7):
        result = d.add("MatMul", x, right)
    else:
        result = d.add("Gemm", x, right, *([_bias(d, columns)] if d.chance(0.5) else []))
    if d.chance(0.8):
        _finish(d, result, kind)
    if d.chance(0.3):
        d.add("Neg", x)


def quantised_convolution(d: Drawing) -> None:
    """NhwcTransformer: a QLinearConv of any layout, group, padding and scales."""
    d.opset, d.output_chance = d.choice([10, 12, 13, 17, 21]), 0.02
    kind, filter_kind = d.choice(["uint8", "int8"]), d.choice(["uint8", "int8"])
    axes, channels = d.choice([1, 2, 2, 2, 3]), d.choice([1, 2, 3, 4, 16])
    group = d.choice([1, 1, channels])
    outputs = d.choice([1, 2, 8]) * group
    x = _codes(d, (d.dimension(), channels, *(d.integer(3, 6) for _ in range(axes))), kind)
    if d.chance(0.3):
        x = _turn(d, x)
        channels = d[x].shape[1]
        group = 1
        outputs = d.choice([1, 2, 8])
    kernel = [d.integer(1, 3) for _ in range(axes)]
    filters = _codes(d, (outputs, channels // group, *kernel), filter_kind, "constant")
    per_channel = outputs if d.chance(0.3) else 0
    scales = [make(d, 2.0 ** d.integer(-5, 2), role="constant") for _ in range(2)]
    zeros = [make(d, d.integer(0, 100), kind, "constant") for _ in range(2)]
    scale = 2.0 ** d.rng.integers(-5, 2, (per_channel,) if per_channel else ())
    zero = make(
        d, np.zeros_like(scale) if per_channel else d.integer(0, 9), filter_kind, "constant"
    )
    inputs = [x, scales[0], zeros[0], filters, make(d, scale, role="constant"), zero]
    inputs += [scales[1], zeros[1]]
    if d.chance(0.4):
        inputs.append(make(d, d.rng.integers(-999, 999, (outputs,)), "int32", "constant"))
    pads = d.choice([None, [1] * 2 * axes, [0] * axes + [1] * axes])
    settings: dict[str, Any] = {"pads": pads} if d.chance(0.8) else {"auto_pad": "SAME_LOWER"}
    settings[d.choice(["strides", "dilations"])] = d.choice([None, None, [2] + [1] * (axes - 1)])
    result = d.add("QLinearConv", *inputs, group=group, kernel_shape=kernel, **settings)
    if d.chance(0.4):
        d.add(d.choice(["Transpose", "MaxPool"]), result, kernel_shape=[1] * axes)


def turned_pool(d: Drawing) -> None:
    """TransposeOptimizer_CPUExecutionProvider: a MaxPool of codes between Transposes."""
    d.opset, d.output_chance = d.choice([12, 13, 17, 21, 22]), 0.02
    axes = d.choice([1, 2, 2, 2, 3])
    rank = axes + 2
    x = _codes(d, [d.dimension(), *(d.integer(3, 5) for _ in range(rank - 1))], d.choice(["uint8", "int8"]))  # fmt: skip
    last = [0, rank - 1, *range(1, rank - 1)]
    x = d.add("Transpose", x, perm=last if d.chance(0.8) else list(d.rng.permutation(rank)))
    result = d.add(
        "MaxPool", x, outputs=d.choice([1, 1, 1, 2]), kernel_shape=[d.integer(1, 3) for _ in range(axes)],
        strides=d.choice([None, [2] * axes]), pads=d.choice([None, [1] * 2 * axes, [0] * axes + [1] * axes]),
        ceil_mode=d.choice([None, 1]), dilations=d.choice([None, None, [2] + [1] * (axes - 1)]),
        storage_order=d.choice([None, None, 1]), auto_pad=d.choice([None] * 4 + ["SAME_UPPER"]),
    )  # fmt: skip
    if d.chance(0.8):
        first = [0, *range(2, rank), 1]
        result = d.add("Transpose", result, perm=first if d.chance(0.8) else last)
    if d.chance(0.3):
        d.add("Cast", result, to=1)


def blocked_weight(d: Drawing) -> None:
    """MatMulNBitsFusion: a product with a weight of 4 bits and a scale for each block, and a bias.
    With an open size of the batch it becomes no Gemm."""
    d.opset, d.output_chance = d.choice([21, 23]), 0.02
    kind = d.choice([ml_dtypes.int4, ml_dtypes.uint4])
    rows, columns, blocks = d.choice([32, 64]), d.choice([1, 3, 8]), d.choice([16, 32])
    low = 0 if kind is ml_dtypes.uint4 else -8
    codes = d.rng.integers(low, low + 16, (rows, columns)).astype(kind)
    shape = (rows // blocks, columns)
    inputs = [d.constant(codes), make(d, 2.0 ** d.rng.integers(-4, 1, shape), role="constant")]
    if d.chance(0.4):
        inputs.append(d.constant(d.rng.integers(low, low + 16, shape).astype(kind)))
    right = d.add("DequantizeLinear", *inputs, axis=0, block_size=blocks)
    x = make(d, d.numbers((*d.shape(d.integer(1, 2)), rows)), role="given")
    result = d.add("MatMul", x, right)
    if d.chance(0.9):
        bias = d.choice([(columns,)] * 5 + [(), (1,), (1, columns), (2, *d[result].shape)])
        sides = [result, make(d, d.numbers(bias))]
        result = d.add("Add", *(sides if d.chance(0.5) else sides[::-1]))
    if d.chance(0.3):
        d.add("Neg", result)


FAMILIES: dict[str, Family] = {
    "quantised": quantised,
    "quantised moves": quantised_moves,
    "pair": pair,
    "moved product": moved_product,
    "quantised convolution": quantised_convolution,
    "turned pool": turned_pool,
    "blocked weight": blocked_weight,
}
