"""Graph that a lowering writes: its tensors, whose types and shapes are all known, and its nodes,
which are of one opset of the standard.

PopART knows the shape of every tensor when it builds its graph, and so does this module: it infers
each node's results when the node is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, checker, defs, helper, numpy_helper, shape_inference
from onnxgraph import (
    STANDARD_DOMAINS,
    Operand,
    Tape,
    Value,
    evaluate_node,
    infer_shapes,
    iter_bodies,
    iter_reads,
    read_array,
    rename,
    set_attribute,
    type_name,
)
from simipu.operators import operator_of

OPSET: Final = 18
"""Opset of the nodes: the oldest one with operators on bits."""
MAX_KNOWN: Final = 1 << 16
"""Maximum number of elements of constants whose values shape inference gets."""
Array = npt.NDArray[Any]


class Tensor(Value):
    """Value of the graph that is written, whose type and shape are always known."""

    __slots__ = ("is_constant", "shape")
    shape: tuple[int, ...]
    is_constant: bool
    """True if its value is known when the session is made."""

    def __new__(
        cls,
        tape: Tape,
        name: str,
        element_type: int,
        shape: Sequence[int],
        *,
        is_constant: bool = False,
    ) -> Tensor:
        tensor = super().__new__(cls, tape, name, element_type)
        assert isinstance(tensor, Tensor)
        tensor.shape, tensor.is_constant = tuple(shape), is_constant
        return tensor

    if TYPE_CHECKING:
        # Arithmetic makes tensors of the same graph.
        __add__: Callable[[Tensor, Operand], Tensor]
        __sub__: Callable[[Tensor, Operand], Tensor]
        __mul__: Callable[[Tensor, Operand], Tensor]
        __truediv__: Callable[[Tensor, Operand], Tensor]
        __neg__: Callable[[Tensor], Tensor]

    @property
    def rank(self) -> int:
        """Return the number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return int(np.prod(self.shape))

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return NumPy's type of the elements."""
        return helper.tensor_dtype_to_np_dtype(self.element_type)

    def with_shape(self, shape: Sequence[int]) -> Tensor:
        """Return the tensor with another shape, as a description of another tensor."""
        return Tensor(self.tape, self, self.element_type, shape, is_constant=self.is_constant)

    def on(self, tape: Tape) -> Tensor:
        """Return the tensor with a tape to which its arithmetic adds nodes."""
        return Tensor(tape, self, self.element_type, self.shape, is_constant=self.is_constant)

    def as_variable(self) -> Tensor:
        """Return the tensor as one whose value is not known before a run."""
        return Tensor(self.tape, self, self.element_type, self.shape)


class RejectedNodeError(Exception):
    """The standard does not allow a node."""


class EffectKind(Enum):
    """What a session does with a value that no caller asks for."""

    PRINT = "print"
    ABORT = "abort"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class Effect:
    """Action on a tensor's value after each run."""

    kind: EffectKind
    target: str = ""
    """Title of what is printed, or the weight that is updated."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Attributes of the node; those of PrintTensor say how the value is formatted."""


@dataclass(slots=True)
class _Shared:
    """What a graph and its bodies share."""

    taken: set[str]
    counts: dict[str, int] = field(default_factory=dict)
    """Last number that was appended to a name, by name."""
    fresh: set[str] = field(default_factory=set)
    """Outputs that no name of the given graph stands for yet."""
    renamed: dict[str, str] = field(default_factory=dict)
    makers: dict[str, onnx.NodeProto] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    """Tensors that nodes make, by their names."""
    values: dict[str, Array] = field(default_factory=dict)
    effects: dict[str, Effect] = field(default_factory=dict)
    """Effects by the names of their tensors."""
    weights: dict[str, TensorProto] = field(default_factory=dict)
    """Initializers by the names of their tensors."""
    split: set[str] = field(default_factory=set)
    """Initializers whose values differ between replicas, so that none is known."""


