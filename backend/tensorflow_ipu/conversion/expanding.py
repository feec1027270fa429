"""Expansion of a graph: operators that tf2onnx does not know become operators that it knows.

The graph is written anew, operator by operator. An operator with an entry in the table is replaced
by what its function returns: a composition of TensorFlow's own operators, which TensorFlow itself
can check, or a marker node. Bodies of If, Case and While are expanded in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import tensorflow as tf
from tensorflow.python.framework import func_graph, function_def_to_graph
from tensorflow.python.ops import control_flow_util_v2

Expansion = Callable[[tf.Operation, list[tf.Tensor]], Any]
"""Function of an operation of the given graph and of its inputs in the new one. It returns the
outputs: a tensor, or a sequence of them."""

EXPANSIONS: dict[str, Expansion] = {}
"""Expansions by the types of operations; the modules of `expansions` register them."""
_BODIES: Final = ("body", "cond", "then_branch", "else_branch", "branches")
"""Attributes that are functions which stay functions."""
_BACK_EDGE = "NextIteration"


def expands(*types: str) -> Callable[[Expansion], Expansion]:
    """Return a decorator that registers the expansion of some types of operations."""

    def register(expansion: Expansion) -> Expansion:
        EXPANSIONS.update(dict.fromkeys(types, expansion))
        return expansion

    return register


def expand(
    graph: tf.Graph, inputs: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor]
) -> tuple[tf.Graph, list[tf.Tensor], list[tf.Tensor]]:
    """Write a graph with expansions in place of operators that have one.

    Args:
        graph: The graph, which is not changed.
        inputs: Its inputs.
        outputs: Its outputs; what neither these nor the inputs need is left out.

    Returns:
        The new graph, its inputs and its outputs. Operations that stay keep their names.
    """
    from tensorflow_ipu.conversion import expansions  # noqa: F401 - they register themselves

    for number in range(_MAX_PASSES):
        new = tf.Graph()
        new._ipu_pass = number  # noqa: SLF001
        with new.as_default(), tf.control_dependencies(None):
            tensors = _write(graph, [*inputs, *outputs], new, {})
        inputs, outputs = ([tensors[_key(x)] for x in values] for values in (inputs, outputs))
        graph = new
        if not _has_expansions(graph):
            break
    return graph, list(inputs), list(outputs)


_MAX_PASSES: Final = 4
"""Passes of expansion: some expansions have operators that are expanded themselves."""


def _has_expansions(graph: tf.Graph) -> bool:
    """Return whether a graph, or a function of it, still has operators with an expansion."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    return any(node.op in EXPANSIONS for node in nodes)


def _key(tensor: tf.Tensor) -> str:
    return str(tensor.name)


def _write(
    graph: tf.Graph,
    outputs: Sequence[tf.Tensor],
    new: tf.Graph,
    tensors: dict[str, tf.Tensor],
) -> dict[str, tf.Tensor]:
    """Write what the outputs need into a graph. Return the new tensors by the names of the old."""
    needed = _find_needed(outputs)
    late: list[tuple[tf.Operation, int, str]] = []
    for operation in graph.get_operations():
        if operation.name not in needed or all(_key(x) in tensors for x in operation.outputs):
            continue
        values = []
        for place, source in enumerate(operation.inputs):
            value = tensors.get(_key(source))
            if value is None:
                # The back edge of a loop: the first input stands for it until it is there.
                late.append((operation, place, _key(source)))
                value = values[0]
            values.append(value)
        results = _write_operation(operation, values, new)
        tensors.update(
            (_key(old), result) for old, result in zip(operation.outputs, results, strict=True)
        )
    for operation, place, source in late:
        tensors[_key(operation.outputs[0])].op._update_input(place, tensors[source])  # noqa: SLF001
    return tensors


def _find_needed(outputs: Iterable[tf.Tensor]) -> set[str]:
    """Return the names of the operations that some tensors need."""
    needed = set[str]()
    waiting = [tensor.op for tensor in outputs]
    while waiting:
        operation = waiting.pop()
        if operation.name not in needed:
            needed.add(operation.name)
            waiting.extend(tensor.op for tensor in operation.inputs)
    return needed


