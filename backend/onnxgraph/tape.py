"""The writer of nodes, and the form of the functions that write an operator as other operators.

    def hard_swish(op: Tape, node: Site) -> Value:
        x = node.x
        return x * op.HardSigmoid(x, alpha=1 / 6, beta=0.5)

An `Expansion` gets a tape to write on and the node that it replaces, and returns the results of the
node. It names nothing: `expand` gives the results the names of the node's outputs. Numbers beside a
value become constants of its type. Attributes that newer opsets have as inputs are written as
attributes, and put where the opset of the tape has them (`onnxgraph.opsets.MOVED`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import starmap
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxgraph.edit import rename_in_node
from onnxgraph.names import NameScope
from onnxgraph.nodes import CHIP_DOMAIN, attribute
from onnxgraph.opsets import MOVED

Array = npt.NDArray[Any]


class Facts(Protocol):
    """Known facts about the tensors around a node; `GraphView` is one implementation."""

    def type(self, name: str) -> int:
        """Return the element type of a tensor; 0 if it is not known."""

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the static shape of a tensor; None if it is not known."""

    def rank(self, name: str) -> int | None:
        """Return the number of a tensor's dimensions; None if it is not known."""

    def value(self, name: str) -> Array | None:
        """Return the values of a small constant; None for other tensors."""


class NoFacts:
    """Facts of a graph of which nothing is known."""

    def type(self, _name: str) -> int:
        """Return 0, which stands for an unknown type."""
        return 0

    def shape(self, _name: str) -> None:
        """Return None."""

    def rank(self, _name: str) -> None:
        """Return None."""

    def value(self, _name: str) -> None:
        """Return None."""


class UnknownFactError(Exception):
    """A formula needs a fact about a tensor that is not known."""


class Value(str):
    """Name of a tensor that a tape reads or makes. Arithmetic on it adds nodes to the tape.

    It is a text, so that whatever takes the name of a tensor takes a value: nodes, bodies, sets and
    tables of names. `+` and `*` are those of tensors, not of texts.
    """

    __slots__ = ("element_type", "tape")
    tape: Tape
    element_type: int
    """Element type; 0 if it is not known."""

    def __new__(cls, tape: Tape, name: str, element_type: int = 0) -> Value:
        value = super().__new__(cls, name)
        value.tape, value.element_type = tape, element_type
        return value

    def __add__(self, other: Operand) -> Value:
        return self.tape.add("Add", self, other)

    def __radd__(self, other: Operand) -> Value:
        return self.tape.add("Add", other, self)

    def __sub__(self, other: Operand) -> Value:
        return self.tape.add("Sub", self, other)

    def __rsub__(self, other: Operand) -> Value:
        return self.tape.add("Sub", other, self)

    def __mul__(self, other: Operand) -> Value:  # type: ignore[override]
        return self.tape.add("Mul", self, other)

    def __rmul__(self, other: Operand) -> Value:  # type: ignore[override]
        return self.tape.add("Mul", other, self)

    def __truediv__(self, other: Operand) -> Value:
        return self.tape.add("Div", self, other)

    def __rtruediv__(self, other: Operand) -> Value:
        return self.tape.add("Div", other, self)

    def __neg__(self) -> Value:
        return self.tape.add("Neg", self)


Operand = str | npt.ArrayLike | None
"""Input of a new node: a value or another name of a tensor, None for a missing input, or a
constant."""


