"""Expansion of a graph: operators that tf2onnx does not know become operators that it knows.

The graph is written anew, operator by operator. An operator with an entry in the table is replaced
by what its function returns: a composition of TensorFlow's own operators, which TensorFlow itself
can check, or a marker node. Bodies of If, Case and While are expanded in the same way.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.python.framework import func_graph, function_def_to_graph
from tensorflow.python.ops import control_flow_util_v2

Expansion = Callable[[tf.Operation, list[tf.Tensor]], Any]
"""Function of an operation of the given graph and of its inputs in the new one. It returns the
outputs: a tensor, or a sequence of them."""

EXPANSIONS: dict[str, Expansion] = {}
"""Expansions by the types of operations; the modules of `expansions` register them."""
LIST_EXPANSIONS: dict[str, Expansion] = {}
"""Expansions of operations on lists of tensors."""
_BODIES: Final = ("body", "cond", "then_branch", "else_branch", "branches")
"""Attributes that are functions which stay functions."""
_numbers = itertools.count()
"""Numbers of functions, whose names TensorFlow shares between graphs."""


def expands(*types: str) -> Callable[[Expansion], Expansion]:
    """Return a decorator that registers the expansion of some types of operations."""

    def register(expansion: Expansion) -> Expansion:
        EXPANSIONS.update(dict.fromkeys(types, expansion))
        return expansion

    return register


def expands_list(*types: str) -> Callable[[Expansion], Expansion]:
    """Return a decorator that registers the expansion of some types of operations on lists."""

    def register(expansion: Expansion) -> Expansion:
        LIST_EXPANSIONS.update(dict.fromkeys(types, expansion))
        return expansion

    return register


def expand(
    graph: tf.Graph,
    inputs: Sequence[tf.Tensor],
    outputs: Sequence[tf.Tensor],
    with_lists: bool = False,
) -> tuple[tf.Graph, list[tf.Tensor], list[tf.Tensor]]:
    """Write a graph with expansions in place of operators that have one.

    Args:
        graph: The graph, which is not changed.
        inputs: Its inputs.
        outputs: Its outputs; what neither these nor the inputs need is left out.
        with_lists: Make tensors of lists of tensors.

    Returns:
        The new graph, its inputs and its outputs. Operations that stay keep their names.
    """
    from tensorflow_ipu.conversion import expansions  # noqa: F401 - they register themselves

    for number in range(_MAX_PASSES):
        new = tf.Graph()
        new._ipu_pass = number  # noqa: SLF001
        new._ipu_lists = with_lists  # noqa: SLF001
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
        values: list[tf.Tensor] = []
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
    if expansion is None and new._ipu_lists:  # noqa: SLF001
        expansion = LIST_EXPANSIONS.get(operation.type)
    if expansion is not None:
        # The number keeps new names apart from those that another pass has made.
        with tf.name_scope(f"{_prefix(new)}{operation.name}/expanded{new._ipu_pass}/"):  # noqa: SLF001
            results = expansion(operation, inputs)
        if results is not NotImplemented:
            results = list(results) if isinstance(results, (list, tuple)) else [results]
            return _label(operation, results)
    return copy_operation(operation, inputs, new)


def _label(operation: tf.Operation, results: list[tf.Tensor]) -> list[tf.Tensor]:
    """Return results with the static shapes that the operation's outputs have."""
    for old, result in zip(operation.outputs, results, strict=True):
        if old.dtype != tf.variant:
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
    types = [tensor.dtype for tensor in operation.outputs]
    if any(name in attributes for name in _BODIES):
        types = _expand_bodies(operation, inputs, attributes, new)
    name = _prefix(new) + operation.name
    copy = new._create_op_internal(  # noqa: SLF001
        operation.type,
        list(inputs),
        dtypes=types,
        name=f"{name}/" if _is_free(name, new) else name,
        attrs=attributes,
        op_def=operation.op_def,
    )
    for old, result in zip(operation.outputs, copy.outputs, strict=True):
        if old.dtype not in (tf.resource, tf.variant):
            result.set_shape(old.shape)
    return list(copy.outputs)


