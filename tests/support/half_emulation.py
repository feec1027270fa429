"""Second implementation of the chip's half and fp8 arithmetic, in plain numpy loops.

The lowered graphs and the kernels are compared with it. It uses nothing of `simipu`. Types of 8
bits are those of ml_dtypes. Where sums are kept in half, the order of additions is the
definition's, to the bit: loops go over channels and kernel positions, numpy over results.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

HALF_MAX, FLOAT_MAX = np.float32(65504), np.finfo(np.float32).max
GROWING = ("Cosh", "Exp", "Pow", "ReduceProd", "Sinh")
"""Operators whose infinity is an overflow of float."""
QUARTERS: dict[int, Any] = {
    TensorProto.FLOAT8E4M3FNUZ: ml_dtypes.float8_e4m3fnuz,
    TensorProto.FLOAT8E5M2FNUZ: ml_dtypes.float8_e5m2fnuz,
}
MOVING = {
    "Identity",
    "Reshape",
    "Transpose",
    "Concat",
    "Slice",
    "Relu",
    "Max",
    "Min",
    "MaxPool",
    "Neg",
    "Flatten",
    "Where",
}


Array = npt.NDArray[Any]


def to_half(values: Array, nan_on_overflow: bool = False) -> Array:
    """Round floats to the nearest even half; larger ones become the largest half, or NaN.
    Infinities stay."""
    values = np.asarray(values, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        if nan_on_overflow:
            halves = values.astype(np.float16)
            return np.where(np.isinf(halves) & np.isfinite(values), np.float16(np.nan), halves)
        bounded = np.clip(values, -HALF_MAX, HALF_MAX)
        return np.where(np.isinf(values), values, bounded).astype(np.float16)


def multiply(left: Array, right: Array, block: int, nan_on_overflow: bool = False) -> Array:
    """Return left @ right, rounded to half after each `block` of products; 0 means once at the
    end."""
    if not block:
        return to_half(left.astype(np.float64) @ right.astype(np.float64), nan_on_overflow)
    left, right = left.astype(np.float32), right.astype(np.float32)
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    shape = (*batch, left.shape[-2], right.shape[-1])
    channels = range(left.shape[-1])
    terms = ((left[..., k, None], right[..., k, :][..., None, :]) for k in channels)
    ends = ((k + 1) % block == 0 or k + 1 == len(channels) for k in channels)
    return _add_up(shape, zip(terms, ends, strict=True), nan_on_overflow)


def _add_up(
    shape: tuple[int, ...], terms: Iterable[tuple[tuple[Array, Array], bool]], nan_on_overflow: bool
) -> Array:
    """Sum the products of pairs, in float, one after the other from zero.

    At the end of a block its sum is added to the total, which is a half.
    """
    total, partial, product = np.zeros(shape, np.float16), *np.zeros((2, *shape), np.float32)
    with np.errstate(all="ignore"):
        for (left, right), ends_block in terms:
            partial += np.multiply(left, right, out=product)
            if ends_block:
                total = to_half(total.astype(np.float32) + partial, nan_on_overflow)
                partial[...] = 0
    return total


def convolve(
    field: Array,
    filters: Array,
    block: int,
    *,
    strides: Sequence[int],
    dilations: Sequence[int],
    before: Sequence[int],
    after: Sequence[int],
    groups: int,
    nan_on_overflow: bool = False,
) -> Array:
    """Convolve (n, c, ...) with (o, c / groups, ...).

    Sums are rounded to halves after each block of channels of a position. With block 0 they are
    doubles and not rounded. For few channels a block has up to 4 kernel rows, a power of two. For
    groups of up to 4 channels, sums are rounded after each 4 positions of a row.
    """
    padded = np.pad(_widen(field, block), [(0, 0), (0, 0), *zip(before, after, strict=True)])
    kernel, channels, outputs = filters.shape[2:], filters.shape[1], len(filters) // groups
    sizes = [
        (size - (taps - 1) * dilation - 1) // step + 1
        for size, taps, step, dilation in zip(
            padded.shape[2:], kernel, strides, dilations, strict=True
        )
    ]
    # Rows, groups, outputs, the field's axes; a channel is taken out where it is met.
    padded = padded.reshape(len(field), groups, 1, channels, *padded.shape[2:])
    taps = _widen(filters, block).reshape(groups, outputs, channels, *kernel)

    def term(channel: int, position: Sequence[int]) -> tuple[Array, Array]:
        window = tuple(
            slice(at * dilation, at * dilation + (size - 1) * step + 1, step)
            for at, dilation, size, step in zip(position, dilations, sizes, strides, strict=True)
        )
        place: tuple[Any, ...] = (slice(None), slice(None), channel, *position)
        tap = taps[place].reshape(groups, outputs, *[1] * len(sizes))
        place = (slice(None), slice(None), slice(None), channel, *window)
        return padded[place], tap

    shape = (len(field), groups, outputs, *sizes)
    blocks = _blocks(channels, kernel, block, groups)
    if block:
        ends = ((each, each is members[-1]) for members in blocks for each in members)
        total = _add_up(shape, ((term(*each), is_last) for each, is_last in ends), nan_on_overflow)
    else:
        total = np.zeros(shape)
        for channel, position in itertools.chain.from_iterable(blocks):
            seen, tap = term(channel, position)
            total += seen * tap
    return total.reshape(len(field), len(filters), *sizes)


def _blocks(
    channels: int, kernel: Sequence[int], block: int, groups: int
) -> Iterator[list[tuple[int, tuple[int, ...]]]]:
    """Yield the channels and positions of each block, in the order of the sum."""
    at_once, axis = 1, 0
    if groups > 1 and channels <= 4:
        at_once, axis = 4, len(kernel) - 1
    while groups == 1 and at_once < 4 and 2 * at_once * channels <= block:
        at_once *= 2
    for first in range(0, channels, block or channels):
        members = range(first, min(channels, first + (block or channels)))
        positions = itertools.product(
            *(range(0, n, at_once if i == axis else 1) for i, n in enumerate(kernel))
        )
        for start in positions:
            along = range(start[axis], min(start[axis] + at_once, kernel[axis]))
            yield [(c, (*start[:axis], at, *start[axis + 1 :])) for at in along for c in members]


def to_quarter(values: Array, data_type: int, scale: int, nan_on_overflow: bool = False) -> Array:
    """Return fp8 values at a scale, as floats: ml_dtypes' rounding, saturated."""
    kind = QUARTERS[data_type]
    find_limits: Any = ml_dtypes.finfo  # is not annotated
    most = float(find_limits(kind).max)
    scaled = np.ldexp(values.astype(np.float64), -scale)
    if not nan_on_overflow:
        scaled = np.clip(scaled, -most, most)
    # ml_dtypes would round a double twice, over float.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.ldexp(scaled.astype(np.float32).astype(kind).astype(np.float64), scale).astype(
            np.float32
        )