@dataclass(slots=True)
class Tape:
    """New nodes of one opset, in order.

    `op.Relu(x)` is short for `op.add("Relu", x)`. Intermediate tensors are named after `prefix`.
    """

    prefix: str
    opset: int = 0
    """Opset of the nodes, by default that of `names`; with 0, attributes stay attributes."""
    names: NameScope | None = None
    """Names of the model. With them, constants become weights of its main graph; without them, they
    are nodes."""
    is_alone: bool = False
    """Flag that the tape takes a prefix that no other name of the model begins with, so that
    numbers make its names unique. Otherwise each name is looked up."""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    _num_held: int = 0
    _is_prefix_taken: bool = False

    def __post_init__(self) -> None:
        if self.names is not None:
            self.opset = self.opset or self.names.opset

    def __getattr__(self, op_type: str) -> Callable[..., Value]:
        if not op_type[:1].isupper():
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {op_type!r}")
        return partial(self.add, op_type)

    def add(self, op_type: str, *inputs: Operand, **attributes: Any) -> Value:
        """Append a node with one output and return it.

        A constant among the inputs, a number, a list or an array, takes the type of the first value
        beside it, but not of a condition; float if that is not known.
        """
        return self.add_all(1, op_type, *inputs, **attributes)[0]

    def add_as(self, name: str, op_type: str, *inputs: Operand, **attributes: Any) -> Value:
        """Append a node whose output has the given name, and return that output."""
        return self.add_all([name], op_type, *inputs, **attributes)[0]

    def add_all(
        self, outputs: int | Sequence[str], op_type: str, *inputs: Operand, **attributes: Any
    ) -> list[Value]:
        """Append a node and return its outputs, given by their number or their names. An attribute
        of None is left out."""
        attributes = {key: value for key, value in attributes.items() if value is not None}
        like = _find_like(op_type, inputs)
        operands = [self._operand(value, like) for value in inputs]
        if "domain" not in attributes:
            self._move_attributes(op_type, operands, attributes, like)
        if isinstance(outputs, int):
            outputs = self._new_names(outputs)
        title = f"{outputs[0]}/{op_type}"
        self.nodes.append(helper.make_node(op_type, operands, outputs, title, **attributes))
        element_type = _result_type(op_type, attributes, inputs, like)
        return [Value(self, name, element_type) for name in outputs]

    def _operand(self, operand: Operand, element_type: int) -> str:
        if isinstance(operand, str):
            return operand
        return "" if operand is None else self.like(operand, element_type)

    def _move_attributes(
        self, op_type: str, operands: list[str], attributes: dict[str, Any], like: int
    ) -> None:
        for name, (since, place, element_type) in MOVED.get(op_type, {}).items():
            if name in attributes and self.opset >= since:
                operands += [""] * (place + 1 - len(operands))
                operands[place] = self.like(attributes.pop(name), element_type or like)
            elif name in attributes and not element_type:
                attributes[name] = float(attributes[name])

    def like(self, value: npt.ArrayLike, element_type: int) -> Value:
        """Append a constant of an element type; 0 stands for float."""
        return self.constant(
            value, helper.tensor_dtype_to_np_dtype(element_type or TensorProto.FLOAT)
        )

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> Value:
        """Append a constant and return it."""
        array = np.asarray(value, dtype)
        if self.names is None:
            name = self.add("Constant", value=numpy_helper.from_array(array))
            name.element_type = helper.np_dtype_to_tensor_dtype(array.dtype)
            return name
        return self.read(
            self._hold(array, self.names), helper.np_dtype_to_tensor_dtype(array.dtype)
        )

    def _hold(self, array: Array, names: NameScope) -> str:
        if not self.is_alone:
            return names.hold(f"{self.prefix}/constant", array)
        name = f"{self._take_prefix()}/constant_{self._num_held}"
        self._num_held += 1
        names.added.append(numpy_helper.from_array(array, name))
        return name

    def ints(self, values: npt.ArrayLike) -> Value:
        """Append a constant of sizes, axes or other whole numbers, and return it."""
        return self.constant(values, np.int64)

    def copy(
        self,
        node: onnx.NodeProto,
        inputs: Sequence[str] | None = None,
        without: Iterable[str] = (),
        **attributes: Any,
    ) -> list[Value]:
        """Append a copy of a node and return its outputs.

        Args:
            node: The node; the copy has its name.
            inputs: Inputs of the copy, if they are others.
            without: Attributes that the copy does not have.
            attributes: Attributes that the copy has besides, or with other values.

        Returns:
            A value for each output; an output without a name stays "".
        """
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        dropped = {*without, *attributes}
        del copy.attribute[:]
        copy.attribute.extend(entry for entry in node.attribute if entry.name not in dropped)
        copy.attribute.extend(starmap(helper.make_attribute, attributes.items()))
        if inputs is not None:
            copy.input[:] = inputs
        names = zip(self._new_names(len(node.output)), node.output, strict=True)
        copy.output[:] = [name if old else "" for name, old in names]
        self.nodes.append(copy)
        return [Value(self, name) for name in copy.output]

    def chip(self, op_type: str, *inputs: Operand, **attributes: Any) -> Value:
        """Append an operator of the chip's own compiler and return its output."""
        return self.add(op_type, *inputs, domain=CHIP_DOMAIN, **attributes)

    def chip_as(self, name: str, op_type: str, *inputs: Operand, **attributes: Any) -> Value:
        """Append an operator of the chip's own compiler whose output has the given name, and return
        that output."""
        return self.add_as(name, op_type, *inputs, domain=CHIP_DOMAIN, **attributes)

    def read(self, name: str, element_type: int = 0) -> Value:
        """Return a tensor from outside the tape as a value."""
        return Value(self, name, element_type)

    def new_name(self) -> str:
        """Return an unused name for the next node's output."""
        name = f"{self._take_prefix()}/{len(self.nodes)}"
        return name if self.names is None or self.is_alone else self.names.take(name)

    def _new_names(self, count: int) -> list[str]:
        first = self.new_name()
        numbered = [f"{first}_{number}" for number in range(1, count)]
        if self.names is not None and not self.is_alone:
            numbered = [self.names.take(name) for name in numbered]
        return [first, *numbered]

    def _take_prefix(self) -> str:
        """Return the prefix. It is taken with the first name, because most tapes of a pass stay
        empty, and a search for a free prefix reads the whole model."""
        if self.is_alone and self.names is not None and not self._is_prefix_taken:
            self.prefix = self.names.take_prefix(self.prefix)
            self._is_prefix_taken = True
        return self.prefix

    def finish(
        self, results: str | Sequence[str | None], outputs: Sequence[str], title: str = ""
    ) -> list[onnx.NodeProto]:
        """Return the nodes, with results under the names `outputs`.

        Args:
            results: Value for each output; None, or a value whose output is "", is left out.
            outputs: Names of the results, as of a node's outputs; "" for one that is not needed.
            title: Name of the node that makes the first result, unless a node has it already.

        Returns:
            The nodes of the tape. A result that no node of the tape makes, or that is asked for
            twice, is made by an Identity.
        """
        values = [results] if isinstance(results, str) else results
        own = {name for node in self.nodes for name in node.output}
        renames: dict[str, str] = {}
        for value, output in zip(values, outputs, strict=False):
            if value is None or not output or value == output:
                continue
            if value not in own or value in renames:
                self.add_as(output, "Identity", renames.get(value, value))
            else:
                renames[value] = output
        if renames:
            for node in self.nodes:
                rename_in_node(node, renames)
        if title and all(node.name != title for node in self.nodes):
            next(node for node in self.nodes if outputs[0] in node.output).name = title
        return self.nodes


