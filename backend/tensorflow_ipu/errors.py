"""Errors of TensorFlow for the IPU that are not TensorFlow's own classes."""

from __future__ import annotations

from typing import Any


class IpuError(RuntimeError):
    """A computation that cannot be compiled for the IPU, or cannot run there."""


class TrainingError(NotImplementedError):
    """Training is asked for, which this package does not have: it computes inference only."""


def make_run_error(error: Exception) -> Any:
    """Return TensorFlow's error about a run that Poplar has ended.

    Args:
        error: The error of the simulated Poplar.

    Returns:
        The error, whose text begins as the real one does.
    """
    import tensorflow as tf  # here: files of executables are read without TensorFlow

    kind = type(error).__name__.removeprefix("poplar_")
    tiles = "Tiles in excepted state: " if "floating-point exception" in str(error) else ""
    return tf.errors.InternalError(None, None, f"[Poplar][Execute engine] {kind}: {tiles}{error}")
