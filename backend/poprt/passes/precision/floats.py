"""Passes that convert between float types: double to float, float to half and back.

They write the graph that the chip would compute; `simipu.numerics` models the rounding.
`overflowing` finds the patterns that stay in float when the rest becomes half.
"""

from __future__ import annotations

import copy
from collections import ChainMap
from collections.abc import Collection, Mapping, MutableMapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx
from onnx import AttributeProto, TensorProto
from onnxgraph import (
    CHIP_DOMAIN,
    attribute,
    change_values,
    drop_weights,
    find_opset,
    find_schema,
    forget_values,
    fresh_name,
    has_data,
    hold,
    infer_shapes,
    is_outlined,
    iter_bodies,
    iter_defined,
    iter_graphs,
    iter_nodes,
    make_cast,
    read_array,
    register_change,
    replace_nodes,
    set_attribute,
    used_names,
)
from simipu import CompileError
from simipu.numerics import narrow_to_half
from simipu.operators import TYPED, operator_of

from popef._tools.arrays import Array
from popef._tools.text import did_you_mean, find_near
from poprt.passes.interface.surgery import hold_as_tensor
from poprt.passes.precision.overflowing import find_overflowing, find_unscaled
from poprt.rewrite.base import Pass, Stage, register

HALF_PRECISIONS = ("fp16", "fp8", "fp8_weight")
HALF_LIMIT = 65500.0
"""Limit to which finite constants are clipped, from the real tool's log. The largest half is 65504,
and the limit is rounded to it."""
_MIN_SIMILARITY = 0.8
"""Minimum similarity (difflib) at which an unknown operator is a misspelt one of the model."""
MIN_CONSTANT = 1e-7
"""Magnitude to which tiny constants are raised, from the real tool's log. Halves below 3e-8 are
zeros."""


@register_change("single")
def round_to_float(values: Array) -> npt.NDArray[np.float32]:
    """Return the nearest floats. Finite values beyond their range become the largest float."""
    most = float(np.finfo(np.float32).max)
    return _clip(values, most).astype(np.float32)


@register_change("half", undoes="float")
def round_to_half(values: Array) -> npt.NDArray[np.float16]:
    """Return the nearest halves. Finite values beyond their range become the largest half."""
    return narrow_to_half(values)


@register_change("float")
def widen_half(values: Array) -> npt.NDArray[np.float32]:
    """Return the same values in float."""
    return values.astype(np.float32)


def _exceeds(values: Array, limit: float) -> bool:
    """Return whether any value is beyond the limit, or NaN."""
    return bool(values.size) and not (
        float(values.max()) <= limit and float(values.min()) >= -limit
    )


def _clip(values: Array, limit: float) -> Array:
    """Clip finite values to the limit; infinities stay."""
    if not _exceeds(values, limit):
        return values
    clipped: Array = np.where(np.isfinite(values), np.clip(values, -limit, limit), values)
    return clipped


def _types(graph: onnx.GraphProto) -> set[int]:
    """Return the element types of the inputs, weights and Casts."""
    types = {value.type.tensor_type.elem_type for value in graph.input}
    types |= {tensor.data_type for tensor in graph.initializer}
    casts = (node for node in graph.node if node.op_type == "Cast")
    return types | {attribute.i for node in casts for attribute in node.attribute}


def is_half(model: onnx.ModelProto) -> bool:
    """Return whether a model computes in half only: it has halves and no floats."""
    types = set().union(*map(_types, (model.graph, *_function_graphs(model))))
    return TensorProto.FLOAT16 in types and TensorProto.FLOAT not in types


