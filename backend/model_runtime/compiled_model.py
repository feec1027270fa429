"""Facts about a model before it runs, and the check that its executable and metadata belong
together.

The facts are the costs, capacity and duration of a run of its programs. No device and no stream is
used here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from simipu import (
    Direction,
    Program,
    ProgramKind,
    SimulatedExecutable,
    Stream,
    iteration_timing,
)

import popef
from model_runtime.devices import model_target
from model_runtime.errors import ModelRuntimeError
from popef._tools.arrays import Array

_ROUNDING = 1e-9
Plan = list[tuple[int, list[str], list[str]]]
"""Main programs, each with the anchors of its inputs and of its outputs in the order of its
streams."""
_MAX_AXES = 64
"""Maximum number of axes, as many as an array can have."""
DIRECTIONS = {
    popef.TensorType.INPUT: Direction.HOST_TO_DEVICE,
    popef.TensorType.OUTPUT: Direction.DEVICE_TO_HOST,
}
"""Direction of the stream of an anchor, by the anchor's type."""


@dataclass(frozen=True, slots=True)
class RunCost:
    """Modelled cost of a run of the main programs.

    It holds cycles and seconds of the chip, and seconds with the host's transfers while runs are
    queued.
    """

    cycles: int
    seconds: float
    modelled_seconds: float


class CompiledModel:
    """A PopEF model and the executable that represents its programs.

    Raises ModelRuntimeError if they do not fit together.
    """

    def __init__(self, model: popef.Model, executable: SimulatedExecutable) -> None:
        metadata = model.metadata
        _check_target(metadata, executable)
        mains = _main_programs(metadata, executable)
        _check_anchors(model, executable, mains)
        if not mains:
            raise ModelRuntimeError(
                f"model {executable.name!r} has no main program in its program flow"
            )
        self.popef_model = model
        """Model as read from the files."""
        self.executable = executable
        """Executable that the engine runs."""
        self.replicas = max(1, metadata.replicationFactor())
        """Number of copies of the model that compute in parallel."""
        self.iterations = max(1, metadata.deviceIterations())
        """Number of batches that each replica computes in a run."""
        self.batch_size = mains[0].batch_size
        """Rows of the batch that one replica was compiled for; 0 if the tensors have no batch."""
        self.rows_per_iteration = max(1, self.batch_size) * self.replicas
        """Maximum rows of one device iteration: compiled batch times replicas."""
        self.rows_per_run = self.rows_per_iteration * self.iterations
        """Maximum rows of one run: compiled batch times replicas times device iterations."""
        reasons = [
            p.row_dependence or "nothing says that they are" for p in mains if not p.row_independent
        ]
        self.row_dependence = reasons[0] if reasons and self.batch_size else ""
        """Reason why a row's result may depend on the other rows of its batch, with the node; empty
        if it is proven not to."""
        self.batch_axes = {s.handle: s.batch_axis for program in mains for s in program.streams}
        """Batch axis in the tensor of each stream, by handle."""
        self.plan = _make_plan(metadata, mains)
        """Main programs in the order in which a run executes them."""
        self._sum_costs(mains)

    def _sum_costs(self, mains: list[Program]) -> None:
        target, iterations = self.executable.target, self.iterations
        self.cycles = sum(self.executable.cycles(program.index) for program in mains) * iterations
        """Modelled cycles of one run of the main programs; replicas run in parallel."""
        self.seconds = target.seconds(self.cycles)
        """Modelled seconds of one run of the main programs at the chip's clock."""
        timings = [iteration_timing(program, target, self.replicas) for program in mains]
        self.modelled_seconds = iterations * sum(timing.interval for timing in timings)
        """Modelled seconds of one run with the host's transfers: its duration when paced, while
        runs are queued."""
        overlap = sum(timing.latency - timing.interval for timing in timings)
        self.run_cost = RunCost(self.cycles, self.seconds, self.modelled_seconds)
        """Cost of the last run, and before the first run that of the most expensive one: the runs
        of a fused model differ."""
        self.branch_costs: list[RunCost] = []
        """Cost of a run of each member model, if the model is a fused one."""
        for branch in mains[0].branches if len(mains) == 1 else ():
            cycles = branch.cycles * iterations
            interval = iteration_timing(branch, target, self.replicas).interval
            self.branch_costs.append(RunCost(cycles, target.seconds(cycles), iterations * interval))
        self.overlapped_runs = 1 + math.ceil(overlap / self.modelled_seconds - _ROUNDING)
        """Number of runs that the chip has begun when the first of them ends: I/O tiles and
        pipelines overlap them."""

    def read_weights(self) -> dict[str, Array]:
        """Return the weights of the main programs by tensor, as views of the files (our
        addition).

        Weights that a load program would load, and that are in none of the files, are missing.
        """
        data = {tensor.info.name(): tensor for tensor in self.popef_model.tensors}
        weights = {constant.name: constant.array() for constant in self.executable.constants}
        for index in self.popef_model.metadata.programFlow().load():
            for stream in self.executable.program(index).streams:
                if stream.tensor in data:
                    weights[stream.tensor] = np.asarray(data[stream.tensor].data())
        return weights

    def getUserInputAnchors(self) -> list[popef.Anchor]:
        """Return the anchors that every run of the main programs reads from the user, without
        frozen inputs."""
        return self.popef_model.user_anchors(popef.TensorType.INPUT)

    def getUserOutputAnchors(self) -> list[popef.Anchor]:
        """Return the anchors that every run of the main programs writes for the user."""
        return self.popef_model.user_anchors(popef.TensorType.OUTPUT)


