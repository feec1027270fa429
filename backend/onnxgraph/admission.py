"""Checks of a graph from outside, before any inference, lowering or run.

Graphs come from PopEF files, from `sim_graph_path` and from users who compile or profile a model.
They must not refer to anything outside themselves, and their names must be text. `simipu.demand`
limits their time and memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

import onnx
from onnx import TensorProto, helper

from onnxgraph.nodes import (
    STANDARD_DOMAINS,
    GraphError,
    GraphTooLargeError,
    element_bytes,
    is_packed,
    iter_any_bodies,
    iter_nodes,
    iter_tensors,
    reads_shape,
)

MAX_SHAPE_NUMBERS = 1 << 20
"""Maximum count of numbers in a shape that inference computes: onnx and ONNX Runtime keep each as
an object.

Known models have some dozens.
"""
_CARRIERS = frozenset(
    (
        "Add Cast Ceil Concat Constant Div Floor Gather Identity Mod Mul Neg Range Shape Size "
        "Slice Squeeze Sub Unsqueeze"
    ).split()
)
"""Operators through which some version of onnx follows the values of shapes: a fact about onnx,
whose schemas name only some of them."""
_TERM = rb"[A-Za-z]*(?:\.\.\.[A-Za-z]*)?"
_EQUATION = re.compile(rb"%b(?:,%b)*(?:->%b)?" % (_TERM, _TERM, _TERM))
"""Equation of an Einsum, without its spaces: letters and at most one ellipsis for each operand and
for the result."""

_CLASSICAL_DOMAIN = "ai.onnx.ml"
_TENSORS_ONLY = "expected tensors of numbers, as the IPU has them"
_MAX_TOLD = 100
"""Number of characters of an equation in a message."""


def check_graph(model: onnx.ModelProto, *, without_weights: bool = False) -> None:
    """Raise GraphError if `model` is invalid or refers to anything outside itself.

    It must not have functions of its own, deep nesting, tensors whose data do not fit their shape,
    or references to files. If `without_weights`, initializers of the main graph may have their data
    elsewhere, or none.
    """
    if model.functions or model.training_info:
        raise GraphError(
            "the graph has functions or training steps of its own, which are not supported; inline "
            "functions when exporting the model"
        )
    _check_names(model.graph)
    for graph in _iter_any_graphs(model.graph):
        for node in graph.node:
            if node.op_type == "Einsum" and node.domain in STANDARD_DOMAINS:
                _check_equation(node)
    for tensor, is_weight in iter_tensors(model.graph):
        may_lack = without_weights and is_weight
        _check_type(tensor)
        if tensor.data_location != TensorProto.EXTERNAL:
            _check_data(tensor, may_lack)
        elif not may_lack:
            raise GraphError(
                f"tensor {tensor.name!r} refers to a file, which is not allowed; expected its data "
                "in the graph"
            )
    numbers = _count_shape_numbers(model.graph, {})
    if numbers > MAX_SHAPE_NUMBERS:
        raise GraphTooLargeError(
            f"the graph computes a shape of {numbers:.2g} numbers, probably by a chain of Concat; "
            f"expected at most {MAX_SHAPE_NUMBERS}"
        )


def _check_names(graph: onnx.GraphProto) -> None:
    """Raise GraphError for names that are not UTF-8.

    Protobuf returns such names as bytes, which much code cannot handle.
    """
    for inner in _iter_any_graphs(graph):
        names = [value.name for value in (*inner.input, *inner.output, *inner.value_info)]
        names += (tensor.name for tensor in inner.initializer)
        for node in inner.node:
            names += (node.name, node.op_type, node.domain, *node.input, *node.output)
            names += (entry.name for entry in node.attribute)
        fault = next((name for name in names if not isinstance(name, str)), None)
        if fault is not None:
            raise GraphError(f"expected names in UTF-8, found {fault!r}")


def _check_type(tensor: TensorProto) -> None:
    if tensor.data_type not in helper.get_all_tensor_dtypes() or min(tensor.dims, default=0) < 0:
        raise GraphError(
            f"tensor {tensor.name!r}: expected an element type of ONNX and sizes of 0 and above, "
            f"found type {tensor.data_type} and shape {list(tensor.dims)}"
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
            f"tensor {tensor.name!r}: the size of its data does not match its shape "
            f"{list(tensor.dims)}; export the model again"
        )


def _check_equation(node: onnx.NodeProto) -> None:
    """Reject an equation that breaks ONNX's grammar: onnx's own parser does not end for some of
    them.

    The parser checks an attribute's name only, not its type.
    """
    for equation in (entry.s for entry in node.attribute if entry.name == "equation"):
        text = equation.replace(b" ", b"")
        if not text and len(node.input) != 1:
            continue  # No equation: the check of nodes reports that it is missing.
        operands, _, result = text.partition(b"->")
        fits = (
            _EQUATION.fullmatch(text)
            and operands.count(b",") + 1 == len(node.input)
            and len(set(result.replace(b".", b""))) == len(result.replace(b".", b""))
            and set(result) <= {*operands, *b"."}
        )
        if not fits:
            raise GraphError(
                f"node {node.name or node.op_type!r} has the equation {_shorten(equation)!r} for "
                f"{len(node.input)} inputs; expected letters and at most one '...' for each input, "
                "separated by commas, then, behind '->', letters of the inputs, each once"
            )


def _shorten(text: bytes) -> str:
    shown = text[:_MAX_TOLD].decode("utf-8", "replace")
    return shown + "..." * (len(text) > _MAX_TOLD)


def check_tensors_only(model: onnx.ModelProto) -> None:
    """Raise GraphError if `model` declares or makes anything but tensors of numbers: strings,
    sequences, optional values, maps.

    ONNX Runtime's memory for those is unbounded.
    """
    for graph in _iter_any_graphs(model.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            _check_value(value)
        for node in graph.node:
            _check_makes_numbers(node)
    for tensor, _ in iter_tensors(model.graph):
        if tensor.data_type == TensorProto.STRING:
            raise GraphError(f"tensor {tensor.name!r} holds strings; {_TENSORS_ONLY}")


def _check_value(value: onnx.ValueInfoProto) -> None:
    kind = value.type.WhichOneof("value")
    if kind not in (None, "tensor_type"):
        raise GraphError(f"tensor {value.name!r} is declared as {kind}; {_TENSORS_ONLY}")
    if value.type.tensor_type.elem_type == TensorProto.STRING:
        raise GraphError(f"tensor {value.name!r} is declared to hold strings; {_TENSORS_ONLY}")


def _check_makes_numbers(node: onnx.NodeProto) -> None:
    """Raise GraphError for a node that may make strings without reading any: Cast, Constant,
    operators of ai.onnx.ml."""
    if node.domain == _CLASSICAL_DOMAIN:
        raise GraphError(
            f"node {node.name or node.op_type!r} has an operator of domain {node.domain}, which "
            f"may make strings and maps; {_TENSORS_ONLY}"
        )
    for entry in node.attribute:
        casts = node.op_type == "Cast" and entry.name == "to"
        # Before opset 6 the type is a name.
        makes = casts and (entry.i == TensorProto.STRING or entry.s.upper() == b"STRING")
        makes |= node.op_type == "Constant" and entry.name in ("value_string", "value_strings")
        if makes:
            raise GraphError(f"node {node.name or node.op_type!r} makes strings; {_TENSORS_ONLY}")


def _iter_any_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for body in iter_any_bodies(node):
            yield from _iter_any_graphs(body)


def _count_shape_numbers(graph: onnx.GraphProto, outer: Mapping[str, int]) -> int:
    """Return the maximum count of numbers in a shape computed in `graph` or inside its nodes, if
    onnx follows them all."""
    counts = dict(outer)
    counts.update(
        (tensor.name, math.prod(tensor.dims))
        for tensor in graph.initializer
        if len(tensor.dims) <= 1
    )
    most = 0
    for node in graph.node:
        input_counts = [counts.get(name, 0) for name in node.input]
        count = 0
        if node.op_type == "Concat":
            count = sum(input_counts)
        elif reads_shape(node):
            count = 1  # its rank, which files spell out
        elif node.op_type in _CARRIERS:
            shapes = [entry.t.dims for entry in node.attribute if len(entry.t.dims) <= 1]
            count = max((*input_counts, *map(math.prod, shapes)), default=0)
        counts.update(dict.fromkeys(node.output, count))
        most = max(most, count)
        most = max((most, *(_count_shape_numbers(body, counts) for body in iter_any_bodies(node))))
    return most


def check_texts(graph: onnx.GraphProto) -> None:
    """Raise GraphError if a name of a node or tensor is not UTF-8: protobuf returns such a text as
    bytes, which the code that reads names does not expect."""
    values = (
        value.name for part in (graph.input, graph.output, graph.initializer) for value in part
    )
    for texts in ((*values,), *map(_texts, iter_nodes(graph))):
        for text in texts:
            if not isinstance(text, str):
                raise GraphError(f"name {text!r} is not UTF-8")


def _texts(node: onnx.NodeProto) -> tuple[str, ...]:
    return node.op_type, node.domain, node.name, *node.input, *node.output
