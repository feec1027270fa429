"""Tracepoints of scripts, recorded as model_runtime records its own: into a Chrome trace.

`PVTI_OPTIONS='{"enable": "true"}'` turns them on; without it they do nothing.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import cache, wraps
from typing import Any

from model_runtime import pvti


@cache
def _open_trace() -> pvti.Trace | None:
    return pvti.Trace.from_environment("poptorch")


class Channel:
    """Source of tracepoints.

    Args:
        name: Name that stands in front of the tracepoints' names.

    Example:
        >>> channel = Channel("MyApp")
        >>> with channel.tracepoint("TimeThis"):
        ...     total = sum(range(10))
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def tracepoint(self, name: str) -> AbstractContextManager[Any]:
        """Return a context manager that records the time within."""
        trace = _open_trace()
        return nullcontext() if trace is None else trace.tracepoint(f"{self._name}.{name}")

    def instrument(self, obj: Any, *methods: str) -> Any:
        """Record the time of an object's methods.

        Args:
            obj: The object.
            *methods: Names of its methods; those that Python itself calls, as `__next__`, are not
                recorded.

        Returns:
            The object.
        """
        if _open_trace() is not None:
            for name in methods:
                if not name.startswith("__"):
                    setattr(obj, name, self._wrap(getattr(obj, name), name))
        return obj

    def _wrap(self, method: Any, name: str) -> Any:
        @wraps(method)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            with self.tracepoint(name):
                return method(*args, **kwargs)

        return recorded