def specialise(
    model: popef.Model, executable: SimulatedExecutable, batch_axis: int | None
) -> SimulatedExecutable:
    """Return the executable with the files' frozen inputs inside and, if given, another batch axis.

    Raises ModelRuntimeError for data that do not fit.
    """
    data = model.frozen_inputs()
    if batch_axis in _input_axes(executable):
        batch_axis = None
    if not data and batch_axis is None:
        return executable
    if batch_axis is not None and not 0 <= batch_axis <= _MAX_AXES:
        raise ModelRuntimeError(f"batching dimension {batch_axis}: expected 0 to {_MAX_AXES}")
    anchors = {anchor.name(): anchor for anchor in model.metadata.anchors()}
    values = {
        anchors[name].handle(): _read_frozen_input(model.metadata, anchors[name], tensor)
        for name, tensor in data.items()
    }
    # Imported here: few models have frozen inputs, and it imports all that prepares graphs.
    from simipu import fix_inputs

    special = fix_inputs(executable, values, batch_axis)
    if batch_axis is not None:
        _check_batch_axis(special, batch_axis)
    return special


def _check_batch_axis(executable: SimulatedExecutable, axis: int) -> None:
    for program in executable.programs:
        if program.graph and (not program.batch_size or axis not in _input_axes(executable)):
            shapes = ", ".join(f"{stream.tensor} {stream.shape}" for stream in program.streams)
            raise ModelRuntimeError(
                f"batching dimension {axis}: expected one along which all inputs and outputs have "
                f"the same size, the compiled batch; found {shapes}. Leave it out for requests of "
                "whole batches"
            )


def _input_axes(executable: SimulatedExecutable) -> set[int]:
    """Return the axes of the rows in the inputs of the main programs."""
    streams = [
        stream for program in executable.programs if program.graph for stream in program.streams
    ]
    return {stream.batch_axis for stream in streams if stream.direction is Direction.HOST_TO_DEVICE}


def _read_frozen_input(
    metadata: popef.Metadata, anchor: popef.Anchor, tensor: popef.TensorReader
) -> Array:
    """Return the value of a frozen input on each replica."""
    if tensor.info.tensorInfo() != anchor.tensorInfo():
        raise ModelRuntimeError(
            f"input {anchor.name()!r}: the file's data are {tensor.info.tensorInfo()}, its anchor "
            f"says {anchor.tensorInfo()}"
        )
    value = np.asarray(tensor.data())
    if not anchor.isPerReplica() or metadata.replicationFactor() <= 1:
        return value
    _check_replicas(metadata, anchor)
    if any(row.tobytes() != value[0].tobytes() for row in value[1:]):
        raise ModelRuntimeError(
            f"input {anchor.name()!r}: the file's data differ between replicas; each of them is "
            "simulated as the same model"
        )
    return np.asarray(value[0])


