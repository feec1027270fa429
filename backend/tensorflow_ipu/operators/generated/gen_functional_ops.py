"""Operators that call functions: TensorFlow's own, and those of training, which are refused."""

from __future__ import annotations

from typing import Any, NoReturn

from tensorflow.python.ops import gen_functional_ops

from tensorflow_ipu.training.refusals import refuse_training

__all__ = ["case", "resource_update"]


def case(*args: Any, **kwargs: Any) -> Any:
    """Call one of several functions; see TensorFlow's raw operator Case."""
    return gen_functional_ops.case(*args, **kwargs)


def resource_update(*_: Any, **__: Any) -> NoReturn:
    """Raise TrainingError."""
    refuse_training("resource_update")
