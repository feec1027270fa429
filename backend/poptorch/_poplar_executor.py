"""The executor under the real module's name, which scripts name in type annotations."""

from __future__ import annotations

from poptorch.execution.executor import PoplarExecutor

__all__ = ["PoplarExecutor"]
