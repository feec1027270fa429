"""Operators that eager mode places on an IPU: each one is compiled and run alone.

TensorFlow's generated functions call one entry point of its C library. Within `tf.device` of an IPU
this module answers there; elsewhere the original does.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import tensorflow as tf
from tensorflow.python import pywrap_tfe
from tensorflow.python.eager import context
from tensorflow.python.framework import op_def_library, op_def_registry

from tensorflow_ipu.execution import Computation
from tensorflow_ipu.launching import make_computation, run_eagerly, trace

_HOST: Final = (tf.resource, tf.variant, tf.string)
"""Types of tensors that only the host has."""
_COPIES: Final = frozenset(("Identity", "IdentityN", "StopGradient", "EnsureShape"))
_state = threading.local()
_MAX_COMPUTATIONS: Final = 256
"""Number of operators, each for certain shapes and attributes, whose programs are kept."""
_computations: OrderedDict[Any, Computation] = OrderedDict()


def install() -> None:
    """Change what `tf.device` of an IPU does in eager mode; once."""
    scope = context._EagerDeviceContext  # noqa: SLF001
    if hasattr(scope, "_ipu_hooked"):
        return
    scope._ipu_hooked = True  # noqa: SLF001
    enter, leave = scope.__enter__, scope.__exit__
    execute = pywrap_tfe.TFE_Py_FastPathExecute

    def enter_scope(self: Any) -> None:
        enter(self)
        current = context.context()
        ordinal = _find_ordinal(current.device_name)
        if ordinal is not None and not current._soft_device_placement:  # noqa: SLF001 - as it was set
            current.soft_device_placement = (
                True  # what the host computes there has to lie somewhere
            )
        _stack().append(ordinal)

    def leave_scope(self: Any, *error: Any) -> Any:
        _stack().pop()
        return leave(self, *error)

    def execute_there(ctx: Any, name: str, label: Any, *values: Any) -> Any:
        ordinal = current_ordinal()
        if ordinal is None or not _is_computed(name):
            return execute(ctx, name, label, *values)
        return _compute(name, values, ordinal, lambda: execute(ctx, name, label, *values))

    scope.__enter__, scope.__exit__ = enter_scope, leave_scope
    pywrap_tfe.TFE_Py_FastPathExecute = execute_there


def _stack() -> list[int | None]:
    if not hasattr(_state, "ordinals"):
        _state.ordinals = []
    return _state.ordinals  # type: ignore[no-any-return]


@contextlib.contextmanager
def on_host() -> Iterator[None]:
    """Let the host compute eager operators: while a function is traced they make initial values."""
    _stack().append(None)
    try:
        yield
    finally:
        _stack().pop()


def current_ordinal() -> int | None:
    """Return the number of the IPU that eager mode places operators on, or None."""
    stack = getattr(_state, "ordinals", None)
    return stack[-1] if stack else None


def _find_ordinal(name: str | None) -> int | None:
    spec = tf.DeviceSpec.from_string(name or "")
    return int(spec.device_index or 0) if spec.device_type == "IPU" else None


def _is_computed(name: str) -> bool:
    definition = op_def_registry.get(name)
    return definition is not None and bool(definition.input_arg) and name not in _COPIES


def _compute(
    name: str, values: Sequence[Any], ordinal: int, compute_on_host: Callable[[], Any]
) -> Any:
    """Run an operator on the IPU, or on the host if a tensor of it is one that only hosts have."""
    definition = op_def_registry.get(name)
    count = len(definition.input_arg)
    inputs = dict(zip((entry.name for entry in definition.input_arg), values, strict=False))
    with tf.device("/device:CPU:0"):
        inputs = {key: _to_tensors(value) for key, value in inputs.items()}
    flat = tf.nest.flatten(inputs)
    if any(tensor.dtype in _HOST for tensor in flat):
        return compute_on_host()
    # The types of inputs are theirs: only the others are said.
    inferred = {entry.type_attr for entry in definition.input_arg}
    inferred |= {entry.number_attr for entry in definition.input_arg}
    inferred |= {entry.type_list_attr for entry in definition.input_arg}
    pairs = zip(values[count::2], values[count + 1 :: 2], strict=True)
    attributes = {key: value for key, value in pairs if key not in inferred}
    key = (name, repr(sorted(attributes.items())), ordinal, tuple(map(_describe, flat)))
    if key not in _computations:

        def call(*tensors: tf.Tensor) -> list[tf.Tensor]:
            given = tf.nest.pack_sequence_as(inputs, tensors)
            made = op_def_library._apply_op_helper(name, **given, **attributes)  # noqa: SLF001
            operation: tf.Operation = made[2]
            return list(operation.outputs)

        _computations[key], _ = make_computation(trace(call, flat, name), ordinal)
        if len(_computations) > _MAX_COMPUTATIONS:
            _computations.popitem(last=False)
    _computations.move_to_end(key)
    outputs = run_eagerly(_computations[key], flat, [])
    return outputs[0] if _has_one_output(definition) else outputs


def _to_tensors(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [tf.convert_to_tensor(part) for part in value]
    return tf.convert_to_tensor(value)


def _describe(tensor: tf.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tuple(tensor.shape)


def _has_one_output(definition: Any) -> bool:
    [*outputs] = definition.output_arg
    return len(outputs) == 1 and not (outputs[0].number_attr or outputs[0].type_list_attr)