def _write_operation(
    operation: tf.Operation, inputs: list[tf.Tensor], new: tf.Graph
) -> Sequence[tf.Tensor]:
    expansion = EXPANSIONS.get(operation.type)
    if expansion is not None:
        # The number keeps new names apart from those that another pass has made.
        with tf.name_scope(f"{operation.name}/expanded{new._ipu_pass}/"):  # noqa: SLF001
            results = expansion(operation, inputs)
        if results is not NotImplemented:
            results = list(results) if isinstance(results, (list, tuple)) else [results]
            return _label(operation, results)
    return copy_operation(operation, inputs, new)


def _label(operation: tf.Operation, results: list[tf.Tensor]) -> list[tf.Tensor]:
    """Return results with the static shapes that the operation's outputs have."""
    for old, result in zip(operation.outputs, results, strict=True):
        result.set_shape(result.shape.merge_with(old.shape))
    return results


def copy_operation(
    operation: tf.Operation, inputs: Sequence[tf.Tensor], new: tf.Graph
) -> Sequence[tf.Tensor]:
    """Write an operation as it is; functions that it calls are expanded.

    Args:
        operation: Operation of the given graph.
        inputs: Its inputs in the new graph.
        new: The new graph.

    Returns:
        Its outputs in the new graph.
    """
    attributes = dict(operation.node_def.attr)
    for name in _BODIES:
        if name in attributes:
            attributes[name] = _expand_functions(operation.graph, attributes[name], new)
    copy = new._create_op_internal(  # noqa: SLF001
        operation.type,
        list(inputs),
        dtypes=[tensor.dtype for tensor in operation.outputs],
        name=f"{operation.name}/" if _is_free(operation.name, new) else operation.name,
        attrs=attributes,
        op_def=operation.op_def,
    )
    for old, result in zip(operation.outputs, copy.outputs, strict=True):
        if result.dtype not in (tf.resource, tf.variant):
            result.set_shape(old.shape)
    return list(copy.outputs)


def _is_free(name: str, graph: tf.Graph) -> bool:
    """Return whether no operation of a graph has a name yet."""
    try:
        graph.get_operation_by_name(name)
    except KeyError:
        return True
    return False


def _expand_functions(graph: tf.Graph, value: Any, new: tf.Graph) -> Any:
    """Return an attribute with the expanded functions of another one."""
    attribute = type(value)()
    attribute.CopyFrom(value)
    functions = attribute.list.func if attribute.HasField("list") else [attribute.func]
    for function in functions:
        function.name = _expand_function(graph, function.name, new)
    return attribute


def _expand_function(graph: tf.Graph, name: str, new: tf.Graph) -> str:
    """Add an expanded function to a graph, and return its name."""
    body = open_function(graph, name)
    expanded = func_graph.FuncGraph(f"{name}_expanded")
    expanded._ipu_pass = new._ipu_pass  # noqa: SLF001
    with expanded.as_default():
        tensors: dict[str, tf.Tensor] = {}
        for value in body.inputs:
            tensors[_key(value)] = _add_input(value)
        _write(body, body.outputs, expanded, tensors)
        expanded.inputs = [tensors[_key(value)] for value in body.inputs]
        expanded.outputs = [tensors[_key(value)] for value in body.outputs]
    with new.as_default():
        return str(control_flow_util_v2.create_new_tf_function(expanded))


def _add_input(value: tf.Tensor) -> tf.Tensor:
    return tf.compat.v1.placeholder(value.dtype, value.shape, name=value.op.name)


def open_function(graph: tf.Graph, name: str) -> Any:
    """Return the graph of a function of a graph's library.

    Args:
        graph: Graph whose library has the function.
        name: Name of the function.

    Returns:
        The graph, with inputs and outputs.
    """
    function = graph._get_function(name)  # noqa: SLF001
    definition = function.cached_definition if hasattr(function, "cached_definition") else None
    if definition is None:
        definition = function.definition
    with graph.as_default():
        return function_def_to_graph.function_def_to_graph(definition)


def write_body(body: Any, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Write the operations of a function into the current graph.

    Args:
        body: Graph of the function.
        values: Its arguments, tensors that the current graph can read.

    Returns:
        Its results.
    """
    graph = tf.compat.v1.get_default_graph()
    if not hasattr(graph, "_ipu_pass"):
        graph._ipu_pass = _MAX_PASSES  # noqa: SLF001
    tensors = {_key(old): value for old, value in zip(body.inputs, values, strict=True)}
    _write(body, body.outputs, graph, tensors)
    return [tf.identity(tensors[_key(output)]) for output in body.outputs]
