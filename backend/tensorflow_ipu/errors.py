"""Errors of TensorFlow for the IPU that are not TensorFlow's own classes."""

from __future__ import annotations


class IpuError(RuntimeError):
    """A computation that cannot be compiled for the IPU, or cannot run there."""


class TrainingError(NotImplementedError):
    """Training is asked for, which this package does not have: it computes inference only."""
