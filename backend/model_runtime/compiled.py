"""What is known of a model before it runs: that its executable and its metadata belong together, and what a
run of its programs takes, has place for and lasts. No device and no stream is touched here.
"""

from __future__ import annotations

import math

import numpy as np
from simipu import Direction, Program, ProgramKind, SimulatedExecutable, Stream
from simipu.engine import iteration_timing

import popef
from model_runtime.devices import model_target
from model_runtime.errors import ModelRuntimeError

Plan = list[tuple[int, list[str], list[str]]]
"""Main programs, each with the anchors of its inputs and of its outputs in the order of its streams."""
DIRECTIONS = {
    popef.TensorType.INPUT: Direction.HOST_TO_DEVICE,
    popef.TensorType.OUTPUT: Direction.DEVICE_TO_HOST,
}
"""Which way an anchor's stream goes."""


class CompiledModel:
    """A PopEF model and the executable that stands for its programs.

    Raises ModelRuntimeError when they do not fit together.
    """

    def __init__(self, model: popef.Model, executable: SimulatedExecutable) -> None:
        metadata = model.metadata
        _check_target(metadata, executable)
        mains = _main_programs(metadata, executable)
        _check_anchors(metadata, executable, mains)
        if not mains:
            raise ModelRuntimeError(f"model {executable.name!r} has no main program in its program flow")
        self.popef_model = model
        """As the files have it."""
        self.executable = executable
        """What the engine runs."""
        self.replicas = max(1, metadata.replicationFactor())
        """Copies of the model that compute side by side."""
        self.iterations = max(1, metadata.deviceIterations())
        """Batches that each of them computes in a run."""
        self.batch_size = mains[0].batch_size
        """Rows of the batch that one replica was compiled for; 0 where the tensors have no batch."""
        self.rows_per_iteration = max(1, self.batch_size) * self.replicas
        """Rows that one device iteration has place for: compiled batch times replicas."""
        self.rows_per_run = self.rows_per_iteration * self.iterations
        """Rows that one run has place for: compiled batch times replicas times device iterations."""
        reasons = [p.row_dependence or "nothing says that they are" for p in mains if not p.row_independent]
        self.row_dependence = reasons[0] if reasons and self.batch_size else ""
        """Why a row's result may depend on the other rows of its batch, naming the node; empty where it is
        proven not to."""
        self.batch_axes = {s.handle: s.batch_axis for program in mains for s in program.streams}
        """The axis of the batch in the tensor of each stream, by handle."""
        self.plan = _make_plan(metadata, mains)
        """The main programs in the order in which a run has them."""
        self._add_up_times(mains)

    def _add_up_times(self, mains: list[Program]) -> None:
        target, iterations = self.executable.target, self.iterations
        self.cycles = sum(self.executable.cycles(program.index) for program in mains) * iterations
        """Modelled cycles of one run of the main programs; replicas run side by side."""
        self.seconds = target.seconds(self.cycles)
        """The same at the chip's clock."""
        timings = [iteration_timing(program, target, self.replicas) for program in mains]
        self.modelled_seconds = iterations * sum(timing.interval for timing in timings)
        """With the host's transfers: what a run takes when paced, while runs are queued."""
        overlap = sum(timing.latency - timing.interval for timing in timings)
        self.overlapped_runs = 1 + math.ceil(overlap / self.modelled_seconds)
        """Runs that the chip has begun when the first of them ends: I/O tiles and pipelines overlap them."""

    def getUserInputAnchors(self) -> list[popef.Anchor]:
        """Anchors that every run of the main programs reads from the user."""
        return popef.user_anchors(self.popef_model.metadata, popef.TensorType.INPUT)

    def getUserOutputAnchors(self) -> list[popef.Anchor]:
        """Anchors that every run of the main programs writes for the user."""
        return popef.user_anchors(self.popef_model.metadata, popef.TensorType.OUTPUT)


def find_stream(executable: SimulatedExecutable, anchor: popef.Anchor) -> Stream:
    """The stream of an anchor; ModelRuntimeError where the executable has none."""
    for program in executable.programs:
        for stream in program.streams:
            if stream.handle == anchor.handle():
                return stream
    raise ModelRuntimeError(f"anchor {anchor.name()!r} has no stream in executable {executable.name!r}")


def _make_plan(metadata: popef.Metadata, mains: list[Program]) -> Plan:
    kinds = (popef.TensorType.INPUT, popef.TensorType.OUTPUT)
    names = {a.handle(): a.name() for kind in kinds for a in popef.user_anchors(metadata, kind)}
    plan = []
    for program in mains:
        taken = [names[s.handle] for s in program.streams if s.direction is Direction.HOST_TO_DEVICE]
        given = [names[s.handle] for s in program.streams if s.direction is Direction.DEVICE_TO_HOST]
        plan.append((program.index, taken, given))
    return plan


def _main_programs(metadata: popef.Metadata, executable: SimulatedExecutable) -> list[Program]:
    mains = [executable.program(index) for index in metadata.programFlow().main()]
    wrong = [program.name for program in mains if program.kind is not ProgramKind.MAIN]
    if wrong:
        raise ModelRuntimeError(
            f"the program flow's main part names program {wrong[0]!r}, which is no main program"
        )
    return mains


def _check_target(metadata: popef.Metadata, executable: SimulatedExecutable) -> None:
    wanted = model_target(metadata)
    if wanted.ipu_version != executable.target.ipu_version:
        raise ModelRuntimeError(
            f"executable {executable.name!r} is for IPU version {executable.target.ipu_version}, its "
            f"metadata says {wanted.ipu_version}; they do not belong together"
        )


def _check_anchors(metadata: popef.Metadata, executable: SimulatedExecutable, mains: list[Program]) -> None:
    """Every user anchor must be a stream of the executable, in shape and type; every main stream an
    anchor."""
    streams = {(stream.handle, stream.direction): stream for program in mains for stream in program.streams}
    for kind, direction in DIRECTIONS.items():
        for anchor in popef.user_anchors(metadata, kind):
            stream = streams.pop((anchor.handle(), direction), None)
            if stream is None:
                raise ModelRuntimeError(
                    f"anchor {anchor.name()!r} has handle {anchor.handle()!r}, which is no "
                    f"{direction.name.lower()} stream of executable {executable.name!r}; its metadata "
                    "belongs to another executable"
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
    if replicas > 1 and (not anchor.isPerReplica() or tuple(shape[:1]) != (replicas,)):
        raise ModelRuntimeError(
            f"anchor {anchor.name()!r} of a model with replication factor {replicas}: expected isPerReplica "
            f"and the replicas as leading dimension, found isPerReplica {anchor.isPerReplica()} and shape "
            f"{tuple(shape)}; tensors that all replicas share are not supported"
        )


def _check_tensor(metadata: popef.Metadata, anchor: popef.Anchor, stream: Stream, executable: str) -> None:
    shape = popef.replica_shape(metadata, anchor)
    dtype = np.dtype(popef.popefTypeToNumpyDType(anchor.tensorInfo().dataType()))
    if (shape, dtype) != (stream.shape, stream.dtype):
        raise ModelRuntimeError(
            f"anchor {anchor.name()!r} is {dtype.name} of shape {shape} in the metadata, but "
            f"{stream.dtype.name} of shape {stream.shape} in executable {executable!r}; its metadata "
            "belongs to another executable"
        )
