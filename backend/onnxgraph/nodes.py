"""Queries on graphs: attributes, bodies, inputs and outputs of nodes, all tensors and their sizes.
Their values: `weights`. Nothing here changes a graph.

Rooms that load, compile or profile a graph convert the errors to their own errors.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from typing import Any, TypeVar

import onnx
from onnx import AttributeProto, TensorProto, helper


class GraphError(Exception):
    """A graph is rejected before use: it refers to something outside itself, or is damaged."""


class GraphTooLargeError(GraphError):
    """A graph needs more time or memory than the limits allow."""


CHIP_DOMAIN = "ai.graphcore"
"""Domain name of the operators of the chip's own compiler, PopART's opset."""
FLOAT_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16)
"""Types of the floats that models are computed in."""
MAX_DEPTH = 16
"""Maximum depth of graphs inside nodes; a known model has 3."""


Function = TypeVar("Function", bound=Callable[..., object])


class ByOperator(dict[str, Function]):
    """Functions by the operators that they are for."""

    def register(self, *op_types: str) -> Callable[[Function], Function]:
        """Return a decorator that adds the function of some operators."""

        def add(function: Function) -> Function:
            self.update(dict.fromkeys(op_types, function))
            return function

        return add


def iter_tensors(graph: onnx.GraphProto, depth: int = 0) -> Iterator[tuple[TensorProto, bool]]:
    """Yield every tensor of a graph, and whether it is an initializer of the main graph."""
    if depth > MAX_DEPTH:
        raise GraphError(f"the graph nests graphs inside nodes more than {MAX_DEPTH} deep")
    yield from ((tensor, depth == 0) for tensor in graph.initializer)
    for sparse in graph.sparse_initializer:
        yield from ((tensor, False) for tensor in (sparse.values, sparse.indices))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t, False
            yield from ((tensor, False) for tensor in attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (
                    (tensor, False)
                    for tensor in (sparse.values, sparse.indices)
                    if tensor.data_type
                )
            for inner in (attribute.g, *attribute.graphs):
                yield from iter_tensors(inner, depth + 1)


def element_bytes(data_type: int) -> int:
    """Return the bytes of an element in files; older versions of onnx know some types as float
    only."""
    name = TensorProto.DataType.Name(data_type)
    narrow = 1 if name.startswith("FLOAT8") else 2 if name == "BFLOAT16" else 0
    return narrow or int(helper.tensor_dtype_to_np_dtype(data_type).itemsize)


def count_bytes(tensor: TensorProto) -> int:
    """Return the bytes of a tensor's raw data by its type and shape; -1 for an invalid type or
    shape."""
    sized = (
        tensor.data_type in helper.get_all_tensor_dtypes()
        and tensor.data_type != TensorProto.STRING
    )
    if not sized or min(tensor.dims, default=0) < 0:
        return -1
    return math.prod(tensor.dims) * element_bytes(tensor.data_type)


def is_packed(data_type: int) -> bool:
    """Return whether several elements share a byte."""
    name = TensorProto.DataType.Name(data_type)
    return "INT4" in name or "FLOAT4" in name


STANDARD_DOMAINS = ("", "ai.onnx")
"""Two spellings of the domain of the standard's operators."""


def attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    """Return the value of an attribute of `node`."""
    return next(
        (helper.get_attribute_value(entry) for entry in node.attribute if entry.name == name),
        default,
    )


def find_opset(model: onnx.ModelProto, default: int | None = None) -> int:
    """Return the version of the standard's operators that a model uses.

    A model that names none has version `default`. Raises LookupError if there is no default either.
    """
    versions = [entry.version for entry in model.opset_import if entry.domain in STANDARD_DOMAINS]
    if not versions and default is None:
        raise LookupError("the model does not declare an opset of the standard's operators")
    return int(versions[0]) if versions else int(default or 0)


def iter_bodies(node: onnx.NodeProto) -> Iterable[onnx.GraphProto]:
    """Return the graphs inside an If, Loop or Scan.

    Every pass calls this for every node. Most nodes have no attribute at all, and for those no
    generator is made.
    """
    return _iter_graphs(node) if node.attribute else ()


def _iter_graphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for entry in node.attribute:
        if entry.type == AttributeProto.GRAPH:
            yield entry.g
        elif entry.type == AttributeProto.GRAPHS:
            yield from entry.graphs


