"""Interface between the protocols and the models: how a request names one, its inputs and outputs,
how it is run, TensorFlow's types, and the errors with which both protocols answer.

`local` has the models that this process computes, `forward` those of a Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

import numpy as np

from popef._tools.arrays import Array


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


def refuse(message: str) -> ServingError:
    """Return the error of an invalid request."""
    return ServingError(Code.INVALID_ARGUMENT, message)


def as_serving_error(error: Exception) -> ServingError:
    """Return an error in the form that clients get; the message of an internal error says that it
    is one."""
    if isinstance(error, ServingError):
        return error
    return ServingError(Code.INTERNAL, f"poplar-triton: {error!r}")


class DataType(NamedTuple):
    """Data type; strings are of dtype object and hold bytes."""

    number: int
    name: str
    dtype: np.dtype[Any]


TYPES = tuple(
    DataType(number, name, np.dtype(dtype))
    for number, name, dtype in (
        (1, "DT_FLOAT", np.float32),
        (2, "DT_DOUBLE", np.float64),
        (3, "DT_INT32", np.int32),
        (4, "DT_UINT8", np.uint8),
        (5, "DT_INT16", np.int16),
        (6, "DT_INT8", np.int8),
        (7, "DT_STRING", np.object_),
        (9, "DT_INT64", np.int64),
        (10, "DT_BOOL", np.bool_),
        (17, "DT_UINT16", np.uint16),
        (19, "DT_HALF", np.float16),
        (22, "DT_UINT32", np.uint32),
        (23, "DT_UINT64", np.uint64),
    )
)
"""Types that a tensor of a request or a response may have."""
BY_NUMBER = {data_type.number: data_type for data_type in TYPES}
BY_DTYPE = {data_type.dtype: data_type for data_type in TYPES}


DEFAULT_SIGNATURE = "serving_default"
"""Only signature of a model; an empty name means it too."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Model that a request names. `version` or `label` chooses a version; neither means the
    newest."""

    name: str
    version: int | None = None
    label: str | None = None
    signature: str = ""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Input or output. `shape` is the whole shape, with -1 for sizes that a request may choose.
    Strings are of dtype object and hold bytes."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    num_ones: int = 0
    """Number of axes of size 1 that Triton has behind this shape. A configuration with an empty
    reshape says that the model has one number for each row: to TensorFlow its shape is (None,)."""


def make_spec(
    dtype: np.dtype[Any], shape: Sequence[int], *, is_batched: bool, is_scalar: bool
) -> TensorSpec:
    """Return the tensor of a configuration's entry. `shape` is Triton's, `is_scalar` says that the
    entry has an empty reshape."""
    rows = [*shape]
    if is_batched and is_scalar and rows[1:] == [1] * (len(rows) - 1):
        return TensorSpec(dtype, (rows[0],), len(rows) - 1)
    return TensorSpec(dtype, tuple(rows))


@dataclass(frozen=True, slots=True)
class Signature:
    """Inputs and outputs of a model by their friendly names, in its order."""

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    optional: frozenset[str] = frozenset()
    """Inputs that a request may leave out."""


class VersionState(IntEnum):
    """Values of tensorflow.serving.ModelVersionStatus.State."""

    UNKNOWN = 0
    START = 10
    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """State of a version; code and message say why it is not served."""

    version: int
    state: VersionState
    code: Code = Code.OK
    message: str = ""


class Call(Protocol):
    """Client's side of a request: how long the client waits, and whether it still does."""

    def seconds_left(self) -> float | None:
        """Return how many seconds the client still waits, or None if it has set no limit."""

    def is_wanted(self) -> bool:
        """Return whether the client is still there and has time left."""

    def when_given_up(self, callback: Callable[[], None]) -> None:
        """Register a callback for the time when the client has gone, its time is over, or it has
        its answer. It is called on any thread, and at once if that is already so."""

    def waiting(self) -> AbstractContextManager[None]:
        """Return a context for a wait that needs no work of the call's thread. Another call may run
        meanwhile."""


class Servable(Protocol):
    """Version of a model that is served. Threads may use it at the same time."""

    @property
    def name(self) -> str:
        """Name of the model in requests."""

    @property
    def version(self) -> int:
        """Number of the version."""

    @property
    def signature(self) -> Signature:
        """Inputs and outputs of the model."""

    def predict(
        self, inputs: Mapping[str, Array], outputs: Sequence[str], call: Call
    ) -> dict[str, Array]:
        """Return the requested outputs by friendly name, or all if none is requested.

        `inputs` agree with the signature in name, dtype and shape. A cancelled call need not be
        computed. Raises ServingError for errors of the model.
        """


class Models(Protocol):
    """Models that are served. Threads may use it at the same time."""

    def find(self, spec: ModelSpec, call: Call, /) -> Servable:
        """Return the version that a request is for. Raises ServingError, NOT_FOUND, if there is
        none."""

    def list_versions(self, spec: ModelSpec, call: Call, /) -> list[VersionStatus]:
        """Return the states of a model's versions, the newest first, or only of the one that `spec`
        chooses. Raises ServingError, NOT_FOUND, if there is none."""
