"""Graph that a lowering writes: its tensors, whose types and shapes are all known, and its nodes,
which are of one opset of the standard.

PopART knows the shape of every tensor when it builds its graph, and so does this module: it infers
each node's results when the node is added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, checker, defs, helper, numpy_helper, shape_inference
from onnxgraph import (
    STANDARD_DOMAINS,
    infer_shapes,
    iter_bodies,
    iter_reads,
    read_array,
    rename,
    set_attribute,
)
from simipu.operators import find_operator

OPSET: Final = 18
"""Opset of the nodes: the oldest one with operators on bits."""
MAX_KNOWN: Final = 1 << 16
"""Maximum number of elements of constants whose values shape inference gets."""
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Tensor:
    """Tensor of the graph that is written."""

    name: str
    type: int
    """Element type of `onnx.TensorProto`."""
    shape: tuple[int, ...]
    is_constant: bool = False
    """True if its value is known when the session is made."""

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
        return helper.tensor_dtype_to_np_dtype(self.type)


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
    values: dict[str, Array] = field(default_factory=dict)
    effects: dict[str, Effect] = field(default_factory=dict)
    """Effects by the names of their tensors."""
    weights: dict[str, TensorProto] = field(default_factory=dict)
    """Initializers by the names of their tensors."""
    split: set[str] = field(default_factory=set)
    """Initializers whose values differ between replicas, so that none is known."""


class Graph:
    """Graph that is written: the main graph or a body."""

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
        self.parent = parent
        self.tensors: dict[str, Tensor] = {}
        """Tensors by the names that the given graph has for them."""
        self.nodes: list[onnx.NodeProto] = [] if nodes is None else nodes
        self._constants: dict[tuple[str, tuple[int, ...], bytes], Tensor] = {}
        self.placement: dict[str, int] = {}
        """Attributes that the next nodes get."""
        self._shared: _Shared = (
            parent._shared if parent else _Shared(taken or set())  # noqa: SLF001 - its own class
        )

    def find(self, name: str) -> Tensor | None:
        """Return the tensor that a name of the given graph stands for here; None if unknown."""
        graph: Graph | None = self
        while graph is not None:
            if name in graph.tensors:
                return graph.tensors[name]
            graph = graph.parent
        return None

    @property
    def weights(self) -> Mapping[str, TensorProto]:
        """Return the initializers of the given graph."""
        return self._shared.weights

    def new_name(self, wanted: str) -> str:
        """Return a name that no tensor has, and take it."""
        shared, name = self._shared, wanted
        while name in shared.taken:
            shared.counts[wanted] = shared.counts.get(wanted, 0) + 1
            name = f"{wanted}/{shared.counts[wanted]}"
        shared.taken.add(name)
        return name

    def add_weight(
        self, name: str, proto: TensorProto, *, is_constant: bool, is_split: bool = False
    ) -> Tensor:
        """Add an initializer of the given graph; one that is split differs between replicas."""
        self._shared.weights[name] = proto
        if is_split:
            self._shared.split.add(name)
        made = Tensor(name, proto.data_type, tuple(proto.dims), is_constant and not is_split)
        self.tensors[name] = made
        return made

    def constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> Tensor:
        """Return the tensor of a constant of this graph; equal ones are one.

        A body has its own: no shape inference looks for a constant's value outside of it.
        """
        array = _as_array(value, dtype)
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            made = self._constants[key] = self.add_constant(array)
            self._shared.fresh.discard(made.name)
        return self._constants[key]

    def add_constant(self, value: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> Tensor:
        """Add a constant of this graph, and return its tensor."""
        array, shared = _as_array(value, dtype), self._shared
        name = self.new_name("constant")
        proto = numpy_helper.from_array(array, name)
        node = helper.make_node("Constant", [], [name], name=name, value=proto)
        self.nodes.append(node)
        shared.values[name] = array
        shared.makers[name] = node
        shared.fresh.add(name)
        return Tensor(name, proto.data_type, array.shape, is_constant=True)

    def add(
        self,
        op_type: str,
        inputs: Sequence[Tensor | None],
        *,
        outputs: int | Sequence[bool] = 1,
        domain: str = "",
        prefix: str = "",
        results: Sequence[Tensor] | None = None,
        **attributes: Any,
    ) -> list[Tensor]:
        """Add a node and return its outputs.

        Args:
            op_type: operator.
            inputs: its inputs; None for absent ones.
            outputs: number of outputs, or for each of them whether it is wanted.
            domain: domain of the operator.
            prefix: prefix of the outputs' names.
            results: types and shapes of the outputs, if they need not be inferred.
            **attributes: attributes; None for absent ones.

        Raises:
            ValueError: If the standard does not allow the node; the text says why.
        """
        wanted = [True] * outputs if isinstance(outputs, int) else outputs
        base = prefix or op_type
        names = [self.new_name(f"{base}/{op_type}") if each else "" for each in wanted]
        given = [source.name if source else "" for source in inputs]
        while given and not given[-1]:
            given.pop()
        kept = {name: value for name, value in attributes.items() if value is not None}
        node = helper.make_node(op_type, given, names, name=names[0], domain=domain, **kept)
        known = {source.name: source for source in inputs if source is not None}
        if results is None:
            types = self._infer(node, known)
        else:
            types = {
                name: (each.type, each.shape) for name, each in zip(names, results, strict=True)
            }
        for key, value in self.placement.items():
            set_attribute(node, key, value)
        self.nodes.append(node)
        constant = _may_fold(node) and all(each.is_constant for each in known.values())
        made = []
        for name in names:
            if name:
                self._shared.makers[name] = node
                self._shared.fresh.add(name)
            element, shape = types.get(name, (TensorProto.UNDEFINED, ()))
            made.append(Tensor(name, element, shape, constant))
        return made

    def _infer(
        self, node: onnx.NodeProto, known: Mapping[str, Tensor]
    ) -> dict[str, tuple[int, tuple[int, ...]]]:
        """Return the types and shapes of a node's outputs."""
        types = {name: _type_of(each) for name, each in known.items()}
        try:
            if node.domain in STANDARD_DOMAINS:
                _check_types(node, known)
                data = {name: self._read(each) for name, each in known.items()}
                found = shape_inference.infer_node_outputs(
                    defs.get_schema(node.op_type, OPSET),
                    node,
                    types,
                    {name: value for name, value in data.items() if value is not None},
                    opset_imports=[helper.make_opsetid("", OPSET)],
                )
            else:
                found = _infer_alone(node, types)
        except _INFERENCE_ERRORS as error:
            raise ValueError(" ".join(str(error).split())) from error
        return {name: _read_type(name, value) for name, value in found.items() if name}

    def _read(self, tensor: Tensor) -> TensorProto | None:
        if not tensor.is_constant or tensor.size > MAX_KNOWN or tensor.type in _FLOATS:
            return None
        value = self.value_of(tensor)
        return None if value is None else numpy_helper.from_array(value, tensor.name)

    def value_of(self, tensor: Tensor) -> Array | None:
        """Return a tensor's value, if it is known when the session is made."""
        shared = self._shared
        if tensor.name in shared.values:
            return shared.values[tensor.name]
        if tensor.name in shared.split:
            return None
        if tensor.name in shared.weights:
            shared.values[tensor.name] = read_array(shared.weights[tensor.name])
        elif tensor.is_constant:
            self._compute(tensor.name)
        return shared.values.get(tensor.name)

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
            graph = helper.make_graph(
                [_without_placement(node)],
                "constant",
                [helper.make_value_info(feed, onnx.TypeProto()) for feed in feeds],
                [helper.make_value_info(each, onnx.TypeProto()) for each in node.output if each],
            )
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)])
            found = _evaluator()(model).run(None, feeds)
            shared.values.update(
                zip(filter(None, node.output), map(np.asarray, found), strict=True)
            )

    def _value(self, name: str) -> Array:
        if name not in self._shared.values:
            self._shared.values[name] = read_array(self._shared.weights[name])
        return self._shared.values[name]

    def add_effect(self, effect: Effect, tensor: Tensor) -> None:
        """Let the session act on a tensor of the main graph; in bodies nothing happens."""
        if self.parent is not None and self.nodes is not self._root.nodes:
            return
        made = self.add("Identity", [tensor], prefix=f"{effect.kind.value}")[0]
        self._shared.fresh.discard(made.name)
        self._shared.effects[made.name] = effect
        self._root.tensors[made.name] = made

    @property
    def _root(self) -> Graph:
        return self if self.parent is None else self.parent._root  # noqa: SLF001 - its own class

    @property
    def effects(self) -> Mapping[str, Effect]:
        """Return the effects by the names of their tensors."""
        return self._shared.effects

    def bind(self, name: str, made: Tensor) -> Tensor:
        """Give a tensor the name that the given graph has for it."""
        shared = self._shared
        if made.name not in shared.fresh:
            made = self.add("Identity", [made], prefix=name)[0]
        shared.fresh.discard(made.name)
        own = name if self.parent is None else self.new_name(name)
        shared.taken.add(own)
        shared.renamed[made.name] = own
        self.tensors[name] = made
        return made

    def forget_fresh(self) -> None:
        """Let no output that has no name yet get one."""
        self._shared.fresh.clear()

    def write_nodes(self) -> list[onnx.NodeProto]:
        """Return the nodes of the main graph, and of its bodies, with their final names."""
        made = onnx.GraphProto(node=self.nodes)
        rename(made, self._shared.renamed)
        return list(made.node)