def run_graph(
    model: onnx.ModelProto,
    feeds: dict[str, Array],
    half_partials: bool,
    nan_on_overflow: bool = False,
) -> list[Array]:
    """Compute the outputs of a graph in the chip's types, node by node."""
    values = dict(feeds) | {tensor.name: _initial(tensor) for tensor in model.graph.initializer}
    narrow = {t.name for t in model.graph.initializer if t.data_type in QUARTERS}
    from_quarters: set[str] = set()
    for node in model.graph.node:
        inputs = [values[name] for name in node.input if name]
        block = 32 if from_quarters.issuperset(node.input[:2]) else 16 if half_partials else 0
        block *= all(value.ndim > 1 for value in inputs[:2])  # dot products have one sum
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "Cast" and attributes["to"] in QUARTERS:
            result = to_quarter(
                inputs[0], attributes["to"], attributes.get("scale", 0), nan_on_overflow
            )
            narrow.add(node.output[0])
            values[node.output[0]] = result
            continue
        if node.op_type == "Cast" and node.input[0] in narrow:
            from_quarters.add(node.output[0])
            initial = any(t.name == node.input[0] for t in model.graph.initializer)
            scale = attributes.get("scale", 0) if initial else 0
            values[node.output[0]] = np.ldexp(inputs[0], scale).astype(np.float16)
            continue
        if node.op_type == "MatMul":
            wide = [multiply(inputs[0], inputs[1], block, nan_on_overflow)]
        elif node.op_type == "Gemm":
            wide = [_gemm(inputs, attributes, block, nan_on_overflow)]
        elif node.op_type == "Conv":
            wide = [_conv(inputs, attributes, block, nan_on_overflow)]
        elif node.op_type == "ConvTranspose":
            wide = [_conv_transpose(inputs, attributes, block, nan_on_overflow)]
        else:
            wide = _reference(node, inputs, model)
        for name, value in zip(node.output, wide, strict=True):
            keep = value.dtype.kind != "f" or node.op_type in MOVING
            values[name] = (
                value.astype(inputs[0].dtype) if keep and value.dtype.kind == "f" else value
            )
            if not keep:
                values[name] = to_half(value, nan_on_overflow)
    return [values[output.name] for output in model.graph.output]


def _initial(tensor: onnx.TensorProto) -> Array:
    if tensor.data_type in QUARTERS:
        codes: Array = np.frombuffer(tensor.raw_data, np.uint8).view(QUARTERS[tensor.data_type])
        return codes.astype(np.float32).reshape(tensor.dims)
    held: Array = numpy_helper.to_array(tensor)
    return held


def _gemm(
    inputs: list[Array], attributes: Mapping[str, Any], block: int, nan_on_overflow: bool
) -> Array:
    left, right, *bias = inputs
    left = left.T if attributes.get("transA") else left
    right = right.T if attributes.get("transB") else right
    alpha, beta = (attributes.get(name, 1.0) for name in ("alpha", "beta"))
    if block:
        total = _widen(multiply(left, right, block, nan_on_overflow), block)
    else:
        total = _widen(left, block) @ _widen(right, block)
    total = total * _widen(alpha, block)
    return total + _widen(beta, block) * _widen(bias[0], block) if bias else total


