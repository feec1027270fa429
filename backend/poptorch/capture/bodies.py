"""If and Loop nodes of a captured model, made of marks that control flow leaves in it.

Control flow is captured in line. A mark stands where its results are taken: `If` reads the
condition and the results of both branches; `Loop` reads the results of one turn, which begins at
the mark `Turn`. A node that only a mark's results need belongs into that mark's body:

    x -> Mul -.                               x -> If(then: Mul, else: Sub)
    x -> Sub --If(flag, Mul:0, Sub:0)   =>

Bodies read values of the graphs around them, as ONNX allows.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, Final

import onnx
from onnx import TensorProto, helper
from onnxgraph import attribute, drop_opset, iter_reads, replace_nodes

from poptorch.errors import Error
from poptorch.operators.tracing import leave_node

DOMAIN: Final = "poptorch.control"
IF, TURN, LOOP = "If", "Turn", "Loop"
Values = dict[str, onnx.ValueInfoProto]


def mark(kind: str, inputs: Sequence[Any], like: Sequence[Any], **attributes: int) -> list[Any]:
    """Leave a mark in the capture.

    Args:
        kind: IF, TURN or LOOP.
        inputs: Tensors that the mark reads.
        like: Tensors with the types and shapes of its results.
        **attributes: Number of the loop, and of its turns.

    Returns:
        Its results.
    """
    return leave_node(DOMAIN, kind, inputs, like, attributes)


def lower_marks(model: onnx.ModelProto) -> None:
    """Replace the marks of a model by If and Loop nodes.

    Args:
        model: The model, which is changed.

    Raises:
        Error: If a tensor that a turn of a loop computes is used outside of the loop.
    """
    graph = model.graph
    if not any(node.domain == DOMAIN for node in graph.node):
        return
    values: Values = {
        value.name: value for value in (*graph.input, *graph.value_info, *graph.output)
    }
    nodes = _lower(list(graph.node), [value.name for value in graph.output], values)
    replace_nodes(graph, nodes)
    drop_opset(model, DOMAIN)


def _lower(nodes: list[onnx.NodeProto], outputs: Sequence[str], values: Values) -> list[Any]:
    """Return the nodes of a graph or body with its marks replaced; the last mark comes first."""
    # From the end: a mark may belong into the body of a later one, which is lowered in its turn.
    while True:
        mark_node = next((node for node in reversed(nodes) if _is_mark(node, IF, LOOP)), None)
        if mark_node is None:
            return nodes
        if mark_node.op_type == IF:
            replacement, moved = _make_if(mark_node, nodes, outputs, values)
        else:
            replacement, moved = _make_loop(mark_node, nodes, outputs, values)
        place = next(place for place, other in enumerate(nodes) if other is mark_node)
        before, after = (
            [other for other in part if id(other) not in moved]
            for part in (nodes[:place], nodes[place + 1 :])
        )
        nodes = [*before, *replacement, *after]


def _is_mark(node: onnx.NodeProto, *kinds: str) -> bool:
    return node.domain == DOMAIN and node.op_type in kinds


def _make_if(
    found: onnx.NodeProto, nodes: list[onnx.NodeProto], outputs: Sequence[str], values: Values
) -> tuple[list[onnx.NodeProto], set[int]]:
    """Return the If node of a mark, and which nodes are in its branches now."""
    results = found.input[1:]
    sides = results[: len(found.output)], results[len(found.output) :]
    bodies, moved = [], set()
    for name, side in zip(("then", "else"), sides, strict=True):
        inner = _gather(nodes, outputs, side)
        moved |= {id(node) for node in inner}
        bodies.append(_make_body(f"{found.name}/{name}", inner, side, [], values))
    branches: dict[str, Any] = dict(zip(("then_branch", "else_branch"), bodies, strict=True))
    if_node = helper.make_node("If", found.input[:1], found.output, found.name, **branches)
    return [if_node], moved


def _make_loop(
    found: onnx.NodeProto, nodes: list[onnx.NodeProto], outputs: Sequence[str], values: Values
) -> tuple[list[onnx.NodeProto], set[int]]:
    """Return the Loop node of a mark, and which nodes are in its body now."""
    number = attribute(found, "loop", 0)
    place, turn = next(
        (place, node)
        for place, node in enumerate(nodes)
        if _is_mark(node, TURN) and attribute(node, "loop", 0) == number
    )
    inner = _gather(nodes[place + 1 :], outputs, found.input)
    moved = {id(node) for node in inner}
    _check_inside(turn, [node for node in nodes if id(node) not in moved and node is not found])
    count, goes_on, more = (f"{found.name}/{name}" for name in ("count", "goes_on", "more"))
    inputs = [
        helper.make_tensor_value_info(count, TensorProto.INT64, []),
        helper.make_tensor_value_info(goes_on, TensorProto.BOOL, []),
        *(values[name] for name in turn.output),
    ]
    body = _make_body(found.name, inner, found.input, inputs, values)
    body.node.append(helper.make_node("Identity", [goes_on], [more]))
    body.output.insert(0, helper.make_tensor_value_info(more, TensorProto.BOOL, []))
    turns = f"{found.name}/turns"
    loop_nodes = [
        helper.make_node("Constant", [], [turns], value_int=attribute(found, "turns")),
        helper.make_node("Loop", [turns, "", *turn.input], found.output, found.name, body=body),
    ]
    return loop_nodes, moved | {id(turn)}


def _gather(
    nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], wanted: Collection[str]
) -> list[onnx.NodeProto]:
    """Return the nodes, in order, that only the wanted tensors need."""
    readers = Counter(itertools.chain(outputs, *(iter_reads(node) for node in nodes)))
    inside, gathered = Counter(wanted), []
    for node in reversed(nodes):
        results = [name for name in node.output if name]
        if any(inside[name] for name in results) and all(
            readers[name] == inside[name] for name in results
        ):
            gathered.append(node)
            inside.update(iter_reads(node))
    return gathered[::-1]


def _make_body(
    name: str,
    nodes: list[onnx.NodeProto],
    results: Sequence[str],
    inputs: list[onnx.ValueInfoProto],
    values: Values,
) -> onnx.GraphProto:
    """Return a body; results that it does not compute, or returns twice, pass through it."""
    lowered = _lower(nodes, results, values)
    computed = {output for node in lowered for output in node.output}
    outputs = []
    for place, result in enumerate(results):
        value = onnx.ValueInfoProto()
        value.CopyFrom(values[result])
        if result not in computed:
            value.name = f"{name}/result{place}"
            lowered.append(helper.make_node("Identity", [result], [value.name]))
        computed.discard(result)
        outputs.append(value)
    return helper.make_graph(lowered, name, inputs, outputs)


def _check_inside(turn: onnx.NodeProto, others: list[onnx.NodeProto]) -> None:
    """Raise Error if a node outside of a loop reads what a turn computes."""
    names = set(turn.output)
    for node in others:
        if names & set(iter_reads(node)):
            raise Error(
                f"poptorch.for_loop: {node.op_type} uses a tensor that the body computes, outside "
                "of the loop. Return the tensor from the body instead"
            )
