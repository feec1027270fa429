"""What the protocols know of models: how one is asked for, what it takes and gives, and how it is run.
`local` has those that this process computes, `forward` those of a Triton."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from commands.tfserving.errors import Code

Array = npt.NDArray[Any]

DEFAULT_SIGNATURE = "serving_default"
"""The only signature that a model has; an empty name means it too."""


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Which model a request is for: `version` or `label` choose among its versions, neither the newest."""

    name: str
    version: int | None = None
    label: str | None = None
    signature: str = ""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output: `shape` is the whole one, -1 for what a request may choose. Strings are of dtype
    object and hold bytes."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """The inputs and outputs of a model by their friendly names, in its order."""

    inputs: Mapping[str, TensorSpec]
    outputs: Mapping[str, TensorSpec]
    optional: frozenset[str] = frozenset()
    """Inputs that a request may leave out."""


class State(IntEnum):
    """tensorflow.serving.ModelVersionStatus.State."""

    UNKNOWN = 0
    START = 10
    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """How a version stands; code and message say why it is not served."""

    version: int
    state: State
    code: Code = Code.OK
    message: str = ""


class Call(Protocol):
    """A request as its client sees it: how long it waits, and whether it still does."""

    def seconds_left(self) -> float | None:
        """Until it waits no longer; None where it has not said."""

    def is_wanted(self) -> bool:
        """Whether it has not gone, and there is time left."""

    def when_given_up(self, callback: Callable[[], None]) -> None:
        """Have `callback` called, on any thread, once the client has gone, its time is over, or it has its
        answer; at once where that is so already."""

    def waiting(self) -> AbstractContextManager[None]:
        """What its thread is in while it waits for what is none of its work: another call may be worked at
        meanwhile."""


class Servable(Protocol):
    """A version of a model that is served. Threads may use it at the same time."""

    @property
    def name(self) -> str:
        """As requests name it."""

    @property
    def version(self) -> int:
        """Its number."""

    @property
    def signature(self) -> Signature:
        """What it takes and gives."""

    def predict(self, inputs: Mapping[str, Array], outputs: Sequence[str], call: Call) -> dict[str, Array]:
        """The outputs that are asked for, none: all of them, by friendly name. `inputs` agree with the
        signature in name, dtype and shape. What nobody wants any more need not be computed. ServingError for
        what the model says."""


class Models(Protocol):
    """All models that are served. Threads may use it at the same time."""

    def find(self, spec: ModelSpec, call: Call, /) -> Servable:
        """The version that a request is for; ServingError, NOT_FOUND, where there is none."""

    def list_versions(self, spec: ModelSpec, call: Call, /) -> list[VersionStatus]:
        """How the versions of a model stand, the newest first; only the one that `spec` chooses, if it does.
        ServingError, NOT_FOUND, where there is none."""
