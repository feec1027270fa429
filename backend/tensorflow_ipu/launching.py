"""Launches computations: at once in eager mode, or as a node of TensorFlow's graph."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue
from tensorflow.python.framework import func_graph as func_graph_module
from tensorflow.python.ops import resource_variable_ops

from popef._tools.arrays import Array
from tensorflow_ipu.execution import Computation, Input, VariableValues
from tensorflow_ipu.graphs import written_inputs
from tensorflow_ipu.plan import VariableKey

HOST: Final = "_ipu_host"
"""Attribute of operations that belong to a launch, and are no part of a computation."""


def trace(function: Callable[..., Any], arguments: Sequence[Any], name: str) -> Any:
    """Trace a function of tensors into a FuncGraph.

    Args:
        function: The function; it may return None, operations and tensors.
        arguments: Tensors, or structures of them, like those that it will get.
        name: Name of the graph.

    Returns:
        The FuncGraph.
    """
    specs = tf.nest.map_structure(
        lambda value: tf.TensorSpec(value.shape, value.dtype), list(arguments)
    )

    def lift(next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        initial = kwargs.get("initial_value")
        if isinstance(initial, tf.Tensor) and hasattr(initial, "graph"):
            from tensorflow.python.eager import lift_to_graph

            with tf.init_scope():
                target = tf.compat.v1.get_default_graph()
                if initial.graph is not target and not tf.executing_eagerly():
                    lifted = lift_to_graph.lift_to_graph([initial], target)
                    kwargs["initial_value"] = lifted[initial]
        kwargs["use_resource"] = True
        return next_creator(**kwargs)

    def traced(*values: Any) -> Any:
        with tf.variable_creator_scope(lift):
            return function(*values)

    with contextlib.ExitStack() as stack:
        if not tf.executing_eagerly():
            # Variables are made in the graph around the function. TensorFlow finds a global default
            # graph only if it is entered; else it would make them in eager mode.
            stack.enter_context(tf.compat.v1.get_default_graph().as_default())
        return func_graph_module.func_graph_from_py_func(
            name, traced, specs, {}, add_control_dependencies=True
        )


def make_computation(
    graph: Any, ordinal: int = 0, arguments: Sequence[Any] = ()
) -> tuple[Computation, list[tf.Tensor]]:
    """Return the computation of a FuncGraph.

    Args:
        graph: The FuncGraph.
        ordinal: Number of the device.
        arguments: Tensors of the graph around it that it is called with; they name its inputs.

    Returns:
        The computation, and the tensors that the graph captures, which are its last inputs.
    """
    external = {id(inner): outer for outer, inner in graph.captures}
    names = _variable_names(graph)
    counts: Counter[str] = Counter()
    inputs = []
    for number, tensor in enumerate(graph.inputs):
        outer = external.get(id(tensor))
        if tensor.dtype == tf.resource:
            key = variable_key(tensor, outer, names)
            count = counts[key.name]
            counts[key.name] += 1
            if count:  # TensorFlow lets several variables have one name
                key = dataclasses.replace(key, name=f"{key.name}_{count}")
            inputs.append(Input(tensor.op.name, tensor, key))
        else:
            source = arguments[number] if number < len(arguments) else outer
            inputs.append(Input(_name_argument(tensor if source is None else source), tensor))
    outputs = [f"_retval{n}" for n in range(len(graph.outputs))]
    captured = [external[id(tensor)] for tensor in graph.inputs if id(tensor) in external]
    return Computation(graph, inputs, outputs, ordinal), captured


def _name_argument(tensor: Any) -> str:
    """Return the name of a tensor's operation, or what an eager tensor is called."""
    return "argument" if tf.is_tensor(tensor) and hasattr(tensor, "_numpy") else tensor.op.name


def _variable_names(graph: Any) -> dict[int, str]:
    return {id(variable.handle): variable.name.split(":")[0] for variable in graph.variables}


def variable_key(inner: tf.Tensor, outer: Any, names: dict[int, str]) -> VariableKey:
    data = resource_variable_ops.get_eager_safe_handle_data(inner if outer is None else outer)
    if not data.is_set or not data.shape_and_type:
        raise TypeError(f"{inner.op.name}: the IPU takes variables, and no other resources")
    facts = data.shape_and_type[0]
    name = names.get(id(outer))
    if name is None and outer is not None and hasattr(outer, "op"):
        name = outer.op.name if not isinstance(outer, type(None)) else None
    return VariableKey(name or inner.op.name, tf.as_dtype(facts.dtype), tf.TensorShape(facts.shape))


