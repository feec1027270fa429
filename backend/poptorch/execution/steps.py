"""Steps of a call: the iterations of all replicas, from whole inputs to whole outputs.

Rules of a call with I device iterations and R replicas in G groups:

    input   dim 0 is split into I * G parts; part i * G + g goes to iteration i of group g
            a tensor without dimensions goes whole to each of them
    output  mode All      I * R values, those of one iteration beside each other
            mode EveryN   the values of each Nth iteration
            mode Final    the values of the last iteration
            mode Sum      the sums over the iterations
            a tensor without dimensions becomes a vector where there are several values

Arrays only; torch does not belong here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from popart import AnchorReturnType
from popart.session.program import DeviceProgram
from popart.session.replication import JointProgram
from popart.session.runner import Output, run_step

from popef._tools.arrays import Array


@dataclass(frozen=True, slots=True)
class Batching:
    """Number of iterations and replicas of a call, and which replicas share their inputs."""

    iterations: int = 1
    replicas: int = 1
    group_size: int = 1
    is_orthogonal: bool = False
    """Whether the members of a group are spread over the replicas, not beside each other."""

    @property
    def num_groups(self) -> int:
        """Number of groups of replicas."""
        return max(1, self.replicas // self.group_size)

    @property
    def num_parts(self) -> int:
        """Number of parts of an input."""
        return self.iterations * self.num_groups

    def find_part(self, iteration: int, replica: int) -> int:
        """Return the number of the part that a replica gets in an iteration."""
        groups = self.num_groups
        group = replica % groups if self.is_orthogonal else replica // self.group_size
        return iteration * groups + group

    def split(self, value: Array) -> Array:
        """Return an input as (parts, *shape of a part), not copied.

        Args:
            value: The whole input; `num_parts` divides its first dimension.

        Returns:
            The parts.
        """
        if not value.ndim:
            return np.broadcast_to(value, (self.num_parts,))
        return value.reshape(self.num_parts, len(value) // self.num_parts, *value.shape[1:])


@dataclass(slots=True)
class DeviceState:
    """Tensors that runs change, on the device: one value of each for each replica."""

    outputs: Mapping[str, str]
    """Name of the output that holds the new value, by the name of the input."""
    values: list[dict[str, Array]] = field(default_factory=list)

    def update(self, values: Mapping[str, Array], replicas: int) -> None:
        """Give all replicas the same values; those of other tensors stay."""
        states = self.values or [{} for _ in range(replicas)]
        self.values = [{**state, **values} for state in states]


@dataclass(slots=True)
class Steps:
    """The compiled program with the rules of its calls."""

    program: DeviceProgram | JointProgram
    batching: Batching
    kinds: Mapping[str, AnchorReturnType]
    """Iterations that each output returns."""
    state: DeviceState
    written: Mapping[str, str]
    """Name of the output that holds an input's new value, by the name of the input."""

    def run(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], dict[str, Array]]:
        """Run a call.

        Args:
            inputs: Whole inputs by name, in any type that the device's can be made from.

        Returns:
            The outputs, and the new values of inputs that the program changes, both by name.
        """
        names = [stream.tensor for stream in self.program.inputs]
        parts = {
            stream.tensor: self.batching.split(_convert(inputs[stream.tensor], stream.dtype))
            for stream in self.program.inputs
            if stream.tensor in inputs
        }
        result_names = [stream.tensor for stream in self.program.outputs]
        iterations, replicas = self.batching.iterations, self.batching.replicas
        outputs = {name: Output(kind, iterations, replicas) for name, kind in self.kinds.items()}
        changed = {name: np.empty_like(parts[name]) for name in self.written}
        states = self.state.values or [{} for _ in range(replicas)]

        def read(iteration: int, replica: int) -> list[Array]:
            part, state = self.batching.find_part(iteration, replica), states[replica]
            return [parts[name][part] if name in parts else state[name] for name in names]

        def write(iteration: int, replica: int, values: Sequence[Array]) -> None:
            results = dict(zip(result_names, values, strict=True))
            for name, output in outputs.items():
                output.add(results[name], iteration, replica)
            for name, source in self.written.items():
                changed[name][self.batching.find_part(iteration, replica)] = results[source]
            for name, source in self.state.outputs.items():
                states[replica][name] = np.array(results[source])

        run_step(self.program, iterations, replicas, read, write)
        results = {name: _join_output(output.values) for name, output in outputs.items()}
        return results, {name: _join(value, inputs[name]) for name, value in changed.items()}


def _join_output(values: Array | None) -> Array:
    """Return the values of all iterations and replicas, joined along the first dimension."""
    assert values is not None  # each mode returns the last iteration
    _, _, *shape = values.shape
    if shape:
        return values.reshape(math.prod(values.shape[:3]), *shape[1:])
    return values.reshape(() if values.size == 1 else -1)


def _join(parts: Array, whole: Array) -> Array:
    """Return the parts of an input as a value like the whole input."""
    return parts.reshape(whole.shape) if whole.ndim else parts[-1]


def _convert(value: Array, dtype: np.dtype[Any]) -> Array:
    return value if value.dtype == dtype else value.astype(dtype)