def _find_like(op_type: str, inputs: Sequence[Operand]) -> int:
    """Return the element type of the constants among the inputs of a new node."""
    operands = inputs[1:] if op_type == "Where" else inputs
    return next((value.element_type for value in operands if isinstance(value, Value)), 0)


def _result_type(
    op_type: str, attributes: dict[str, Any], inputs: Sequence[Operand], like: int
) -> int:
    """Return the element type of a new node's first result; 0 if it does not depend on the types of
    the inputs alone."""
    if op_type == "Cast":
        return int(attributes["to"])
    element_type, place = _find_type(op_type) if "domain" not in attributes else (0, 0)
    source = inputs[place] if 0 <= place < len(inputs) else None
    if isinstance(source, Value):
        return source.element_type
    return element_type if source is None or isinstance(source, str) else like


@cache
def _find_type(op_type: str) -> tuple[int, int]:
    """Return the element type of an operator's first result, if the standard knows only one, or 0
    and the place of the input that has the same type; -1 for none."""
    schema = onnx.defs.get_schema(op_type)
    result = schema.outputs[0]
    if len(result.types) == 1:
        kind = next(iter(result.types)).removeprefix("tensor(").removesuffix(")")
        return TensorProto.DataType.Value(kind.upper()), -1
    kinds = [parameter.type_str for parameter in schema.inputs]
    return 0, kinds.index(result.type_str) if result.type_str in kinds else -1


