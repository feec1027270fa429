"""What the host does between segments: queues between iterations, counters of loops, prints."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from popef._tools.arrays import Array
from tensorflow_ipu.plan import HostStep

Step = Callable[[HostStep, int, Sequence[Array], int], Sequence[Array]]
"""Function of an item, the number of the replica, its inputs and the number of the iteration."""


def _delay(item: HostStep, replica: int, values: Sequence[Array], _: int) -> Sequence[Array]:
    """Return the value of `depth` calls ago; the queue begins with zeros."""
    depth = int(item.attributes["depth"])
    queue = item.state.setdefault(replica, deque([np.zeros_like(values[0])] * depth))
    queue.append(values[0])
    return [queue.popleft()]


def _count(_: HostStep, __: int, ___: Sequence[Array], iteration: int) -> Sequence[Array]:
    return [np.int32(iteration)[...]]


def _print(item: HostStep, replica: int, values: Sequence[Array], _: int) -> Sequence[Array]:
    if replica == 0:
        sys.stderr.write(f"{item.attributes['title']}: {values[0]}\n")
    return values


STEPS: Final[Mapping[str, Step]] = {
    "Fifo": _delay,
    "ExecutionCounter": _count,
    "PrintTensor": _print,
}
