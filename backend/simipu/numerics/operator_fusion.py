"""Joins nodes of the kernels' domain, so that a value is written once. A chain that is the only
reader of its source becomes the last steps of the node that computes the source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import onnx
from onnxgraph import iter_bodies

from simipu.numerics.kernels import (
    CHAIN,
    CONV,
    FIXED_INPUTS,
    KERNELS,
    MAX_STEPS,
    Kind,
    extend_kernel,
    read_steps,
)

Dims = tuple[int | str | None, ...]
"""Sizes; names of open ones, None for unknown ones."""
_MATRIX = 2


def fuse(
    nodes: Sequence[onnx.NodeProto], kept: set[str], dims: Mapping[str, Dims]
) -> list[onnx.NodeProto]:
    """Return the nodes of one graph, in order, joined. Nodes outside the graph read the tensors
    `kept`. Unused nodes are removed."""
    nodes = _drop_unused(nodes, kept)
    readers = Counter(name for node in nodes for name in list_taken(node))
    makers: dict[str, int] = {}
    fused: list[onnx.NodeProto | None] = []
    for node in nodes:
        place = makers.get(node.input[0], -1) if _is_chain(node) else -1
        maker = fused[place] if place >= 0 else None
        source = node.input[0] if node.input else ""
        if (
            maker is not None
            and readers[source] == 1
            and source not in kept
            and _fits(maker, node, dims)
        ):
            # Other operands of the chain may be computed after the maker: the joined node takes the
            # chain's position.
            fused[place] = None
            node = extend_kernel(maker, read_steps(node), node.output[0])
        if node.domain == KERNELS:
            makers[node.output[0]] = len(fused)
        fused.append(node)
    return [node for node in fused if node is not None]


def _drop_unused(nodes: Sequence[onnx.NodeProto], kept: set[str]) -> list[onnx.NodeProto]:
    taken, used = set(kept), []
    for node in reversed(nodes):
        if not taken.isdisjoint(node.output):
            used.append(node)
            taken.update(list_taken(node))
    return used[::-1]


def list_taken(node: onnx.NodeProto) -> list[str]:
    """Return the tensors that a node and its bodies read."""
    names = list(node.input)
    for body in iter_bodies(node):
        names += [name for inner in body.node for name in list_taken(inner)]
        names += [value.name for value in body.output]
    return names


def _is_chain(node: onnx.NodeProto) -> bool:
    return node.domain == KERNELS and node.op_type == CHAIN


def _fits(maker: onnx.NodeProto, chain: onnx.NodeProto, dims: Mapping[str, Dims]) -> bool:
    """Return whether the node that computes the source can also read the chain's operands. A chain
    accepts operands that keep its shape; products accept operands for whole batches, rows and
    columns."""
    result, source = dims.get(chain.output[0]), dims.get(chain.input[0])
    steps = read_steps(chain)
    if len(read_steps(maker)) + len(steps) > MAX_STEPS:
        return False
    operands = [step.operand for step in steps if step.operand and step.kind is not Kind.TABLE]
    if not operands:
        return True
    if result is None or None in result or source != result:
        return False
    if maker.op_type == CHAIN:
        return True
    columns = 1 if maker.op_type != CONV else len(result) - FIXED_INPUTS[CONV]
    return all(_fits_groups(dims.get(name), result, columns) for name in operands)


def _fits_groups(operand: Dims | None, result: Dims, columns: int) -> bool:
    if operand is None or len(operand) > len(result) or len(result) < _MATRIX:
        return False
    # A kernel addresses an operand by batch, row and column only. So the batches' axes are together
    # all broadcast or none, and likewise the columns' axes.
    operand = (1,) * (len(result) - len(operand)) + operand
    row = len(result) - columns - 1
    for group in (slice(0, row), slice(row, row + 1), slice(row + 1, None)):
        part, whole = operand[group], result[group]
        if part != whole and any(size != 1 for size in part):
            return False
    return True
