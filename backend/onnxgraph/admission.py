"""What a graph of a stranger may be, looked at before anything infers, lowers or computes it.

Graphs come out of PopEF files, from `sim_graph_path` and from those who compile or profile a model. They may
refer to nothing outside themselves. How much time and memory one may ask for is `simipu.demand`'s.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import onnx
from onnx import TensorProto, helper

from onnxgraph.errors import GraphError, GraphTooLargeError
from onnxgraph.nodes import iter_any_bodies
from onnxgraph.tensors import element_bytes, is_packed, iter_tensors

MOST_SHAPE_NUMBERS = 1 << 20
"""In what shape inference computes of shapes: onnx and ONNX Runtime keep each as an object. Known models have
some dozens."""
_CARRIERS = frozenset(
    (
        "Add Cast Ceil Concat Constant Div Floor Gather Identity Mod Mul Neg Range Shape Size Slice Squeeze "
        "Sub Unsqueeze"
    ).split()
)
"""Operators through which onnx follows the values of shapes."""


def check_graph(model: onnx.ModelProto, *, without_weights: bool = False) -> None:
    """Raise GraphError where `model` brings functions of its own, nests too deep, has a tensor whose data are
    not those of its shape, or refers to a file. If `without_weights`, initializers of the main graph may have
    their data elsewhere, or none."""
    if model.functions or model.training_info:
        raise GraphError(
            "the graph brings functions or training steps of its own; inline functions when exporting the "
            "model"
        )
    _check_names(model.graph)
    for tensor, is_weight in iter_tensors(model.graph):
        may_lack = without_weights and is_weight
        _check_type(tensor)
        if tensor.data_location != TensorProto.EXTERNAL:
            _check_data(tensor, may_lack)
        elif not may_lack:
            raise GraphError(
                f"tensor {tensor.name!r} refers to a file; a graph may refer to nothing outside itself"
            )
    numbers = _count_shape_numbers(model.graph, {})
    if numbers > MOST_SHAPE_NUMBERS:
        raise GraphTooLargeError(
            f"the graph computes a shape of {numbers:.2g} numbers, by a chain of Concat most likely; the "
            f"limit is {MOST_SHAPE_NUMBERS}"
        )


def _check_names(graph: onnx.GraphProto) -> None:
    """Protobuf gives what is no UTF-8 as bytes, which half of all code would trip over."""
    for inner in _iter_any_graphs(graph):
        names = [value.name for value in (*inner.input, *inner.output, *inner.value_info)]
        names += (tensor.name for tensor in inner.initializer)
        for node in inner.node:
            names += (
                node.name,
                node.op_type,
                node.domain,
                *node.input,
                *node.output,
                *(each.name for each in node.attribute),
            )
        fault = next((name for name in names if not isinstance(name, str)), None)
        if fault is not None:
            raise GraphError(f"expected names in UTF-8, found {fault!r}")


def _check_type(tensor: TensorProto) -> None:
    if tensor.data_type not in helper.get_all_tensor_dtypes() or min(tensor.dims, default=0) < 0:
        raise GraphError(
            f"tensor {tensor.name!r} has type {tensor.data_type} and shape {list(tensor.dims)}, which is none"
        )


def _check_data(tensor: TensorProto, may_lack: bool) -> None:
    if tensor.data_type == TensorProto.STRING:
        return
    elements = math.prod(tensor.dims)
    if tensor.HasField("raw_data"):
        fits = len(tensor.raw_data) == elements * element_bytes(tensor.data_type) or is_packed(
            tensor.data_type
        )
    else:
        # Complex numbers take two values; types of few bits may share one.
        field = getattr(tensor, helper.tensor_dtype_to_field(tensor.data_type))
        fits = len(field) in (elements, 2 * elements) or (
            is_packed(tensor.data_type) and len(field) <= elements
        )
        fits = fits or (may_lack and not field)
    if not fits:
        raise GraphError(
            f"tensor {tensor.name!r} has data of another size than its shape {list(tensor.dims)} says"
        )


def _iter_any_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for body in iter_any_bodies(node):
            yield from _iter_any_graphs(body)


def _count_shape_numbers(graph: onnx.GraphProto, outer: Mapping[str, int]) -> int:
    """The most numbers that a shape computed in `graph`, or inside its nodes, may have, if onnx followed all
    of them."""
    counts = dict(outer)
    counts.update(
        (tensor.name, math.prod(tensor.dims)) for tensor in graph.initializer if len(tensor.dims) <= 1
    )
    most = 0
    for node in graph.node:
        taken = [counts.get(name, 0) for name in node.input]
        count = 0
        if node.op_type == "Concat":
            count = sum(taken)
        elif node.op_type in ("Shape", "Size"):
            count = 1  # its rank, which files spell out
        elif node.op_type in _CARRIERS:
            count = max(
                (*taken, *(math.prod(each.t.dims) for each in node.attribute if len(each.t.dims) <= 1)),
                default=0,
            )
        counts.update(dict.fromkeys(node.output, count))
        most = max(most, count)
        most = max((most, *(_count_shape_numbers(body, counts) for body in iter_any_bodies(node))))
    return most
