"""Layers that capture gradients of other layers: in inference, these layers themselves."""

from __future__ import annotations

from typing import Any

from tensorflow_ipu.keras_extensions.dialects import loaded_dialects


class CaptureUpstreamGradients:
    """A layer whose incoming gradients are captured. Inference has none.

    Args:
        layer: The layer.
        tag: Name of the captured gradients.

    Returns:
        The layer itself.

    Raises:
        ValueError: It is no layer.
    """

    def __new__(cls, layer: Any, tag: str | None = None) -> Any:
        del tag
        if not any(isinstance(layer, dialect.layer_class) for dialect in loaded_dialects()):
            raise ValueError(f"{cls.__name__}: expected a Keras layer, found {type(layer)}")
        return layer


class CaptureActivationGradients(CaptureUpstreamGradients):
    """A layer whose activation's gradients are captured. Inference has none.

    Raises:
        ValueError: The layer is none, or has no activation.
    """

    def __new__(cls, layer: Any, tag: str | None = None) -> Any:
        super().__new__(cls, layer, tag)
        if not hasattr(layer, "activation"):
            raise ValueError(f"{cls.__name__}: layer {layer.name!r} has no attribute `activation`")
        return layer
