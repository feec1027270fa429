"""The runner of steps: inputs -> replicas x iterations -> outputs.

A frontend says where the values of an iteration come from and where its results go; the rest is the
same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from popart.dataflow import AnchorReturnType
from popart.enums import AnchorReturnTypeId
from popef._tools.arrays import Array


class Program(Protocol):
    """A loaded program: `DeviceProgram`, or `JointProgram` if replicas depend on each other."""

    def run_replicas(self, values: Sequence[Sequence[Array]]) -> list[Sequence[Array]]:
        """Compute one iteration of each replica."""


def run_step(
    program: Program,
    iterations: int,
    replicas: int,
    read: Callable[[int, int], Sequence[Array]],
    write: Callable[[int, int, Sequence[Array]], None],
) -> None:
    """Run a step.

    Args:
        program: The program.
        iterations: Number of iterations.
        replicas: Number of replicas.
        read: Function that returns the inputs of an iteration of a replica. Replicas are asked for
            in order, before any of them runs the iteration.
        write: Function that takes the results of an iteration of a replica.
    """
    for iteration in range(iterations):
        values = [read(iteration, replica) for replica in range(replicas)]
        for replica, results in enumerate(program.run_replicas(values)):
            write(iteration, replica, results)


@dataclass(slots=True)
class Output:
    """An output of a step: the iterations that its mode returns, of all replicas."""

    kind: AnchorReturnType
    iterations: int
    replicas: int
    values: Array | None = None
    """Values as (rows, replicas, *shape of a value); None until the first one."""

    def add(self, value: Array, iteration: int, replica: int) -> None:
        """Take the value of an iteration of a replica, if the mode returns it."""
        row = self.kind.find_row(iteration, self.iterations)
        if row is None:
            return
        if self.values is None:
            rows = self.kind.count(self.iterations) or 1
            self.values = np.empty((rows, self.replicas, *value.shape), value.dtype)
        # A sum begins with the first value, not with 0, which would lose the sign of -0.
        if iteration and self.kind.id() is AnchorReturnTypeId.Sum:
            self.values[row, replica] += value
        else:
            self.values[row, replica] = value
