"""Passes that compute tensors that do not depend on the inputs. They also replace operators without
a kernel in ONNX Runtime by their standard definitions.

ONNX Runtime computes the tensors in a child process, with all its optimisers off: some valid models
crash it, which must not end the compiler. Weights that only dynamic nodes read are not sent to that
process.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import (
    LARGE,
    OUTLINED_TYPES,
    STANDARD_DOMAINS,
    GraphView,
    NameScope,
    attribute,
    change_without_weights,
    constant_of,
    drop_initializers,
    element_bytes,
    forget_values,
    has_data,
    infer_shapes,
    inline,
    is_on_device,
    iter_bodies,
    iter_nodes,
    keep_opsets,
    replace_nodes,
    used_names,
)
from simipu import CompileError, CompileMemoryError, measure
from simipu.numerics import QUARTERS
from simipu.operators import find_operator, names_where, operator_of

from popef._tools.arrays import Array
from poprt.passes.folding.computing import PLAIN_TYPES, compute, is_refusal, reason_of, take_apart
from poprt.passes.folding.elimination import EliminateNopIf
from poprt.rewrite.base import Pass, Stage, register
from poprt.rewrite.explanations import OF_SHAPES, raise_for_branch

_MAX_ROUNDS = 64
"""Maximum number of rounds. Computed values may give shapes that make more nodes constant; a known
model needs 3."""
_MAX_STEPS = 8
"""Maximum number of steps back from a result that is too large to results that are not; a known
model needs 2."""
_NOT_FOLDED = names_where(lambda entry: entry.taken_apart or not entry.tensors_only) | {
    "DequantizeLinear"
}
"""Operators whose results cannot become initializers, and one whose result does not: 8-bit weights
stay 8-bit, as ONNX Runtime's optimiser leaves them."""


@register("constant_folding", stage=Stage.FOLDING, default=True, takes="max_tensor_size")
class ConstantFolding(Pass):
    """Compute everything in a model with static input shapes that does not depend on its inputs, in
    bodies too.

    What would be larger than `max_tensor_size` bytes stays computed; -1: no bound. Weights without
    data stay so, and what would be computed with them is a weight without data, too. Operators
    without a kernel in ONNX Runtime become what the standard defines them as.
    """

    def __init__(self, max_tensor_size: int = -1) -> None:
        self._bound = max_tensor_size

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Fold the model. Raise CompileError with ONNX Runtime's reason, which names the node, or
        the branch of an If that is invalid. Raise CompileMemoryError for constants that no model
        can hold."""
        try:
            model = self._fold(model)
            # Folded values may decide Ifs, and the taken branches may have more nodes to fold.
            while (before := _count_ifs(model)) and _count_ifs(EliminateNopIf()(model)) < before:
                model = self._fold(model)
            return model
        except CompileError as error:
            if is_refusal(error):
                raise_for_branch(model, self._judge)
            raise

    def _fold(self, model: onnx.ModelProto) -> onnx.ModelProto:
        _declare({value.name: value for value in model.graph.output}, model.graph.initializer)
        if any(_is_taken_apart(node) for node in iter_nodes(model.graph)):
            unread = {
                t.name
                for t in model.graph.initializer
                if math.prod(t.dims) >= LARGE or not has_data(t)
            }
            change_without_weights(model, unread, _take_apart)
        for _ in range(_MAX_ROUNDS):
            if not any(_may_fold(node) for node in iter_nodes(model.graph)):
                break
            plan = _FoldingPlan(NameScope.of(model), self._bound)
            plan.look(model.graph, infer_shapes(model).graph, None)
            if not plan.fold(model):
                break
        _declare_outputs(model)
        return model

    def _judge(self, model: onnx.ModelProto) -> str | None:
        try:
            self._fold(model)
        except CompileError as error:
            return reason_of(error) if is_refusal(error) else None
        return None


@register("fold_shapes", stage=Stage.FOLDING, is_ours=True)
class FoldShapes(Pass):
    """Fold constants in a model with shapes that depend on computed values, as Shape, Gather and
    TopK compute them: often these are constant. Other models stay as they are."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Fold the model if shape inference leaves a shape open. Raise what ConstantFolding
        raises."""
        graph = infer_shapes(model).graph
        values = {value.name: value for value in (*graph.value_info, *graph.output)}
        results = {name for node in graph.node for name in node.output if name}
        is_static = all(name in values and _is_static(values[name]) for name in results)
        return model if is_static else ConstantFolding()(model)


def _is_static(value: onnx.ValueInfoProto) -> bool:
    tensor = value.type.tensor_type
    return tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim)


@register(
    "check_constants", stage=Stage.FOLDING, default=True, is_ours=True, before="constant_folding"
)
class CheckConstants(Pass):
    """Reject constants that no model can hold, because ONNX Runtime's versions differ in when and
    how they report them."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Check the constants. Raise CompileMemoryError if one is too large."""
        demand = measure(infer_shapes(model))
        _check_size(demand.folded, demand.folded_bytes)
        return model


