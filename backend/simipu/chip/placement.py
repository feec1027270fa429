"""Placement of nodes: the attributes that name a node's IPU and pipeline stage, what they say of a
placed graph, and how to write and remove them. `poprt.passes.lowering.placed` places the nodes of
graphs that do not say it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnxgraph import (
    attribute,
    drop_attribute,
    find_inputs,
    iter_nodes,
    iter_reads,
    set_attribute,
)

IPU_ATTRIBUTE = "__ipu_number"
"""Attribute of a node that names its IPU, as PopRT's manual sharding sets it."""
STAGE_ATTRIBUTE = "__pipeline_stage"
"""Attribute of a node that names its pipeline stage."""
Place = tuple[int, int | None]
"""A node's IPU and its pipeline stage, if there is a pipeline."""


def has_placement(graph: onnx.GraphProto) -> bool:
    """Return whether a node names its IPU or its stage."""
    return any(
        entry.name in (IPU_ATTRIBUTE, STAGE_ATTRIBUTE)
        for node in iter_nodes(graph)
        for entry in node.attribute
    )


def strip_placement(graph: onnx.GraphProto) -> None:
    """Remove IPUs and stages from the nodes, also in bodies: neither onnx nor ONNX Runtime knows
    these attributes."""
    for node in iter_nodes(graph):
        for name in (IPU_ATTRIBUTE, STAGE_ATTRIBUTE):
            drop_attribute(node, name)


def read_places(graph: onnx.GraphProto) -> dict[str, Place]:
    """Return the places of the nodes that name their IPU, by the tensors that they make."""
    return {
        name: (ipu, attribute(node, STAGE_ATTRIBUTE))
        for node in graph.node
        if (ipu := attribute(node, IPU_ATTRIBUTE)) is not None
        for name in node.output
        if name
    }


def place_nodes(graph: onnx.GraphProto, places: Mapping[str, Place]) -> None:
    """Write their places into the nodes of a graph.

    The graph may have been rewritten since the places were noted: a node that makes no tensor with
    a place is where the first node is that reads it, as it was made for that one. A node that
    nothing reads stays with the node before it, and so do constants.
    """
    reader_places: dict[str, Place] = {}
    for node in reversed(graph.node):
        own = [name for name in node.output if name]
        place = next(
            (side[name] for side in (places, reader_places) for name in own if name in side), None
        )
        if place is None:
            continue
        reader_places.update(dict.fromkeys(iter_reads(node), place))
        if node.op_type == "Constant":
            continue  # onnx's shape inference takes a further attribute for the constant's value
        set_attribute(node, IPU_ATTRIBUTE, place[0])
        if place[1] is not None:
            set_attribute(node, STAGE_ATTRIBUTE, place[1])


def find_stages(graph: onnx.GraphProto) -> list[int]:
    """Return the stage of each node of a placed graph. A node that names none has the stage of the
    node before it. If no node names a stage, the list is empty."""
    said = [attribute(node, STAGE_ATTRIBUTE) for node in graph.node]
    if all(stage is None for stage in said):
        return []
    stage, stages = 0, []
    for said_stage in said:
        stage = stage if said_stage is None else int(said_stage)
        stages.append(stage)
    return stages


@dataclass(frozen=True, slots=True)
class PlacedGraph:
    """A graph with what its nodes say of their places, read once."""

    graph: onnx.GraphProto
    ipus: Sequence[int]
    """IPU of each node."""
    input_ipus: Mapping[str, int]
    """IPU that receives each input from the host: the one that reads it first."""

    @staticmethod
    def read(graph: onnx.GraphProto, num_ipus: int) -> PlacedGraph:
        """Read the places of a graph's nodes. With one IPU they need not name it."""
        named = num_ipus > 1
        return PlacedGraph.at(
            graph, [int(attribute(node, IPU_ATTRIBUTE, 0)) if named else 0 for node in graph.node]
        )

    @staticmethod
    def at(graph: onnx.GraphProto, ipus: Sequence[int]) -> PlacedGraph:
        """Return a graph whose nodes are on these IPUs."""
        input_ipus = {info.name: 0 for info in find_inputs(graph)}
        for node, ipu in reversed(list(zip(graph.node, ipus, strict=True))):
            input_ipus.update((name, ipu) for name in iter_reads(node) if name in input_ipus)
        return PlacedGraph(graph, ipus, input_ipus)

    def nodes_on(self, ipu: int) -> list[onnx.NodeProto]:
        """Return the nodes of an IPU."""
        return [node for node, own in zip(self.graph.node, self.ipus, strict=True) if own == ipu]
