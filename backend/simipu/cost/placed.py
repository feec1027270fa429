"""Placement of a placed graph: which IPU runs each node, and which receives each input.
`poprt.passes.lowering.placed` places the nodes."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnxgraph import attribute, find_inputs, iter_reads

from simipu.placement import IPU_ATTRIBUTE, STAGE_ATTRIBUTE


def find_ipus(graph: onnx.GraphProto, num_ipus: int) -> list[int]:
    """Return the IPU of each node of a placed graph. With one IPU the nodes need not name it."""
    if num_ipus == 1:
        return [0] * len(graph.node)
    return [int(attribute(node, IPU_ATTRIBUTE, 0)) for node in graph.node]


def find_stages(graph: onnx.GraphProto) -> list[int]:
    """Return the stage of each node of a placed graph. A node that names none has the stage of the
    node before it. If no node names a stage, the list is empty."""
    said = [attribute(node, STAGE_ATTRIBUTE) for node in graph.node]
    if all(stage is None for stage in said):
        return []
    stage, stages = 0, []
    for found in said:
        stage = stage if found is None else int(found)
        stages.append(stage)
    return stages


def place_inputs(graph: onnx.GraphProto, ipus: Sequence[int]) -> dict[str, int]:
    """Return the IPU that receives each input from the host: the one that reads it first."""
    found = {info.name: 0 for info in find_inputs(graph)}
    for node, ipu in reversed(list(zip(graph.node, ipus, strict=True))):
        found.update((name, ipu) for name in iter_reads(node) if name in found)
    return found
