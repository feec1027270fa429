"""Group, instance and layer normalization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tensorflow_ipu.addons.base import IPULayer, as_shape, serialize_initializer
from tensorflow_ipu.operators.normalization_ops import normalize_groups
from tensorflow_ipu.operators.placement import on_ipu


class GroupNormalization(IPULayer):
    """Normalization of groups of channels, by each example's own statistics."""

    def __init__(
        self,
        groups: int = 2,
        channels_axis: int = -1,
        center: bool = True,
        scale: bool = True,
        epsilon: float = 1e-3,
        beta_initializer: Any = None,
        gamma_initializer: Any = None,
        strided_channel_grouping: bool = True,
        trainable: bool = True,
        **kwargs: Any,
    ) -> None:
        """Make a layer.

        Args:
            groups: Number of groups of channels.
            channels_axis: Axis of the channels: 1 or the last one.
            center: Whether `beta` is added.
            scale: Whether the result is multiplied by `gamma`.
            epsilon: Number that is added to the variance.
            beta_initializer: Initializer of `beta`.
            gamma_initializer: Initializer of `gamma`.
            strided_channel_grouping: Whether a group has every n-th channel, not neighbours.
            trainable: Whether the weights are trainable.
            kwargs: Arguments of Keras' Layer.
        """
        super().__init__(**kwargs)
        self.groups, self.channels_axis = groups, channels_axis
        self.center, self.scale, self.epsilon = center, scale, epsilon
        self.beta_initializer = tf.keras.initializers.get(beta_initializer)
        self.gamma_initializer = tf.keras.initializers.get(gamma_initializer)
        self.strided_channel_grouping = strided_channel_grouping
        self.data_format, self.channels = "", 1
        self.trainable = trainable

    def build(self, input_shape: Any) -> None:
        """Make the weights."""
        self._build_for(None if input_shape is None else as_shape(input_shape))

    def _build_for(
        self, shape: Sequence[int | None] | None, parameter_shape: Sequence[int] | None = None
    ) -> None:
        if shape is None:
            raise ValueError("Input has undefined rank.")
        rank = len(shape)
        if self.channels_axis > rank - 1:
            raise ValueError("Axis is out of bounds.")
        if self.channels_axis < 0:
            self.channels_axis += rank
        channels = shape[self.channels_axis]
        assert channels is not None
        self.channels = channels
        if self.groups > channels:
            raise ValueError(f"Invalid groups {self.groups} for {channels} channels.")
        if channels % self.groups:
            raise ValueError(f"{channels} channels is not commensurate with {self.groups} groups.")
        formats = {rank - 1: "NHWC", 1: "NCHW"}
        if self.channels_axis not in formats:
            raise ValueError(
                "Unsupported data format, group norm only supports NCHW"
                "(channel axis 1) and NHWC (channel axis -1)."
            )
        self.data_format = formats[self.channels_axis]
        for name, initializer, is_used in (
            ("gamma", self.gamma_initializer, self.scale),
            ("beta", self.beta_initializer, self.center),
        ):
            if is_used:
                weight = self.add_weight(
                    name=name,
                    dtype=self.dtype,
                    initializer=initializer,
                    shape=tuple(parameter_shape or [channels]),
                    trainable=self.trainable,
                )
                setattr(self, name, weight)
        self.built = True

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return the normalized inputs.

        Args:
            inputs: The tensor.
            training: Accepted without effect: the statistics are always those of the inputs.
        """
        del training
        beta = self.beta if self.center else tf.zeros([self.channels], inputs.dtype)
        gamma = self.gamma if self.scale else tf.ones([self.channels], inputs.dtype)
        return _normalize(
            tf.convert_to_tensor(inputs),
            tf.reshape(gamma, [-1]),
            tf.reshape(beta, [-1]),
            self.channels_axis,
            self.groups,
            self.epsilon,
            self.strided_channel_grouping,
        )

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return {
            "groups": self.groups,
            **self._get_shared_config(),
            "strided_channel_grouping": self.strided_channel_grouping,
        }

    def _get_shared_config(self) -> dict[str, Any]:
        return {
            "channels_axis": self.channels_axis,
            "center": self.center,
            "scale": self.scale,
            "epsilon": self.epsilon,
            "beta_initializer": serialize_initializer(self.beta_initializer),
            "gamma_initializer": serialize_initializer(self.gamma_initializer),
            "trainable": self.trainable,
        }


@on_ipu
def _normalize(
    inputs: Any, gamma: Any, beta: Any, axis: int, groups: int, epsilon: float, is_strided: bool
) -> Any:
    return normalize_groups(
        inputs, gamma, beta, axis=axis, groups=groups, epsilon=epsilon, is_strided=is_strided
    )[0]


class InstanceNormalization(GroupNormalization):
    """Normalization of each channel of each example."""

    def __init__(
        self,
        channels_axis: int = -1,
        center: bool = True,
        scale: bool = True,
        epsilon: float = 1e-3,
        beta_initializer: Any = None,
        gamma_initializer: Any = None,
        trainable: bool = True,
        **kwargs: Any,
    ) -> None:
        """Make a layer.

        Args:
            channels_axis: As for GroupNormalization.
            center: As for GroupNormalization.
            scale: As for GroupNormalization.
            epsilon: As for GroupNormalization.
            beta_initializer: As for GroupNormalization.
            gamma_initializer: As for GroupNormalization.
            trainable: As for GroupNormalization.
            kwargs: Arguments of Keras' Layer.
        """
        super().__init__(
            groups=0,  # the number of channels, known from the shape
            channels_axis=channels_axis,
            center=center,
            scale=scale,
            epsilon=epsilon,
            beta_initializer=beta_initializer,
            gamma_initializer=gamma_initializer,
            trainable=trainable,
            **kwargs,
        )

    def build(self, input_shape: Any) -> None:
        """Make the weights."""
        self.groups = as_shape(input_shape)[self.channels_axis] or 0
        super().build(input_shape)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        return self._get_shared_config()


class LayerNormalization(GroupNormalization):
    """Normalization over some axes."""

    def __init__(
        self,
        axis: int | Sequence[int] = -1,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: Any = "zeros",
        gamma_initializer: Any = "ones",
        beta_regularizer: Any = None,
        gamma_regularizer: Any = None,
        beta_constraint: Any = None,
        gamma_constraint: Any = None,
        trainable: bool = True,
        **kwargs: Any,
    ) -> None:
        """Make a layer.

        Args:
            axis: The axis, or the axes.
            epsilon: As for GroupNormalization.
            center: As for GroupNormalization.
            scale: As for GroupNormalization.
            beta_initializer: As for GroupNormalization.
            gamma_initializer: As for GroupNormalization.
            beta_regularizer: Not supported.
            gamma_regularizer: Not supported.
            beta_constraint: Not supported.
            gamma_constraint: Not supported.
            trainable: As for GroupNormalization.
            kwargs: Arguments of Keras' Layer.
        """
        if not isinstance(axis, (int, list, tuple)):
            raise ValueError(
                "Expected an int or a list/tuple of ints for the argument 'axis', but received "
                f"instead: {axis}"
            )
        super().__init__(
            groups=1,
            channels_axis=-1,
            center=center,
            scale=scale,
            epsilon=epsilon,
            beta_initializer=beta_initializer,
            gamma_initializer=gamma_initializer,
            trainable=trainable,
            **kwargs,
        )
        self.axis: Any = axis if isinstance(axis, int) else list(axis)
        self._check_unsupported(beta_regularizer, "beta_regularizer")
        self._check_unsupported(gamma_regularizer, "gamma_regularizer")
        self._check_unsupported(beta_constraint, "beta_constraint")
        self._check_unsupported(gamma_constraint, "gamma_constraint")

    def build(self, input_shape: Any) -> None:
        """Make the weights."""
        shape = as_shape(input_shape)
        rank = len(shape)
        axes = [self.axis] if isinstance(self.axis, int) else list(self.axis)
        axes = [axis + rank if axis < 0 else axis for axis in axes]
        for axis in axes:
            if not 0 <= axis < rank:
                raise ValueError(f"Invalid axis: {axis}")
        if len(axes) != len(set(axes)):
            raise ValueError(f"Duplicate axis: {tuple(sorted(axes))}")
        sizes = [shape[axis] for axis in axes if shape[axis] is not None]
        if len(sizes) != len(axes):
            raise ValueError(
                f"Input shape {input_shape} has unknown dimensions - all dimensions need to be "
                "fully specified."
            )
        parameter_shape = [int(size) for size in sizes if size is not None]
        self.axis = sorted(axes)
        self._kept = [axis for axis in range(rank) if axis not in axes]
        self._num_reduced = math.prod(parameter_shape)
        self._build_for([None, self._num_reduced], parameter_shape)

    def call(self, inputs: Any, training: bool | None = None) -> Any:
        """Return the normalized inputs."""
        if any(inputs.shape[axis] is None for axis in self._kept):
            raise ValueError(
                f"Input shape {inputs.shape} has unknown dimensions - all dimensions need to be "
                "fully specified."
            )
        permutation = [*self._kept, *self.axis]
        inverse = [permutation.index(axis) for axis in range(len(permutation))]
        permuted = tf.transpose(inputs, permutation)
        rows = tf.reshape(permuted, [-1, self._num_reduced])
        outputs = tf.reshape(super().call(rows, training), tf.shape(permuted))
        outputs = tf.transpose(outputs, inverse)
        outputs.set_shape(inputs.shape)
        return outputs

    def get_config(self) -> dict[str, Any]:
        """Return the arguments."""
        config = self._get_shared_config()
        del config["channels_axis"]
        unused = ("beta_regularizer", "gamma_regularizer", "beta_constraint", "gamma_constraint")
        return {"axis": self.axis, **config, **dict.fromkeys(unused)}