_INFERENCE_ERRORS = (
    checker.ValidationError,
    shape_inference.InferenceError,
    RuntimeError,
    defs.SchemaError,
)
"""Errors of onnx for a node that the standard does not allow."""
_TYPE_NAMES = {"FLOAT": "float", "DOUBLE": "double"}
_FLOATS = frozenset(
    (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16)
)


def _as_array(value: npt.ArrayLike, dtype: npt.DTypeLike | None) -> Array:
    return np.ascontiguousarray(np.asarray(value, dtype)).reshape(np.shape(value))


def _evaluator() -> Callable[[onnx.ModelProto], Any]:
    """Return ONNX's evaluator, whose import takes a second."""
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator


def _may_fold(node: onnx.NodeProto) -> bool:
    """Return whether a node's value is known where its inputs' are."""
    plain = node.domain in STANDARD_DOMAINS and not any(iter_bodies(node))
    return plain and not find_operator(node.op_type).is_random


def _type_of(tensor: Tensor) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(tensor.type, tensor.shape)


def _read_type(name: str, found: onnx.TypeProto) -> tuple[int, tuple[int, ...]]:
    tensor = found.tensor_type
    sizes = [dim.dim_value if dim.HasField("dim_value") else -1 for dim in tensor.shape.dim]
    if not tensor.HasField("shape") or min(sizes, default=0) < 0:
        raise ValueError(f"the shape of {name!r} depends on the data")
    return tensor.elem_type, tuple(sizes)


