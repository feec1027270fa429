"""TensorFlow in several processes, which is not supported: each function says so."""

from __future__ import annotations

from typing import Any, NoReturn


def __getattr__(name: str) -> Any:
    """Return a function that raises NotImplementedError."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError(
            f"popdist.tensorflow.{name} is not supported: TensorFlow for the IPU runs in one "
            "process here. Set IPUConfig.auto_select_ipus to the number of all IPUs and use "
            "IPUStrategy: replicas run side by side"
        )

    return refuse
