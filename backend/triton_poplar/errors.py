"""The errors of the backend: whose fault decides which one."""

from __future__ import annotations


class ModelConfigError(Exception):
    """A model cannot be served: its config.pbtxt, its files or its name map are wrong. The model fails to
    load."""


class RequestError(Exception):
    """One request cannot be answered. `code` is the name of a TritonError code: INVALID_ARG, INTERNAL,
    UNAVAILABLE."""

    def __init__(self, message: str, code: str = "INVALID_ARG") -> None:
        super().__init__(message)
        self.code = code
