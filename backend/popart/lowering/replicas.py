"""One graph for all replicas: a copy of each node for each replica, joined at the collectives.

Replicas whose copies of a node would read the same tensors share one copy. So constants, equal
weights, broadcast inputs, and all that is computed from them and from results of collectives over
all replicas, are there once. A Loop, If or Scan with a collective in a body stays one node: its
body is joined in the same way, its values are there for each replica, and replica 0 decides about
the trip count and the condition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import (
    Tape,
    attribute,
    drop_attribute,
    find_inputs,
    forget_values,
    iter_bodies,
    iter_defined,
    iter_nodes,
    iter_reads,
    make_identity,
    set_attribute,
)
from simipu.operators import operator_of

from popart.lowering.collectives import GROUPING, REDUCTION
from popart.lowering.graph import Array
from popart.variables import ReplicaGrouping

_LOOP_FIXED = 2
"""Number of the first inputs of a Loop that are there once: its trip count and its condition. Its
body has the number of the iteration and the condition in their place."""
_SCAN_LISTS = (
    "scan_input_axes",
    "scan_input_directions",
    "scan_output_axes",
    "scan_output_directions",
)
"""Attributes of Scan with a number for each tensor."""


@dataclass(frozen=True, slots=True)
class SplitWeight:
    """Weight that differs between groups of replicas."""

    groups: ReplicaGrouping
    values: Array
    """Values, with an axis of the groups in front."""


@dataclass(frozen=True, slots=True)
class Joined:
    """Model of all replicas."""

    model: onnx.ModelProto
    inputs: Mapping[str, Sequence[str]]
    """Names of each replica's copy of an input or of a weight that differs between replicas."""
    outputs: Mapping[str, Sequence[str]]
    """Names of each replica's copy of an output."""


def has_collectives(graph: onnx.GraphProto) -> bool:
    """Return whether a graph or a body has a collective."""
    return any(attribute(node, GROUPING) is not None for node in iter_nodes(graph))


def drop_marks(graph: onnx.GraphProto) -> None:
    """Remove the marks of collectives, whose nodes are ordinary ones of one replica then."""
    for node in iter_nodes(graph):
        for name in (GROUPING, REDUCTION):
            drop_attribute(node, name)


def join_replicas(
    model: onnx.ModelProto,
    replicas: int,
    weights: Mapping[str, SplitWeight],
    broadcast: Iterable[str] = (),
) -> Joined:
    """Return the model of all replicas.

    Args:
        model: Lowered model of one replica; it is not changed.
        replicas: Number of replicas.
        weights: Weights that differ between replicas.
        broadcast: Inputs that all replicas share.

    Returns:
        The model of all replicas.
    """
    graph, shared = model.graph, set(broadcast)
    joiner = _Joiner(replicas, _find_mark(graph))
    inputs, initializers = [], list[TensorProto]()
    for value in find_inputs(graph):
        inputs += joiner.copy_values([value], is_shared=value.name in shared)
    for tensor in graph.initializer:
        split = weights.get(tensor.name)
        if split is None:
            joiner.share(tensor.name)
            initializers.append(tensor)
        else:
            initializers += joiner.split_weight(tensor, split)
    nodes = joiner.join_nodes(graph.node)
    outputs = joiner.make_outputs(graph.output, nodes)
    joined = helper.make_graph(nodes, graph.name, inputs, outputs)
    joined.initializer.extend(initializers)
    joined_model = helper.make_model(
        joined, opset_imports=model.opset_import, ir_version=model.ir_version
    )
    names = [*(value.name for value in find_inputs(graph)), *weights]
    return Joined(
        joined_model,
        {name: [replica_names[name] for replica_names in joiner.names] for name in names},
        {
            value.name: [joiner.output_name(value.name, replica) for replica in range(replicas)]
            for value in graph.output
        },
    )


def _find_mark(graph: onnx.GraphProto) -> str:
    """Return what stands between a tensor's name and the number of a replica: in no name yet."""
    defined, mark = list(iter_defined(graph)), "/replica"
    while any(mark in name for name in defined):
        mark = f"/{mark}"
    return mark


