"""Attributes of operators that training uses, and small conversions."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import tensorflow as tf
from tensorflow.core.framework.attr_value_pb2 import AttrValue

from tensorflow_ipu.messages import backend_config_pb2, threestate_pb2
from tensorflow_ipu.training.refusals import refuse_training

_ML_TYPE = "_XlaMlType"


def SetMlType(op: tf.Operation, ml_type: int) -> None:
    """Note on an operator which part of training it belongs to; without effect here.

    Args:
        op: The operator.
        ml_type: Member of MLType.

    Raises:
        ValueError: If there is no such member.
    """
    if ml_type not in backend_config_pb2.MLType.values():
        raise ValueError(f"Unexpected ml_type value {ml_type}")
    op._set_attr(_ML_TYPE, AttrValue(s=str(ml_type).encode()))  # noqa: SLF001


def SetOpAsFwd(op: tf.Operation) -> None:
    """Note that an operator belongs to the forward pass."""
    SetMlType(op, backend_config_pb2.TRAINING_FWD)


def SetOpAsBwd(op: tf.Operation) -> None:
    """Note that an operator belongs to the backward pass."""
    SetMlType(op, backend_config_pb2.TRAINING_BWD)


def SetOpAsWU(op: tf.Operation) -> None:
    """Note that an operator belongs to the update of weights."""
    SetMlType(op, backend_config_pb2.TRAINING_WU)


def get_accumulator_dtype(
    variable: Any, dtype_override: tf.DType | Callable[[Any], Any] | None
) -> tf.DType:
    """Return the type of a variable's accumulator.

    Args:
        variable: The variable.
        dtype_override: A type, a function of the variable that returns one, or None.

    Returns:
        The type; that of the variable for None.
    """
    if dtype_override is None:
        return variable.dtype
    try:
        return tf.as_dtype(dtype_override)
    except TypeError:
        if not callable(dtype_override):
            raise
        return tf.as_dtype(dtype_override(variable))


def get_activation_name(identifier: str | Callable[..., Any]) -> str:
    """Return the name of an activation.

    Args:
        identifier: The name, or TensorFlow's or Keras' function.

    Returns:
        The name.

    Raises:
        TypeError: For something else.
    """
    if isinstance(identifier, str):
        return identifier
    module = getattr(identifier, "__module__", "")
    if callable(identifier) and module.startswith(("tensorflow.", "keras.", "tf_keras.")):
        return identifier.__name__
    raise TypeError(f"Could not interpret activation function identifier: {identifier!r}")


def bool_to_three_state(value: bool | None, default: str | None = None) -> str:
    """Return the name of a member of ThreeState.

    Args:
        value: On, off, or None.
        default: The name for None; that of the undefined state if None.

    Returns:
        The name.
    """
    if value is None:
        return default or "THREESTATE_UNDEFINED"
    name: str = threestate_pb2.ThreeState.Name(int(bool(value)))
    return name


def conv_gradients_override_map() -> dict[str, str]:
    """Return the gradients that training replaces, of convolutions: none here."""
    return {}


def matmul_gradients_override_map() -> dict[str, str]:
    """Return the gradients that training replaces, of products: none here."""
    return {}


def gradients_override_map() -> dict[str, str]:
    """Return the gradients that training replaces: none here."""
    return {}


def gradient_override_scope(training: bool) -> AbstractContextManager[None]:  # noqa: ARG001
    """Return a context in which training would replace gradients; it changes nothing here.

    Args:
        training: Whether gradients are computed.

    Returns:
        The context.
    """
    return nullcontext()


def HandleMatMulGrads(*_: Any, **__: Any) -> NoReturn:
    """Raise TrainingError."""
    refuse_training("HandleMatMulGrads")


def accumulate_gradients(*_: Any, **__: Any) -> NoReturn:
    """Raise TrainingError."""
    refuse_training("accumulate_gradients")


def accumulate_tagged_gradients(*_: Any, **__: Any) -> NoReturn:
    """Raise TrainingError."""
    refuse_training("accumulate_tagged_gradients")


def create_resource_update(*_: Any, **__: Any) -> NoReturn:
    """Raise TrainingError."""
    refuse_training("create_resource_update")
