"""Several IPUs, as a placed graph says them: which node runs on which, and what the copies over the links
between them take. Who places the nodes and puts the copies in: `poprt.passes.lowering`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx
from onnxgraph import Value, attribute, iter_reads

from simipu.cost import constants as c
from simipu.cost.operators import Work
from simipu.target import Target

COPY = "IpuCopy"
"""The operator's name in PopART."""
IPU_ATTRIBUTE = "__ipu_number"
"""The attribute of a node that says its IPU, as PopRT's manual sharding sets it."""


def find_ipus(graph: onnx.GraphProto, num_ipus: int) -> list[int]:
    """The IPU of each node of a placed graph; where there is one IPU, nodes need not say it."""
    if num_ipus == 1:
        return [0] * len(graph.node)
    return [int(attribute(node, IPU_ATTRIBUTE, 0)) for node in graph.node]


def place_inputs(graph: onnx.GraphProto, places: Sequence[int]) -> dict[str, int]:
    """The IPU to which the host sends each input: the one that reads it first."""
    found = {info.name: 0 for info in graph.input}
    for node, place in reversed(list(zip(graph.node, places, strict=True))):
        found.update((name, place) for name in iter_reads(node) if name in found)
    return found


def copy_work(value: Value, target: Target) -> Work:
    """One tensor over the links between two IPUs."""
    cycles = math.ceil(value.bytes / c.LINK_BYTES_PER_SECOND[target.name] * target.clock_hz)
    return Work("link", 0, cycles, 1, target.num_tiles)
