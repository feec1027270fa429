"""Outlining: layers that repeat share their code, which costs memory.

PopART makes a subgraph of what repeats (SubgraphOutline, on by default) and calls it. A call copies
all its inputs, weights included, because tensors are never aliased there (`aliasZeroCopy` is off by
default; docs/ipu-performance.md, section 8). So a second copy of a layer's weights exists while the
layer runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnxgraph import TensorSize

from popef._tools.arrays import Array

_MAX_PERIODS = 32
"""Maximum number of periods to try: the most frequent distances between equal nodes with
weights."""


def find_copied_weights(
    nodes: Sequence[onnx.NodeProto], values: Mapping[str, TensorSize], constants: Collection[str]
) -> list[int]:
    """Return for each node the bytes, over all tiles, of the weights that a call of the node's
    subgraph copies; 0 if the subgraph is called only once.

    A subgraph is a sequence of nodes that is repeated immediately at least once. Among several ways
    to divide the nodes the one that covers most nodes is chosen, and among those the shortest.
    """
    # Nodes of equal kind have equal ids. A stretch that repeats with a period is one subgraph:
    #
    #     node      0  1  2  3  4  5  6  7  8
    #     id        E  A  B  C  A  B  C  A  H         period 3: ids[i] == ids[i + 3] for 1 to 4
    #                  '--1--'  '--2--'               two whole calls, nodes 1 to 6
    #
    # The periods that cover most nodes take their nodes first (`free`). Each call copies the
    # weights of its own nodes, which exist a second time while any of these nodes runs.
    constant_names = set(constants)
    weights = [_take_weights(node, values, constant_names) for node in nodes]
    kinds: dict[Any, int] = {}
    numbers = [kinds.setdefault(_describe(node, values), len(kinds)) for node in nodes]
    ids = np.array(numbers, dtype=np.int64)
    copied = [0] * len(nodes)
    free = np.ones(len(nodes), dtype=bool)
    for period in _rank_periods(ids, weights):
        for start, end in _iter_runs(ids, period):
            if free[start:end].all():
                free[start:end] = False
                for first in range(start, end - period + 1, period):
                    names = set().union(*(weights[i] for i in range(first, first + period)))
                    size = sum(values[name].bytes for name in names)
                    copied[first : first + period] = [size] * period
    return copied


def _take_weights(
    node: onnx.NodeProto, values: Mapping[str, TensorSize], known: set[str]
) -> set[str]:
    """Return the weights that a node reads. A result computed from constants alone counts as a
    weight, too."""
    read = {name for name in node.input if name in known and name in values}
    if all(name in known for name in node.input if name):
        known.update(node.output)
    return read


def _describe(node: onnx.NodeProto, values: Mapping[str, TensorSize]) -> Any:
    """Return the key that two nodes must share to be called as one subgraph; values of tensors do
    not matter."""
    attributes = sorted(
        (entry.name, entry.i, entry.f, entry.s, tuple(entry.ints), tuple(entry.floats))
        for entry in node.attribute
    )
    shapes = [
        (values[name].shape, values[name].bytes_per_element) if name in values else None
        for name in (*node.input, *node.output)
    ]
    return node.op_type, tuple(attributes), tuple(shapes)


def _rank_periods(ids: Array, weights: Sequence[Collection[str]]) -> list[int]:
    """Return distances between equal nodes with weights, sorted by the number of nodes that they
    repeat."""
    # Only nodes with weights vote for a period: copying weights is what a call costs, and small
    # operators such as Add repeat at many distances within a layer. Of all distances the most
    # frequent are tried, because each takes a pass over all nodes.
    last: dict[int, int] = {}
    distances = Counter[int]()
    for i, (kind, read) in enumerate(zip(ids.tolist(), weights, strict=True)):
        if read:
            if kind in last:
                distances[i - last[kind]] += 1
            last[kind] = i
    periods = [period for period, _ in distances.most_common(_MAX_PERIODS)]
    covered = {each: sum(end - start for start, end in _iter_runs(ids, each)) for each in periods}
    repeating = (each for each in periods if covered[each])
    return sorted(repeating, key=lambda each: (-covered[each], each))


def _iter_runs(ids: Array, period: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges in which whole subgraphs of length `period` repeat: the first node, and the
    one after the last."""
    # same[i + 1] says that node i equals the node a period later. A run of n such nodes holds
    # n // period repetitions besides the first call; the False at both ends give every run a
    # rising and a falling edge.
    same = np.concatenate([[False], ids[:-period] == ids[period:], [False]])
    edges = np.flatnonzero(np.diff(same.astype(np.int8)))
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        repeats = (end - start) // period
        if repeats:
            yield start, start + (repeats + 1) * period