def _count_ifs(model: onnx.ModelProto) -> int:
    return sum(node.op_type == "If" for node in iter_nodes(model.graph))


def _check_size(name: str, size_bytes: int) -> None:
    if size_bytes > onnx.checker.MAXIMUM_PROTOBUF:
        raise CompileMemoryError(
            f"the constants of the model make tensor {name!r} of {size_bytes} bytes; a model can "
            f"hold {onnx.checker.MAXIMUM_PROTOBUF}"
        )


def _take_apart(model: onnx.ModelProto) -> onnx.ModelProto:
    for tensor in model.graph.initializer:
        inline(tensor)
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    hidden_nodes = _hide_defined(model)
    parts = take_apart(model)
    # ONNX Runtime drops weights that only hidden nodes read.
    read = {name for hidden in hidden_nodes.values() for name in hidden.input} & initializers.keys()
    unread = read - {tensor.name for tensor in parts.graph.initializer}
    parts.graph.initializer.extend(initializers[name] for name in sorted(unread))
    for node in iter_nodes(parts.graph):
        if node.name in hidden_nodes:
            hidden = hidden_nodes[node.name]
            hidden.input[:1], hidden.output[:1] = list(node.input), list(node.output)
            node.CopyFrom(hidden)
    forget_values(parts.graph)
    keep_opsets(parts, {node.domain for node in iter_nodes(parts.graph)} | {""})
    return parts


