"""Passes that change the types of numbers: 64-bit integers to 32, floats to half and back, operands of
products to 8 bits.

They convert a graph as the chip would compute it; what rounding does to its numbers is `simipu.numerics`'.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper
from onnxgraph import (
    drop_weights,
    find_opset,
    fresh_name,
    infer_shapes,
    iter_bodies,
    iter_defined,
    iter_graphs,
    iter_nodes,
    make_cast,
    rename,
    replace_nodes,
    used_names,
)
from onnxgraph.edit import forget_values
from onnxgraph.weights import change_values, register_change
from simipu import CompileError
from simipu.numerics.quarter import FORMATS, QUARTERS, QuarterFormat, encode
from simipu.operators import find_operator

from poprt.passes.base_pass import Pass, Stage, register

_NARROWED: dict[int, int] = {TensorProto.INT64: TensorProto.INT32, TensorProto.UINT64: TensorProto.UINT32}
_HALF_PRECISIONS = ("fp16", "fp8", "fp8_weight")
_QUARTER_PRECISIONS = ("fp8", "fp8_weight")
_SCALES = range(-32, 32)
"""Signed numbers of 6 bits."""


@register("int64_to_int32", stage=Stage.BORDERS, default=True)
class Int64ToInt32(Pass):
    """Narrow the 64-bit integers at the borders of a model: the IPU has none. Inside, the graph keeps its
    types."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Casts stand behind the inputs and before the outputs that were of 64 bits."""
        graph = model.graph
        taken = set(iter_defined(graph))
        widen = [_narrow_border(value) for value in graph.input if _is_wide(value)]
        narrow = [_narrow_border(value) for value in graph.output if _is_wide(value)]
        inner = {name: fresh_name(f"{name}/int64", taken) for name in dict([*widen, *narrow])}
        rename(graph, inner)
        # An output that nothing computes: it was folded to a constant.
        for tensor in graph.initializer:
            tensor.name = inner.get(tensor.name, tensor.name)
        # An output that is an input is narrow already.
        narrow = [(name, wide) for name, wide in narrow if (name, wide) not in widen]
        casts = [
            helper.make_node("Cast", [name], [inner[name]], name=f"{name}/widen", to=wide)
            for name, wide in widen
        ]
        ends = [
            helper.make_node("Cast", [inner[name]], [name], name=f"{name}/narrow", to=_NARROWED[wide])
            for name, wide in narrow
        ]
        replace_nodes(graph, [*casts, *graph.node, *ends])
        return model


@register_change("half", undoes="float")
def round_to_half(values: npt.NDArray[Any]) -> npt.NDArray[np.float16]:
    """The nearest halves; finite values beyond their range become the largest."""
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    infinite = np.isinf(half)
    if infinite.any():
        half = np.where(infinite & np.isfinite(values), np.copysign(np.finfo(np.float16).max, half), half)
    return half


