"""The compiled program on a device: weights, random seed, and the runs of single batches.

A step of a session is `batchesPerStep` runs of each replica, in order. Replicas that do not depend
on each other have the same weights and run one after the other (others: `replication`); the
modelled time is that of replicas in parallel.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import onnx
from model_runtime import host_sync_timeout_seconds
from onnxgraph import iter_nodes, set_attribute
from poprt.compile import LOAD_PROGRAM, MAIN_PROGRAM, Executable
from simipu import (
    Device,
    DeviceLostError,
    Direction,
    Engine,
    GraphOptions,
    LoadError,
    RunError,
    SimIpuError,
    Stream,
)
from simipu.operators import operator_of

from popart.errors import (
    poplar_application_runtime_error,
    poplar_runtime_error,
    poplar_system_runtime_error,
)
from popart.lowering import Effect
from popart.session.effects import act
from popef._tools.arrays import Array
from popef._tools.logs import TRACE

_log = logging.getLogger("popart.devicex")
_MAX_SEED: Final = 1 << 24
"""Seeds are attributes in float, but for Dropout; float holds whole numbers up to this one."""


class DeviceProgram:
    """An executable that is loaded, or can be."""

    def __init__(self, executable: Executable, effects: Mapping[str, Effect]) -> None:
        self._given = executable
        self._effects = effects
        main = executable.executable.program(MAIN_PROGRAM)
        self.inputs = _select(main.streams, Direction.HOST_TO_DEVICE)
        """Streams of the inputs, in the order of a run's values."""
        self._results = _select(main.streams, Direction.DEVICE_TO_HOST)
        """Streams of the anchors, and of the tensors that effects act on."""
        self.outputs = [result for result in self._results if result.tensor not in effects]
        """Streams of the anchors, in the order of a run's results."""
        self._has_rows = bool(main.batch_size)
        self._moves = any(stream.batch_axis for stream in main.streams)
        self.weights: dict[str, Array] = dict(executable.weights)
        """Values that the device has, of the weights that are streamed."""
        self._model = onnx.ModelProto.FromString(main.graph)
        self.is_random = draws(self._model.graph)
        """Whether an operator draws."""
        self._engine: Engine | None = None

    def load(self, seed: int) -> None:
        """Load the weights and the program, whose random streams begin anew.

        Args:
            seed: The random seed.

        Raises:
            poplar_runtime_error: If the program cannot be loaded.
        """
        if self._engine is not None:
            self._engine.unload()
        executable = self._given.executable
        if self.is_random:
            programs = tuple(
                replace(program, graph=self._seed_graph(seed))
                if program.index == MAIN_PROGRAM
                else program
                for program in executable.programs
            )
            executable = replace(executable, programs=programs)
        _log.log(TRACE, "Loading the engine of %s", executable.target.name)
        options = GraphOptions(limit_seconds=host_sync_timeout_seconds())
        self._engine = Engine(executable, Device(executable.target), graph_options=options)
        try:
            self._load_weights(self._engine)
            self._engine.load(MAIN_PROGRAM)
        except (LoadError, RunError) as error:
            raise poplar_runtime_error(str(error)) from error

    def _load_weights(self, engine: Engine) -> None:
        for stream in self._given.executable.program(LOAD_PROGRAM).streams:
            value = self.weights[stream.tensor][None]
            engine.connect_input(stream.handle, lambda _, value=value: value)  # type: ignore[misc]
        engine.run(LOAD_PROGRAM)

    def set_weights(self, weights: Mapping[str, Array]) -> None:
        """Replace the values of streamed weights; others are ignored."""
        changed = {name: value for name, value in weights.items() if name in self.weights}
        self.weights.update(changed)
        if self._engine is not None and changed:
            self._load_weights(self._engine)
            self._engine.load(MAIN_PROGRAM)

    def run(self, values: Sequence[Array]) -> Sequence[Array]:
        """Compute one batch of one replica.

        Args:
            values: An array for each input stream, in the stream's shape.

        Returns:
            An array for each output stream.

        Raises:
            poplar_application_runtime_error: If the program ends itself.
            poplar_system_runtime_error: If the run did not end in time.
        """
        assert self._engine is not None
        values = self._to_rows(values)
        try:
            results = self._engine.compute(MAIN_PROGRAM, values)
        except DeviceLostError as error:
            raise poplar_system_runtime_error(str(error)) from error
        except SimIpuError as error:
            raise poplar_application_runtime_error(str(error)) from error
        returned = self._from_rows(results)
        if not self._effects:
            return returned
        by_tensor = {
            stream.tensor: value for stream, value in zip(self._results, returned, strict=True)
        }
        self.set_weights(act(self._effects, by_tensor))
        return [by_tensor[result.tensor] for result in self.outputs]

    def run_replicas(self, values: Sequence[Sequence[Array]]) -> list[Sequence[Array]]:
        """Compute one batch of each replica, one after the other.

        Args:
            values: For each replica an array for each input stream, in the stream's shape.

        Returns:
            For each replica an array for each output stream.

        Raises:
            poplar_application_runtime_error: If the program ends itself.
            poplar_system_runtime_error: If the run did not end in time.
        """
        return [self.run(value) for value in values]

    def _to_rows(self, values: Sequence[Array]) -> Sequence[Array]:
        """Return values as the engine takes them: with their rows first, or one row each."""
        if not self._has_rows:
            return [np.asarray(value)[None] for value in values]
        if not self._moves:
            return values
        pairs = zip(self.inputs, values, strict=True)
        return [np.moveaxis(value, stream.batch_axis, 0) for stream, value in pairs]

    def _from_rows(self, results: Sequence[Array]) -> Sequence[Array]:
        """Return results of the engine in their own shapes."""
        if not self._has_rows:
            return [result[0] for result in results]
        if not self._moves:
            return results
        pairs = zip(self._results, results, strict=True)
        return [np.moveaxis(result, 0, stream.batch_axis) for stream, result in pairs]

    @property
    def is_loaded(self) -> bool:
        """Whether the program can run."""
        return self._engine is not None

    def unload(self) -> None:
        """Release the loaded program."""
        if self._engine is not None:
            self._engine.unload()
            self._engine = None

    def _seed_graph(self, seed: int) -> bytes:
        """Return the graph with a seed in each node that draws, made of the session's and its
        number."""
        drawing = [node for node in iter_nodes(self._model.graph) if operator_of(node).draws(node)]
        for number, node in enumerate(drawing):
            digest = hashlib.sha256(f"{seed} {number}".encode()).digest()
            value = int.from_bytes(digest[:8], "little") % _MAX_SEED
            set_attribute(node, "seed", value if node.op_type == "Dropout" else float(value))
        return bytes(self._model.SerializeToString(deterministic=True))


def draws(graph: onnx.GraphProto) -> bool:
    """Return whether an operator of a graph draws."""
    return any(operator_of(node).draws(node) for node in iter_nodes(graph))


def _select(streams: Sequence[Stream], direction: Direction) -> list[Stream]:
    return [stream for stream in streams if stream.direction is direction]
