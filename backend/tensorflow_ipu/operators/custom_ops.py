"""Users' own operators: compiled libraries, and expressions of vertices.

A library holds the chip's machine code, which is not run here. So what its operator computes is
registered as a function of TensorFlow's operators (`register_user_op_body`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

import tensorflow as tf

from tensorflow_ipu.operators.placement import on_ipu
from tensorflow_ipu.operators.vertex_edsl import DefaultNameSource, PlaceholderVertexExpr

_bodies: dict[tuple[str, str], Callable[..., Any]] = {}


def register_user_op_body(
    op_name: str = "Build", library: str = ""
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that defines what a custom operator computes.

    The function gets the input tensors, and `attributes` as a keyword argument if the operator has
    some. It returns a tensor or a sequence of tensors.

    Args:
        op_name: Name of the operator in the library.
        library: File name of the library, such as libcustom_op.so; empty means any library.

    Returns:
        The decorator.
    """

    def register(body: Callable[..., Any]) -> Callable[..., Any]:
        _bodies[library, op_name] = body
        return body

    return register


def precompiled_user_op(
    inputs: Sequence[Any],
    library_path: str,
    gp_path: str = "",
    outs: Mapping[str, Any] | None = None,
    name: str = "UserOp",
    op_name: str = "Build",
    separate_gradients: bool = False,
    inputs_with_gradients: Any = None,
    attributes: str | None = None,
    gradient_attributes: str | None = None,
) -> Any:
    """Call an operator of a library.

    Args:
        inputs: Tensors.
        library_path: Path of the library.
        gp_path: Path of the codelets, which are not run.
        outs: `output_types` and `output_shapes` of the results.
        name: Name of the operation.
        op_name: Name of the operator in the library.
        separate_gradients: Accepted; inference has no gradients.
        inputs_with_gradients: Accepted; inference has no gradients.
        attributes: Text that the operator gets.
        gradient_attributes: Accepted; inference has no gradients.

    Returns:
        A list of the results.

    Raises:
        ValueError: If attributes are no text, or a result has another type or shape.
        NotImplementedError: If no body is registered.
    """
    del gp_path, separate_gradients, inputs_with_gradients
    for what, value in (("attributes", attributes), ("gradient_attributes", gradient_attributes)):
        if value and not isinstance(value, str):
            raise ValueError(f"Expected {what} to be a 'str' type, but was {type(value)}.")
    return _call(inputs, library_path, outs or {}, name, op_name, attributes)


def cpu_user_operation(
    inputs: Sequence[Any],
    library_path: str,
    outs: Mapping[str, Any] | None = None,
    name: str = "UserOp",
    op_name: str = "Callback",
    separate_gradients: bool = False,
    inputs_with_gradients: Any = None,
    attributes: str | None = None,
    gradient_attributes: str | None = None,
) -> Any:
    """Call an operator of a library that the real system runs on the host.

    Args:
        inputs: Tensors.
        library_path: Path of the library.
        outs: `output_types` and `output_shapes` of the results.
        name: Name of the operation.
        op_name: Name of the operator in the library.
        separate_gradients: Accepted; inference has no gradients.
        inputs_with_gradients: Accepted; inference has no gradients.
        attributes: Text that the operator gets.
        gradient_attributes: Accepted; inference has no gradients.

    Returns:
        A list of the results.

    Raises:
        ValueError: If attributes are no text, or a result has another type or shape.
        NotImplementedError: If no body is registered.
    """
    return precompiled_user_op(
        inputs,
        library_path,
        "",
        outs,
        name,
        op_name,
        separate_gradients,
        inputs_with_gradients,
        attributes,
        gradient_attributes,
    )


@on_ipu
def _call(
    inputs: Sequence[Any],
    library_path: str,
    outs: Mapping[str, Any],
    name: str,
    op_name: str,
    attributes: str | None,
) -> list[Any]:
    library = PurePath(os.fspath(library_path)).name
    body = _bodies.get((library, op_name)) or _bodies.get(("", op_name))
    if body is None:
        defined = ", ".join(f"{op} of {lib or 'any library'}" for lib, op in sorted(_bodies))
        raise NotImplementedError(
            f"operator {op_name} of {library}: libraries for the IPU hold machine code, which is "
            "not run here. Define what the operator computes with "
            f"ipu.custom_ops.register_user_op_body (defined: {defined or 'none'})"
        )
    keywords = {} if attributes is None else {"attributes": attributes}
    with tf.name_scope(name):
        results = body(*(tf.convert_to_tensor(tensor) for tensor in inputs), **keywords)
        tensors = [tf.convert_to_tensor(result) for result in tf.nest.flatten(results)]
    expected = list(zip(outs.get("output_types", []), outs.get("output_shapes", []), strict=True))
    found = [(tensor.dtype, tensor.shape) for tensor in tensors]
    if len(found) != len(expected) or any(
        kind != tf.as_dtype(wanted) or not shape.is_compatible_with(wanted_shape)
        for (kind, shape), (wanted, wanted_shape) in zip(found, expected, strict=False)
    ):
        raise ValueError(
            f"the body of operator {op_name} of {library} returned {_show(found)}, but `outs` "
            f"says {_show(expected)}"
        )
    return tensors


def _show(results: Sequence[tuple[Any, Any]]) -> str:
    return (
        ", ".join(f"{tf.as_dtype(kind).name} {tf.TensorShape(shape)}" for kind, shape in results)
        or "nothing"
    )


@on_ipu
def codelet_expression_op(vertex_expression: Callable[..., Any], *args: Any) -> Any:
    """Compute an expression for each element.

    Args:
        vertex_expression: Function of as many expressions as there are tensors; it returns an
            expression.
        *args: Tensors, which are broadcast.

    Returns:
        A tensor of the type of the first one.
    """
    names = [f"in{place}" for place in range(len(args))]
    expression = vertex_expression(*(PlaceholderVertexExpr(name, None) for name in names))
    expression.lower(DefaultNameSource())
    return expression.compute(dict(zip(names, args, strict=True)))