def _widen(values: npt.ArrayLike, block: int) -> Array:
    """Widen values for the arithmetic around a product.

    The result is float if the order of sums is defined. Otherwise it is double, and the nearest
    float is the answer.
    """
    wide: Array = np.asarray(values).astype(np.float32 if block else np.float64)
    return wide


def _conv(
    inputs: list[Array], attributes: Mapping[str, Any], block: int, nan_on_overflow: bool
) -> Array:
    field, filters, *bias = inputs
    rank = field.ndim - 2
    pads = attributes.get("pads", [0] * 2 * rank)
    total = convolve(
        field,
        filters,
        block,
        strides=attributes.get("strides", [1] * rank),
        dilations=attributes.get("dilations", [1] * rank),
        before=pads[:rank],
        after=pads[rank:],
        groups=attributes.get("group", 1),
        nan_on_overflow=nan_on_overflow,
    )
    return _add_bias(total, bias, block)


def _conv_transpose(
    inputs: list[Array], attributes: Mapping[str, Any], block: int, nan_on_overflow: bool
) -> Array:
    """Convolve a field that has zeros between its positions with the flipped filters."""
    field, filters, *bias = inputs
    rank, groups = field.ndim - 2, attributes.get("group", 1)
    strides, dilations = (attributes.get(name, [1] * rank) for name in ("strides", "dilations"))
    sizes = [(n - 1) * step + 1 for n, step in zip(field.shape[2:], strides, strict=True)]
    spread = np.zeros([*field.shape[:2], *sizes], field.dtype)
    places: tuple[Any, ...] = (..., *(slice(None, None, step) for step in strides))
    spread[places] = field
    by_group = filters.reshape(groups, -1, *filters.shape[1:])
    turned = np.flip(np.swapaxes(by_group, 1, 2), tuple(range(3, 3 + rank)))
    turned = turned.reshape(-1, len(filters) // groups, *filters.shape[2:])
    # All that any product reaches, of which the padding cuts off.
    reach = [
        (taps - 1) * dilation for taps, dilation in zip(filters.shape[2:], dilations, strict=True)
    ]
    cut, sizes = _find_transposed_result(field.shape[2:], filters.shape[2:], attributes)
    lacking = [
        size + less + far - n
        for size, less, far, n in zip(sizes, cut, reach, spread.shape[2:], strict=True)
    ]
    whole = convolve(
        spread,
        turned,
        block,
        strides=[1] * rank,
        dilations=dilations,
        before=reach,
        after=[max(0, each) for each in lacking],
        groups=groups,
        nan_on_overflow=nan_on_overflow,
    )
    places = (..., *(slice(less, less + size) for less, size in zip(cut, sizes, strict=True)))
    return _add_bias(whole[places], bias, block)


def _find_transposed_result(
    field: Sequence[int], kernel: Sequence[int], attributes: Mapping[str, Any]
) -> tuple[list[int], list[int]]:
    """Return the positions cut off before each axis of a transposed convolution, and those that
    stay, by the standard."""
    rank, mode = len(field), attributes.get("auto_pad", b"NOTSET")
    one, none = [1] * rank, [0] * rank
    cut, sizes = [], []
    for i, (size, taps) in enumerate(zip(field, kernel, strict=True)):
        stride = attributes.get("strides", one)[i]
        whole = stride * (size - 1) + attributes.get("output_padding", none)[i]
        whole += (taps - 1) * attributes.get("dilations", one)[i] + 1
        if "output_shape" in attributes or mode.startswith(b"SAME"):
            wanted = (
                attributes["output_shape"][i]
                if "output_shape" in attributes
                else min(size * stride, whole)
            )
            total = max(0, whole - wanted)
            first = total // 2 if mode == b"SAME_UPPER" else total - total // 2
        else:
            pads = attributes.get("pads", none * 2) if mode == b"NOTSET" else none * 2
            first, wanted = pads[i], whole - pads[i] - pads[rank + i]
        cut.append(first)
        sizes.append(wanted)
    return cut, sizes


def _add_bias(total: Array, bias: Sequence[Array], block: int) -> Array:
    if not bias:
        return total
    rank = total.ndim - 2
    added: Array = _widen(total, block) + _widen(bias[0], block).reshape(-1, *[1] * rank)
    return added


def _reference(node: onnx.NodeProto, inputs: list[Array], model: onnx.ModelProto) -> list[Array]:
    """Compute any other operator, in floats, by the onnx reference."""
    wide = [value.astype(np.float32) if value.dtype == np.float16 else value for value in inputs]
    names = [f"x{i}" for i in range(len(wide))]
    single = onnx.NodeProto()
    single.CopyFrom(node)
    single.input[:] = names
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for n, v in zip(names, wide, strict=True)
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in node.output]
    graph = helper.make_graph([single], "one", infos, outputs)
    alone = helper.make_model(graph, opset_imports=model.opset_import, ir_version=8)
    with np.errstate(all="ignore"):
        found = list(ReferenceEvaluator(alone).run(None, dict(zip(names, wide, strict=True))))
    return (
        [np.clip(value, -FLOAT_MAX, FLOAT_MAX) for value in found]
        if node.op_type in GROWING
        else found
    )