def _expand_bodies(
    operation: tf.Operation,
    inputs: Sequence[tf.Tensor],
    attributes: dict[str, Any],
    new: tf.Graph,
) -> list[Any]:
    """Expand the functions of an operation, whose lists may have become tensors. Change its
    attributes, and return the types of its outputs."""
    is_loop = "body" in attributes
    values = inputs if is_loop else inputs[1:]
    results: Sequence[tf.Tensor] = []
    for name in _BODIES:
        if name in attributes:
            attributes[name], outputs = _expand_functions(
                operation.graph, attributes[name], new, values
            )
            results = outputs if name != "cond" else results
    kinds = [value.dtype for value in values]
    if is_loop:
        results = list(values)
    else:
        attributes["Tin"] = _list_types(kinds)
    attributes["T" if is_loop else "Tout"] = _list_types([value.dtype for value in results])
    shapes = [
        old.shape if old.dtype not in (tf.variant, tf.resource) else value.shape
        for old, value in zip(operation.outputs, results, strict=True)
    ]
    attributes["output_shapes"] = AttrValue(
        list=AttrValue.ListValue(shape=[shape.as_proto() for shape in shapes])
    )
    return [value.dtype for value in results]


def _list_types(kinds: Iterable[Any]) -> Any:
    return AttrValue(list=AttrValue.ListValue(type=[kind.as_datatype_enum for kind in kinds]))


def _is_free(name: str, graph: tf.Graph) -> bool:
    """Return whether no operation of a graph has a name yet."""
    try:
        graph.get_operation_by_name(name)
    except KeyError:
        return True
    return False


def _expand_functions(
    graph: tf.Graph, value: Any, new: tf.Graph, arguments: Sequence[tf.Tensor]
) -> tuple[Any, Sequence[tf.Tensor]]:
    """Return an attribute with the expanded functions of another one, and the last one's
    outputs."""
    attribute = type(value)()
    attribute.CopyFrom(value)
    functions = attribute.list.func if attribute.HasField("list") else [attribute.func]
    outputs: Sequence[tf.Tensor] = []
    for function in functions:
        function.name, outputs = _expand_function(graph, function.name, new, arguments)
    return attribute, outputs


def _expand_function(
    graph: tf.Graph, name: str, new: tf.Graph, arguments: Sequence[tf.Tensor]
) -> tuple[str, Sequence[tf.Tensor]]:
    """Add an expanded function to a graph. Return its name and its outputs."""
    body = open_function(graph, name)
    number = next(_numbers)
    expanded = func_graph.FuncGraph(f"{name}_expanded{number}")
    expanded._ipu_prefix = f"f{number}/"  # noqa: SLF001
    expanded._ipu_pass = new._ipu_pass  # noqa: SLF001
    expanded._ipu_lists = new._ipu_lists  # noqa: SLF001
    with expanded.as_default():
        tensors: dict[str, tf.Tensor] = {}
        for value, argument in zip(body.inputs, arguments, strict=True):
            tensors[_key(value)] = _add_input(value, argument, _prefix(expanded))
        _write(body, body.outputs, expanded, tensors)
        expanded.inputs = [tensors[_key(value)] for value in body.inputs]
        expanded.outputs = [tensors[_key(value)] for value in body.outputs]
    with new.as_default():
        return str(control_flow_util_v2.create_new_tf_function(expanded)), expanded.outputs


def _prefix(graph: tf.Graph) -> str:
    """Return what names of a function's operations begin with: tf2onnx takes equal names in a
    function and in one that it calls for the same value."""
    return getattr(graph, "_ipu_prefix", "")


def _add_input(value: tf.Tensor, argument: tf.Tensor, prefix: str) -> tf.Tensor:
    """Add an input like a function's; a list that has become a tensor is a tensor inside, too."""
    source = argument if value.dtype == tf.variant else value
    return tf.compat.v1.placeholder(source.dtype, source.shape, name=prefix + value.op.name)


def open_function(graph: tf.Graph, name: str) -> Any:
    """Return the graph of a function of a graph's library.

    Args:
        graph: Graph whose library has the function.
        name: Name of the function.

    Returns:
        The graph, with inputs and outputs.
    """
    function = graph._get_function(name)  # noqa: SLF001
    traced = getattr(function, "graph", None)
    if traced is not None:
        return traced  # with the shapes that a definition lacks
    with graph.as_default():
        return function_def_to_graph.function_def_to_graph(function.cached_definition)


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
        graph._ipu_lists = getattr(graph.outer_graph, "_ipu_lists", False)  # noqa: SLF001
    tensors = {_key(old): value for old, value in zip(body.inputs, values, strict=True)}
    _write(body, body.outputs, graph, tensors)
    return [tf.identity(tensors[_key(output)]) for output in body.outputs]
