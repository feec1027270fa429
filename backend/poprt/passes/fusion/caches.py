"""Pass that carries the caches in a Loop's body as loop state."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import onnx
from onnx import helper
from onnxgraph import (
    CHIP_DOMAIN,
    GraphView,
    NameScope,
    Tape,
    attribute,
    infer_shapes,
    iter_bodies,
    iter_nodes,
    replace_nodes,
    types_of,
)
from simipu import CompileError
from simipu.operators import has_past, names_where

from poprt.rewrite.base import Pass, Stage, register

_BEFORE_STATES = 2
"""Number of inputs of a Loop and its body before the loop state: trip count and condition. A body
has one such result."""
_VIEWS = names_where(lambda entry: entry.keeps_order) | {"Cast"}
"""Operators that exporters put between a cache and the node that reads it."""
_MAX_VIEWS = 8
"""Maximum number of them, one after the other: a pass goes a bounded number of steps."""
_ADVICE = "a run begins with empty caches here, so that the first step of a run has to be 0"


@register("carry_caches", stage=Stage.CHECKS, is_ours=True)
class CarryCaches(Pass):
    """Give each KVCache in a Loop's body what it kept as a third input, which goes round the Loop
    and is empty when the Loop begins.

    On the real chip a cache is a variable that lives on between runs until a step of 0 clears it.
    Here a run begins with empty caches, which is the same where its first step is 0, as scripts
    have it: a Loop that begins with another, or with one that callers choose, is refused, and so is
    a cache deeper inside. Outside of a Loop there is one step in a run: it has to be 0.
    """

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Carry the caches. Raise CompileError for a cache whose first step is not known to be
        0."""
        if not any(map(_is_open, iter_nodes(model.graph))):
            return model
        graph, inferred_graph = model.graph, infer_shapes(model).graph
        view = GraphView(NameScope.of(model), graph, inferred_graph)
        nodes: list[onnx.NodeProto] = []
        for node, inferred in zip(graph.node, inferred_graph.node, strict=True):
            if _is_open(node):
                _check_first(node, node.input[0], view)
            elif node.op_type == "Loop":
                nodes += _carry(node, inferred, view)
            else:
                _refuse_deeper(node)
            nodes.append(node)
        replace_nodes(graph, nodes)
        return model


def _is_open(node: onnx.NodeProto) -> bool:
    """Return whether a node is a KVCache without an input for its past."""
    return node.domain == CHIP_DOMAIN and node.op_type == "KVCache" and not has_past(node)


def _refuse_deeper(node: onnx.NodeProto) -> None:
    for inner in (inner for body in iter_bodies(node) for inner in iter_nodes(body)):
        if _is_open(inner):
            raise CompileError(
                f"node {inner.name!r} (KVCache) is inside {node.op_type} {node.name!r}: what it "
                "keeps can go round a Loop of the main graph only; put it there"
            )


def _find_source(name: str, makers: dict[str, onnx.NodeProto]) -> str:
    """Return the name of a scalar tensor before any casts and reshapes."""
    for _ in range(_MAX_VIEWS):
        node = makers.get(name)
        if node is None or node.op_type not in _VIEWS:
            return name
        name = node.input[0]
    return name


def _check_first(node: onnx.NodeProto, name: str, view: GraphView) -> None:
    source = _find_source(name, view.makers)
    first = view.number(source)
    if first != 0:
        description = "one that is known at run time only" if first is None else f"{first:g}"
        raise CompileError(
            f"node {node.name!r} (KVCache): expected a first step {source!r} of 0, found "
            f"{description}; {_ADVICE}"
        )


def _carry(
    loop: onnx.NodeProto, inferred: onnx.NodeProto, view: GraphView
) -> Iterator[onnx.NodeProto]:
    """Add the caches of a Loop's body to its loop state. Yield the nodes that make
    the empty initial states."""
    body: onnx.GraphProto = attribute(loop, "body")
    types = types_of(attribute(inferred, "body"))
    makers = {name: node for node in body.node for name in node.output}
    starts = dict(zip((value.name for value in body.input[1:]), loop.input[1:], strict=True))
    count = len(loop.input) - _BEFORE_STATES
    for node in list(body.node):
        if not _is_open(node):
            _refuse_deeper(node)
            continue
        source = _find_source(node.input[0], makers)
        # The iteration number begins at 0.
        if source != body.input[0].name:
            _check_first(node, starts.get(source, source), view)
        result = node.output[0]
        tensor = types.get(result)
        if tensor is None or not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            raise CompileError(
                f"node {node.name!r} (KVCache): the shape of its result is not known"
            )
        past, empty, last = (
            view.names.take(f"{result}/{name}") for name in ("past", "empty", "last")
        )
        state = helper.make_tensor_value_info(past, tensor.elem_type, None)
        state.type.tensor_type.CopyFrom(tensor)
        node.input[2:] = [past]
        loop.input.append(empty)
        body.input.append(state)
        # Scan outputs, to which each iteration adds a slice, come after the loop state.
        loop.output.insert(count, last)
        carried = copy.deepcopy(state)
        carried.name = result
        body.output.insert(1 + count, _alias(body, carried, view.names))
        count += 1
        yield from _make_empty(empty, tensor)


def _alias(
    body: onnx.GraphProto, value: onnx.ValueInfoProto, names: NameScope
) -> onnx.ValueInfoProto:
    """Give a result a second name with an Identity, since a body may return a result only once."""
    source, value.name = value.name, names.take(f"{value.name}/kept")
    body.node.append(helper.make_node("Identity", [source], [value.name], name=value.name))
    return value


def _make_empty(name: str, tensor: onnx.TypeProto.Tensor) -> list[onnx.NodeProto]:
    zero = helper.make_tensor("zero", tensor.elem_type, [1], [0])
    op = Tape(f"{name}/sizes")
    sizes = op.ints([dim.dim_value for dim in tensor.shape.dim])
    op.add_as(name, "ConstantOfShape", sizes, value=zero)
    return op.nodes
