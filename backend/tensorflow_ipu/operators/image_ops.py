"""Operators of images."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensorflow_ipu.markers import chip_operator
from tensorflow_ipu.operators.placement import on_ipu

_CHANNELS = 3


@on_ipu
def normalise_image(
    image: Any, channel_offsets: Any, channel_scales: Any, scale: float = 1, name: str | None = None
) -> Any:
    """Compute (image * scale - offset) * channel scale, and add a channel of zeros.

    Args:
        image: Images [..., 3] in uint8, float16 or float32.
        channel_offsets: Three offsets.
        channel_scales: Three scales.
        scale: Scale of all channels.
        name: Name of the operation.

    Returns:
        Images [..., 4], in float16 for uint8, else in the type of `image`.

    Raises:
        TypeError: If `image` is of another type.
        InvalidArgumentError: If there are not three channels, offsets and scales.
    """
    if image.dtype not in (tf.float16, tf.float32, tf.uint8):
        raise TypeError(
            "The input `image` to `normalise_image` must be either float16, float32 or uint8."
        )
    kind = tf.float16 if image.dtype == tf.uint8 else image.dtype
    offsets, scales = (
        tf.cast(value, kind) if tf.is_tensor(value) else tf.convert_to_tensor(value, dtype=kind)
        for value in (channel_offsets, channel_scales)
    )
    channels = image.shape[-1]
    if channels != _CHANNELS:
        raise _invalid(f"The image has {channels} channels, expected 3.")
    for what, value in (("channel_offsets", offsets), ("channel_scales", scales)):
        if value.shape[0] != channels:
            raise _invalid(
                f"The {what} must be the same size as the number of image channels {channels}, "
                f"but was {value.shape[0]}"
            )
    # The IPU normalizes images of any rank; the operator of PopART takes them as rows.
    shape = [*image.shape[:-1], _CHANNELS + 1]
    outputs = [(kind, shape)]
    attributes = {"scale": float(scale)}
    label = name or "NormaliseImage"
    return chip_operator(
        "NormalizeImage", [image, offsets, scales], outputs, attributes, label=label
    )[0]


def _invalid(message: str) -> Exception:
    error: Exception = tf.errors.InvalidArgumentError(None, None, message)
    return error