def _function_graphs(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    """Return the nodes of the model's functions: they are not inlined yet when options are read."""
    return [onnx.GraphProto(node=function.node) for function in model.functions]


def has_halves(model: onnx.ModelProto) -> bool:
    """Return whether any tensor of a model is known to be in half."""
    graphs = (model.graph, *_function_graphs(model))
    return any(
        TensorProto.FLOAT16 in _types(inner) for graph in graphs for inner in iter_graphs(graph)
    )


@register("double_to_float", stage=Stage.FOLDING, default=True, before="constant_folding")
class DoubleToFloat(Pass):
    """Turn the doubles of a model, which the chip has none of, into floats: weights, and for the
    model to stay valid what nodes hold and make, casts, inputs and outputs."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Convert doubles. Finite values beyond the range of float become its largest number."""
        return retype_floats(model, TensorProto.DOUBLE, TensorProto.FLOAT, "single")


@register(
    "half_to_float",
    stage=Stage.FOLDING,
    option="precision",
    values=HALF_PRECISIONS,
    is_ours=True,
    before="constant_folding",
)
class HalfToFloat(Pass):
    """Turn a model in half into one in float, if there is any half in it; float_to_half turns it
    back.

    ONNX Runtime, which folds constants, has few operators in half on the CPU: it would take the
    others apart and put casts around them.
    """

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Convert inputs, outputs, weights, Casts and attributes."""
        return retype_floats(model, TensorProto.FLOAT16, TensorProto.FLOAT, "float")


def retype_floats(model: onnx.ModelProto, before: int, after: int, change: str) -> onnx.ModelProto:
    """Replace one float type of a model by another: in values, weights, casts and attributes.

    `change` is the registered change of weights (onnxgraph.change_values).
    """
    changed = False
    for graph in iter_graphs(model.graph):
        changed |= _retype_graph(graph, before, after, change)
    if changed:
        for graph in iter_graphs(model.graph):
            forget_values(graph)
    return model


def _retype_graph(graph: onnx.GraphProto, before: int, after: int, change: str) -> bool:
    """Replace one float type by another in a graph without its bodies. Return whether the type was
    there."""
    changed = False
    for value in (*graph.input, *graph.output):
        if value.type.tensor_type.elem_type == before:
            value.type.tensor_type.elem_type = after
            changed = True
    entries = [entry for node in graph.node for entry in node.attribute]
    for tensor in (
        *graph.initializer,
        *(item.t for item in entries if item.type == AttributeProto.TENSOR),
    ):
        if tensor.data_type == before:
            change_values(tensor, change, after)
            changed = True
    for item in entries:
        if item.name in ("to", "dtype") and item.i == before:
            item.i = after
            changed = True
    return changed | _retype_chip(graph, before, after)


def _retype_chip(graph: onnx.GraphProto, before: int, after: int) -> bool:
    """Replace the type in operators of the chip that have an attribute for their result type.
    Return whether there were any."""
    names = {kind: TensorProto.DataType.Name(kind).encode() for kind in (before, after)}
    typed = [node for node in graph.node if node.domain == CHIP_DOMAIN and node.op_type in TYPED]
    typed = [
        node for node in typed if attribute(node, "dataType", TYPED[node.op_type]) == names[before]
    ]
    for node in typed:
        set_attribute(node, "dataType", names[after])
    return bool(typed)


@register(
    "float_to_half",
    stage=Stage.PRECISION,
    option="precision",
    values=HALF_PRECISIONS,
    takes=(
        "skip_op_types=fp16_skip_op_types enable_avoid_overflow_patterns "
        "skip_op_names=fp16_skip_op_names"
    ),
)
class FloatToHalf(Pass):
    """Turn inputs, outputs, weights and operators of a model to half.

    Operators of `skip_op_types` (fp16_skip_op_types, by their names after conversion;
    LayerNormalization is GroupNormalization then, and may be said all the same), nodes of
    `skip_op_names` and operators that have no half variant stay in float, between casts; what one
    of them hands to another stays in float on the way. So do, with
    `enable_avoid_overflow_patterns`, the patterns of `overflowing`.

    Constants are clipped to +-65500 where they are finite, so that a mask of -FLT_MAX does not
    become -inf, and those of one element other than 0 are raised to +-1e-7, so that an epsilon does
    not become 0; each is warned of.
    """

    def __init__(
        self,
        skip_op_types: Collection[str] = (),
        enable_avoid_overflow_patterns: bool = False,
        skip_op_names: Collection[str] = (),
    ) -> None:
        self._skip_op_types, self._skip_op_names = skip_op_types, skip_op_names
        self._avoids = enable_avoid_overflow_patterns

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Convert the model. Raise CompileError if a node of `skip_op_names` is missing."""
        names = {node.name for node in iter_nodes(model.graph)}
        unknown = sorted(set(self._skip_op_names) - names)
        if unknown:
            raise CompileError(
                f"fp16_skip_op_names: the model has no node {unknown[0]!r} (unnamed ones are "
                f"called by their output){did_you_mean(unknown[0], names)}"
            )
        self._warn_of_unknown(model)
        inferred = infer_shapes(model).graph
        self._conversion = _Conversion(
            _find_floats(inferred),
            find_opset(model),
            self._skip_op_types,
            self._skip_op_names,
            find_unscaled(inferred) | (find_overflowing(inferred) if self._avoids else frozenset()),
            frozenset(iter_defined(model.graph)),
        )
        self._conversion.floats.difference_update(self._conversion.find_staying(model.graph))
        self._kept: set[str] = set()
        """Float results of nodes that stay in float; the converted model has them in half, too."""
        self._convert_graph(model.graph, ChainMap())
        return model

    def _warn_of_unknown(self, model: onnx.ModelProto) -> None:
        there = {node.op_type for node in iter_nodes(model.graph)}
        there |= {operator_of(node).stands_for for node in iter_nodes(model.graph)} - {""}
        for name in sorted(set(self._skip_op_types) - there):
            op_types = ", ".join(sorted(there))
            near = None if onnx.defs.has(name) else find_near(name, there, _MIN_SIMILARITY)
            if near is not None:
                raise CompileError(
                    f"fp16_skip_op_types: {name!r} is no operator; did you mean {near}?"
                )
            self.logger.warning(
                "fp16_skip_op_types: the model has no operator %s; it has %s", name, op_types
            )

    def _convert_graph(self, graph: onnx.GraphProto, in_float: ChainMap[str, str]) -> None:
        """Convert a graph, or a body of a node. `in_float` maps the half tensors in scope to their
        float twins."""
        for value in (*graph.input, *graph.output):
            if value.type.tensor_type.elem_type == TensorProto.FLOAT:
                value.type.tensor_type.elem_type = TensorProto.FLOAT16
        floats = {t.name: t for t in graph.initializer if t.data_type == TensorProto.FLOAT}
        nodes: list[onnx.NodeProto] = []
        added: list[TensorProto] = []
        for node in graph.node:
            for body in iter_bodies(node):
                self._convert_graph(body, in_float.new_child())
            nodes += self._convert(node, floats, added, in_float)
        forget_values(graph)
        replace_nodes(graph, nodes)
        read = used_names(graph)
        # A tensor that stays in float and is read only in float does not need to become half.
        nodes_read = [
            reader
            for reader in graph.node
            if reader.op_type != "Cast" or not self._is_idle(reader, read)
        ]
        if len(nodes_read) < len(graph.node):
            replace_nodes(graph, nodes_read)
        drop_weights(graph, read)
        for tensor in graph.initializer:
            if tensor.data_type == TensorProto.FLOAT and tensor.name in self._conversion.floats:
                self._narrow(tensor, tensor.name)
        graph.initializer.extend(added)

    def _is_idle(self, cast: onnx.NodeProto, read: Collection[str]) -> bool:
        """Return whether nothing reads a Cast inserted behind a node in float."""
        return cast.input[0] in self._kept and cast.output[0] not in read

    def _convert(
        self,
        node: onnx.NodeProto,
        weights: Mapping[str, TensorProto],
        added: list[TensorProto],
        float_names: MutableMapping[str, str],
    ) -> list[onnx.NodeProto]:
        """Return the nodes that replace a node. `float_names` maps half tensors to their float
        twins, if any."""
        if node.op_type == "Cast" and node.output[0] not in self._conversion.overflowing:
            if node.output[0] in self._conversion.floats:
                _retype_attribute(node, "to")
            return [node]
        conversion = self._conversion
        in_float = conversion.keeps(node)
        before = []
        for index, name in enumerate(node.input):
            if name not in conversion.floats or not (
                in_float or conversion.wants_float(node, index)
            ):
                continue
            if name not in float_names:
                float_names[name] = conversion.name_in_float(name)
                if name in weights:
                    added.append(copy.deepcopy(weights[name]))
                    added[-1].name = float_names[name]
                else:
                    before.append(make_cast(name, float_names[name], TensorProto.FLOAT))
            node.input[index] = float_names[name]
        if not in_float:
            self._retype_attributes(node)
            return [*before, node]
        after = []
        for index, name in enumerate(node.output):
            if name in conversion.floats:
                node.output[index] = float_names[name] = conversion.name_in_float(name)
                self._kept.add(float_names[name])
                after.append(make_cast(float_names[name], name, TensorProto.FLOAT16))
        return [*before, node, *after]

    def _retype_attributes(self, node: onnx.NodeProto) -> None:
        """Convert the tensors in a node's attributes, and its result type, to half."""
        hold_as_tensor(node)
        for entry in node.attribute:
            if entry.type == AttributeProto.TENSOR and entry.t.data_type == TensorProto.FLOAT:
                self._narrow(entry.t, node.output[0])
        _retype_attribute(node, "dtype")
        if attribute(node, "dataType") == b"FLOAT":  # of AttentionMask
            set_attribute(node, "dataType", "FLOAT16")

    def _narrow(self, tensor: TensorProto, name: str) -> None:
        """Convert one constant to half in place; warnings call it `name`."""
        if not has_data(tensor):
            change_values(tensor, "half", TensorProto.FLOAT16)
            return
        values = read_array(tensor)
        if values.size == 1 and 0 < abs(float(values.flat[0])) < MIN_CONSTANT:
            raised = np.asarray(np.copysign(MIN_CONSTANT, values))
            self.logger.warning("Raise %s from %g to %g", name, values.flat[0], raised.flat[0])
            values = raised
        if _exceeds(values, HALF_LIMIT) and _exceeds(values[np.isfinite(values)], HALF_LIMIT):
            self.logger.warning("Clip %s to range (%s, %s)", name, -HALF_LIMIT, HALF_LIMIT)
        if is_outlined(tensor):
            change_values(tensor, "half", TensorProto.FLOAT16)
        else:
            hold(tensor, round_to_half(values), TensorProto.FLOAT16)


@dataclass(frozen=True, slots=True)
class _Conversion:
    """Facts about the whole model for its conversion."""

    floats: set[str]
    """Names of the float tensors that become half."""
    version: int
    skip_op_types: Collection[str]
    skip_op_names: Collection[str]
    overflowing: Collection[str]
    """Outputs of nodes that stay in float because they may be beyond the range of half."""
    taken: Collection[str]
    """Names that the model uses."""

    def find_staying(self, graph: onnx.GraphProto) -> set[str]:
        """Return the float tensors that do not need to become half. They are weights, or made by
        Casts or nodes that stay in float, and only such nodes read them. The tensors of a model
        that was converted before are among them."""
        staying: set[str] = set()
        read_in_half: set[str] = set()
        for part in iter_graphs(graph):
            staying.update(tensor.name for tensor in part.initializer)
            read_in_half.update(value.name for value in part.output)
            for node in part.node:
                is_cast = node.op_type == "Cast"
                in_float = is_cast or (self.keeps(node) and not any(iter_bodies(node)))
                if in_float:
                    staying.update(node.output)
                    continue
                read_in_half.update(
                    name for i, name in enumerate(node.input) if not self.wants_float(node, i)
                )
        return staying - read_in_half

    def keeps(self, node: onnx.NodeProto) -> bool:
        """Return whether a node stays in float."""
        return (
            node.op_type in self.skip_op_types
            or operator_of(node).stands_for in self.skip_op_types
            or node.name in self.skip_op_names
            or any(name in self.overflowing for name in node.output)
            or node.op_type == "BitCast"  # of floats: halves have other bits
            or not self._has_half(node)
        )

    def wants_float(self, node: onnx.NodeProto, index: int) -> bool:
        """Return whether an input must be float even in a half graph, as the scales of Resize
        must."""
        schema = find_schema(node, self.version)
        if schema is None:
            return False
        parameter = schema.inputs[min(index, len(schema.inputs) - 1)]
        return "tensor(float16)" not in parameter.types and "tensor(float)" in parameter.types

    def name_in_float(self, name: str) -> str:
        """Return the name of a half tensor's float twin. Sibling bodies may use the same name."""
        return fresh_name(f"{name}/float", self.taken)

    def _has_half(self, node: onnx.NodeProto) -> bool:
        schema = find_schema(node, self.version)
        return schema is None or has_half(schema)


def has_half(schema: onnx.defs.OpSchema) -> bool:
    """Return whether any input or output may be half. For operators without float operands the
    answer is true, and they do not change."""
    allowed = [parameter.types for parameter in (*schema.inputs, *schema.outputs)]
    takes_float = any("tensor(float)" in types for types in allowed)
    return not takes_float or any("tensor(float16)" in types for types in allowed)


def _find_floats(graph: onnx.GraphProto) -> set[str]:
    """Return the names of all float tensors, including those in bodies."""
    floats: set[str] = set()
    for part in iter_graphs(graph):
        values = (*part.input, *part.value_info, *part.output)
        floats |= {v.name for v in values if v.type.tensor_type.elem_type == TensorProto.FLOAT}
        floats |= {t.name for t in part.initializer if t.data_type == TensorProto.FLOAT}
    return floats


def _retype_attribute(node: onnx.NodeProto, name: str) -> None:
    for entry in node.attribute:
        if entry.name == name and entry.i == TensorProto.FLOAT:
            entry.i = TensorProto.FLOAT16