def run_eagerly(
    computation: Computation, arguments: Sequence[Any], captured: Sequence[Any]
) -> list[tf.Tensor]:
    """Run a computation at once.

    Args:
        computation: The computation.
        arguments: Tensors or variables for the inputs that the graph does not capture.
        captured: What it captures.

    Returns:
        Its outputs.
    """
    values, handles = _split(computation, [*arguments, *captured])
    arrays = [_as_array(value) for value in values]
    with tf.device("/device:CPU:0"):
        variables = VariableValues(
            {
                name: _as_array(tf.raw_ops.ReadVariableOp(resource=handle, dtype=key.dtype))
                for name, (key, handle) in handles.items()
            }
        )
        results = computation.run(arrays, variables)
        for name, value in variables.changed.items():
            tf.raw_ops.AssignVariableOp(resource=handles[name][1], value=tf.constant(value))
        return [tf.constant(value) for value in results]


def _as_array(value: Any) -> Array:
    """Return a tensor's values, not copied where TensorFlow shares them."""
    share = getattr(value, "_numpy", None)
    return np.asarray(value if share is None else share())


def _split(
    computation: Computation, arguments: Sequence[Any]
) -> tuple[list[Any], dict[str, tuple[VariableKey, Any]]]:
    values, handles = [], {}
    for item, value in zip(computation.inputs, arguments, strict=True):
        if item.variable is None:
            values.append(value)
        else:
            handles[item.variable.name] = (item.variable, getattr(value, "handle", value))
    return values, handles


def launch(
    computation: Computation, arguments: Sequence[Any], captured: Sequence[Any]
) -> list[tf.Tensor]:
    """Add a computation to the current graph, as a node that runs it.

    Args:
        computation: The computation.
        arguments: Tensors for the inputs that the graph does not capture.
        captured: What it captures.

    Returns:
        Its outputs.
    """
    values, handles = _split(computation, [*arguments, *captured])
    keys = [key for key, _ in handles.values()]
    written = [computation.inputs[number].variable for number in written_inputs(computation.graph)]
    changed = [key for key in keys if key in written]

    def run(*arrays: Array) -> list[Array]:
        variables = VariableValues(
            {key.name: array for key, array in zip(keys, arrays[len(values) :], strict=True)}
        )
        try:
            results = computation.run(arrays[: len(values)], variables)
        except Exception as error:
            keep_error(error)
            raise
        return [*results, *(variables[key] for key in changed)] or [np.array(False)]

    outputs = computation.graph.outputs
    with tf.device(None), tf.device("/device:CPU:0"), _host_operations():
        reads = [
            tf.raw_ops.ReadVariableOp(resource=handle, dtype=key.dtype)
            for key, handle in handles.values()
        ]
        types = [tensor.dtype for tensor in outputs] + [key.dtype for key in changed]
        results = tf.numpy_function(run, [*values, *reads], types or [tf.bool], stateful=True)
        assigns = [
            tf.raw_ops.AssignVariableOp(resource=handles[key.name][1], value=value)
            for key, value in zip(changed, results[len(outputs) : len(types)], strict=True)
        ]
        with tf.control_dependencies(assigns):
            tensors = [tf.identity(tensor) for tensor in results[: len(outputs) or 1]]
    for tensor, source in zip(tensors, outputs, strict=False):
        tensor.set_shape(source.shape)
    return tensors


def _host_operations() -> Any:
    graph = tf.compat.v1.get_default_graph()
    return graph._attr_scope({HOST: AttrValue(b=True)})  # noqa: SLF001


def keep_error(error: Exception) -> None:
    """Keep an error of a computation, so that its session can raise it as it is."""
    _errors.append(error)


def take_error(text: str) -> Exception | None:
    """Return the kept error that TensorFlow's error has the text of, and forget it.

    Several sessions may fail at the same time, each with an error of its own.

    Args:
        text: Text of TensorFlow's error.

    Returns:
        The error of the computation, or None if it is another one's.
    """
    found = next((error for error in reversed(_errors) if str(error) in text), None)
    if found is not None:
        _errors.remove(found)
    return found


_errors: deque[Exception] = deque(maxlen=64)
"""Errors of computations in graphs that no session has raised yet, the newest ones."""


def run_function(function: Callable[..., Any], arguments: Sequence[Any]) -> list[tf.Tensor]:
    """Trace a function, compile it and run it: at once in eager mode, else as a node.

    Args:
        function: Function of tensors.
        arguments: The tensors.

    Returns:
        The tensors that it returns, flattened.
    """
    graph = trace(function, arguments, getattr(function, "__name__", "computation"))
    computation, captured = make_computation(graph)
    run = run_eagerly if tf.executing_eagerly() else launch
    return run(computation, tf.nest.flatten(list(arguments)), captured)
