"""Horovod, which is not supported: each of its names is a function that says so."""

from __future__ import annotations

from typing import Any

from tensorflow_ipu.training.refusals import make_refusing_function


def __getattr__(name: str) -> Any:
    """Return a function that raises NotImplementedError."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return make_refusing_function(
        f"ipu.horovod.{name}",
        "Horovod trains with several processes, and this TensorFlow for the IPU computes "
        "inference in one",
    )
