"""Replicas that depend on each other, by collectives or by weights of their own.

One program computes all of them, with a copy of each node for each replica. The modelled time and
memory stay those of the program of one replica, which is compiled beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx
from onnx import numpy_helper
from onnxgraph import copy_with_weights, used_names
from poprt.compile import Executable

from popart.enums import CommGroupType, VariableRetrievalMode
from popart.errors import popart_exception
from popart.lowering import Effect, Joined
from popart.session.program import DeviceProgram
from popart.session.weights import read_initializer
from popart.variables import CommGroup, ReplicaGrouping, VariableSettings
from popef._tools.arrays import Array

_TYPE, _SIZE, _MODE = "__comm_group_type/", "__comm_group_size/", "__variable_settings/"
"""Keys of a model's metadata, in front of the name of a weight."""


def find_split_weights(model: onnx.ModelProto, replicas: int) -> dict[str, ReplicaGrouping]:
    """Return the weights that have a value for each of several groups of replicas.

    Weights that nothing reads are not checked, as in PopART.

    Args:
        model: The model, as the builder made it.
        replicas: Number of replicas.

    Returns:
        The groups by weight.

    Raises:
        popart_exception: For groups that do not divide the replicas, weights whose first axis is
            not that of the groups, and values that the host cannot read back.
    """
    facts = {entry.key: int(entry.value) for entry in model.metadata_props if _is_fact(entry)}
    split, read = {}, used_names(model.graph)
    for tensor in model.graph.initializer if replicas > 1 else ():
        name = tensor.name
        if name not in read:
            continue
        settings = VariableSettings(
            CommGroup(CommGroupType(facts.get(_TYPE + name, 0)), facts.get(_SIZE + name, 0)),
            VariableRetrievalMode(facts.get(_MODE + name, 0)),
        )
        groups = settings.getReplicaGrouping(replicas)
        if settings.numReplicasReturningVariable(replicas) != groups.getNumGroups():
            raise popart_exception(
                f"Weight '{name}': VariableRetrievalMode.AllReplicas is not supported for groups "
                f"of {groups.getGroupSize()} replicas, which share a value. Use OnePerGroup"
            )
        settings.shapeOnReplica(tensor.dims, replicas, name)
        if groups.getNumGroups() > 1:
            split[name] = groups
    return split


def _is_fact(entry: onnx.StringStringEntryProto) -> bool:
    return entry.key.startswith((_TYPE, _SIZE, _MODE))


def take_first_group(
    model: onnx.ModelProto, split: Mapping[str, ReplicaGrouping]
) -> onnx.ModelProto:
    """Return a model of one replica, which has the first group's values; itself without splits."""
    if not split:
        return model
    return copy_with_weights(
        model,
        lambda tensor: (
            numpy_helper.from_array(read_initializer(tensor)[0], tensor.name)
            if tensor.name in split
            else tensor
        ),
    )


class JointProgram:
    """A program of all replicas, which is used like that of one (`DeviceProgram`)."""

    def __init__(
        self,
        executable: Executable,
        joined: Joined,
        split: Mapping[str, ReplicaGrouping],
        effects: Mapping[str, Effect],
    ) -> None:
        self._copies = {
            name: [copies[groups.getReplicaAt(i)] for i in range(groups.getNumGroups())]
            for name, groups in split.items()
            if (copies := joined.inputs.get(name))
        }
        """Names of the groups' weights, by weight."""
        self._program = DeviceProgram(
            executable,
            {copy: effect for name, effect in effects.items() for copy in joined.outputs[name]},
        )
        places = {
            copy: (name, replica)
            for names in (joined.inputs, joined.outputs)
            for name, copies in names.items()
            for replica, copy in reversed(list(enumerate(copies)))
        }
        self._origins = [places[stream.tensor] for stream in self._program.inputs]
        """Name and replica of the program's inputs; those that all share are the first one's."""
        self.inputs = list(
            {
                name: replace(stream, tensor=name)
                for stream, (name, _) in zip(self._program.inputs, self._origins, strict=True)
            }.values()
        )
        """Streams of one replica's inputs."""
        self._results = [places[stream.tensor] for stream in self._program.outputs]
        self.outputs = [
            replace(stream, tensor=name)
            for stream, (name, replica) in zip(self._program.outputs, self._results, strict=True)
            if replica == 0
        ]
        """Streams of one replica's anchors."""

    @property
    def weights(self) -> dict[str, Array]:
        """Values that the device has, of the weights that are streamed, with the groups in
        front."""
        weights = self._program.weights
        copies = {copy for copies_of in self._copies.values() for copy in copies_of}
        return {name: value for name, value in weights.items() if name not in copies} | {
            name: np.stack([weights[copy] for copy in copies_of])
            for name, copies_of in self._copies.items()
            if copies_of[0] in weights
        }

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        """Replace the values of streamed weights; others are ignored."""
        values = {name: value for name, value in weights.items() if name not in self._copies}
        for name, copies in self._copies.items():
            values.update(zip(copies, weights.get(name, ()), strict=False))
        self._program.set_weights(values)

    def load(self, seed: int) -> None:
        """Load the weights and the program, whose random streams begin anew.

        Args:
            seed: The random seed.

        Raises:
            poplar_runtime_error: If the program cannot be loaded.
        """
        self._program.load(seed)

    @property
    def is_random(self) -> bool:
        """Whether an operator draws."""
        return self._program.is_random

    @property
    def is_loaded(self) -> bool:
        """Whether the program can run."""
        return self._program.is_loaded

    def unload(self) -> None:
        """Release the loaded program."""
        self._program.unload()

    def run_replicas(self, values: Sequence[Sequence[Array]]) -> list[Sequence[Array]]:
        """Compute one batch of each replica.

        Args:
            values: For each replica an array for each input, in the stream's shape.

        Returns:
            For each replica an array for each anchor.

        Raises:
            poplar_application_runtime_error: If the program ends itself.
            poplar_system_runtime_error: If the run did not end in time.
        """
        by_name = [
            dict(zip((stream.tensor for stream in self.inputs), value, strict=True))
            for value in values
        ]
        results = self._program.run([by_name[replica][name] for name, replica in self._origins])
        by_origin = dict(zip(self._results, results, strict=True))
        names = [stream.tensor for stream in self.outputs]
        return [[by_origin[name, replica] for name in names] for replica in range(len(values))]
