"""Layers that repeat share their code; what that takes of memory.

PopART makes a subgraph of what comes several times (SubgraphOutline, on by default) and calls it. A call
copies all that goes in, weights too, since tensors are never aliased there (`aliasZeroCopy` is off by
default; docs/ipu-performance.md, section 8): while a layer runs, its weights are there a second time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnxgraph import Value

_MOST_PERIODS = 32
"""That are tried: the most frequent distances between equal nodes with weights."""

Array = npt.NDArray[Any]


def find_copied_weights(
    nodes: Sequence[onnx.NodeProto], values: Mapping[str, Value], constants: Collection[str]
) -> list[int]:
    """For each node the bytes, of all tiles, of the weights that are copied when the subgraph with the node
    is called; 0 where it is called nowhere else.

    A subgraph is a sequence of nodes that follows itself at least once. Of several ways to see it the one
    with most nodes is taken, and of those the shortest.
    """
    known = set(constants)
    weights = [_take_weights(node, values, known) for node in nodes]
    kinds: dict[Any, int] = {}
    ids = np.array([kinds.setdefault(_describe(node, values), len(kinds)) for node in nodes], dtype=np.int64)
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


def _take_weights(node: onnx.NodeProto, values: Mapping[str, Value], known: set[str]) -> set[str]:
    """Those that a node reads; what it makes of constants alone becomes one."""
    read = {name for name in node.input if name in known and name in values}
    if all(name in known for name in node.input if name):
        known.update(node.output)
    return read


def _describe(node: onnx.NodeProto, values: Mapping[str, Value]) -> Any:
    """What two nodes have to have in common to be called as one; values of tensors do not matter."""
    attributes = sorted(
        (each.name, each.i, each.f, each.s, tuple(each.ints), tuple(each.floats)) for each in node.attribute
    )
    shapes = [
        (values[name].shape, values[name].bytes_per_element) if name in values else None
        for name in (*node.input, *node.output)
    ]
    return node.op_type, tuple(attributes), tuple(shapes)


def _rank_periods(ids: Array, weights: Sequence[Collection[str]]) -> list[int]:
    """Distances between equal nodes with weights: those first by which most nodes follow themselves."""
    last: dict[int, int] = {}
    distances = Counter[int]()
    for i, (kind, read) in enumerate(zip(ids.tolist(), weights, strict=True)):
        if read:
            if kind in last:
                distances[i - last[kind]] += 1
            last[kind] = i
    periods = [period for period, _ in distances.most_common(_MOST_PERIODS)]
    covered = {period: sum(end - start for start, end in _iter_runs(ids, period)) for period in periods}
    return sorted((period for period in periods if covered[period]), key=lambda each: (-covered[each], each))


def _iter_runs(ids: Array, period: int) -> Iterator[tuple[int, int]]:
    """Where whole subgraphs of that length follow themselves: first node, and that behind the last."""
    same = np.concatenate([[False], ids[:-period] == ids[period:], [False]])
    edges = np.flatnonzero(np.diff(same.astype(np.int8)))
    for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
        repeats = (end - start) // period
        if repeats:
            yield start, start + (repeats + 1) * period
