"""Detection of arithmetic with the size of a batch, as in `x * Shape(x)[0]`.

If it is folded, every batch is computed with the size of the compiled batch. The row rules follow
sizes that are used as shapes only, as those of a Reshape.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnxgraph import GraphError, graph_values, infer_shapes, iter_bodies, iter_reads
from simipu import CompileError
from simipu.operators import operator_of

from popef._tools.arrays import Array
from poprt.passes.folding.computing import compute
from poprt.rewrite.explanations import OF_SHAPES

_LARGER = "/larger_batch"
"""Suffix of the names of tensors for a larger batch."""

_log = logging.getLogger("poprt")


def find_batch_arithmetic(model: onnx.ModelProto, inputs: Collection[str], axis: int) -> str:
    """Return which node computes with the size of the batch; "" for none.

    `inputs` are those whose batch, at `axis`, was variable and is fixed now. Sizes that are
    combined with data are computed for this batch and for a batch with one more row. If the values
    differ, the result of a row depends on the number of rows. If the model cannot have another
    batch size, the answer is "".
    """
    readers = _find_readers(model.graph)
    if not readers:
        return ""
    weights = {tensor.name for tensor in model.graph.initializer}
    try:
        nodes = _list_nodes(model, readers)
        with _larger_batch(model.graph, inputs, axis):
            nodes += [_rename(node, weights) for node in _list_nodes(model, readers)]
        reads = {name for node in nodes for name in node.input}
        tensors = [
            (tensor.name, tensor) for tensor in model.graph.initializer if tensor.name in reads
        ]
        results = compute(model, nodes, tensors, [*readers, *(name + _LARGER for name in readers)])
    except (CompileError, GraphError) as error:
        _log.debug("sizes were not compared with those of a larger batch: %s", error)
        return ""
    for name, node in readers.items():
        if _differ(results.get(name), results.get(name + _LARGER)):
            return (
                f"node {node.name!r} ({node.op_type}) computes with the number of rows in the batch"
            )
    return ""


@contextmanager
def _larger_batch(graph: onnx.GraphProto, inputs: Collection[str], axis: int) -> Iterator[None]:
    """Add one row to the batch of the inputs inside the context."""
    changed = [
        value.type.tensor_type.shape.dim[axis] for value in graph.input if value.name in inputs
    ]
    for dim in changed:
        dim.dim_value += 1
    try:
        yield
    finally:
        for dim in changed:
            dim.dim_value -= 1


def _find_readers(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """Return the tensors computed from sizes alone, each with the first node that combines it with
    data."""
    constants = {tensor.name for tensor in graph.initializer}
    sizes: set[str] = set()
    readers: dict[str, onnx.NodeProto] = {}
    for node in _list_needed(graph):
        reads = {name for name in node.input if name}
        if node.op_type == "Constant":
            constants.update(node.output)
        elif _is_size(node) or (_made_of(reads, sizes, constants) and not any(iter_bodies(node))):
            sizes.update(node.output)
        else:
            shaped_by = operator_of(node).shaped_by
            for index, name in enumerate(node.input):
                if name in sizes and index not in shaped_by:
                    readers.setdefault(name, node)
    return readers


def _list_needed(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """Return the nodes, in order, that an output needs: no other changes a row."""
    required, nodes = {value.name for value in graph.output}, list[onnx.NodeProto]()
    for node in reversed(graph.node):
        if not required.isdisjoint(node.output):
            required.update(iter_reads(node))
            nodes.append(node)
    return nodes[::-1]


def _is_size(node: onnx.NodeProto) -> bool:
    return node.op_type in OF_SHAPES and not node.domain


def _made_of(taken: set[str], sizes: set[str], constants: set[str]) -> bool:
    return bool(taken & sizes) and taken <= sizes | constants


def _list_nodes(model: onnx.ModelProto, names: Mapping[str, object]) -> list[onnx.NodeProto]:
    """Return the nodes, in order, that make tensors of sizes alone. A Shape or Size becomes a
    Constant."""
    shapes = {name: value.shape for name, value in graph_values(infer_shapes(model).graph).items()}
    required, nodes = set(names), list[onnx.NodeProto]()
    for node in reversed(model.graph.node):
        if required.isdisjoint(node.output):
            continue
        if _is_size(node):
            nodes.append(_write_sizes(node, shapes))
        else:
            nodes.append(node)
            required.update(node.input)
    return nodes[::-1]


def _rename(node: onnx.NodeProto, weights: Collection[str]) -> onnx.NodeProto:
    """Return a copy of the node for a larger batch. Its tensors have other names, except
    weights."""
    larger = copy.deepcopy(node)
    for names in (larger.input, larger.output):
        names[:] = [name + _LARGER if name and name not in weights else name for name in names]
    larger.ClearField("name")
    return larger


def _write_sizes(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> onnx.NodeProto:
    """Return a Constant that replaces a Shape or Size. Raise CompileError if the shape is not
    known."""
    if node.input[0] not in shapes:
        raise CompileError(f"tensor {node.input[0]!r} has no known shape")
    sizes = np.array(shapes[node.input[0]], np.int64)
    limits = {entry.name: entry.i for entry in node.attribute}
    value = sizes[limits.get("start") : limits.get("end")]
    if node.op_type == "Size":
        value = np.asarray(sizes.prod())
    return helper.make_node("Constant", [], node.output, value=numpy_helper.from_array(value))


def _differ(one: Array | None, other: Array | None) -> bool:
    """Return whether the values that both have differ. Values for a batch may be longer with one
    more row."""
    if one is None or other is None or one.ndim != other.ndim:
        return True
    shared = tuple(slice(min(sizes)) for sizes in zip(one.shape, other.shape, strict=True))
    return not np.array_equal(one[shared], other[shared], equal_nan=one.dtype.kind == "f")
