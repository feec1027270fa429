"""Rules of collectives, which exchange values between replicas.

The graph that is written is that of one replica. The node of a collective there computes what the
replica would get if the others had its own values, and is marked with the groups of replicas that
it joins. `replicas.join_replicas` finds the marks and lets the node read the others' values.
"""

from __future__ import annotations

from math import prod
from typing import Final

from onnxgraph import Results, set_attribute

from popart.enums import CollectiveOperator, CommGroupType
from popart.errors import popart_exception
from popart.lowering.graph import Graph, Tensor
from popart.lowering.operation import Operation, chip_rule
from popart.variables import CommGroup, ReplicaGrouping

GROUPING: Final = "__replica_grouping"
"""Mark of a collective's node: the stride and the size of its groups. An Identity is a reduction, a
Concat gathers, and a Gather takes the part of the replica."""
REDUCTION: Final = "__replica_reduction"
"""Mark of a reduction's node: the standard's operator for two replicas."""
_COMM_GROUP, _OPERATOR = "__collectiveCommGroup", "__collectiveOperator"
_REPLICA_GROUPING: Final = "__collectiveReplicaGrouping"
"""Attribute that stands for the comm group: numbers of replicas, the stride, and the group size."""
_REDUCTIONS: Final = {
    CollectiveOperator.Add: "Add",
    CollectiveOperator.Mean: "Add",
    CollectiveOperator.SquareAdd: "Add",
    CollectiveOperator.Mul: "Mul",
    CollectiveOperator.Min: "Min",
    CollectiveOperator.Max: "Max",
}
"""Operator of the standard that reduces two replicas; only collectives have such a counterpart."""


@chip_rule("ReplicatedAllReduce", "ReplicatedAllReduceInplace")
def _all_reduce(op: Graph, node: Operation) -> Results:
    return _reduce(op, node, node.x)


@chip_rule("ReplicatedReduceScatter")
def _reduce_scatter(op: Graph, node: Operation) -> Results:
    """A replica gets an equal part of the elements; zeros fill up the last one."""
    groups, x = _find_groups(node), node.x
    size = groups.getGroupSize()
    part = -(-x.size // size)
    flat = op.reshape(x, [x.size])
    if part * size > x.size:
        flat = op.Pad(flat, op.ints([0, part * size - x.size]))
    reduced = _reduce(op, node, flat)
    if size == 1:
        return reduced
    parts = op.reshape(reduced, [size, part])
    return _mark(op, op.Gather(parts, op.ints(0), axis=0), groups)


@chip_rule("ReplicatedAllGather")
def _all_gather(op: Graph, node: Operation) -> Results:
    groups, x = _find_groups(node), node.x
    flat = op.reshape(x, [prod(x.shape)])
    size = groups.getGroupSize()
    if size == 1:
        return flat
    return _mark(op, op.Concat(*[flat] * size, axis=0), groups)


@chip_rule("ReplicatedAllReduceTP")
def _all_reduce_forwards(op: Graph, node: Operation) -> Results:
    """Reduce, unless the reduction is that of the gradients (poptorch_experimental_addons)."""
    if node.get("backwards", 0):
        return op.Identity(node.x)
    return _reduce(op, node, node.x)


@chip_rule("ReplicatedAllToAll")
def _all_to_all(op: Graph, node: Operation) -> Results:
    """Give part i of the first axis to replica i, which joins the parts in the senders' order."""
    groups, x = _find_groups(node), node.x
    size = groups.getGroupSize()
    if size == 1:
        return op.Identity(x)
    if not x.shape or x.shape[0] % size:
        raise popart_exception(
            f"{node.describe()}: the first axis of the input of shape {list(x.shape)} must be "
            f"a multiple of the {size} replicas of a group"
        )
    flat = op.reshape(x, [prod(x.shape)])
    gathered = _mark(op, op.Concat(*[flat] * size, axis=0), groups)
    parts = op.reshape(gathered, [size, size, prod(x.shape) // size])
    turned = op.Transpose(parts, perm=[1, 0, 2])
    mine = _mark(op, op.Gather(turned, op.ints(0), axis=0), groups)
    return op.reshape(mine, x.shape).as_variable()


def _reduce(op: Graph, node: Operation, x: Tensor) -> Tensor:
    """Return the reduction over the groups; one replica alone keeps its value."""
    groups = _find_groups(node)
    kind = CollectiveOperator(node.get(_OPERATOR, int(CollectiveOperator.Add)))
    if groups.getGroupSize() == 1 or kind == CollectiveOperator.Local:
        return x
    if kind not in _REDUCTIONS:
        raise popart_exception(
            f"{node.describe()}: collectiveOperator {kind.name} is not supported; supported "
            f"are {', '.join(operator.name for operator in _REDUCTIONS)} and Local"
        )
    if kind == CollectiveOperator.SquareAdd:
        x = x * x
    reduced = _mark(op, op.Identity(x), groups, _REDUCTIONS[kind])
    if kind == CollectiveOperator.Mean:
        reduced = reduced / groups.getGroupSize()
    return reduced


def _find_groups(node: Operation) -> ReplicaGrouping:
    replicas = node.settings.replicas
    kind, size = node.get(_COMM_GROUP) or (CommGroupType.All, 0)
    if replicas == 1:
        return ReplicaGrouping(1)
    grouping = node.get(_REPLICA_GROUPING)
    if grouping:
        _, stride, group_size = grouping
        return ReplicaGrouping(replicas, stride, group_size)
    return CommGroup(CommGroupType(kind), size).toReplicaGrouping(replicas)


def _mark(op: Graph, made: Tensor, groups: ReplicaGrouping, reduction: str = "") -> Tensor:
    """Mark the node that was added last. Its result is no constant: it depends on the others."""
    node = op.nodes[-1]
    set_attribute(node, GROUPING, [groups.getStride(), groups.getGroupSize()])
    if reduction:
        set_attribute(node, REDUCTION, reduction)
    return made.as_variable()
