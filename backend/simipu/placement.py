"""Node attributes that name a node's IPU and pipeline stage, and how to remove them."""

from __future__ import annotations

import onnx
from onnxgraph import iter_nodes
from onnxgraph.edit import drop_attribute

IPU_ATTRIBUTE = "__ipu_number"
"""Attribute of a node that names its IPU, as PopRT's manual sharding sets it."""
STAGE_ATTRIBUTE = "__pipeline_stage"
"""Attribute of a node that names its pipeline stage."""


def has_placement(graph: onnx.GraphProto) -> bool:
    """Return whether a node names its IPU or its stage."""
    return any(
        each.name in (IPU_ATTRIBUTE, STAGE_ATTRIBUTE)
        for node in iter_nodes(graph)
        for each in node.attribute
    )


def strip_placement(graph: onnx.GraphProto) -> None:
    """Remove IPUs and stages from the nodes, also in bodies: neither onnx nor ONNX Runtime knows
    these attributes."""
    for node in iter_nodes(graph):
        for name in (IPU_ATTRIBUTE, STAGE_ATTRIBUTE):
            drop_attribute(node, name)
