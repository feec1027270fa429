"""Programs of segments: compiled by poprt and loaded on the simulated IPU, or run by the host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import tensorflow as tf
from popart import poplar_exception
from tensorflow.core.protobuf.config_pb2 import CallableOptions, RunOptions
from tensorflow.python.platform import tf_logging

from popef._tools.arrays import Array
from tensorflow_ipu import events
from tensorflow_ipu.config import flags, seeds
from tensorflow_ipu.errors import IpuError, make_run_error
from tensorflow_ipu.execution import counters
from tensorflow_ipu.plan import Segment

if TYPE_CHECKING:
    from popart.session.program import DeviceProgram
    from popart.session.replication import JointProgram

    from tensorflow_ipu.config.devices import Device
    from tensorflow_ipu.execution import PlannedComputation, VariableValues


_resets: dict[int, int] = {}
"""Number of resets of each device's seed."""


def _count_reset(ordinal: int) -> None:
    _resets[ordinal] = _resets.get(ordinal, 0) + 1


seeds.HOOKS.append(_count_reset)


class Program(Protocol):
    """What computes a segment."""

    def run(self, inputs: Sequence[Sequence[Array]]) -> Sequence[Sequence[Array]]:
        """Return the values of the segment's outputs for each replica's inputs."""


def prepare(planned: PlannedComputation, segment: Segment, variables: VariableValues) -> Program:
    """Return the program of a segment.

    Args:
        planned: The computation that it belongs to.
        segment: The segment.
        variables: Values of the variables, which are the program's first weights.

    Returns:
        The program, ready to run.

    Raises:
        IpuError: If it cannot be compiled.
    """
    if segment.on_host or segment.is_trivial():
        return HostProgram(segment)
    return DeviceSegment.make(planned, segment, variables)


class HostProgram:
    """A segment that the host computes.

    It is outside the compilation, counts loops, copies, or has single numbers only. The real stack
    computes such graphs on the host too, and writes no executable for them.
    """

    def __init__(self, segment: Segment) -> None:
        effects = [
            operation.name
            for operation in segment.graph.get_operations()
            if operation.op_def.is_stateful and operation.type != "Placeholder"
        ]
        with segment.graph.as_default():  # what is fed cannot be fetched
            results = [tf.identity(tensor).name for _, tensor in segment.outputs]
        options = CallableOptions(
            feed=[tensor.name for _, tensor in segment.inputs],
            fetch=results,
            target=effects,
            # In this thread: those of the pool may all wait for the computation that asks.
            run_options=RunOptions(inter_op_thread_pool=-1),
        )
        self._session = tf.compat.v1.Session(graph=segment.graph)
        self._call = self._session._make_callable_from_options(options)  # noqa: SLF001

    def run(self, inputs: Sequence[Sequence[Array]]) -> Sequence[Sequence[Array]]:
        """Return the values of the segment's outputs for each replica's inputs."""
        return [self._call(*map(np.asarray, replica)) for replica in inputs]


@dataclass(slots=True)
class DeviceSegment:
    """A segment that is compiled, and loaded on the simulated IPU."""

    device: Device
    program: DeviceProgram | JointProgram
    cycles: int
    """Modelled cycles of a run on the chip."""
    order: list[int]
    """For each input stream of the program the place among the segment's inputs."""
    dtypes: list[Any]
    results: list[int]
    """For each output of the segment the place among the program's output streams."""
    result_types: list[Any]
    weights: Mapping[str, int]
    """Place among the segment's inputs of each streamed weight, by its name."""
    held: dict[str, Array] = field(default_factory=dict)
    """Arrays of the weights that the device has. They are kept, so that TensorFlow has to give a
    changed variable another array."""
    logs_cycles: bool = field(default_factory=lambda: flags.read_flags().log_cycle_count >= 0)
    resets: int = 0
    """Number of resets of the device's seed that the program has seen."""

    @classmethod
    def make(
        cls, planned: PlannedComputation, segment: Segment, variables: VariableValues
    ) -> DeviceSegment:
        """Compile a segment."""
        from tensorflow_ipu.compilation import SegmentModel, compile_segment

        model = SegmentModel.make(planned, segment)
        held = {name: variables.values[name] for name in model.weights}
        program, cycles = compile_segment(planned, model, held)
        streams = {stream.tensor: n for n, stream in enumerate(program.outputs)}
        places = {name: place for place, name in enumerate(model.inputs)}
        return cls(
            planned.find_device(),
            program,
            cycles,
            [places[stream.tensor] for stream in program.inputs],
            [stream.dtype for stream in program.inputs],
            [streams[name] for name in model.outputs],
            [tensor.dtype.as_numpy_dtype for _, tensor in segment.outputs],
            {} if planned.computation.freeze_variables else model.weights,
            held,
        )

    def run(self, inputs: Sequence[Sequence[Array]]) -> Sequence[Sequence[Array]]:
        """Return the values of the segment's outputs, for each replica."""
        if self.device.returns_zeros:
            return [self._make_zeros()] * len(inputs)
        self._load(inputs[0])
        values = [
            [
                np.asarray(replica[place], dtype)
                for place, dtype in zip(self.order, self.dtypes, strict=True)
            ]
            for replica in inputs
        ]
        try:
            results = self.program.run_replicas(values)
        except poplar_exception as error:
            raise make_run_error(error) from error
        counters.runs += 1
        counters.cycles += self.cycles
        if self.logs_cycles:
            tf_logging.info(f"Cycle count (modelled): {self.cycles}")
        events.record_run(events.MODULE, self.device.ordinal)
        return [
            [
                np.asarray(replica[place], dtype)
                for place, dtype in zip(self.results, self.result_types, strict=True)
            ]
            for replica in results
        ]

    def _make_zeros(self) -> list[Array]:
        """Return what a device returns that programs are compiled for in advance."""
        streams = [self.program.outputs[place] for place in self.results]
        return [
            np.zeros(stream.shape, dtype)
            for stream, dtype in zip(streams, self.result_types, strict=True)
        ]

    def _load(self, inputs: Sequence[Array]) -> None:
        """Load the program if it is not, with the variables' values."""
        changed = {
            name: inputs[place]
            for name, place in self.weights.items()
            if not _is_same(inputs[place], self.held[name])
        }
        if changed:
            self.held.update(changed)
            self.program.set_weights(changed)
        resets = _resets.get(self.device.ordinal, 0)
        if not self.program.is_loaded or (self.program.is_random and resets != self.resets):
            self.device.attach()
            self.resets = resets
            try:
                self.program.load(seeds.draw_seeds(self.device.ordinal)[0])
            except poplar_exception as error:
                raise IpuError(str(error)) from error
            events.record_load(events.MODULE, self.device.ordinal)


def _is_same(value: Array, other: Array) -> bool:
    return value is other or (value.ctypes.data == other.ctypes.data and value.shape == other.shape)
