"""Rules of operators: what PopART checks of a node, and the nodes of the newer opset that have its
meaning.

A rule is a function of an `Operation` that returns the tensors of the node's outputs. Its checks
raise popart_exception with PopART's texts. An operator without a rule keeps its form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, defs, helper
from onnxgraph import STANDARD_DOMAINS

from popart.errors import format_operator, format_shape, popart_exception
from popart.lowering.graph import Array, Graph, Tensor
from popart.tensorinfo import from_onnx_type

Rule = Callable[["Operation"], Sequence[Tensor | None]]
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


class Operation:
    """Node of the given model, with what is known of its inputs."""

    def __init__(
        self, node: onnx.NodeProto, graph: Graph, opset: int, settings: Any = None
    ) -> None:
        self.node, self.graph, self.opset, self.settings = node, graph, opset, settings
        self.inputs = [self._find(name) if name else None for name in node.input]

    def _find(self, name: str) -> Tensor:
        found = self.graph.find(name)
        if found is None:
            raise popart_exception(
                f"{self.describe()}: no tensor {name!r} is known. A node reads only inputs, "
                "weights and the outputs of the nodes before it"
            )
        return found

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
        found = self.inputs[place] if place < len(self.inputs) else None
        if found is None:
            raise popart_exception(f"{self.describe()}: input {place} is required, and is absent")
        return found

    def optional(self, place: int) -> Tensor | None:
        """Return an input, or None if it is absent."""
        return self.inputs[place] if place < len(self.inputs) else None

    def has_output(self, place: int) -> bool:
        """Return whether the node has an output at that place."""
        return place < len(self.node.output) and bool(self.node.output[place])

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return the value of an attribute; texts are `str`."""
        for entry in self.node.attribute:
            if entry.name == name:
                value = helper.get_attribute_value(entry)
                return value.decode() if isinstance(value, bytes) else value
        return default

    def value(self, place: int) -> Array | None:
        """Return the value of an input, if it is known when the session is made."""
        found = self.optional(place)
        return None if found is None else self.graph.value_of(found)

    def whole_numbers(self, place: int, what: str, purpose: str = "output shape") -> list[int]:
        """Return an input with sizes or axes, whose value must be known."""
        value = self.value(place)
        if value is None:
            name = self.node.input[place]
            raise popart_exception(
                f"Need the value of the {self.identifier} input '{what}' to determine the "
                f"{purpose}, but was unable because the tensor {name} does not have data"
            )
        return [int(each) for each in np.ravel(value)]

    def axis(self, default: int, rank: int | None = None) -> int:
        """Return the attribute `axis`, not negative."""
        axis, rank = int(self.attribute("axis", default)), self.x.rank if rank is None else rank
        return axis + rank if axis < 0 else axis

    def add(self, op_type: str, *inputs: Tensor | None, **more: Any) -> Tensor:
        """Add a node with one output, and return that."""
        return self.add_all(op_type, *inputs, **more)[0]

    def add_all(self, op_type: str, *inputs: Tensor | None, **more: Any) -> list[Tensor]:
        """Add a node and return its outputs."""
        prefix = next(filter(None, self.node.output), self.node.op_type)
        try:
            return self.graph.add(op_type, inputs, prefix=prefix, **more)
        except ValueError as error:
            raise popart_exception(f"{self.describe()}: {error}") from error

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> Tensor:
        """Return a constant."""
        return self.graph.constant(value, dtype)

    def numbers(self, value: npt.ArrayLike) -> Tensor:
        """Return a constant of sizes, axes or other whole numbers."""
        return self.graph.constant(value, np.int64)

    def like(self, value: npt.ArrayLike, tensor: Tensor) -> Tensor:
        """Return a constant of the type of a tensor."""
        return self.graph.constant(value, tensor.dtype)

    def cast(self, tensor: Tensor, to: int) -> Tensor:
        """Return the tensor in another type."""
        return tensor if tensor.type == to else self.add("Cast", tensor, to=to)

    def reshape(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        """Return the tensor in another shape."""
        if tuple(shape) == tensor.shape:
            return tensor
        sizes = self.numbers(np.asarray(shape, np.int64))
        return self.add("Reshape", tensor, sizes, allowzero=1 if 0 in shape else None)

    def transpose(self, tensor: Tensor, order: Sequence[int]) -> Tensor:
        """Return the tensor with its axes in another order."""
        if list(order) == list(range(tensor.rank)):
            return tensor
        return self.add("Transpose", tensor, perm=list(order))

    def in_float(self, tensor: Tensor) -> Tensor:
        """Return the tensor in float."""
        return self.cast(tensor, TensorProto.FLOAT)


def type_name(tensor: Tensor) -> str:
    """Return PopART's name of a tensor's type."""
    return from_onnx_type(tensor.type).name


def broadcast(operation: Operation, left: Sequence[int], right: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of two that are broadcast, or raise PopART's exception."""
    try:
        return tuple(np.broadcast_shapes(tuple(left), tuple(right)))
    except ValueError:
        shown = [f"[{', '.join(map(str, shape))}]" for shape in (left, right)]
        raise popart_exception(
            f"np broadcasting failed on 'Op {operation.describe()}', frames {shown[0]} and "
            f"{shown[1]} are not aligned"
        ) from None


def match_widths(operation: Operation, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return operands of one type where integers of 64 bits stand beside those of 32: on the chip
    both have 32."""
    types = {tensor.type for tensor in tensors}
    for wide, narrow in NARROWED.items():
        if types == {wide, narrow}:
            return [operation.cast(tensor, narrow) for tensor in tensors]
    return list(tensors)


def check_same_types(operation: Operation, left: Tensor, right: Tensor) -> None:
    """Raise PopART's exception for operands of two types."""
    if left.type != right.type:
        raise popart_exception(
            f"np broadcasting failed on Op {operation.describe()}, incompatible types "
            f"{type_name(left)} and {type_name(right)} (shapes {format_shape(left.shape)} and "
            f"{format_shape(right.shape)})"
        )


def check_floats(operation: Operation, *tensors: Tensor) -> None:
    """Raise popart_exception for operands that are neither float nor half."""
    for tensor in tensors:
        if tensor.type not in FLOATS:
            raise popart_exception(
                f"{operation.describe()}: expected FLOAT or FLOAT16, found {type_name(tensor)}. "
                "Cast the input first"
            )


def read_axes(axes: Sequence[int], rank: int) -> list[int]:
    """Return axes that are not negative, in order, or raise PopART's exception."""
    for axis in axes:
        if not -rank <= axis < rank:
            raise popart_exception(f"Axis {axis} is out of acceptable range [{-rank}, {rank - 1}]")
    return sorted({axis % rank for axis in axes})