def _hide_defined(model: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    """Replace operators that stay whole, though they have a definition, by Identities. Return the
    replaced nodes by the names of the Identities."""
    hidden_nodes: dict[str, onnx.NodeProto] = {}
    for node in iter_nodes(model.graph):
        is_standard = node.domain in STANDARD_DOMAINS
        if not is_standard or find_operator(node.op_type).is_defined:
            hidden = copy.deepcopy(node)
            node.domain, node.op_type, node.name = (
                "",
                "Identity",
                f"poprt/whole/{len(hidden_nodes)}",
            )
            del node.attribute[:], node.input[1:], node.output[1:]
            hidden_nodes[node.name] = hidden
    return hidden_nodes


def _declare_outputs(model: onnx.ModelProto) -> None:
    """Declare the shapes of outputs that have none: a model needs them, and they are known now."""
    silent = {v.name: v for v in model.graph.output if not v.type.tensor_type.HasField("shape")}
    if silent:
        for value in infer_shapes(model).graph.output:
            if value.name in silent:
                silent[value.name].type.CopyFrom(value.type)


def _declare(outputs: Mapping[str, onnx.ValueInfoProto], tensors: Iterable[TensorProto]) -> None:
    """Declare types and shapes of outputs that are initializers, which shape inference ignores."""
    for tensor in tensors:
        if tensor.name in outputs:
            info = helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            outputs[tensor.name].type.CopyFrom(info.type)


def _is_taken_apart(node: onnx.NodeProto) -> bool:
    return node.domain in STANDARD_DOMAINS and find_operator(node.op_type).taken_apart


def _may_fold(node: onnx.NodeProto) -> bool:
    """Return whether a node is folded if all its inputs are known."""
    return (
        node.domain in STANDARD_DOMAINS
        and node.op_type not in _NOT_FOLDED
        and not operator_of(node).draws(node)
        and not any(iter_bodies(node))
    )


@dataclass(slots=True)
class _Place:
    """Graph with the names of its known tensors."""

    view: GraphView
    outer: _Place | None
    local: set[str]
    """All names defined in the graph; they hide names of the graphs around it."""
    keys: dict[str, str] = field(default_factory=dict)
    """Names in the plan of known tensors, by their names in the graph."""
    known: set[str] = field(default_factory=set)
    """Names of nodes' results that are known without computing."""
    folded: list[onnx.NodeProto] = field(default_factory=list)
    found: dict[str, TensorProto] = field(default_factory=dict)
    released: set[str] = field(default_factory=set)
    """Initializers that removed nodes have read."""
    unread: dict[str, TensorProto] = field(default_factory=dict)
    """Results that nodes make from weights without data; they are weights without data, too."""

    def unread_home(self, name: str) -> _Place | None:
        """Return the graph that makes `name` from weights without data."""
        place: _Place | None = self
        while place is not None and name not in place.unread:
            place = None if name in place.local else place.outer
        return place

    def key(self, name: str) -> str | None:
        """Return the name in the plan of a known tensor of this graph; None if it is not known."""
        place: _Place | None = self
        while place is not None:
            if name in place.keys:
                return place.keys[name]
            if name in place.local:
                return None
            place = place.outer
        return None


@dataclass(slots=True)
class _FoldingPlan:
    """Plan of the values to compute, for a graph and its bodies. Its keys are unique names over all
    graphs."""

    names: NameScope
    bound: int
    """Maximum size of a result in bytes; negative: no maximum."""
    places: list[_Place] = field(default_factory=list)
    given: dict[str, TensorProto] = field(default_factory=dict)
    """Initializers and other tensors known without computing, by key."""
    nodes: dict[str, onnx.NodeProto] = field(default_factory=dict)
    """Nodes that compute the keys; their inputs and outputs are keys."""
    homes: dict[str, tuple[_Place, str]] = field(default_factory=dict)
    """Graph and name there of each key."""
    wanted: dict[str, None] = field(default_factory=dict)
    """Results of foldable nodes that remaining nodes or outputs read, in order."""

    def look(self, graph: onnx.GraphProto, known: onnx.GraphProto, outer: _Place | None) -> None:
        """Add all nodes that can be computed to the plan. The nodes are sorted."""
        view = GraphView(self.names, graph, known, outer.view if outer else None)
        inputs = {value.name for value in graph.input}
        place = _Place(view, outer, inputs | {tensor.name for tensor in graph.initializer})
        self.places.append(place)
        for tensor in graph.initializer:
            # 8-bit weights stay 8-bit: the nodes that widen them would make them large again.
            if tensor.name not in inputs and has_data(tensor) and tensor.data_type not in QUARTERS:
                self.given[self._add(place, tensor.name)] = tensor
        for i, node in enumerate(graph.node):
            place.local.update(node.output)
            if not (_may_fold(node) and self._take(node, place)):
                self._want(node.input, place)
                for body, known_body in zip(
                    iter_bodies(node), iter_bodies(known.node[i]), strict=True
                ):
                    self.look(body, known_body, place)
        self._want((value.name for value in graph.output), place)

    def _add(self, place: _Place, name: str) -> str:
        key, number = name, len(self.places)
        while key in self.homes:
            key = f"{name}/{number}"
            number += 1
        place.keys[name] = key
        self.homes[key] = place, name
        return key

    def _want(self, names: Iterable[str], place: _Place) -> None:
        for name in names:
            home, key = place.unread_home(name), place.key(name)
            if home is not None:
                home.found[name] = home.unread[name]
            # An initializer exists already.
            if key is not None and (key in self.nodes or self._is_known(key)):
                self.wanted[key] = None

    def _is_known(self, key: str) -> bool:
        place, name = self.homes[key]
        return name in place.known

    def _take(self, node: onnx.NodeProto, place: _Place) -> bool:
        """Add a node to the plan if it can be computed. Return whether it was added."""
        known_value = _find_known(node, place.view)
        sources = [place.key(name) if name else "" for name in node.input]
        if known_value is None and (None in sources or not self._is_small(node, place.view)):
            return self._take_unread(node, place)
        if node.op_type == "Identity":  # rename only: a copy may be gigabytes
            place.keys[node.output[0]] = sources[0] or ""
            return False
        place.folded.append(node)
        if known_value is not None:
            self.given[self._add(place, node.output[0])] = known_value
            place.known.add(node.output[0])
            return True
        own = copy.deepcopy(node)
        own.input[:] = [key or "" for key in sources]
        for j, name in enumerate(node.output):
            if name:
                own.output[j] = self._add(place, name)
                self.nodes[own.output[j]] = own
        return True

    def _take_unread(self, node: onnx.NodeProto, place: _Place) -> bool:
        """Add a node that reads weights without data and otherwise known tensors. Its result is a
        weight without data, as it would be a weight with them. Return whether it was added."""
        name, view = node.output[0], place.view
        others = [name for name in filter(None, node.input) if place.key(name) is None]
        shape, is_made = view.shape(name), all(_is_unread(other, place) for other in others)
        if (
            not others
            or not is_made
            or shape is None
            or len(node.output) > 1
            or view.type(name) not in OUTLINED_TYPES
        ):
            return False
        if not self._is_small(node, view):
            return False
        place.unread[name] = TensorProto(name=name, data_type=view.type(name), dims=shape)
        place.folded.append(node)
        return True

    def _is_small(self, node: onnx.NodeProto, view: GraphView) -> bool:
        """Return whether results are within the size limit; results of unknown size are computed
        first. Raise CompileMemoryError if no model could hold them."""
        for name in filter(None, node.output):
            shape, element = view.shape(name), view.type(name)
            if shape is not None and element in PLAIN_TYPES:
                size_bytes = math.prod(shape) * element_bytes(element)
                if 0 <= self.bound < size_bytes:
                    return False
                _check_size(name, size_bytes)
        return True

    def fold(self, model: onnx.ModelProto) -> bool:
        """Replace nodes by the values that the plan computes. Return whether any nodes were
        removed."""
        keys = [key for key in self.wanted if key in self.nodes]
        missing, sources = self._gather(self._find(model, keys), had=True)
        for key in (*self.wanted, *(key for key, _ in sources)):
            place, name = self.homes[key]
            if name in place.known:
                place.found[name] = _named(self.given[key], name)
        stay = {key for node in missing for key in node.output}
        # Change bodies first: a changed node's bodies are copied.
        went = [self._drop(place, stay) for place in reversed(self.places)]
        return any(went)

    def _find(self, model: onnx.ModelProto, asked: Sequence[str]) -> list[str]:
        """Compute the results of `asked` that are small enough; for the others, compute their
        sources instead. Return the others. A long chain of results that are too large stays as it
        is."""
        not_computed: dict[str, None] = {}
        for _ in range(_MAX_STEPS):
            computed = self._compute(model, asked)
            for key in computed:
                place, name = self.homes[key]
                if not 0 <= self.bound < computed[key].nbytes:
                    place.found[name] = numpy_helper.from_array(computed[key], name)
            missing = dict.fromkeys(key for key in asked if not self._is_had(key))
            not_computed.update(missing)
            if self.bound < 0 or not missing:
                break
            sources = dict.fromkeys(name for key in missing for name in self.nodes[key].input)
            asked = [key for key in sources if key in self.nodes and key not in not_computed]
        return list(not_computed)

    def _compute(self, model: onnx.ModelProto, asked: Sequence[str]) -> Mapping[str, Array]:
        """Compute the values of `asked`. If nodes inside bodies cannot be computed, they stay
        there: perhaps they never run."""
        if not asked:
            return {}
        try:
            return compute(model, *self._gather(asked), asked)
        except CompileError as error:
            outside = [key for key in asked if self.homes[key][0].outer is None]
            if not is_refusal(error) or len(outside) == len(asked):
                raise
        return self._compute(model, outside)

    def _is_had(self, key: str) -> bool:
        place, name = self.homes[key]
        return name in place.found

    def _gather(
        self, asked: Iterable[str], *, had: bool = False
    ) -> tuple[list[onnx.NodeProto], list[tuple[str, TensorProto]]]:
        """Return the nodes, in order, and the tensors from which `asked` is computed. With `had`,
        leave out what computes values that are available already."""
        waiting, required, tensors = list(asked), set[str](), dict[str, TensorProto]()
        while waiting:
            key = waiting.pop()
            if key in self.given:
                tensors[key] = self.given[key]
            elif had and key and self._is_had(key):
                continue
            elif key and key not in required:
                required.update(self.nodes[key].output)
                waiting += self.nodes[key].input
        unique = {id(node): node for key, node in self.nodes.items() if key in required}
        return list(unique.values()), list(tensors.items())

    def _drop(self, place: _Place, stay: set[str]) -> bool:
        """Remove folded nodes of a graph and add their results. Nodes stay if results without a
        value depend on them. Return whether any nodes were removed."""
        staying = {key: self.homes[key][1] for key in stay if key and self.homes[key][0] is place}
        staying_names = set(staying.values())
        gone = {id(node) for node in place.folded if staying_names.isdisjoint(node.output)}
        for node in place.folded:
            for key in (place.key(name) for name in node.input if id(node) in gone):
                owner, name = self.homes.get(key or "", (place, ""))
                owner.released.add(name)
        graph = place.view.graph
        if gone:
            replace_nodes(graph, [node for node in graph.node if id(node) not in gone])
        constants = {
            name: tensor for name, tensor in place.found.items() if name not in staying_names
        }
        graph.initializer.extend(constants.values())
        _declare({value.name: value for value in graph.output}, constants.values())
        if place.released:
            inputs = {value.name for value in graph.input}
            drop_initializers(graph, place.released - used_names(graph) - inputs)
        return bool(gone)


def _is_unread(name: str, place: _Place) -> bool:
    """Return whether a tensor is a weight without data, or made from such weights.

    A weight that a program gets when it is loaded has its data elsewhere: nothing is folded of it.
    """
    tensor = place.view.tensor(name)
    if place.unread_home(name) is not None:
        return True
    return tensor is not None and not has_data(tensor) and not is_on_device(tensor)


def _named(tensor: TensorProto, name: str) -> TensorProto:
    renamed = copy.deepcopy(tensor)
    renamed.name = name
    return renamed


def _find_known(node: onnx.NodeProto, view: GraphView) -> TensorProto | None:
    """Return a node's result that is known without computing: a constant, or the value of a Shape
    or Size."""
    if node.op_type not in OF_SHAPES:
        return constant_of(node)
    shape = view.shape(node.input[0])
    if shape is None:
        return None
    if node.op_type == "Size":
        return _tensor(np.array(math.prod(shape), np.int64))
    return _tensor(
        np.array(shape[slice(attribute(node, "start", 0), attribute(node, "end"))], np.int64)
    )


def _tensor(values: Array) -> TensorProto:
    return numpy_helper.from_array(values)
