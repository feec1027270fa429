"""Passes that change types at the borders of a graph, and narrow 64-bit integers to 32 bits:
the chip has none of 64 bits.

A tensor keeps 64 bits where the ONNX standard requires them, as for the shape of a Reshape or the
trip count of a Loop. It also keeps them if all its readers require them, so that a chain that
computes a shape does not change. Where the two widths meet, a Cast is inserted."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import AttributeProto, TensorProto
from onnxgraph import (
    attribute,
    change_values,
    find_inputs,
    find_opset,
    find_schema,
    forget_values,
    fresh_name,
    has_data,
    infer_shapes,
    iter_bodies,
    iter_defined,
    iter_graphs,
    make_cast,
    read_array,
    register_change,
    rename,
    replace_nodes,
    take_name,
)
from simipu import CompileError
from simipu.operators import operator_of

from popef._tools.arrays import Array
from poprt.passes.interface.surgery import hold_as_tensor
from poprt.rewrite.base import Pass, Stage, register

_BORDER_TYPES: dict[str, dict[int, int]] = {
    "fp32": {TensorProto.FLOAT16: TensorProto.FLOAT},
    "fp16": {TensorProto.FLOAT: TensorProto.FLOAT16},
}
"""Types that `io_precision` replaces, and their replacements."""


@register(
    "io_precision",
    stage=Stage.CHIP,
    option="io_precision",
    values=tuple(_BORDER_TYPES),
    takes="io_precision",
    is_ours=True,
)
class IoPrecision(Pass):
    """Give all inputs and outputs of floats one type, fp32 or fp16, with Casts between them and the
    graph, whose arithmetic does not change.

    With fp32 a model that computes in half can be asked by JSON, which has no half. Its inputs are
    rounded to half on the chip, and twice the bytes cross between host and chip.
    """

    def __init__(self, io_precision: str = "fp32") -> None:
        if io_precision not in _BORDER_TYPES:
            raise CompileError(
                f"io_precision: expected {' or '.join(_BORDER_TYPES)}, found {io_precision!r}"
            )
        self._types = _BORDER_TYPES[io_precision]

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Convert inputs and outputs of the other float type; integers and pictures in bytes stay
        as they are."""
        cast_borders(model.graph, self._types)
        return model


def cast_borders(graph: onnx.GraphProto, types: Mapping[int, int]) -> None:
    """Replace element types of inputs and outputs, with Casts from and to the types inside.

    A tensor keeps its name at the border. An output that is an input needs no Cast.
    """
    inputs = [value for value in find_inputs(graph) if _element(value) in types]
    outputs = [value for value in graph.output if _element(value) in types]
    if not (inputs or outputs):
        return
    before = {value.name: _element(value) for value in (*inputs, *outputs)}
    defined = set(iter_defined(graph))
    inner = {}
    for name, element in before.items():
        inner[name] = take_name(f"{name}/{TensorProto.DataType.Name(element).lower()}", defined)
    rename(graph, inner)
    # Rename outputs that were folded to constants, which no node computes.
    for tensor in graph.initializer:
        tensor.name = inner.get(tensor.name, tensor.name)
    for value in (*inputs, *outputs):
        value.type.tensor_type.elem_type = types[before[value.name]]
    input_names = {value.name for value in inputs}
    first = [make_cast(value.name, inner[value.name], before[value.name]) for value in inputs]
    last = [
        make_cast(inner[name], name, types[before[name]])
        for name in before
        if name not in input_names
    ]
    replace_nodes(graph, [*first, *graph.node, *last])


def _element(value: onnx.ValueInfoProto) -> int:
    return value.type.tensor_type.elem_type


_I32, _I64 = int(TensorProto.INT32), int(TensorProto.INT64)
_WIDE, _NARROW = 1, 2
"""Bits of a mask of how a tensor is read: as 64 bits because its reader requires them, or as 32
bits. 0: its readers accept either."""
_ENDS = np.iinfo(np.int32)
_OPEN_END = 1 << 62
"""Magnitude from which a number in a Slice stands for "to the end", as exporters write it. Clipping
such numbers loses nothing."""
_LOOP_LIMIT = 0
"""Place of a Loop's trip count, and of the iteration number in its body; both are 64-bit."""


@register_change("int32")
def narrow_to_int32(values: Array) -> npt.NDArray[np.int32]:
    """Return the same integers; those beyond the range of 32 bits become its minimum or maximum."""
    return np.clip(values, _ENDS.min, _ENDS.max).astype(np.int32)


