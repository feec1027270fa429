"""What a file says about a model beside its executable, under the real module's class path.

It is pickled into the PopEF file's blob `poptorch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class CallInputs:
    """Arguments that a model was compiled with, not bound to the parameters of its forward."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(slots=True)
class PoptorchData:
    """A model's inputs of compilation, and the model itself if the file was made to hold it."""

    version: str
    executable_inputs: Any
    """Arguments, or CallInputs in a file of a real SDK."""
    options: Any = None
    training: bool | None = None
    model: Any = None
    random_seed: int | None = None