def iter_any_bodies(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield every graph inside `node`, also in attributes whose type says otherwise.

    A model from outside could hide a graph there from code that checks the type first.
    """
    for entry in node.attribute:
        yield from (body for body in (entry.g, *entry.graphs) if body.node)


def iter_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and, after it, the bodies inside its nodes, recursively."""
    yield graph
    for node in graph.node:
        for body in iter_bodies(node):
            yield from iter_graphs(body)


def iter_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph in order; the nodes of a body follow the node that contains it."""
    for node in graph.node:
        yield node
        for body in iter_bodies(node):
            yield from iter_nodes(body)


def find_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Return the real inputs of `graph`: those that a caller feeds.

    Models of IR version 3 and older list their initializers in `graph.input` too. Newer ones may do
    so to let a caller replace them. On the chip they are weights, which no caller feeds.
    """
    weights = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in weights]


def describe_node(node: onnx.NodeProto) -> str:
    """Return what messages call a node: its operator, and its name or that of its first result."""
    name = node.name or next(filter(None, node.output), "")
    return f"{node.op_type} (node {name!r})"


def iter_defined(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the names of all inputs, initializers and node outputs of a graph and its bodies."""
    for part in iter_graphs(graph):
        yield from (value.name for value in part.input)
        yield from (tensor.name for tensor in part.initializer)
        for node in part.node:
            yield from node.output


def iter_reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node reads, including those that its bodies capture."""
    yield from filter(None, node.input)
    for body in iter_bodies(node):
        own = find_own_names(body)
        for inner in body.node:
            yield from (name for name in iter_reads(inner) if name not in own)
            own.update(inner.output)
        yield from (value.name for value in body.output if value.name not in own)


def reads_shape(node: onnx.NodeProto) -> bool:
    """Return whether an operator reads only the shape of its input."""
    return node.op_type in ("Shape", "Size")


def find_own_names(body: onnx.GraphProto) -> set[str]:
    """Return the names of a body's inputs and initializers, which hide outer tensors."""
    return {value.name for value in body.input} | {tensor.name for tensor in body.initializer}


def used_names(graph: onnx.GraphProto) -> set[str]:
    """Return the names that nodes, graph outputs and bodies read."""
    names: set[str] = set()
    for part in iter_graphs(graph):
        names.update(name for node in part.node for name in node.input)
        names.update(value.name for value in part.output)
    return names


def find_makers(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """Return the node of `graph`, without its bodies, that makes each tensor."""
    return {name: node for node in graph.node for name in node.output if name}


def find_users(graph: onnx.GraphProto) -> dict[str, list[onnx.NodeProto]]:
    """Return the nodes of `graph` that read each tensor, in order and each once.

    A tensor that a body reads counts as read by the body's node.
    """
    users: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in dict.fromkeys(iter_reads(node)):
            users[name].append(node)
    return users


def find_makers_anywhere(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """Return the node that makes each tensor of `graph` and of its bodies.

    The maker of a body's input is the node that contains the body.
    """
    makers: dict[str, onnx.NodeProto] = {}
    for node in iter_nodes(graph):
        makers.update((name, node) for name in node.output if name)
        for body in iter_bodies(node):
            makers.update((value.name, node) for value in body.input)
    return makers


def fresh_name(wanted: str, taken: Container[str]) -> str:
    """Return `wanted` with as many underscores appended as make it differ from the taken names."""
    while wanted in taken:
        wanted += "_"
    return wanted


def sort_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto] | None:
    """Return the nodes of `graph`, without its bodies, in an order in which each reads only earlier
    results.

    The order is as near as possible to the present one; None means that the present order is
    already sorted. Raises GraphError for nodes that depend on each other.
    """
    makers = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    waits = [[makers[name] for name in iter_reads(node) if name in makers] for node in graph.node]
    if all(maker < i for i, maker_places in enumerate(waits) for maker in maker_places):
        return None
    order: list[int] = []
    open_, done = set[int](), set[int]()
    for first in range(len(waits)):
        stack = [first]
        while stack:
            i = stack[-1]
            if i not in done and i not in open_:
                open_.add(i)
                stack += (maker for maker in reversed(waits[i]) if maker not in done)
                continue
            stack.pop()
            if i not in done:
                if any(maker not in done for maker in waits[i]):
                    raise GraphError(
                        f"node {graph.node[i].name or graph.node[i].output[0]!r} depends on its "
                        "own result; expected a graph without cycles"
                    )
                done.add(i)
                order.append(i)
    return [graph.node[i] for i in order]


def has_types(graph: onnx.GraphProto, kinds: Collection[int]) -> bool:
    """Return whether a graph has inputs, outputs, weights or Casts of one of these types."""
    types = {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
    types |= {tensor.data_type for tensor in graph.initializer}
    types |= {
        entry.i
        for node in graph.node
        if node.op_type == "Cast"
        for entry in node.attribute
        if entry.name == "to"
    }
    return not types.isdisjoint(kinds) or any(
        has_types(body, kinds) for node in graph.node for body in iter_bodies(node)
    )
