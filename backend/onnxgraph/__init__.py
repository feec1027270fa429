"""ONNX graphs: what every room that reads or rewrites one needs to know of it, written once.

Makers and users, bodies, attributes, opset, names, replacement, building, shapes, and weights that stay
outside the messages. Nothing here knows a chip, a precision, or what an operator costs; graphs are
`onnx.GraphProto`, so that scripts and passes of users see what they know.
"""

from onnxgraph.admission import check_graph
from onnxgraph.building import Chain, make_body, make_cast
from onnxgraph.edit import (
    drop_weights,
    keep_outputs,
    name_nodes,
    rename,
    replace_inputs,
    replace_nodes,
    without_weights,
)
from onnxgraph.errors import GraphError, GraphTooLargeError
from onnxgraph.nodes import (
    attribute,
    find_opset,
    iter_bodies,
    iter_graphs,
    iter_nodes,
    iter_reads,
    used_names,
)
from onnxgraph.shapes import Value, collect_values, graph_values, infer_shapes

__all__ = [
    "Chain",
    "GraphError",
    "GraphTooLargeError",
    "Value",
    "attribute",
    "check_graph",
    "collect_values",
    "drop_weights",
    "find_opset",
    "graph_values",
    "infer_shapes",
    "iter_bodies",
    "iter_graphs",
    "iter_nodes",
    "iter_reads",
    "keep_outputs",
    "make_body",
    "make_cast",
    "name_nodes",
    "rename",
    "replace_inputs",
    "replace_nodes",
    "used_names",
    "without_weights",
]
