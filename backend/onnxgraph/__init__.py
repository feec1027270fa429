"""ONNX graphs: the functions that every room needs to read or rewrite them.

They cover makers and users, bodies, attributes, opset, names, replacement, building, shapes, and
weights outside the messages. Nothing here knows a chip, a precision, or the cost of an operator.
Graphs are `onnx.GraphProto`, which users' scripts and passes know.
"""

from onnxgraph.admission import check_graph, check_tensors_only
from onnxgraph.building import Chain, make_body, make_cast
from onnxgraph.edit import (
    change_without_weights,
    drop_unread_nodes,
    drop_weight_inputs,
    drop_weights,
    keep_outputs,
    name_nodes,
    rename,
    replace_inputs,
    replace_nodes,
    replace_outputs,
    set_shape,
    without_weights,
)
from onnxgraph.errors import GraphError, GraphTooLargeError
from onnxgraph.inference import (
    Value,
    collect_values,
    graph_values,
    infer_shapes,
    iter_shapes,
    like_first_input,
    register_shape_function,
    register_stand_in,
    remember_inferences,
)
from onnxgraph.nodes import (
    attribute,
    find_inputs,
    find_makers,
    find_makers_anywhere,
    find_opset,
    fresh_name,
    iter_bodies,
    iter_defined,
    iter_graphs,
    iter_nodes,
    iter_reads,
    sort_nodes,
    used_names,
)
from onnxgraph.tensors import FLOAT_TYPES
from onnxgraph.writing import ModelWriter, write_with_data

__all__ = [
    "FLOAT_TYPES",
    "Chain",
    "GraphError",
    "GraphTooLargeError",
    "ModelWriter",
    "Value",
    "attribute",
    "change_without_weights",
    "check_graph",
    "check_tensors_only",
    "collect_values",
    "drop_unread_nodes",
    "drop_weight_inputs",
    "drop_weights",
    "find_inputs",
    "find_makers",
    "find_makers_anywhere",
    "find_opset",
    "fresh_name",
    "graph_values",
    "infer_shapes",
    "iter_bodies",
    "iter_defined",
    "iter_graphs",
    "iter_nodes",
    "iter_reads",
    "iter_shapes",
    "keep_outputs",
    "like_first_input",
    "make_body",
    "make_cast",
    "name_nodes",
    "register_shape_function",
    "register_stand_in",
    "remember_inferences",
    "rename",
    "replace_inputs",
    "replace_nodes",
    "replace_outputs",
    "set_shape",
    "sort_nodes",
    "used_names",
    "without_weights",
    "write_with_data",
]