class _Joiner:
    """Copies of what one replica has, and their names."""

    def __init__(self, replicas: int, mark: str) -> None:
        self._replicas, self._mark = range(replicas), mark
        self.names: list[dict[str, str]] = [{"": ""} for _ in self._replicas]
        """Names of a replica's tensors by those of the given model, for each replica."""

    def share(self, name: str) -> None:
        """Let all replicas have one tensor."""
        for replica_names in self.names:
            replica_names[name] = name

    def split_weight(self, tensor: TensorProto, split: SplitWeight) -> Iterator[TensorProto]:
        """Yield a weight for each group, with its values."""
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        for group, values in enumerate(split.values):
            name = self._name(tensor.name, group)
            for replica in split.groups.getReplicasAt(group):
                self.names[replica][tensor.name] = name
            yield numpy_helper.from_array(values.astype(dtype, copy=False), name)

    def copy_values(
        self, values: Iterable[onnx.ValueInfoProto], *, is_shared: bool = False
    ) -> list[onnx.ValueInfoProto]:
        """Return the inputs of each replica for those of a graph; one if they are shared."""
        copies = []
        for value in values:
            if is_shared:
                self.share(value.name)
                copies.append(value)
                continue
            for replica in self._replicas:
                self.names[replica][value.name] = self._name(value.name, replica)
                copies.append(_renamed(value, self.names[replica][value.name]))
        return copies

    def make_outputs(
        self,
        values: Iterable[onnx.ValueInfoProto],
        nodes: list[onnx.NodeProto],
        replicas: Iterable[int] | None = None,
    ) -> list[onnx.ValueInfoProto]:
        """Return the outputs of some or all replicas for those of a graph. Each is a tensor of its
        own, since replicas may share what it equals."""
        outputs = []
        for value in values:
            for replica in self._replicas if replicas is None else replicas:
                name = self.output_name(value.name, replica)
                nodes.append(make_identity(self.names[replica][value.name], name, name))
                outputs.append(_renamed(value, name))
        return outputs

    def output_name(self, name: str, replica: int) -> str:
        """Return the name of a replica's output."""
        return f"{self._name(name, replica)}/output"

    def join_nodes(self, nodes: Iterable[onnx.NodeProto]) -> list[onnx.NodeProto]:
        """Return the nodes of all replicas."""
        joined = list[onnx.NodeProto]()
        for node in nodes:
            if attribute(node, GROUPING) is not None:
                joined += self._join_collective(node)
            elif any(has_collectives(body) for body in iter_bodies(node)):
                joined.append(self._join_control(node))
            else:
                joined += self._copy_node(node)
        return joined

    def _copy_node(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """Yield copies of a node: one for the replicas that read the same tensors, unless it
        draws."""
        reads, draws = list(iter_reads(node)), _draws(node)
        first = dict[tuple[str, ...], int]()
        for replica, names in enumerate(self.names):
            key = tuple(names[read] for read in reads)
            if not draws and key in first:
                shared = self.names[first[key]]
                names.update((name, shared[name]) for name in node.output)
                continue
            first[key] = replica
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            names.update((name, self._name(name, replica)) for name in _iter_made(node))
            _rename(copy, names)
            copy.name = self._name(node.name, replica)
            yield copy

    def _join_collective(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        stride, size = attribute(node, GROUPING)
        groups = ReplicaGrouping(len(self._replicas), stride, size)
        for group in range(groups.getNumGroups()):
            members = groups.getReplicasAt(group)
            op = Tape(self._name(node.output[0], members[0]))
            operands = [self.names[replica][node.input[0]] for replica in members]
            match node.op_type:
                case "Identity":
                    operator = attribute(node, REDUCTION).decode()
                    total = operands[0]
                    for operand in operands[1:]:
                        total = op.add(operator, total, operand)
                    results = [total] * size
                case "Concat":
                    results = [op.add("Concat", *operands, axis=0)] * size
                case _:
                    results = [
                        op.add("Gather", operand, op.constant(place, np.int64), axis=0)
                        for place, operand in enumerate(operands)
                    ]
            for replica, result in zip(members, results, strict=True):
                self.names[replica][node.output[0]] = result
            yield from op.nodes

    def _join_control(self, node: onnx.NodeProto) -> onnx.NodeProto:
        match node.op_type:
            case "Loop":
                return self._join_loop(node)
            case "If":
                return self._join_if(node)
        return self._join_scan(node)

    def _join_loop(self, node: onnx.NodeProto) -> onnx.NodeProto:
        (body,) = iter_bodies(node)
        fixed = [self.names[0][name] for name in node.input[:_LOOP_FIXED]]
        inputs = [
            *self.copy_values(body.input[:_LOOP_FIXED], is_shared=True),
            *self.copy_values(body.input[_LOOP_FIXED:]),
        ]
        joined = self._join_body(body, inputs, num_fixed=1)
        return self._make_control(node, [*fixed, *self._spread(node.input[_LOOP_FIXED:])], [joined])

    def _join_if(self, node: onnx.NodeProto) -> onnx.NodeProto:
        bodies = [self._join_body(body, []) for body in iter_bodies(node)]
        return self._make_control(node, [self.names[0][node.input[0]]], bodies)

    def _join_scan(self, node: onnx.NodeProto) -> onnx.NodeProto:
        (body,) = iter_bodies(node)
        joined = self._join_body(body, self.copy_values(body.input))
        control = self._make_control(node, self._spread(node.input), [joined])
        count = len(self._replicas)
        set_attribute(control, "num_scan_inputs", attribute(node, "num_scan_inputs") * count)
        for name in _SCAN_LISTS:
            numbers = attribute(node, name)
            if numbers:
                set_attribute(control, name, np.repeat(numbers, count).tolist())
        return control

    def _join_body(
        self,
        body: onnx.GraphProto,
        inputs: Sequence[onnx.ValueInfoProto],
        num_fixed: int = 0,
    ) -> onnx.GraphProto:
        """Return the body of all replicas; its first outputs are those of replica 0 only."""
        for tensor in body.initializer:
            self.share(tensor.name)
        nodes = self.join_nodes(body.node)
        outputs = [
            *self.make_outputs(body.output[:num_fixed], nodes, replicas=[0]),
            *self.make_outputs(body.output[num_fixed:], nodes),
        ]
        return helper.make_graph(nodes, body.name, inputs, outputs, list(body.initializer))

    def _make_control(
        self,
        node: onnx.NodeProto,
        inputs: Sequence[str],
        bodies: Sequence[onnx.GraphProto],
    ) -> onnx.NodeProto:
        """Return the node with those inputs and bodies, and an output for each replica."""
        control = onnx.NodeProto()
        control.CopyFrom(node)
        control.input[:] = inputs
        for old, new in zip(iter_bodies(control), bodies, strict=True):
            old.CopyFrom(new)
        for replica, names in enumerate(self.names):
            names.update((name, self._name(name, replica)) for name in node.output)
        control.output[:] = self._spread(node.output)
        return control

    def _spread(self, names: Iterable[str]) -> list[str]:
        """Return the name of each replica for each of some names."""
        return [replica_names[name] for name in names for replica_names in self.names]

    def _name(self, name: str, number: int) -> str:
        return f"{name}{self._mark}{number}" if name else ""


def _renamed(value: onnx.ValueInfoProto, name: str) -> onnx.ValueInfoProto:
    renamed = onnx.ValueInfoProto()
    renamed.CopyFrom(value)
    renamed.name = name
    return renamed


def _draws(node: onnx.NodeProto) -> bool:
    """Return whether a node or one in its bodies draws random numbers."""
    return any(
        operator_of(inner).draws(inner) for inner in iter_nodes(onnx.GraphProto(node=[node]))
    )


def _iter_made(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names of the tensors that a node and its bodies make."""
    yield from node.output
    for body in iter_bodies(node):
        yield from iter_defined(body)


def _rename(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Rename all that a node and its bodies read and make. In a lowered model, names of bodies are
    names of nothing else."""
    node.input[:] = [names[name] for name in node.input]
    node.output[:] = [names[name] for name in node.output]
    for body in iter_bodies(node):
        forget_values(body)
        for value in (*body.input, *body.output):
            value.name = names[value.name]
        for tensor in body.initializer:
            tensor.name = names[tensor.name]
        for inner in body.node:
            _rename(inner, names)
