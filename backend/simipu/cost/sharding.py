"""Several IPUs: which node runs on which, and the copies over the links between them.

Layers follow one another on the IPUs in the order of the graph. `virtual_graph_mode` manual takes the nodes'
attribute `__ipu_number`, as PopRT's manual sharding sets it; auto cuts the graph into parts of equal weights,
or where they are pipelined of equal time.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence

import onnx
from onnx import helper
from onnxgraph import Value, iter_reads

from simipu.cost import constants as c
from simipu.cost.operators import Work
from simipu.errors import CompileError
from simipu.target import Target

COPY = "IpuCopy"
"""The operator's name in PopART."""


def place_manually(graph: onnx.GraphProto, num_ipus: int) -> list[int]:
    """The IPU of each node by its attribute `__ipu_number`; without one, that of the node before it."""
    places, place = [], 0
    for node in graph.node:
        place = next((attribute.i for attribute in node.attribute if attribute.name == "__ipu_number"), place)
        if not 0 <= place < num_ipus:
            raise CompileError(
                f"node {node.name!r}: __ipu_number must be at least 0 and below num_ipus={num_ipus}, found "
                f"{place}"
            )
        places.append(place)
    return places


def place_evenly(sizes: Sequence[int], crossing: Sequence[int], num_ipus: int) -> list[int]:
    """The IPU of each node, in order: every IPU gets about as much of `sizes`.

    A cut before node i moves `crossing[i]` bytes: of the cuts within CUT_SLACK of an IPU's share the cheapest
    is taken.
    """
    before = list(itertools.accumulate(sizes, initial=0))
    share, cuts = before[-1] / num_ipus, [0]
    for ipu in range(1, num_ipus):
        off = [abs(size - ipu * share) for size in before[:-1]]
        within = max(c.CUT_SLACK * share, min(off, default=0))
        near = [i for i, distance in enumerate(off) if distance <= within and i >= cuts[-1]]
        cuts.append(min(near, key=lambda i: (crossing[i], off[i]), default=cuts[-1]))
    return [bisect.bisect_right(cuts, i) - 1 for i in range(len(sizes))]


def crossing_bytes(graph: onnx.GraphProto, values: dict[str, Value]) -> list[int]:
    """Bytes that are made before each node and read by it or after it; inputs of the graph and views count as
    made."""
    made = {info.name: 0 for info in graph.input}
    change = [0] * (len(graph.node) + 1)
    last: dict[str, int] = {}
    for i, node in enumerate(graph.node):
        last.update((name, i) for name in iter_reads(node) if name in made)
        made.update((name, i + 1) for name in node.output)
    for name, i in last.items():
        size = values[name].bytes if name in values else 0
        change[made[name]] += size
        change[i + 1] -= size
    return list(itertools.accumulate(change[:-1]))


def place_inputs(graph: onnx.GraphProto, places: Sequence[int]) -> dict[str, int]:
    """The IPU to which the host sends each input: the one that reads it first."""
    found = {info.name: 0 for info in graph.input}
    for node, place in reversed(list(zip(graph.node, places, strict=True))):
        found.update((name, place) for name in iter_reads(node) if name in found)
    return found


def weight_bytes(graph: onnx.GraphProto, values: dict[str, Value]) -> list[int]:
    """Bytes of the weights that each node is the first to read."""
    left = {tensor.name: values[tensor.name].bytes for tensor in graph.initializer}
    return [sum(left.pop(name, 0) for name in iter_reads(node)) for node in graph.node]


def insert_copies(
    graph: onnx.GraphProto, places: Sequence[int], values: dict[str, Value]
) -> tuple[onnx.GraphProto, list[int]]:
    """The graph with a copy of each tensor that another IPU reads, once for each IPU, and the IPU of each of
    its nodes.

    Weights need none: they are on every IPU that reads them. `values` gets the copies.
    """
    made = place_inputs(graph, places)
    sharded, found = (
        onnx.GraphProto(input=graph.input, output=graph.output, initializer=graph.initializer),
        [],
    )
    for node, place in zip(graph.node, places, strict=True):
        moved = onnx.NodeProto()
        moved.CopyFrom(node)
        for name in dict.fromkeys(iter_reads(node)):
            if made.get(name, place) == place:
                continue
            copy = f"{name}@{place}"
            if copy not in made:
                sharded.node.append(helper.make_node(COPY, [name], [copy], name=copy))
                found.append(place)
                made[copy] = place
                values[copy] = values[name]
            moved.input[:] = [copy if each == name else each for each in moved.input]
        sharded.node.append(moved)
        found.append(place)
        made.update(dict.fromkeys(node.output, place))
    return sharded, found


def copy_work(value: Value, target: Target) -> Work:
    """One tensor over the links between two IPUs."""
    cycles = math.ceil(value.bytes / c.LINK_BYTES_PER_SECOND[target.name] * target.clock_hz)
    return Work("link", 0, cycles, 1, target.num_tiles)
