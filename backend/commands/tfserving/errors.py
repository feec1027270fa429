"""What goes wrong with a request, in gRPC's codes, which both protocols answer with."""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """google.rpc.Code, the numbers of tensorflow.error.Code too."""

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
    """A request that is answered with an error; the text goes to the client."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


def as_serving_error(error: Exception) -> ServingError:
    """An error as clients get it; a defect of ours says so."""
    if isinstance(error, ServingError):
        return error
    return ServingError(Code.INTERNAL, f"poplar-triton: {error!r}")
