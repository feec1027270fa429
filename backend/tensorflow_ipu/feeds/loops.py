"""Loops of the IPU: `repeat` and `while_loop`, whose bodies may take an infeed's elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.ops import while_v2

from tensorflow_ipu.feeds.arguments import check_call, split_element, to_list


def repeat(
    n: int,
    body: Callable[..., Any],
    inputs: Any = None,
    infeed_queue: Any = None,
    use_while_v1: bool = True,
) -> Any:
    """Run a body a number of times.

    Args:
        n: Number of iterations.
        body: Function of the loop's values, then of the infeed's element, that returns the new
            values and operations.
        inputs: First values of the loop.
        infeed_queue: IPUInfeedQueue whose elements the iterations get.
        use_while_v1: Accepted: it changes no value.

    Returns:
        An operation if the loop has no values, its tensor if it has one, else a list of tensors.
    """
    return while_loop(
        lambda i, *_: tf.less(i, n),
        body,
        inputs,
        infeed_queue,
        use_while_v1=use_while_v1,
        _counts=True,
    )


def while_loop(
    condition: Callable[..., Any],
    body: Callable[..., Any],
    inputs: Any = None,
    infeed_queue: Any = None,
    maximum_iterations: int | None = None,
    use_while_v1: bool = True,
    _counts: bool = False,
) -> Any:
    """Run a body as long as a condition of the loop's values is true.

    Args:
        condition: Function of the loop's values.
        body: As for `repeat`.
        inputs: First values of the loop.
        infeed_queue: IPUInfeedQueue whose elements the iterations get.
        maximum_iterations: Maximum number of iterations.
        use_while_v1: Accepted: it changes no value.

    Returns:
        As `repeat`.

    Raises:
        TypeError: For a body that cannot be called with these values, or that returns others.
        ValueError: For a body that returns operations before tensors.
    """
    del use_while_v1
    values = [] if inputs is None else to_list(inputs)
    tensors = [
        value if isinstance(value, tf.TensorArray) else tf.convert_to_tensor(value)
        for value in values
    ]
    dtypes = [tensor.dtype for tensor in tensors]
    check_call(body, "body", tensors, infeed_queue)
    if not _counts:
        check_call(condition, "condition", tensors)

    def run_body(number: Any, *arguments: tf.Tensor) -> list[Any]:
        element = [] if infeed_queue is None else infeed_queue._dequeue()  # noqa: SLF001
        positional, named = split_element(element)
        outputs, operations = _split_outputs(body(*arguments, *positional, **named))
        _check_types(dtypes, outputs)
        with tf.control_dependencies(operations):
            return [number + 1, *(tf.nest.map_structure(tf.identity, outputs))]

    def run_condition(number: Any, *arguments: tf.Tensor) -> Any:
        return condition(number, *arguments) if _counts else condition(*arguments)

    results = while_v2.while_loop(
        run_condition,
        run_body,
        [tf.constant(0), *tensors],
        maximum_iterations=maximum_iterations,
        return_same_structure=True,
    )
    if not tensors:
        with tf.control_dependencies([results[0]]):
            return tf.no_op(name="repeat")
    return results[1] if len(tensors) == 1 else list(results[1:])


def _split_outputs(outputs: Any) -> tuple[list[tf.Tensor], list[tf.Operation]]:
    """Return the tensors and the operations that a body returned."""
    flat = [
        value if isinstance(value, (tf.Operation, tf.TensorArray)) else tf.convert_to_tensor(value)
        for value in to_list([] if outputs is None else outputs)
        if value is not None
    ]
    operations = [value for value in flat if isinstance(value, tf.Operation)]
    tensors = flat[: len(flat) - len(operations)]
    if any(isinstance(value, tf.Operation) for value in tensors):
        raise ValueError(
            "IPU loop body must return zero or more Tensor values followed by zero or more "
            "Operations."
        )
    return tensors, operations


def _check_types(expected: Sequence[tf.DType], outputs: Sequence[tf.Tensor]) -> None:
    found = [tensor.dtype for tensor in outputs]
    if list(expected) != found:
        raise TypeError(
            f"Mismatch between input types and output types for loop body: {list(expected)} vs "
            f"{found}."
        )
