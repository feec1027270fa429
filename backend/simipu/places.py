"""How a node says where it is, and that it says so to no one else."""

from __future__ import annotations

import onnx
from onnxgraph import iter_nodes
from onnxgraph.edit import drop_attribute

IPU_ATTRIBUTE = "__ipu_number"
"""The attribute of a node that says its IPU, as PopRT's manual sharding sets it."""
STAGE_ATTRIBUTE = "__pipeline_stage"
"""The same for the stage of a pipeline."""


def has_places(graph: onnx.GraphProto) -> bool:
    """Whether a node says its IPU or its stage."""
    return any(
        each.name in (IPU_ATTRIBUTE, STAGE_ATTRIBUTE) for node in iter_nodes(graph) for each in node.attribute
    )


def strip_places(graph: onnx.GraphProto) -> None:
    """Take IPUs and stages off the nodes, bodies' too: neither onnx nor ONNX Runtime knows such
    attributes."""
    for node in iter_nodes(graph):
        for name in (IPU_ATTRIBUTE, STAGE_ATTRIBUTE):
            drop_attribute(node, name)
