"""Rules of operators: what PopART checks of a node, and the nodes of the newer opset that have its
meaning.

A rule is an expansion (`onnxgraph.tape`) whose tape is a `Graph`, which knows the shape of every
tensor, and whose site is an `Operation`. Its checks raise popart_exception with PopART's texts. An
operator without a rule keeps its form. Formulas that other rooms have, too, are `onnxgraph`'s.

There are rules of three kinds:

- operators of PopART's own domain;
- operators of the standard that PopART checks, and otherwise keeps (`keep`);
- operators of the standard that PopART means otherwise (Round, Resize, ConvTranspose), or that
  opsets up to 11 write otherwise than the newer one (Squeeze, Slice). The passes of poprt upgrade
  opsets, too, but a model that they have upgraded no longer has the operators, versions and
  attributes of which PopART's texts speak.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, defs, helper
from onnxgraph import STANDARD_DOMAINS, Results, Site

from popart.errors import format_operator, format_shape, popart_exception
from popart.lowering.graph import Array, Graph, Tensor
from popart.tensorinfo import from_onnx_type

Rule = Callable[[Graph, "Operation"], Results]
RULES: dict[tuple[str, str], Rule] = {}
"""Rules by domain ("" is the standard's) and operator."""
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
NARROWED = {TensorProto.INT64: TensorProto.INT32, TensorProto.UINT64: TensorProto.UINT32}
"""Types that have 32 bits on the chip."""


def rule(*op_types: str, domain: str = "") -> Callable[[Rule], Rule]:
    """Return a decorator that registers a function as the rule of operators."""

    def register(function: Rule) -> Rule:
        RULES.update({(domain, op_type): function for op_type in op_types})
        return function

    return register


def chip_rule(*op_types: str) -> Callable[[Rule], Rule]:
    """Return a decorator that registers a function as the rule of operators of ai.graphcore."""
    return rule(*op_types, domain="ai.graphcore")


class Operation(Site[Graph]):
    """Node of the given model, with what PopART knows of its inputs and says about it."""

    op: Graph

    def __init__(
        self, node: onnx.NodeProto, graph: Graph, opset: int, settings: Any = None
    ) -> None:
        super().__init__(node, graph, graph)
        self.opset, self.settings = opset, settings
        self.inputs = [self._find(name) if name else None for name in node.input]

    def _find(self, name: str) -> Tensor:
        tensor = self.op.find(name)
        if tensor is None:
            raise popart_exception(
                f"{self.describe()}: no tensor {name!r} is known. A node reads only inputs, "
                "weights and the outputs of the nodes before it"
            )
        return tensor

    @property
    def domain(self) -> str:
        """Return the domain; "" is the standard's."""
        return "" if self.node.domain in STANDARD_DOMAINS else self.node.domain

    @cached_property
    def version(self) -> int:
        """Return the version of the operator that its opset has."""
        if self.domain:
            return 1
        try:
            return int(defs.get_schema(self.node.op_type, self.opset).since_version)
        except defs.SchemaError:
            return self.opset

    @property
    def identifier(self) -> str:
        """Return the operator as PopART names it: `ai.onnx.MatMul:9`."""
        return f"{self.domain or 'ai.onnx'}.{self.node.op_type}:{self.version}"

    def describe(self) -> str:
        """Return the node as PopART prints it."""
        node = self.node
        return format_operator(
            self.domain, node.op_type, self.version, node.input, node.output, node.name
        )

    @property
    def x(self) -> Tensor:
        """Return the first input."""
        return self.input(0)

    def input(self, place: int) -> Tensor:
        """Return an input that the operator requires."""
        tensor = self.optional(place)
        if tensor is None:
            raise popart_exception(f"{self.describe()}: input {place} is required, and is absent")
        return tensor

    def optional(self, place: int) -> Tensor | None:
        """Return an input, or None if it is absent."""
        return self.inputs[place] if place < len(self.inputs) else None

    @property
    def operands(self) -> list[Tensor]:
        """Return the inputs, none of which may be absent."""
        return [self.input(place) for place in range(len(self.inputs))]

    def value(self, place: int) -> Array | None:
        """Return the value of an input, if it is known when the session is made."""
        tensor = self.optional(place)
        return None if tensor is None else self.op.value_of(tensor)

    def whole_numbers(self, place: int, what: str, purpose: str = "output shape") -> list[int]:
        """Return an input with sizes or axes, whose value must be known."""
        value = self.value(place)
        if value is None:
            name = self.node.input[place]
            raise popart_exception(
                f"Need the value of the {self.identifier} input '{what}' to determine the "
                f"{purpose}, but was unable because the tensor {name} does not have data"
            )
        return [int(number) for number in np.ravel(value)]

    def axis(self, default: int, place: int = 0) -> int:
        """Return the attribute `axis`, counted from the front; rules check its range."""
        axis, rank = int(self.get("axis", default)), self.input(place).rank
        return axis + rank if axis < 0 else axis


def keep(op: Graph, node: Operation) -> list[Tensor]:
    """Rule of an operator whose form has not changed since."""
    attributes = {
        entry.name: helper.get_attribute_value(entry)
        for entry in node.node.attribute
        if not entry.name.startswith("__")
    }
    op_type = node.node.op_type
    outputs = op.name_outputs(op_type, map(bool, node.node.output))
    return op.add_all(outputs, op_type, *node.inputs, domain=node.domain, **attributes)


def type_name(tensor: Tensor) -> str:
    """Return PopART's name of a tensor's type."""
    return from_onnx_type(tensor.element_type).name


def broadcast(node: Operation, left: Sequence[int], right: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of two that are broadcast, or raise PopART's exception."""
    try:
        return tuple(np.broadcast_shapes(tuple(left), tuple(right)))
    except ValueError:
        shown = [f"[{', '.join(map(str, shape))}]" for shape in (left, right)]
        raise popart_exception(
            f"np broadcasting failed on 'Op {node.describe()}', frames {shown[0]} and "
            f"{shown[1]} are not aligned"
        ) from None


def match_widths(op: Graph, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return operands of one type where integers of 64 bits stand beside those of 32: on the chip
    both have 32."""
    types = {tensor.element_type for tensor in tensors}
    for wide, narrow in NARROWED.items():
        if types == {wide, narrow}:
            return [op.cast(tensor, narrow) for tensor in tensors]
    return list(tensors)


def check_same_types(node: Operation, left: Tensor, right: Tensor) -> None:
    """Raise PopART's exception for operands of two types."""
    if left.element_type != right.element_type:
        raise popart_exception(
            f"np broadcasting failed on Op {node.describe()}, incompatible types "
            f"{type_name(left)} and {type_name(right)} (shapes {format_shape(left.shape)} and "
            f"{format_shape(right.shape)})"
        )


def check_floats(node: Operation, *tensors: Tensor) -> None:
    """Raise popart_exception for operands that are neither float nor half."""
    for tensor in tensors:
        if tensor.element_type not in FLOATS:
            raise popart_exception(
                f"{node.describe()}: expected FLOAT or FLOAT16, found {type_name(tensor)}. "
                "Cast the input first"
            )


def read_axes(axes: Sequence[int], rank: int) -> list[int]:
    """Return axes that are not negative, in order, or raise PopART's exception."""
    for axis in axes:
        if not -rank <= axis < rank:
            raise popart_exception(f"Axis {axis} is out of acceptable range [{-rank}, {rank - 1}]")
    return sorted({axis % rank for axis in axes})


def cut_pads(
    op: Graph, x: Tensor, pads: Sequence[int], first_axis: int = 0
) -> tuple[Tensor, list[int]]:
    """Return a tensor without what negative pads cut off its axes, and the other pads."""
    if min(pads, default=0) >= 0:
        return x, list(pads)
    axes = list(range(first_axis, x.rank))
    starts = [max(-pad, 0) for pad in pads[: len(axes)]]
    sizes = x.shape[first_axis:]
    ends = [size + min(pad, 0) for size, pad in zip(sizes, pads[len(axes) :], strict=True)]
    return op.Slice(x, starts=starts, ends=ends, axes=axes), [max(pad, 0) for pad in pads]