class Graph(Tape):
    """Graph that is written: the main graph or a body.

    It is a tape that infers each node's results at once, so that rules can ask for the shapes of
    what they write, and whose constants are nodes: each body has its own.
    """

    def __init__(
        self,
        parent: Graph | None = None,
        taken: set[str] | None = None,
        nodes: list[onnx.NodeProto] | None = None,
    ) -> None:
        """Make a graph.

        Args:
            parent: the graph around it; None for the main graph.
            taken: names of the main graph's tensors.
            nodes: list to which nodes are added; None for a list of its own.
        """
        prefix = parent.prefix if parent else ""
        super().__init__(prefix, OPSET, nodes=[] if nodes is None else nodes)
        self.parent = parent
        self.tensors: dict[str, Tensor] = {}
        """Tensors by the names that the given graph has for them."""
        self._constants: dict[tuple[str, tuple[int, ...], bytes], Tensor] = {}
        self.placement: dict[str, int] = {}
        """Attributes that the next nodes get."""
        self._shared: _Shared = (
            parent._shared if parent else _Shared(taken or set())  # noqa: SLF001 - its own class
        )

    if TYPE_CHECKING:
        # What a graph adds is a tensor.
        def __getattr__(self, op_type: str) -> Callable[..., Tensor]: ...
        def add(self, op_type: str, *inputs: Operand, **attributes: Any) -> Tensor: ...
        def ints(self, values: npt.ArrayLike) -> Tensor: ...
        def like(self, value: npt.ArrayLike, element_type: int) -> Tensor: ...
        def chip(self, op_type: str, *inputs: Operand, **attributes: Any) -> Tensor: ...

    def type(self, name: str) -> int:
        """Return the element type of a tensor of the given graph; 0 if it is not known."""
        tensor = self.find(name)
        return tensor.element_type if tensor is not None else 0

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of a tensor of the given graph; None if it is not known."""
        tensor = self.find(name)
        return tensor.shape if tensor is not None else None

    def rank(self, name: str) -> int | None:
        """Return the number of axes of a tensor of the given graph; None if it is not known."""
        tensor = self.find(name)
        return tensor.rank if tensor is not None else None

    def value(self, name: str) -> Array | None:
        """Return the value of a tensor of the given graph, if it is known when the session is
        made."""
        tensor = self.find(name)
        return self.value_of(tensor) if tensor is not None else None

    def find(self, name: str) -> Tensor | None:
        """Return the tensor that a name of the given graph stands for here; None if unknown."""
        graph: Graph | None = self
        while graph is not None:
            if name in graph.tensors:
                tensor = graph.tensors[name]
                # What is computed from an outer tensor here belongs to this graph.
                return tensor if graph is self else tensor.on(self)
            graph = graph.parent
        return None

    @property
    def weights(self) -> Mapping[str, TensorProto]:
        """Return the initializers of the given graph."""
        return self._shared.weights

    def new_name(self, wanted: str = "") -> str:
        """Return a name that no tensor has, and take it."""
        shared = self._shared
        name = wanted = wanted or self.prefix
        while name in shared.taken:
            shared.counts[wanted] = shared.counts.get(wanted, 0) + 1
            name = f"{wanted}/{shared.counts[wanted]}"
        shared.taken.add(name)
        return name

    def name_outputs(self, op_type: str, are_read: Iterable[bool]) -> list[str]:
        """Return new names for a node's outputs; "" for those that nothing reads."""
        base = f"{self.prefix or op_type}/{op_type}"
        return [self.new_name(base) if is_read else "" for is_read in are_read]

    def add_weight(
        self, name: str, proto: TensorProto, *, is_constant: bool, is_split: bool = False
    ) -> Tensor:
        """Add an initializer of the given graph; one that is split differs between replicas."""
        self._shared.weights[name] = proto
        if is_split:
            self._shared.split.add(name)
        constant = is_constant and not is_split
        tensor = Tensor(self, name, proto.data_type, proto.dims, is_constant=constant)
        self.tensors[name] = tensor
        return tensor

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> Tensor:
        """Return the tensor of a constant of this graph; equal ones are one. Without a type, arrays
        keep theirs, and numbers are float.

        A body has its own: no shape inference looks for a constant's value outside of it.
        """
        array = _as_array(value, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            tensor = self._constants[key] = self.add_constant(array)
            self._shared.fresh.discard(tensor)
        return self._constants[key]

    def add_constant(self, value: npt.ArrayLike) -> Tensor:
        """Add a constant of this graph, and return its tensor."""
        array, shared = _as_array(value, None), self._shared
        name = self.new_name("constant")
        proto = numpy_helper.from_array(array, name)
        node = helper.make_node("Constant", [], [name], name=name, value=proto)
        self.nodes.append(node)
        shared.values[name] = array
        tensor = Tensor(self, name, proto.data_type, array.shape, is_constant=True)
        self._note(node, [tensor])
        return tensor

    def _note(self, node: onnx.NodeProto, tensors: Iterable[Tensor]) -> None:
        """Note which tensors a new node makes."""
        for tensor in filter(None, tensors):
            self._shared.makers[tensor] = node
            self._shared.tensors[tensor] = tensor
            self._shared.fresh.add(tensor)

    def add_all(  # type: ignore[override]  # a list of tensors is no list of values
        self,
        outputs: int | Sequence[str],
        op_type: str,
        *inputs: Operand,
        results: Sequence[Tensor] | None = None,
        **attributes: Any,
    ) -> list[Tensor]:
        """Add a node and return its outputs, given by their number or their names.

        Args:
            outputs: number of outputs, or their names; "" for one that nothing reads.
            op_type: operator.
            *inputs: its inputs: tensors, None for absent ones, and numbers.
            results: types and shapes of the outputs, if they need not be inferred.
            **attributes: attributes and the domain; None for absent ones.

        Raises:
            RejectedNodeError: If the standard does not allow the node; the text says why.
        """
        if isinstance(outputs, int):
            outputs = self.name_outputs(op_type, [True] * outputs)
        super().add_all(outputs, op_type, *inputs, **attributes)
        node = self.nodes[-1]
        node.name = outputs[0]
        while node.input and not node.input[-1]:
            node.input.pop()
        read = {str(source): source for source in inputs if isinstance(source, Tensor)}
        # The other inputs are constants, which the tape has just made.
        sources = {
            name: read.get(name) or self._shared.tensors[name] for name in node.input if name
        }
        if results is None:
            types = self._infer(node, sources)
        else:
            types = {
                name: (like.element_type, like.shape)
                for name, like in zip(outputs, results, strict=True)
            }
        for key, value in self.placement.items():
            set_attribute(node, key, value)
        constant = _may_fold(node) and all(source.is_constant for source in sources.values())
        unknown = TensorProto.UNDEFINED, ()
        tensors = [
            Tensor(self, name, *types.get(name, unknown), is_constant=constant) for name in outputs
        ]
        self._note(node, tensors)
        return tensors

    def cast(self, tensor: Tensor, to: int) -> Tensor:
        """Return the tensor in another type."""
        return tensor if tensor.element_type == to else self.Cast(tensor, to=to)

    def in_float(self, tensor: Tensor) -> Tensor:
        """Return the tensor in float."""
        return self.cast(tensor, TensorProto.FLOAT)

    def reshape(self, tensor: Tensor, shape: Sequence[int]) -> Tensor:
        """Return the tensor in another shape."""
        if tuple(shape) == tensor.shape:
            return tensor
        return self.Reshape(tensor, self.ints(shape), allowzero=1 if 0 in shape else None)

    def transpose(self, tensor: Tensor, order: Sequence[int]) -> Tensor:
        """Return the tensor with its axes in another order."""
        if list(order) == list(range(tensor.rank)):
            return tensor
        return self.Transpose(tensor, perm=list(order))

    def _infer(
        self, node: onnx.NodeProto, known: Mapping[str, Tensor]
    ) -> dict[str, tuple[int, tuple[int, ...]]]:
        """Return the types and shapes of a node's outputs."""
        types = {name: _type_of(tensor) for name, tensor in known.items()}
        try:
            if node.domain in STANDARD_DOMAINS:
                _check_types(node, known)
                data = {name: self._read(tensor) for name, tensor in known.items()}
                results = shape_inference.infer_node_outputs(
                    defs.get_schema(node.op_type, OPSET),
                    node,
                    types,
                    {name: value for name, value in data.items() if value is not None},
                    opset_imports=[helper.make_opsetid("", OPSET)],
                )
            else:
                results = _infer_alone(node, types)
        except _INFERENCE_ERRORS as error:
            raise RejectedNodeError(" ".join(str(error).split())) from error
        return {name: _read_type(name, value) for name, value in results.items() if name}

    def _read(self, tensor: Tensor) -> TensorProto | None:
        if not tensor.is_constant or tensor.size > MAX_KNOWN or tensor.element_type in _FLOATS:
            return None
        value = self.value_of(tensor)
        return None if value is None else numpy_helper.from_array(value, tensor)

    def value_of(self, tensor: Tensor) -> Array | None:
        """Return a tensor's value, if it is known when the session is made."""
        shared = self._shared
        if tensor in shared.values:
            return shared.values[tensor]
        if tensor in shared.split:
            return None
        if tensor in shared.weights:
            shared.values[tensor] = read_array(shared.weights[tensor])
        elif tensor.is_constant:
            self._compute(tensor)
        return shared.values.get(tensor)

    def _compute(self, name: str) -> None:
        """Compute a constant by ONNX's own definitions in Python."""
        shared, waiting = self._shared, [name]
        while waiting:
            node = shared.makers[waiting[-1]]
            reads = list(dict.fromkeys(iter_reads(node)))
            missing = [
                read for read in reads if read not in shared.values and read not in shared.weights
            ]
            if missing:
                waiting += missing
                continue
            waiting.pop()
            feeds = {read: self._value(read) for read in reads}
            imports = [helper.make_opsetid("", OPSET)]
            results = evaluate_node(_without_placement(node), feeds, imports)
            shared.values.update(
                zip(filter(None, node.output), map(np.asarray, results), strict=True)
            )

    def _value(self, name: str) -> Array:
        if name not in self._shared.values:
            self._shared.values[name] = read_array(self._shared.weights[name])
        return self._shared.values[name]

    def add_effect(self, effect: Effect, tensor: Tensor) -> None:
        """Let the session act on a tensor of the main graph; in bodies nothing happens."""
        if self.parent is not None and self.nodes is not self._root.nodes:
            return
        output = self.copy_of(tensor, effect.kind.value)
        self._shared.fresh.discard(output)
        self._shared.effects[output] = effect
        self._root.tensors[output] = output

    def copy_of(self, tensor: Tensor, prefix: str) -> Tensor:
        """Add an Identity of a tensor, which is named after the prefix."""
        return self.add_all([self.new_name(f"{prefix}/Identity")], "Identity", tensor)[0]

    @property
    def _root(self) -> Graph:
        return self if self.parent is None else self.parent._root  # noqa: SLF001 - its own class

    @property
    def effects(self) -> Mapping[str, Effect]:
        """Return the effects by the names of their tensors."""
        return self._shared.effects

    def bind(self, name: str, tensor: Tensor) -> None:
        """Give a tensor the name that the given graph has for it."""
        shared = self._shared
        if tensor not in shared.fresh:
            tensor = self.copy_of(tensor, name)
        shared.fresh.discard(tensor)
        own = name if self.parent is None else self.new_name(name)
        shared.taken.add(own)
        shared.renamed[tensor] = own
        self.tensors[name] = tensor

    def forget_fresh(self) -> None:
        """Let no output that has no name yet get one."""
        self._shared.fresh.clear()

    def write_nodes(self) -> list[onnx.NodeProto]:
        """Return the nodes of the main graph, and of its bodies, with their final names."""
        renamed = onnx.GraphProto(node=self.nodes)
        rename(renamed, self._shared.renamed)
        return list(renamed.node)


_INFERENCE_ERRORS = (
    checker.ValidationError,
    shape_inference.InferenceError,
    RuntimeError,
    defs.SchemaError,
)
"""Errors of onnx for a node that the standard does not allow."""
_FLOATS = frozenset(
    (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)
)


def _as_array(value: npt.ArrayLike, dtype: npt.DTypeLike | None) -> Array:
    own_dtype = getattr(value, "dtype", np.float32)
    array = np.asarray(value, own_dtype if dtype is None else dtype)
    return np.ascontiguousarray(array).reshape(array.shape)


def _may_fold(node: onnx.NodeProto) -> bool:
    """Return whether a node's value is known where its inputs' are."""
    plain = node.domain in STANDARD_DOMAINS and not any(iter_bodies(node))
    return plain and not operator_of(node).draws(node)


def _type_of(tensor: Tensor) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(tensor.element_type, tensor.shape)


def _read_type(name: str, found: onnx.TypeProto) -> tuple[int, tuple[int, ...]]:
    tensor = found.tensor_type
    sizes = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
    if not tensor.HasField("shape") or min(sizes, default=0) < 0:
        raise RejectedNodeError(f"the shape of {name!r} depends on the data")
    return tensor.elem_type, tuple(sizes)


def _without_placement(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return a node as the standard knows it."""
    plain = onnx.NodeProto()
    plain.CopyFrom(node)
    del plain.attribute[:]
    plain.attribute.extend(entry for entry in node.attribute if not entry.name.startswith("__"))
    return plain


def _check_types(node: onnx.NodeProto, known: Mapping[str, Tensor]) -> None:
    """Raise RejectedNodeError for an input of a type that the operator does not take."""
    schema = defs.get_schema(node.op_type, OPSET)
    for place, name in enumerate(node.input):
        parameter = schema.inputs[min(place, len(schema.inputs) - 1)]
        if name and type_name(known[name].element_type) not in parameter.types:
            shown = TensorProto.DataType.Name(known[name].element_type)
            raise RejectedNodeError(f"{node.op_type} does not take {shown} as {parameter.name!r}")


def _infer_alone(
    node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]
) -> dict[str, onnx.TypeProto]:
    """Infer a node of another domain as a model of its own."""
    graph = helper.make_graph(
        [node],
        "alone",
        [helper.make_value_info(name, kind) for name, kind in types.items()],
        [helper.make_value_info(name, onnx.TypeProto()) for name in node.output if name],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(node.domain, 1)]
    inferred = infer_shapes(helper.make_model(graph, opset_imports=opsets)).graph
    return {value.name: value.type for value in inferred.output}
