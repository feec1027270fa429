"""Names that can be imported, and whose use says in one line that they are not supported."""

from __future__ import annotations

from typing import Any, Final, NoReturn

from tensorflow_ipu.errors import TrainingError

INFERENCE_ONLY: Final = "training is not supported: this TensorFlow for the IPU computes inference"


def refuse_training(name: str) -> NoReturn:
    """Raise the error about something that trains.

    Args:
        name: What was called.

    Raises:
        TrainingError: Always.
    """
    raise TrainingError(f"{name}: {INFERENCE_ONLY}")


def make_refusing_class(name: str, reason: str) -> type:
    """Return a class that cannot be instantiated.

    Args:
        name: Its name.
        reason: Why, and what to do.

    Returns:
        The class; its constructor raises NotImplementedError.
    """

    def construct(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"{name} is not supported: {reason}")

    return type(name, (), {"__init__": construct, "__doc__": f"Not supported: {reason}."})


def make_refusing_function(name: str, reason: str) -> Any:
    """Return a function that raises NotImplementedError.

    Args:
        name: Its name.
        reason: Why, and what to do.

    Returns:
        The function.
    """

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(f"{name} is not supported: {reason}")

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"Not supported: {reason}."
    return refuse
