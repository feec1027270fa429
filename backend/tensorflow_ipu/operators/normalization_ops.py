"""Group, layer and instance norms, with their variables."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import tensorflow as tf

from tensorflow_ipu.markers import chip_operator
from tensorflow_ipu.operators.placement import on_ipu

_log = logging.getLogger("tensorflow")
EPSILON: Final = 1.53e-5
"""Default epsilon, which is the least that half cannot lose."""


def group_norm(
    inputs: Any,
    groups: int = 2,
    channels_axis: int = -1,
    center: bool = True,
    scale: bool = True,
    epsilon: float = EPSILON,
    param_initializers: Mapping[str, Any] | None = None,
    reuse: bool | None = None,
    variables_collections: Any = None,
    training: bool = True,
    trainable: bool = True,
    scope: Any = None,
    strided_channel_grouping: bool = True,
) -> Any:
    """Normalize groups of channels.

    Args:
        inputs: Tensor of at least two axes, [batch, ..., channels] or [batch, channels, ...].
        groups: Number of groups; it divides the number of channels.
        channels_axis: Axis of the channels: 1 or the last.
        center: Add the variable `beta`.
        scale: Multiply by the variable `gamma`.
        epsilon: Number that is added to the variance.
        param_initializers: Initializers of `beta` and `gamma`.
        reuse: Reuse the variables of `scope`.
        variables_collections: Collections of the variables, or a dictionary of them by variable.
        training: Accepted; the statistics are those of the input in both cases.
        trainable: Whether the variables are trainable.
        scope: Scope of the variables.
        strided_channel_grouping: Group g has the channels g, g + groups, g + 2 groups and so on,
            instead of neighbours.

    Returns:
        A tensor of the type and shape of `inputs`.

    Raises:
        ValueError: If the rank or the number of channels is unknown, the axis is another, or the
            groups do not divide the channels.
    """
    del training
    _warn(epsilon, "group_norm")
    return _normalize(
        inputs,
        groups,
        channels_axis,
        (center, scale, epsilon, strided_channel_grouping),
        (param_initializers or {}, reuse, variables_collections, trainable, scope, "GroupNorm"),
    )


def layer_norm(
    inputs: Any,
    channels_axis: int = -1,
    center: bool = True,
    scale: bool = True,
    epsilon: float = EPSILON,
    param_initializers: Mapping[str, Any] | None = None,
    reuse: bool | None = None,
    variables_collections: Any = None,
    training: bool = True,
    trainable: bool = True,
    scope: Any = None,
) -> Any:
    """Normalize all channels of an example together.

    Args:
        inputs: Tensor of at least two axes, [batch, ..., channels] or [batch, channels, ...].
        channels_axis: Axis of the channels: 1 or the last.
        center: Add the variable `beta`.
        scale: Multiply by the variable `gamma`.
        epsilon: Number that is added to the variance.
        param_initializers: Initializers of `beta` and `gamma`.
        reuse: Reuse the variables of `scope`.
        variables_collections: Collections of the variables, or a dictionary of them by variable.
        training: Accepted; the statistics are those of the input in both cases.
        trainable: Whether the variables are trainable.
        scope: Scope of the variables.

    Returns:
        A tensor of the type and shape of `inputs`.

    Raises:
        ValueError: If the rank or the number of channels is unknown, or the axis is another.
    """
    del training
    _check_axis(inputs, channels_axis)
    _warn(epsilon, "layer_norm")
    return _normalize(
        inputs,
        1,
        channels_axis,
        (center, scale, epsilon, False),
        (param_initializers or {}, reuse, variables_collections, trainable, scope, "LayerNorm"),
    )


def instance_norm(
    inputs: Any,
    channels_axis: int = -1,
    center: bool = True,
    scale: bool = True,
    epsilon: float = EPSILON,
    param_initializers: Mapping[str, Any] | None = None,
    reuse: bool | None = None,
    variables_collections: Any = None,
    training: bool = True,
    trainable: bool = True,
    scope: Any = None,
) -> Any:
    """Normalize each channel of an example by itself.

    Args:
        inputs: Tensor of at least two axes, [batch, ..., channels] or [batch, channels, ...].
        channels_axis: Axis of the channels: 1 or the last.
        center: Add the variable `beta`.
        scale: Multiply by the variable `gamma`.
        epsilon: Number that is added to the variance.
        param_initializers: Initializers of `beta` and `gamma`.
        reuse: Reuse the variables of `scope`.
        variables_collections: Collections of the variables, or a dictionary of them by variable.
        training: Accepted; the statistics are those of the input in both cases.
        trainable: Whether the variables are trainable.
        scope: Scope of the variables.

    Returns:
        A tensor of the type and shape of `inputs`.

    Raises:
        ValueError: If the rank or the number of channels is unknown, or the axis is another.
    """
    del training
    _check_axis(inputs, channels_axis)
    _warn(epsilon, "instance_norm")
    channels = inputs.shape.as_list()[channels_axis]
    return _normalize(
        inputs,
        channels,
        channels_axis,
        (center, scale, epsilon, False),
        (param_initializers or {}, reuse, variables_collections, trainable, scope, "InstanceNorm"),
    )


def _warn(epsilon: float, name: str) -> None:
    if epsilon < EPSILON:
        _log.warning(
            "The epsilon value of %s is too low, which can lead to NaN values or floating point "
            "exceptions. To avoid this, increase it to a value higher than 1.53e-5.",
            name,
        )


def _check_axis(inputs: Any, axis: int) -> None:
    if inputs.shape.ndims is None:
        raise ValueError(f"Inputs {inputs.name} has undefined rank.")
    if axis > inputs.shape.ndims - 1:
        raise ValueError("Axis is out of bounds.")


def _normalize(
    inputs: Any,
    groups: int | None,
    axis: int,
    options: tuple[bool, bool, float, bool],
    settings: tuple[Mapping[str, Any], bool | None, Any, bool, Any, str],
) -> Any:
    inputs = tf.convert_to_tensor(inputs)
    _check_axis(inputs, axis)
    rank = inputs.shape.ndims
    axis = axis + rank if axis < 0 else axis
    if axis not in (1, rank - 1):
        raise ValueError(
            "Unsupported data format, group norm only supports NCHW(channel axis 1) and "
            "NHWC (channel axis -1)."
        )
    channels = inputs.shape.as_list()[axis]
    if channels is None or groups is None:
        raise ValueError(f"Inputs {inputs.name} has undefined channel dimension: {axis}.")
    if groups > channels:
        raise ValueError(f"Invalid groups {groups} for {channels} channels.")
    if channels % groups:
        raise ValueError(f"{channels} channels is not commensurate with {groups} groups.")
    center, scale, epsilon, is_strided = options
    beta, gamma = _make_parameters(inputs, channels, center, scale, settings)
    return normalize_groups(
        inputs, gamma, beta, axis=axis, groups=groups, epsilon=epsilon, is_strided=is_strided
    )[0]


def _make_parameters(
    inputs: Any,
    channels: int,
    center: bool,
    scale: bool,
    settings: tuple[Mapping[str, Any], bool | None, Any, bool, Any, str],
) -> tuple[Any, Any]:
    """Return beta and gamma: variables, or constants without effect."""
    initializers, reuse, collections, trainable, scope, kind = settings
    dtype = inputs.dtype.base_dtype
    made = []
    with tf.compat.v1.variable_scope(scope, kind, [inputs], reuse=reuse):
        for name, is_variable, default in (
            ("beta", center, tf.compat.v1.zeros_initializer()),
            ("gamma", scale, tf.compat.v1.ones_initializer()),
        ):
            if not is_variable:
                made.append(tf.constant(float(name == "gamma"), dtype=dtype, shape=[channels]))
                continue
            chosen = collections.get(name) if isinstance(collections, dict) else collections
            made.append(
                tf.compat.v1.get_variable(
                    name,
                    shape=[channels],
                    dtype=dtype,
                    initializer=initializers.get(name, default),
                    collections=chosen,
                    trainable=trainable,
                )
            )
    return made[0], made[1]


@on_ipu
def normalize_groups(
    inputs: Any,
    gamma: Any,
    beta: Any,
    *,
    axis: int,
    groups: int,
    epsilon: float,
    is_strided: bool,
) -> tuple[Any, Any, Any]:
    """Normalize groups of channels with a scale and an offset.

    Args:
        inputs: Tensor of at least two axes.
        gamma: Scale of each channel.
        beta: Offset of each channel.
        axis: Axis of the channels.
        groups: Number of groups.
        epsilon: Number that is added to the variance.
        is_strided: Group g has the channels g, g + groups and so on, instead of neighbours.

    Returns:
        The normalized tensor, and of each group of each example the mean and the inverse standard
        deviation, [batch * groups], an example's groups side by side.
    """
    rank, channels = inputs.shape.rank, inputs.shape[axis]
    channels_first = tf.transpose(inputs, [0, axis, *_others(rank, axis)]) if axis != 1 else inputs
    scale, offset = tf.convert_to_tensor(gamma), tf.convert_to_tensor(beta)
    # The chip's operator groups neighbours: the channels of a strided group are put side by side.
    order = [place for group in range(groups) for place in range(group, channels, groups)]
    if is_strided:
        channels_first = tf.gather(channels_first, order, axis=1)
        scale, offset = tf.gather(scale, order), tf.gather(offset, order)
    statistics = [channels_first.shape[0] * groups] if channels_first.shape[0] else [None]
    result, mean, deviation = chip_operator(
        "GroupNormalization",
        [channels_first, scale, offset],
        [(inputs.dtype, channels_first.shape), *[(inputs.dtype, statistics)] * 2],
        {"num_groups": groups, "epsilon": float(epsilon)},
    )
    if is_strided:
        result = tf.gather(result, [order.index(place) for place in range(channels)], axis=1)
    if axis != 1:
        result = tf.transpose(result, [0, *range(2, rank), 1])
    return result, mean, deviation


def _others(rank: int, axis: int) -> list[int]:
    return [place for place in range(1, rank) if place != axis]
