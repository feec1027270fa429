"""What layers of the addons share. `tf.keras` is the Keras: the third, or TF_USE_LEGACY_KERAS."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class IPULayer(tf.keras.layers.Layer):  # type: ignore[misc]
    """A layer that has arguments of Keras' own which it does not support."""

    def _check_unsupported(self, arg: Any, arg_name: str, method: str = "__init__") -> None:
        if arg:
            label = type(self).__name__
            raise NotImplementedError(
                f"ipu_tensorflow_addons.keras.layers.{label} does not support {method} argument "
                f"{arg_name}. It is included for API consistency with keras.{label}."
            )


def serialize_initializer(initializer: Any) -> Any:
    """Return the configuration of an initializer."""
    return tf.keras.initializers.serialize(initializer)


def as_shape(shape: Any) -> tuple[int | None, ...]:
    """Return a shape as a tuple."""
    return tuple(tf.TensorShape(shape).as_list())
