"""Questions about traced graphs: what they call, what they change, what they need."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import function_def_to_graph

from tensorflow_ipu import markers, placement, variable_operators


def function_graph(graph: Any, operation: tf.Operation, attribute: str, number: int = 0) -> Any:
    """Return the FuncGraph of a function that an operation calls.

    Args:
        graph: The graph of the operation, which knows the function.
        operation: The operation.
        attribute: Attribute with the name of the function, or a list of them.
        number: Place in the list.

    Returns:
        The FuncGraph.
    """
    value = operation.get_attr(attribute)
    name = (value[number] if isinstance(value, list) else value).name
    while graph is not None:
        function = graph._get_function(name)  # noqa: SLF001
        if function is not None:
            return _open_function(graph, function)
        graph = getattr(graph, "outer_graph", None)
    raise KeyError(name)


def _open_function(graph: Any, function: Any) -> Any:
    """Return the FuncGraph of a function; TensorFlow 1's Defun has none, only a definition."""
    if hasattr(function, "graph"):
        return function.graph
    if not hasattr(function, "_ipu_graph"):
        with graph.as_default():
            opened = function_def_to_graph.function_def_to_graph(function.definition)
        function._ipu_graph = opened  # noqa: SLF001
    return function._ipu_graph  # noqa: SLF001


def iter_called(graph: Any) -> Any:
    """Yield the FuncGraphs that operations of a graph call directly."""
    for operation in graph.get_operations():
        for attribute in ("f", "cond", "body", "then_branch", "else_branch"):
            if attribute in operation.node_def.attr and operation.node_def.attr[attribute].HasField(
                "func"
            ):
                yield function_graph(graph, operation, attribute)
        if "branches" in operation.node_def.attr:
            for number in range(len(operation.get_attr("branches"))):
                yield function_graph(graph, operation, "branches", number)


def find_effects(graph: Any) -> bool:
    """Return whether a graph, or one that it calls, exchanges values with the host or changes
    variables."""
    found = graph.__dict__.get("_ipu_effects") if hasattr(graph, "__dict__") else None
    if found is None:
        found = any(map(_has_effect, graph.get_operations())) or any(
            map(find_effects, iter_called(graph))
        )
    return found


def _has_effect(operation: tf.Operation) -> bool:
    return (
        operation.type in variable_operators.WRITERS
        or placement.OUTSIDE in operation.node_def.attr
        or markers.kind_of(operation)
        in (
            markers.DEQUEUE,
            markers.ENQUEUE,
            markers.CHECK,
            markers.STEP,
        )
    )


def find_assertions(graph: Any) -> dict[str, tf.Tensor]:
    """Return the conditions of a graph's assertions, by their names.

    An assertion is an operator Assert, or a conditional whose branch for False has one.
    """
    return {
        operation.name: operation.inputs[0]
        for operation in graph.get_operations()
        if operation.type == "Assert"
        or (operation.type in ("If", "StatelessIf") and _asserts(graph, operation))
    }


def _asserts(graph: Any, operation: tf.Operation) -> bool:
    branch = function_graph(graph, operation, "else_branch")
    return any(operation.type == "Assert" for operation in branch.get_operations())


def needed_operations(graph: Any, others: Iterable[tf.Tensor] = ()) -> list[tf.Operation]:
    """Return the operations that a FuncGraph's outputs and effects need, in their order.

    Args:
        graph: The FuncGraph.
        others: Further tensors that are needed.

    Returns:
        The operations.
    """
    roots = [tensor.op for tensor in (*graph.outputs, *others)]
    for operation in graph.get_operations():
        if _has_effect(operation) or _calls_effects(graph, operation):
            roots.append(operation)
    needed: set[str] = set()
    while roots:
        operation = roots.pop()
        if operation.name in needed:
            continue
        needed.add(operation.name)
        roots.extend(tensor.op for tensor in operation.inputs)
    return [operation for operation in graph.get_operations() if operation.name in needed]


def _calls_effects(graph: Any, operation: tf.Operation) -> bool:
    names = {"f", "cond", "body", "then_branch", "else_branch"} & set(operation.node_def.attr)
    called = [
        function_graph(graph, operation, name)
        for name in names
        if operation.node_def.attr[name].HasField("func")
    ]
    if "branches" in operation.node_def.attr:
        count = len(operation.get_attr("branches"))
        called += [function_graph(graph, operation, "branches", n) for n in range(count)]
    return any(map(find_effects, called))


def passed_through(graph: Any, number: int) -> bool:
    """Return whether an output of a FuncGraph is its input of the same number."""
    tensor = graph.outputs[number]
    while tensor.op.type == "Identity":
        tensor = tensor.op.inputs[0]
    return tensor is graph.inputs[number] or tensor.name == graph.inputs[number].name


def written_inputs(graph: Any) -> set[int]:
    """Return the numbers of a FuncGraph's inputs that are variables it changes."""
    origins = {
        tensor.name: number
        for number, tensor in enumerate(graph.inputs)
        if tensor.dtype == tf.resource
    }
    written: set[int] = set()
    for operation in graph.get_operations():
        sources = [origins.get(tensor.name) for tensor in operation.inputs]
        if operation.type in variable_operators.WRITERS and sources[0] is not None:
            written.add(sources[0])
        if operation.type == "Identity" and sources[0] is not None:
            origins[operation.outputs[0].name] = sources[0]
        if not any(source is not None for source in sources):
            continue
        for called, skipped in _called_with_inputs(graph, operation):
            for number in written_inputs(called):
                source = sources[number + skipped]
                if source is not None:
                    written.add(source)
    return written


def _called_with_inputs(graph: Any, operation: tf.Operation) -> list[tuple[Any, int]]:
    """Return the FuncGraphs that an operation calls, and how many of its inputs they lack."""
    attributes = operation.node_def.attr
    found = [
        (function_graph(graph, operation, name), skipped)
        for name, skipped in (("f", 0), ("body", 0), ("then_branch", 1), ("else_branch", 1))
        if name in attributes and attributes[name].HasField("func")
    ]
    if "branches" in attributes:
        count = len(operation.get_attr("branches"))
        found += [(function_graph(graph, operation, "branches", n), 1) for n in range(count)]
    return found