@register("int64_to_int32", stage=Stage.BORDERS, default=True)
class Int64ToInt32(Pass):
    """Narrow the model's 64-bit integers to 32 bits, at its inputs and outputs and inside, except
    where the standard requires 64 bits.

    Constants beyond 32 bits, as exporters write them for the end of an axis, become the largest
    number there is, with a warning. Unsigned ones are narrowed at the borders only: ONNX Runtime
    has next to no operators for them.
    """

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Narrow the integers. Inputs and outputs with 64 bits get 32 bits."""
        types: dict[str, int] = {}
        for graph in iter_graphs(infer_shapes(model).graph):
            types.update(_iter_types(graph))
        if _I64 in types.values():
            narrowing = _IntegerNarrowing(
                self, types, find_opset(model, 1), set(iter_defined(model.graph))
            )
            plan = narrowing.plan(model.graph)
            narrowing.change(model.graph, plan, 0)
        cast_borders(model.graph, {TensorProto.UINT64: TensorProto.UINT32})
        return model


def _iter_types(graph: onnx.GraphProto) -> Iterator[tuple[str, int]]:
    for value in (*graph.input, *graph.value_info, *graph.output):
        yield value.name, value.type.tensor_type.elem_type
    for tensor in graph.initializer:
        yield tensor.name, tensor.data_type


@dataclass(slots=True)
class _NodePlan:
    """Plan of the changes to one node."""

    demands: dict[int, int] = field(default_factory=dict)
    """Width of each input by place, where the node does not accept either width."""
    kept: frozenset[str] = frozenset()
    """Outputs that stay 64-bit."""
    bodies: list[list[_NodePlan]] = field(default_factory=list)


@dataclass(slots=True)
class _OperandGroup:
    """Operands of a node that must have one type."""

    may_narrow: bool
    places: list[int] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


class _IntegerNarrowing:
    """Narrowing of a model in two walks. One against the order of the nodes collects how tensors
    are read; one in their order changes the nodes."""

    def __init__(
        self, owner: Pass, types: Mapping[str, int], version: int, taken: set[str]
    ) -> None:
        self._logger = owner.logger
        self._types, self._version, self._taken = types, version, taken
        self._read: dict[str, int] = {}
        self._twins: dict[str, str] = {}
        """Names of the 64-bit twins of tensors, if they have one."""
        self._as_bytes: set[str] = set()
        """Tensors that are cast to bytes."""

    def plan(self, graph: onnx.GraphProto) -> list[_NodePlan]:
        """Return the plans of a graph's nodes, including the nodes in bodies."""
        for value in graph.output:
            self._demand(value.name, _NARROW)
        plans = []
        for node in reversed(graph.node):
            bodies = [self.plan(body) for body in iter_bodies(node)]
            plan = self._plan_node(node)
            plan.bodies = bodies
            for place, demand in plan.demands.items():
                self._demand(node.input[place], demand)
            plans.append(plan)
        return plans[::-1]

    def _demand(self, name: str, demand: int) -> None:
        self._read[name] = self._read.get(name, 0) | demand

    def _is_wide(self, name: str) -> bool:
        return self._types.get(name) == _I64

    def _plan_node(self, node: onnx.NodeProto) -> _NodePlan:
        places = [i for i, name in enumerate(node.input) if self._is_wide(name)]
        outputs = [name for name in node.output if self._is_wide(name)]
        if not (places or outputs):
            return _NodePlan()
        if node.op_type == "Cast" and attribute(node, "to") == TensorProto.UINT8:
            self._as_bytes.add(node.input[0])
        schema = find_schema(node, self._version)
        if schema is None or any(iter_bodies(node)):
            wide = _LOOP_LIMIT if node.op_type == "Loop" else None
            return _NodePlan({place: _WIDE if place == wide else _NARROW for place in places})
        plan, wide_results = _NodePlan(), set[str]()
        for group in self._find_groups(node, schema, places, outputs).values():
            only_wide = all(self._read.get(name, 0) == _WIDE for name in group.outputs)
            if not group.may_narrow or (group.outputs and only_wide):
                wide_results.update(group.outputs)
                plan.demands.update(dict.fromkeys(group.places, _WIDE))
            elif group.outputs or len(group.places) > 1:
                plan.demands.update(dict.fromkeys(group.places, _NARROW))
        plan.kept = frozenset(wide_results)
        return plan

    def _find_groups(
        self,
        node: onnx.NodeProto,
        schema: onnx.defs.OpSchema,
        places: Sequence[int],
        outputs: Sequence[str],
    ) -> dict[str, _OperandGroup]:
        groups: dict[str, _OperandGroup] = {}
        wide = operator_of(node).int64_inputs

        def find(parameters: Sequence[Any], place: int, *, is_wide: bool = False) -> _OperandGroup:
            parameter = parameters[min(place, len(parameters) - 1)]
            may_narrow = "tensor(int32)" in parameter.types and not is_wide
            return groups.setdefault(parameter.type_str, _OperandGroup(may_narrow))

        for place in places:
            find(schema.inputs, place, is_wide=place in wide).places.append(place)
        for place, name in enumerate(node.output):
            if name in outputs:
                find(schema.outputs, place).outputs.append(name)
        return groups

    def change(self, graph: onnx.GraphProto, plans: Sequence[_NodePlan], fixed_inputs: int) -> None:
        """Change a graph and its bodies. The first `fixed_inputs` inputs of the graph keep their
        types."""
        nodes = [node for value in graph.input[fixed_inputs:] for node in self._narrow_input(value)]
        nodes += [node for value in graph.input[:fixed_inputs] for node in self._keep_input(value)]
        for value in graph.output:
            _narrow_value(value)
        self._narrow_initializers(graph)
        for node, plan in zip(graph.node, plans, strict=True):
            for body, inner in zip(iter_bodies(node), plan.bodies, strict=True):
                self.change(body, inner, 1 if node.op_type == "Loop" else 0)
            nodes += self._change_node(node, plan)
        forget_values(graph)
        replace_nodes(graph, nodes)

    def _narrow_input(self, value: onnx.ValueInfoProto) -> list[onnx.NodeProto]:
        if not self._is_wide(value.name):
            return []
        _narrow_value(value)
        return self._widen(value.name)

    def _keep_input(self, value: onnx.ValueInfoProto) -> list[onnx.NodeProto]:
        """Return the Cast for an input that stays 64-bit, as the iteration number of a Loop."""
        name = value.name
        if not self._is_wide(name):
            return []
        value.name, casts = self._keep(name)
        return casts

    def _widen(self, name: str) -> list[onnx.NodeProto]:
        """Return the Cast of a 32-bit tensor to 64 bits, if a reader needs it."""
        if not self._read.get(name, 0) & _WIDE:
            return []
        self._twins[name] = fresh_name(f"{name}/int64", self._taken)
        return [make_cast(name, self._twins[name], _I64)]

    def _keep(self, name: str) -> tuple[str, list[onnx.NodeProto]]:
        """Return the name of a tensor that stays 64-bit, and the Cast to 32 bits, if a reader needs
        it."""
        if not self._read.get(name, 0) & _NARROW:
            self._twins[name] = name
            return name, []
        self._twins[name] = fresh_name(f"{name}/int64", self._taken)
        return self._twins[name], [make_cast(self._twins[name], name, _I32)]

    def _narrow_initializers(self, graph: onnx.GraphProto) -> None:
        copies: list[TensorProto] = []
        for tensor in graph.initializer:
            read = self._read.get(tensor.name, 0)
            if tensor.data_type != _I64:
                continue
            if read == _WIDE:
                self._twins[tensor.name] = tensor.name
                continue
            if read & _WIDE:
                self._twins[tensor.name] = fresh_name(f"{tensor.name}/int64", self._taken)
                copies.append(copy.deepcopy(tensor))
                copies[-1].name = self._twins[tensor.name]
            self._narrow(tensor, tensor.name)
        graph.initializer.extend(copies)

    def _narrow(self, tensor: TensorProto, name: str) -> None:
        if has_data(tensor):
            values = read_array(tensor)
            clipped = values[(values > _ENDS.max) | (values < _ENDS.min)]
            if ((clipped < _OPEN_END) & (clipped > -_OPEN_END)).any():
                self._logger.warning("Clip %s to range (%d, %d)", name, _ENDS.min, _ENDS.max)
        change_values(tensor, "int32", _I32)

    def _change_node(self, node: onnx.NodeProto, plan: _NodePlan) -> list[onnx.NodeProto]:
        for place, demand in plan.demands.items():
            if demand == _WIDE:
                node.input[place] = self._twins.get(node.input[place], node.input[place])
        before, after = list[onnx.NodeProto](), list[onnx.NodeProto]()
        for place, name in enumerate(node.output):
            if not self._is_wide(name):
                continue
            if name not in plan.kept and node.op_type == "Mul" and name in self._as_bytes:
                before = self._cast_operands(node)
            if name in plan.kept:
                node.output[place], casts = self._keep(name)
                after += casts
            else:
                self._retype(node)
                after += self._widen(name)
        return [*before, node, *after]

    def _cast_operands(self, node: onnx.NodeProto) -> list[onnx.NodeProto]:
        """Return Casts to 32 bits before a product that is cast to bytes. The real tool leaves them
        there, and the published passes that pack DeBERTa find its mask by them. They change no
        value."""
        casts = []
        for place, name in enumerate(node.input):
            node.input[place] = take_name(f"{name}/int32", self._taken)
            casts.append(make_cast(name, node.input[place], _I32))
        return casts

    def _retype(self, node: onnx.NodeProto) -> None:
        """Narrow the type in a node's attributes, if they specify the type of its result."""
        hold_as_tensor(node)
        for entry in node.attribute:
            if entry.name in ("to", "dtype") and entry.i == _I64:
                entry.i = _I32
            if entry.type == AttributeProto.TENSOR and entry.t.data_type == _I64:
                self._narrow(entry.t, node.output[0])
        if node.op_type == "Cast" and self._is_narrow_now(node.input[0]):
            node.op_type = "Identity"
            del node.attribute[:]

    def _is_narrow_now(self, name: str) -> bool:
        element_type = self._types.get(name)
        return element_type == _I32 or (element_type == _I64 and self._twins.get(name) != name)


def _narrow_value(value: onnx.ValueInfoProto) -> None:
    if value.type.tensor_type.elem_type == _I64:
        value.type.tensor_type.elem_type = _I32
