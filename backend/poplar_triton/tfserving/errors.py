"""Errors of requests, in gRPC's codes, with which both protocols answer."""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """Codes of google.rpc.Code, which are the numbers of tensorflow.error.Code too."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class ServingError(Exception):
    """Error with which a request is answered; the text goes to the client."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


def as_serving_error(error: Exception) -> ServingError:
    """Return an error in the form that clients get; the message of an internal error says that it
    is one."""
    if isinstance(error, ServingError):
        return error
    return ServingError(Code.INTERNAL, f"poplar-triton: {error!r}")
