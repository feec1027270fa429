"""Errors of the backend, sorted by whose fault they are."""

from __future__ import annotations


class ModelConfigError(Exception):
    """Error of a model that cannot be served, because its config.pbtxt, its files or its name map
    are wrong. The model fails to load."""


class RequestError(Exception):
    """Error of one request that cannot be answered. `code` is the name of a TritonError code:
    INVALID_ARG, INTERNAL, UNAVAILABLE."""

    def __init__(self, message: str, code: str = "INVALID_ARG") -> None:
        super().__init__(message)
        self.code = code
