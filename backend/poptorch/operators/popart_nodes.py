"""Nodes of PopART's domain in a captured model: popart lowers each to the standard's operators."""

from __future__ import annotations

from collections.abc import Callable

import onnx
from onnxgraph import drop_opset, rename, replace_nodes
from popart import popart_exception
from popart.lowering import LoweringOptions, lower_chip_nodes

from poptorch.errors import Error

HINTS = "poptorch"
"""Domain of nodes that return their input and only tell the compiler something."""
_NEED_MEMORY = frozenset(
    {"Gather", "Gemm", "LSTM", "MatMul", "ScatterElements", "ScatterND", "ScatterReduce"}
)
"""Operators that set_available_memory looks for (PopTorch's FixupSetAvailableMemory.cpp)."""
_MAX_STEPS_BACK = 3
"""Operators that are looked at: the hint's own, and those one and two further back."""


def drop_copies(graph: onnx.GraphProto) -> None:
    """Read inputs of a captured model directly, not their copies.

    Args:
        graph: The graph, which is changed.
    """
    inputs, outputs = ({value.name for value in side} for side in (graph.input, graph.output))
    bypass(
        graph,
        lambda node: (
            node.op_type == "Identity" and node.input[0] in inputs and node.output[0] not in outputs
        ),
    )


def move_hints(graph: onnx.GraphProto) -> None:
    """Let set_available_memory refer to the operator that needs the memory.

    As in PopTorch, that is the nearest operator with such an option, its own input's first, then
    one and two operators further back. Each operator is taken once.

    Args:
        graph: The graph, which is changed.
    """
    makers = {name: node for node in graph.node for name in node.output}
    free: set[str] = set()
    for hint in list(graph.node):
        if hint.domain != HINTS:
            free.update(hint.output[:1] if hint.op_type in _NEED_MEMORY else ())
            continue
        names = hint.input[:1]
        for _ in range(_MAX_STEPS_BACK):
            target = next((name for name in names if name in free), None)
            if target is not None:
                free.remove(target)
                _move_hint(graph, hint, target)
                break
            names = [
                name_read for name in names if name in makers for name_read in makers[name].input
            ]


def _move_hint(graph: onnx.GraphProto, hint: onnx.NodeProto, target: str) -> None:
    """Let a hint read a tensor, whose readers read the hint."""
    old, result = hint.input[0], hint.output[0]
    if old == target:
        return
    nodes = [node for node in graph.node if node is not hint]
    for node in nodes:
        node.input[:] = [{result: old, target: result}.get(name, name) for name in node.input]
    for output in graph.output:
        output.name = old if output.name == result else output.name
    hint.input[0] = target
    place = next(index for index, node in enumerate(nodes) if target in node.output)
    replace_nodes(graph, [*nodes[: place + 1], hint, *nodes[place + 1 :]])


def drop_hints(model: onnx.ModelProto) -> None:
    """Remove PopTorch's hints, which compute nothing.

    Args:
        model: The model, which is changed.
    """
    bypass(model.graph, lambda node: node.domain == HINTS)
    drop_opset(model, HINTS)


def bypass(graph: onnx.GraphProto, is_bypassed: Callable[[onnx.NodeProto], bool]) -> None:
    """Remove nodes that return their input; outputs of the graph become their inputs.

    Args:
        graph: The graph, which is changed.
        is_bypassed: Function that says which nodes to remove.
    """
    names: dict[str, str] = {}
    others = []
    for node in graph.node:
        if is_bypassed(node):
            names[node.output[0]] = names.get(node.input[0], node.input[0])
        else:
            others.append(node)
    if not names:
        return
    replace_nodes(graph, others)
    rename(graph, names)
    for output in graph.output:
        output.name = names.get(output.name, output.name)


def lower_nodes(model: onnx.ModelProto, replicas: int = 1) -> None:
    """Replace the nodes of PopART's domain by what popart lowers them to.

    Args:
        model: The model, which is changed.
        replicas: Number of replicas that collectives join.

    Raises:
        Error: If PopART rejects a node.
    """
    try:
        lower_chip_nodes(model, LoweringOptions(replicas=replicas))
    except popart_exception as error:
        raise Error(str(error)) from error