def find_stream(executable: SimulatedExecutable, anchor: popef.Anchor) -> Stream:
    """Return the stream of an anchor; raises ModelRuntimeError if the executable has none."""
    for program in executable.programs:
        for stream in program.streams:
            if stream.handle == anchor.handle():
                return stream
    raise ModelRuntimeError(
        f"anchor {anchor.name()!r} has no stream in executable {executable.name!r}"
    )


def _make_plan(metadata: popef.Metadata, mains: list[Program]) -> Plan:
    names = {
        anchor.handle(): anchor.name()
        for kind in DIRECTIONS
        for anchor in popef.user_anchors(metadata, kind)
    }
    plan = []
    for program in mains:
        inputs, outputs = (
            [names[stream.handle] for stream in program.streams if stream.direction is direction]
            for direction in DIRECTIONS.values()
        )
        plan.append((program.index, inputs, outputs))
    return plan


def _main_programs(metadata: popef.Metadata, executable: SimulatedExecutable) -> list[Program]:
    mains = [executable.program(index) for index in metadata.programFlow().main()]
    wrong = [program.name for program in mains if program.kind is not ProgramKind.MAIN]
    if wrong:
        raise ModelRuntimeError(
            f"the program flow's main part names program {wrong[0]!r}, which is not a main program"
        )
    return mains


def _check_target(metadata: popef.Metadata, executable: SimulatedExecutable) -> None:
    target = model_target(metadata)
    if target.ipu_version != executable.target.ipu_version:
        raise ModelRuntimeError(
            f"executable {executable.name!r} is for IPU version {executable.target.ipu_version}, "
            f"its metadata says {target.ipu_version}; they do not belong together"
        )


def _check_anchors(
    model: popef.Model, executable: SimulatedExecutable, mains: list[Program]
) -> None:
    """Check that every user anchor is a stream of the executable, in shape and type, and vice
    versa."""
    metadata = model.metadata
    streams = {
        (stream.handle, stream.direction): stream for program in mains for stream in program.streams
    }
    for kind, direction in DIRECTIONS.items():
        for anchor in model.user_anchors(kind):
            stream = streams.pop((anchor.handle(), direction), None)
            if stream is None:
                raise ModelRuntimeError(
                    f"anchor {anchor.name()!r} has handle {anchor.handle()!r}, which is not a "
                    f"{direction.name.lower()} stream of executable {executable.name!r}; its "
                    "metadata belongs to another executable"
                )
            _check_replicas(metadata, anchor)
            _check_tensor(metadata, anchor, stream, executable.name)
    if streams:
        handle = next(iter(streams))[0]
        raise ModelRuntimeError(
            f"stream {handle!r} of executable {executable.name!r} has no anchor in the metadata"
        )


def _check_replicas(metadata: popef.Metadata, anchor: popef.Anchor) -> None:
    replicas, shape = metadata.replicationFactor(), anchor.tensorInfo().shape()
    if replicas > 1 and anchor.isPerReplica() and tuple(shape[:1]) != (replicas,):
        raise ModelRuntimeError(
            f"anchor {anchor.name()!r} isPerReplica in a model with replication factor {replicas}: "
            f"expected the replicas as leading dimension, found shape {tuple(shape)}"
        )


def _check_tensor(
    metadata: popef.Metadata, anchor: popef.Anchor, stream: Stream, executable: str
) -> None:
    shape = popef.replica_shape(metadata, anchor)
    dtype = np.dtype(popef.popefTypeToNumpyDType(anchor.tensorInfo().dataType()))
    if (shape, dtype) != (stream.shape, stream.dtype):
        raise ModelRuntimeError(
            f"anchor {anchor.name()!r} is {dtype.name} of shape {shape} in the metadata, but "
            f"{stream.dtype.name} of shape {stream.shape} in executable {executable!r}; its "
            "metadata belongs to another executable"
        )