def _without_placement(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return a node as the standard knows it."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    del made.attribute[:]
    made.attribute.extend(entry for entry in node.attribute if not entry.name.startswith("__"))
    return made


def _check_types(node: onnx.NodeProto, known: Mapping[str, Tensor]) -> None:
    """Raise ValueError for an input of a type that the operator does not take."""
    schema = defs.get_schema(node.op_type, OPSET)
    for place, name in enumerate(node.input):
        parameter = schema.inputs[min(place, len(schema.inputs) - 1)]
        if name and _NAMES[known[name].type] not in parameter.types:
            shown = TensorProto.DataType.Name(known[name].type)
            raise ValueError(f"{node.op_type} does not take {shown} as {parameter.name!r}")


_NAMES = {
    number: f"tensor({_TYPE_NAMES.get(name, name.lower())})"
    for name, number in TensorProto.DataType.items()
}
"""Names of element types in the standard's definitions."""


def _infer_alone(
    node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto]
) -> dict[str, onnx.TypeProto]:
    """Infer a node of another domain as a model of its own."""
    graph = helper.make_graph(
        [node],
        "alone",
        [helper.make_value_info(name, each) for name, each in types.items()],
        [helper.make_value_info(name, onnx.TypeProto()) for name in node.output if name],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(node.domain, 1)]
    found = infer_shapes(helper.make_model(graph, opset_imports=opsets)).graph
    return {value.name: value.type for value in found.output}
