"""Description of a program's host stream; the engine transfers its data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np


class Direction(IntEnum):
    """Direction in which a stream copies."""

    HOST_TO_DEVICE = 0
    DEVICE_TO_HOST = 1


@dataclass(frozen=True, slots=True)
class Stream:
    """A host stream: the tensor of the graph that it feeds or reads, in its compiled shape, whose
    axis `batch_axis` is the batch."""

    handle: str
    tensor: str
    direction: Direction
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    batch_axis: int = 0

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape without the batch axis."""
        return (*self.shape[: self.batch_axis], *self.shape[self.batch_axis + 1 :])