KnownFacts = TypeVar("KnownFacts", bound=Facts)


@dataclass(slots=True)
class Site(Generic[KnownFacts]):
    """Node that a formula writes as other nodes, with the known facts around it."""

    node: onnx.NodeProto
    facts: KnownFacts
    op: Tape

    @property
    def x(self) -> Value:
        """First input."""
        return self.input(0)

    def input(self, place: int) -> Value:
        """Return an input that the operator requires."""
        name = self.node.input[place]
        return self.op.read(name, self.facts.type(name))

    def optional(self, place: int) -> Value | None:
        """Return an input, or None if it is missing."""
        is_there = place < len(self.node.input) and self.node.input[place]
        return self.input(place) if is_there else None

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of an attribute, or of the constant input that replaced it.

        Texts are `str`. Raises UnknownFactError if the input is computed at run time.
        """
        value = attribute(self.node, name)
        since, place, _ = MOVED.get(self.node.op_type, {}).get(name, (0, 0, 0))
        if value is None and since and self.op.opset >= since and self.optional(place) is not None:
            values = self.facts.value(self.node.input[place])
            if values is None:
                raise UnknownFactError(f"its {name} would have to be constant, and is computed")
            value = values.tolist()
        if isinstance(value, bytes):
            return value.decode(errors="replace")
        return default if value is None else value

    def shape(self, place: int = 0) -> tuple[int, ...]:
        """Return the static shape of an input. Raises UnknownFactError if it is not known."""
        shape = self.facts.shape(self.node.input[place])
        if shape is None:
            raise UnknownFactError(
                f"the shape of its input {self.node.input[place]!r} is not known; give the "
                "inputs' with --input_shape"
            )
        return shape

    def rank(self, place: int = 0) -> int:
        """Return the number of dimensions of an input. Raises UnknownFactError if it is not
        known."""
        rank = self.facts.rank(self.node.input[place])
        if rank is None:
            raise UnknownFactError(
                f"the number of dimensions of its input {self.node.input[place]!r} is not known"
            )
        return rank

    def axis(self, default: int, place: int = 0) -> int:
        """Return the attribute `axis`, counted from the front."""
        return int(self.get("axis", default)) % max(1, self.rank(place))

    def has_output(self, place: int) -> bool:
        """Return whether the node has an output at a place."""
        return place < len(self.node.output) and bool(self.node.output[place])


Results = str | Sequence[str | None]
"""Results of a formula: one for each of the node's outputs; missing ones at the end are left
out."""
Expansion = Callable[[Tape, Site[Any]], Results]
"""Function that writes, on a tape, the nodes that compute a node's results."""


def expand(
    node: onnx.NodeProto, expansion: Expansion, tape: Tape, facts: Facts | None = None
) -> list[onnx.NodeProto]:
    """Return the nodes by which an expansion replaces a node."""
    site = Site(node, NoFacts() if facts is None else facts, tape)
    return tape.finish(expansion(tape, site), node.output, node.name)


def make_body(
    tape: Tape,
    inputs: Sequence[Value | str],
    outputs: Sequence[Value | str],
    whole: Sequence[Value | str] = (),
) -> onnx.GraphProto:
    """Return a subgraph of the nodes of a tape.

    Its tensors are float, the `whole` ones int64, and have no declared shapes.
    """
    types = dict.fromkeys(whole, TensorProto.INT64)
    taken, made = (
        [
            helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), None)
            for name in names
        ]
        for names in (inputs, outputs)
    )
    return helper.make_graph(tape.nodes, tape.prefix, taken, made)
