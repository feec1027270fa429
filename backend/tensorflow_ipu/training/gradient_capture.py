"""Capture of gradients: in inference there are none, so that values pass unchanged."""

from __future__ import annotations

from typing import Any

from tensorflow_ipu.training.refusals import make_refusing_class


def capture_upstream_gradients(args: Any, tag: str = "") -> Any:  # noqa: ARG001
    """Return the values unchanged; gradients would be captured in training.

    Args:
        args: A tensor, or a list, tuple or dictionary of tensors.
        tag: Name of the captured gradients.

    Returns:
        The same.
    """
    return args


_TRAINS = "training is not supported: this TensorFlow for the IPU computes inference"
GradientCaptureContext = make_refusing_class("GradientCaptureContext", _TRAINS)
GradientCaptureTape = make_refusing_class("GradientCaptureTape", _TRAINS)
