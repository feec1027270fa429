"""The chip's half and fp8 arithmetic once more, in plain numpy loops: what the lowered graphs are compared
with.

Nothing of `simipu` is used here. Types of 8 bits are those of ml_dtypes.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

HALF_MAX = np.float32(65504)
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
    """Halves of floats: nearest even; the largest half, or NaN, where that is too small."""
    values = np.asarray(values, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        if nan_on_overflow:
            halves = values.astype(np.float16)
            return np.where(np.isinf(halves) & np.isfinite(values), np.float16(np.nan), halves)
        return np.clip(values, -HALF_MAX, HALF_MAX).astype(np.float16)


def multiply(left: Array, right: Array, block: int, nan_on_overflow: bool = False) -> Array:
    """left @ right, rounded to half after each `block` of products; 0: once at the end."""
    left, right = left.astype(np.float64), right.astype(np.float64)
    if not block:
        return to_half(left @ right, nan_on_overflow)
    total: Array | None = None
    for k in range(0, left.shape[-1], block):
        product = left[..., k : k + block] @ right[..., k : k + block, :]
        total = to_half(product if total is None else total.astype(np.float64) + product, nan_on_overflow)
    assert total is not None
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
    """A convolution of (n, c, ...) with (o, c / groups, ...), its sums rounded after each block of channels
    of a position.

    Of few channels a block has up to 4 kernel rows, a power of two. Groups of up to 4 channels: after each 4
    positions of a row.
    """
    rank = field.ndim - 2
    padded = np.pad(field.astype(np.float64), [(0, 0), (0, 0), *zip(before, after, strict=True)])
    filters = filters.astype(np.float64)
    kernel, channels = filters.shape[2:], filters.shape[1]
    sizes = [
        (size - (taps - 1) * dilation - 1) // step + 1
        for size, taps, step, dilation in zip(padded.shape[2:], kernel, strides, dilations, strict=True)
    ]
    total = np.zeros((len(field), len(filters), *sizes))
    per_group = len(filters) // groups
    step_channels = block or channels
    rows_at_once = 1
    while block and groups == 1 and rows_at_once < 4 and 2 * rows_at_once * channels <= block:
        rows_at_once *= 2
    rows_at_once = min(rows_at_once, kernel[0])
    positions = itertools.product(*map(range, kernel))
    ordered = sorted(positions, key=lambda at: (at[0] // rows_at_once, at[1:], at[0]))
    for first in range(0, channels, step_channels):
        for position in ordered:
            window = tuple(
                slice(at * dilation, at * dilation + (size - 1) * step + 1, step)
                for at, dilation, size, step in zip(position, dilations, sizes, strides, strict=True)
            )
            for group in range(groups):
                chosen = slice(
                    group * channels + first, group * channels + min(first + step_channels, channels)
                )
                out = slice(group * per_group, (group + 1) * per_group)
                place: tuple[Any, ...] = (slice(None), chosen, *window)
                seen = padded[place]
                place = (out, slice(first, first + step_channels), *position)
                tap = filters[place]
                total[:, out] += np.moveaxis(np.tensordot(seen, tap, axes=([1], [1])), -1, 1)
            if groups > 1 and channels <= 4:
                ends = position[-1] % 4 == 3 or position[-1] == kernel[-1] - 1
            else:
                ends = position[0] % rows_at_once == rows_at_once - 1 or position[0] == kernel[0] - 1
            if block and ends:
                total = to_half(total, nan_on_overflow).astype(np.float64)
    assert rank == len(sizes)
    return total


def to_quarter(values: Array, data_type: int, scale: int, nan_on_overflow: bool = False) -> Array:
    """fp8 values at a scale, as floats: ml_dtypes' rounding, saturated."""
    kind = QUARTERS[data_type]
    find_limits: Any = ml_dtypes.finfo  # is not annotated
    most = float(find_limits(kind).max)
    scaled = np.ldexp(values.astype(np.float64), -scale)
    if not nan_on_overflow:
        scaled = np.clip(scaled, -most, most)
    # ml_dtypes would round a double twice, over float.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.ldexp(scaled.astype(np.float32).astype(kind).astype(np.float64), scale).astype(np.float32)


def run_graph(
    model: onnx.ModelProto, feeds: dict[str, Array], half_partials: bool, nan_on_overflow: bool = False
) -> list[Array]:
    """The outputs of a graph in the chip's types, node by node."""
    values = dict(feeds) | {tensor.name: _initial(tensor) for tensor in model.graph.initializer}
    narrow = {t.name for t in model.graph.initializer if t.data_type in QUARTERS}
    from_quarters: set[str] = set()
    for node in model.graph.node:
        inputs = [values[name] for name in node.input if name]
        block = 32 if from_quarters.issuperset(node.input[:2]) else 16 if half_partials else 0
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if node.op_type == "Cast" and attributes["to"] in QUARTERS:
            result = to_quarter(inputs[0], attributes["to"], attributes.get("scale", 0), nan_on_overflow)
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
        else:
            wide = _reference(node, inputs, model)
        for name, value in zip(node.output, wide, strict=True):
            keep = value.dtype.kind != "f" or node.op_type in MOVING
            values[name] = value.astype(inputs[0].dtype) if keep and value.dtype.kind == "f" else value
            if not keep:
                values[name] = to_half(value, nan_on_overflow)
    return [values[output.name] for output in model.graph.output]


def _initial(tensor: onnx.TensorProto) -> Array:
    if tensor.data_type in QUARTERS:
        codes: Array = np.frombuffer(tensor.raw_data, np.uint8).view(QUARTERS[tensor.data_type])
        return codes.astype(np.float32).reshape(tensor.dims)
    held: Array = numpy_helper.to_array(tensor)
    return held


def _gemm(inputs: list[Array], attributes: Mapping[str, Any], block: int, nan_on_overflow: bool) -> Array:
    left, right, *bias = inputs
    left = left.T if attributes.get("transA") else left
    right = right.T if attributes.get("transB") else right
    if block and left.shape[-1] > block:
        total = multiply(left, right, block, nan_on_overflow).astype(np.float64)
    else:
        total = left.astype(np.float64) @ right.astype(np.float64)
    total = total * np.float32(attributes.get("alpha", 1.0))
    return total + np.float32(attributes.get("beta", 1.0)) * bias[0].astype(np.float64) if bias else total


def _conv(inputs: list[Array], attributes: Mapping[str, Any], block: int, nan_on_overflow: bool) -> Array:
    field, filters, *bias = inputs
    rank = field.ndim - 2
    pads = attributes.get("pads", [0] * 2 * rank)
    at_once = 4 if attributes.get("group", 1) > 1 and filters.shape[1] <= 4 else 1
    taps = math.prod(filters.shape[2:-1]) * math.ceil(filters.shape[-1] / at_once)
    if block and math.ceil(filters.shape[1] / block) * taps == 1:
        block = 0
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
    return total + bias[0].astype(np.float64).reshape(-1, *[1] * rank) if bias else total


def _reference(node: onnx.NodeProto, inputs: list[Array], model: onnx.ModelProto) -> list[Array]:
    """Any other operator, in floats, by the onnx reference."""
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
    with np.errstate(over="ignore"):
        return list(ReferenceEvaluator(alone).run(None, dict(zip(names, wide, strict=True))))