@register_change("float")
def widen_half(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """The same values in float."""
    return values.astype(np.float32)


@register_change("quarter")
def narrow_to_quarter(values: npt.NDArray[Any], data_type: int, scale: int) -> npt.NDArray[np.uint8]:
    """The codes of the nearest 8-bit floats of one of ONNX's types, at a scale."""
    return encode(values, QUARTERS[data_type], scale).astype(np.uint8)


def _is_wide(value: onnx.ValueInfoProto) -> bool:
    return value.type.tensor_type.elem_type in _NARROWED


def _narrow_border(value: onnx.ValueInfoProto) -> tuple[str, int]:
    """Narrow one input or output; its name and the type it had."""
    wide = value.type.tensor_type.elem_type
    value.type.tensor_type.elem_type = _NARROWED[wide]
    return value.name, wide


def is_half(model: onnx.ModelProto) -> bool:
    """Whether a model computes in half throughout, without floats beside the halves."""
    types = _types(model.graph)
    return TensorProto.FLOAT16 in types and TensorProto.FLOAT not in types


def _types(graph: onnx.GraphProto) -> set[int]:
    """Element types of the inputs, weights and casts."""
    types = {value.type.tensor_type.elem_type for value in graph.input}
    types |= {tensor.data_type for tensor in graph.initializer}
    casts = (node for node in graph.node if node.op_type == "Cast")
    return types | {attribute.i for node in casts for attribute in node.attribute}


@register(
    "half_to_float",
    stage=Stage.FOLDING,
    option="precision",
    values=_HALF_PRECISIONS,
    is_ours=True,
    before=("constant_folding",),
)
class HalfToFloat(Pass):
    """Turn a model in half into one in float, if there is any half in it; float_to_half turns it back.

    ONNX Runtime, which folds constants, has few operators in half on the CPU: it would take the others apart
    and put casts around them.
    """

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Inputs, outputs, weights, casts and attributes."""
        if TensorProto.FLOAT16 in _types(model.graph):
            self.traverse_graph(model.graph, _widen_graph)
            forget_values(model.graph)
        return model


def _widen_graph(graph: onnx.GraphProto, _is_main_graph: bool) -> onnx.GraphProto:
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
    for tensor in graph.initializer:
        _widen(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT16:
                attribute.i = TensorProto.FLOAT
            _widen(attribute.t)
    return graph


def _widen(tensor: TensorProto) -> None:
    if tensor.data_type == TensorProto.FLOAT16:
        change_values(tensor, "float", TensorProto.FLOAT)


@register(
    "float_to_half",
    stage=Stage.PRECISION,
    option="precision",
    values=_HALF_PRECISIONS,
    takes={"skip_op_types": "fp16_skip_op_types", "skip_op_names": "fp16_skip_op_names"},
)
class FloatToHalf(Pass):
    """Turn inputs, outputs, weights and operators of a model to half.

    Operators of `skip_op_types` (fp16_skip_op_types), nodes of `skip_op_names` and operators that have no
    half variant stay in float, between casts; what one of them hands to another stays in float on the way.
    Finite weights beyond the range of half become its largest number, so that a mask of -FLT_MAX does not
    become -inf.
    """

    def __init__(self, skip_op_types: Collection[str] = (), skip_op_names: Collection[str] = ()) -> None:
        super().__init__()
        self._skip_op_types, self._skip_op_names = skip_op_types, skip_op_names

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Raises CompileError for a node to be skipped that the model lacks."""
        unknown = sorted(set(self._skip_op_names) - {node.name for node in iter_nodes(model.graph)})
        if unknown:
            raise CompileError(
                f"fp16_skip_op_names: the model has no node {unknown[0]!r} (unnamed ones are called by their "
                "output)"
            )
        floats = _find_floats(infer_shapes(model).graph)
        taken = frozenset(iter_defined(model.graph))
        known = _Conversion(floats, find_opset(model), self._skip_op_types, self._skip_op_names, taken)
        _convert_graph(model.graph, known, {})
        return model


@dataclass(frozen=True, slots=True)
class _Conversion:
    """What is known of the whole model: the names of its float tensors, its opset, operators and nodes that
    stay in float."""

    floats: set[str]
    version: int
    skip_op_types: Collection[str]
    skip_op_names: Collection[str]
    taken: frozenset[str]
    """Names that the model uses."""

    def keeps(self, node: onnx.NodeProto, schema: onnx.defs.OpSchema) -> bool:
        """Whether a node stays in float."""
        return node.op_type in self.skip_op_types or node.name in self.skip_op_names or not has_half(schema)

    def name_in_float(self, name: str) -> str:
        """The name of a half tensor's float twin; bodies side by side may both have one."""
        return fresh_name(f"{name}/float", self.taken)


def _convert_graph(graph: onnx.GraphProto, conversion: _Conversion, in_float: dict[str, str]) -> None:
    """A graph, or one inside a node of it. `in_float` maps half tensors that can be seen here to their float
    twins."""
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    kept = {t.name: t for t in graph.initializer if t.data_type == TensorProto.FLOAT}
    nodes: list[onnx.NodeProto] = []
    added: list[onnx.TensorProto] = []
    for node in graph.node:
        for subgraph in iter_bodies(node):
            _convert_graph(subgraph, conversion, dict(in_float))
        nodes += _convert(node, conversion, kept, added, in_float)
    for tensor in kept.values():
        change_values(tensor, "half", TensorProto.FLOAT16)
    forget_values(graph)
    replace_nodes(graph, nodes)
    graph.initializer.extend(added)
    drop_weights(graph, used_names(graph))


def _find_floats(graph: onnx.GraphProto) -> set[str]:
    """Names of all tensors, bodies' too, that are float."""
    floats: set[str] = set()
    for each in iter_graphs(graph):
        values = (*each.input, *each.value_info, *each.output)
        floats |= {v.name for v in values if v.type.tensor_type.elem_type == TensorProto.FLOAT}
        floats |= {t.name for t in each.initializer if t.data_type == TensorProto.FLOAT}
    return floats


def _convert(
    node: onnx.NodeProto,
    conversion: _Conversion,
    weights: dict[str, onnx.TensorProto],
    added: list[onnx.TensorProto],
    float_names: dict[str, str],
) -> list[onnx.NodeProto]:
    """The nodes that take a node's place. `float_names` maps a half tensor to its float twin, where there is
    one."""
    if node.op_type == "Cast":
        _retype_attribute(node, "to")
        return [node]
    schema = onnx.defs.get_schema(node.op_type, conversion.version)
    in_float = conversion.keeps(node, schema)
    before = []
    for index, name in enumerate(node.input):
        if name not in conversion.floats or not (in_float or _wants_float(schema, index)):
            continue
        if name not in float_names:
            float_names[name] = conversion.name_in_float(name)
            if name in weights:
                added.append(_renamed(weights[name], float_names[name]))
            else:
                before.append(make_cast(name, float_names[name], TensorProto.FLOAT))
        node.input[index] = float_names[name]
    if not in_float:
        _retype_attributes(node)
        return [*before, node]
    after = []
    for index, name in enumerate(node.output):
        if name in conversion.floats:
            node.output[index] = float_names[name] = conversion.name_in_float(name)
            after.append(make_cast(float_names[name], name, TensorProto.FLOAT16))
    return [*before, node, *after]


def _retype_attributes(node: onnx.NodeProto) -> None:
    """Bring the tensors that a node holds, and the type of what it makes, to half."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type == TensorProto.FLOAT:
            change_values(attribute.t, "half", TensorProto.FLOAT16)
    _retype_attribute(node, "dtype")


def _retype_attribute(node: onnx.NodeProto, name: str) -> None:
    for attribute in node.attribute:
        if attribute.name == name and attribute.i == TensorProto.FLOAT:
            attribute.i = TensorProto.FLOAT16


def has_half(schema: onnx.defs.OpSchema) -> bool:
    """Whether any input or output may be half; operators without float operands say yes and are left
    alone."""
    allowed = [parameter.types for parameter in (*schema.inputs, *schema.outputs)]
    takes_float = any("tensor(float)" in types for types in allowed)
    return not takes_float or any("tensor(float16)" in types for types in allowed)


def _wants_float(schema: onnx.defs.OpSchema, index: int) -> bool:
    """Whether that input must be float32 even in a half graph, as the scales of Resize must."""
    parameter = schema.inputs[min(index, len(schema.inputs) - 1)]
    return "tensor(float16)" not in parameter.types and "tensor(float)" in parameter.types


def _renamed(tensor: onnx.TensorProto, name: str) -> onnx.TensorProto:
    copy = onnx.TensorProto()
    copy.CopyFrom(tensor)
    copy.name = name
    return copy


@dataclass(frozen=True, slots=True)
class Fp8Params:
    """fp8_params: format and scale (a power of two) of activations and of weights; the defaults are the
    Converter's.

    A value is what its 8 bits say times 2 to the power of the scale: a larger scale reaches further, a
    smaller one is finer.
    """

    input_format: QuarterFormat = FORMATS["F143"]
    weight_format: QuarterFormat = FORMATS["F143"]
    input_scale: int = 0
    weight_scale: int = 0

    @classmethod
    def parse(cls, text: str | Sequence[Any]) -> Fp8Params:
        """From `input_format,weight_format,input_scale,weight_scale`, as a text or one by one; CompileError
        says what is wrong with it."""
        try:
            parts = text.split(",") if isinstance(text, str) else map(str, text)
            of_input, of_weight, *given = (part.strip() for part in parts)
            formats = FORMATS[of_input], FORMATS[of_weight]
            input_scale, weight_scale = map(int, given)
            fits = input_scale in _SCALES and weight_scale in _SCALES
        except (KeyError, ValueError):
            fits = False
        if not fits:
            raise CompileError(
                "fp8_params: expected input_format,weight_format,input_scale,weight_scale, formats F143 or "
                f"F152 and scales from -32 to 31, such as F143,F143,0,0; found {text!r}"
            )
        return cls(*formats, input_scale, weight_scale)


@register(
    "float_to_fp8",
    stage=Stage.PRECISION,
    option="precision",
    values=_QUARTER_PRECISIONS,
    takes={"fp8_params": "fp8_params", "skip_op_names": "fp8_skip_op_names", "convert_model": "precision"},
    depend=("float_to_half",),
)
class FloatToFp8(Pass):
    """Give every Conv, Gemm and MatMul of a graph in half that has a weight 8-bit operands, as on the C600;
    results stay half.

    The weight becomes 8-bit, a Cast narrows the activation; where `convert_model` is fp8_weight the weight is
    widened where it is used, and computed with in half. Products of two activations stay in half, and so do
    nodes of `skip_op_names`. Weights without data stay so.
    """

    def __init__(
        self,
        fp8_params: Fp8Params | None = None,
        skip_op_names: Collection[str] = (),
        convert_model: str = "fp8",
    ) -> None:
        super().__init__()
        self._params, self._skip_op_names = fp8_params or Fp8Params(), skip_op_names
        self._weights_only = convert_model == "fp8_weight"

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Raises CompileError for a name to be skipped that no such product has."""
        graph = model.graph
        weights = {t.name: t for t in graph.initializer if t.data_type == TensorProto.FLOAT16}
        products = {
            i: index
            for i, node in enumerate(graph.node)
            if find_operator(node.op_type).is_product and (index := _weight_index(node, weights)) is not None
        }
        unknown = sorted(set(self._skip_op_names) - {graph.node[i].name for i in products})
        if unknown:
            raise CompileError(
                f"fp8_skip_op_names: the model has no Conv, Gemm or MatMul {unknown[0]!r} with a weight"
            )
        narrow = _Narrowing(self._params, frozenset(iter_defined(graph)))
        nodes: list[onnx.NodeProto] = []
        for i, node in enumerate(graph.node):
            index = None if node.name in self._skip_op_names else products.get(i)
            if index is not None:
                nodes += narrow.weight(node, index, weights)
                nodes += [] if self._weights_only else narrow.activation(node, 1 - index)
            nodes.append(node)
        replace_nodes(graph, nodes)
        drop_weights(graph, used_names(graph))
        graph.initializer.extend(narrow.tensors)
        return model


def _weight_index(node: onnx.NodeProto, weights: Collection[str]) -> int | None:
    """Which operand is a weight; a convolution's is the second."""
    places = (1,) if node.op_type == "Conv" else (1, 0)
    found = [place for place in places if node.input[place] in weights]
    return found[0] if len(found) == 1 else None


class _Narrowing:
    """Makes each 8-bit tensor once."""

    def __init__(self, params: Fp8Params, taken: frozenset[str]) -> None:
        self._params, self._taken = params, taken
        self._done: set[str] = set()
        self.tensors: list[TensorProto] = []

    def weight(
        self, node: onnx.NodeProto, index: int, weights: dict[str, TensorProto]
    ) -> list[onnx.NodeProto]:
        """The nodes that widen a weight of 8 bits again: the product takes the 8 bits, and its scale."""
        name, quarter, scale = node.input[index], self._params.weight_format, self._params.weight_scale
        narrow, wide = self._name(name)
        node.input[index] = wide
        if wide in self._done:
            return []
        self._done.add(wide)
        tensor = _renamed(weights[name], narrow)
        change_values(tensor, "quarter", quarter.data_type, quarter.data_type, scale)
        self.tensors.append(tensor)
        return [make_cast(tensor.name, wide, TensorProto.FLOAT16, scale=scale)]

    def activation(self, node: onnx.NodeProto, index: int) -> list[onnx.NodeProto]:
        """The nodes that narrow an activation."""
        name, quarter, scale = node.input[index], self._params.input_format, self._params.input_scale
        narrow, wide = self._name(name)
        node.input[index] = wide
        if wide in self._done:
            return []
        self._done.add(wide)
        return [
            make_cast(name, narrow, quarter.data_type, scale=scale),
            make_cast(narrow, wide, TensorProto.FLOAT16, scale=scale),
        ]

    def _name(self, name: str) -> tuple[str, str]:
        """The names of an operand in 8 bits, and of what it is widened to."""
        narrow = fresh_name(f"{name}/fp8", self._taken)
        return narrow, fresh_name(f"{narrow}/half", self._taken)
