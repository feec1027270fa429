"""Computed graph of a program with branches, as model fusion makes it.

Each run computes the graph of one branch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from popef._tools.arrays import Array
from simipu.computed import ComputedGraph
from simipu.executable import Program
from simipu.streams import Direction


class BranchedGraph:
    """Computes the branch that the selector names with that branch's graph. `graphs` are the
    branches' graphs, in order.

    Results of the other branches are zeros, which take neither time nor memory.
    """

    def __init__(self, program: Program, graphs: Sequence[ComputedGraph]) -> None:
        self._program, self._graphs = program, graphs
        outputs = [
            stream for stream in program.streams if stream.direction is Direction.DEVICE_TO_HOST
        ]
        self._zeros = {
            stream.tensor: np.broadcast_to(np.zeros((), stream.dtype), stream.shape)
            for stream in outputs
        }

    def run(self, names: Sequence[str], feeds: Mapping[str, Array]) -> list[Array]:
        """Return the outputs called `names`. Raises RunError for a selector that names no branch,
        and the errors of the branch's graph."""
        number = self._program.find_branch(feeds[self._program.selector])
        tensors = {
            stream.tensor: stream.direction for stream in self._program.branches[number].streams
        }
        wanted = [name for name in names if name in tensors]
        taken = {
            name: feeds[name] for name, way in tensors.items() if way is Direction.HOST_TO_DEVICE
        }
        made = dict(zip(wanted, self._graphs[number].run(wanted, taken), strict=True))
        return [made[name] if name in made else self._zeros[name] for name in names]

    def cancel(self) -> None:
        """Cancel the run in flight, of any branch."""
        for graph in self._graphs:
            graph.cancel()

    def close(self) -> None:
        """Close the graphs of all branches."""
        for graph in self._graphs:
            graph.close()
