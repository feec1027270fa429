"""Session: a model bound to a device, its weights loaded, its programs ready to run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from os import PathLike

import numpy as np
from simipu import (
    Direction,
    Engine,
    Executable,
    GraphOptions,
    Program,
    ProgramKind,
    RunCancelledError,
    Stream,
)
from simipu.engine import ReadCallback, WriteCallback, iteration_timing

import popef
from model_runtime.devices import Device, DeviceManager, DeviceWaitConfig, model_target
from model_runtime.environment import host_sync_timeout_seconds
from model_runtime.errors import ModelRuntimeError, StoppedError
from model_runtime.exits import attend
from model_runtime.predicate_factory import orBind, predProgramFlowMain, predProgramNotAssigned
from model_runtime.predicates import AnchorCallbackPolicy, AnchorCallbackPredicate
from model_runtime.queues import Array, QueueManager, TimeoutCallback

Path = str | PathLike[str]


class LaunchPolicy(IntEnum):
    """When a session takes a device."""

    Immediate = 0
    """In its constructor."""
    Deferred = 1
    """When the user calls bindToDevice."""


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """How a session is made.

    check_package_hash: refuse an executable of another generation of the simulator. policy, wait_config: when
    to take a device, and how long to wait for one. Ours: `device_manager` is the machine that has the
    devices; `graph_options` say how ONNX Runtime computes; `isolated` has it compute in a child process;
    `paced` lets no row leave before its modelled time has passed; `executable` stands in for one in the PopEF
    file that cannot be simulated; `join_dependent_rows` has the rows of several requests share a batch, and a
    request's several batches, also where a row's result may depend on its neighbours, as the real library
    does.
    """

    check_package_hash: bool = True
    policy: LaunchPolicy = LaunchPolicy.Immediate
    wait_config: DeviceWaitConfig = field(default_factory=DeviceWaitConfig)
    device_manager: DeviceManager = field(default_factory=DeviceManager)
    graph_options: GraphOptions = field(
        default_factory=lambda: GraphOptions(limit_seconds=host_sync_timeout_seconds())
    )
    isolated: bool = False
    paced: bool = False
    executable: Executable | None = None
    join_dependent_rows: bool = False


class Session:
    """Runs one model. Programs are run by one thread at a time.

    Raises LoadError or ModelRuntimeError when the executable, its metadata and its weights do not fit
    together.
    """

    def __init__(
        self, model: popef.Model | Path | Sequence[Path], config: SessionConfig | None = None
    ) -> None:
        self._config = config or SessionConfig()
        self._model = model if isinstance(model, popef.Model) else read_model(model)
        self._executable = self._config.executable or Executable.deserialize(
            self._model.executable.executable(), check_package_hash=self._config.check_package_hash
        )
        metadata = self._model.metadata
        _check_target(metadata, self._executable)
        _check_anchors(metadata, self._executable)
        flow = metadata.programFlow()
        self._load, self._main, self._save = (list(flow.load()), list(flow.main()), list(flow.save()))
        if not self._main:
            raise ModelRuntimeError(
                f"model {self._executable.name!r} has no main program in its program flow"
            )
        programs = [self._executable.program(index) for index in self._main]
        self.batch_size = programs[0].batch_size
        """Rows of the batch that one replica was compiled for; 0 where the tensors have no batch."""
        reasons = [
            p.row_dependence or "nothing says that they are" for p in programs if not p.row_independent
        ]
        self.row_dependence = reasons[0] if reasons and self.batch_size else ""
        """Why a row's result may depend on the other rows of its batch, naming the node; empty where it is
        proven not to."""
        self.runs_alone = bool(self.row_dependence) and not self._config.join_dependent_rows
        """Whether a request shares no batch with another, and has at most one."""
        self.batch_axes = {
            stream.handle: stream.batch_axis for program in programs for stream in program.streams
        }
        """The axis of the batch in the tensor of each stream, by handle."""
        iterations = _iterations(metadata)
        self.rows_per_run = max(1, self.batch_size) * _replicas(metadata) * iterations
        """Rows that one run has place for: compiled batch times replicas times device iterations."""
        self.cycles = sum(self._executable.cycles(index) for index in self._main) * iterations
        """Modelled cycles of one run of the main programs; replicas run side by side."""
        target = self._executable.target
        self.seconds = target.seconds(self.cycles)
        """The same at the chip's clock."""
        replicas = _replicas(metadata)
        timings = [iteration_timing(program, target, replicas) for program in programs]
        self.modelled_seconds = iterations * sum(timing.interval for timing in timings)
        """With the host's transfers: what a run takes when paced, while runs are queued."""
        overlap = sum(timing.latency - timing.interval for timing in timings)
        self.runs_at_once = 1 + math.ceil(overlap / self.modelled_seconds) if self._config.paced else 1
        """Runs that a paced device has begun when the first of them ends: I/O tiles and pipelines overlap
        them."""
        self._plan = self._make_plan()
        self._reads: dict[str, ReadCallback] = {}
        self._writes: dict[str, WriteCallback] = {}
        self._queues: QueueManager | None = None
        self._device: Device | None = None
        self._engine: Engine | None = None
        self._stopped = False
        self.observer: Callable[[int, int, int, int], None] | None = None
        """Called after each run of the main programs, in the thread that ran them, with its start and end (on
        the clock of time.perf_counter_ns), its number of rows, and by how many ns the CPU was late (see
        Engine.lateness_ns)."""
        attend(self)
        if self._config.policy is LaunchPolicy.Immediate:
            self.bindToDevice()

    def model(self) -> popef.Model:
        """The PopEF model."""
        return self._model

    @property
    def executable(self) -> Executable:
        """What the engine runs."""
        return self._executable

    @property
    def device(self) -> Device:
        """The device that the session is bound to."""
        if self._device is None:
            raise ModelRuntimeError("the session is bound to no device; call bindToDevice first")
        return self._device

    def bindToDevice(self, device: Device | None = None) -> None:
        """Take `device`, or one that the model asks for, and put the executable on it; weights are loaded by
        the programs."""
        if device is None:
            metadata = self._model.metadata
            needed = self._executable.target.with_ipus(
                max(metadata.numIpus(), self._executable.target.num_ipus)
            )
            device = self._config.device_manager.attach(needed, self._config.wait_config)
        self.unloadFromDevice()
        device.bind(self)
        self._device = device
        self._engine = Engine(
            self._executable,
            device.device(),
            replication_factor=_replicas(self._model.metadata),
            device_iterations=_iterations(self._model.metadata),
            graph_options=self._config.graph_options,
            isolated=self._config.isolated,
            paced=self._config.paced,
        )
        for handle, read in self._reads.items():
            self._engine.connect_input(handle, read)
        for handle, write in self._writes.items():
            self._engine.connect_output(handle, write)

    def unloadFromDevice(self) -> None:
        """Give up device and weights; handlers and queues stay for the next bindToDevice."""
        if self._engine is not None:
            self._engine.unload()
        self._engine = self._device = None

    def getUserInputAnchors(self) -> list[popef.Anchor]:
        """Anchors that every run of the main programs reads from the user."""
        return popef.user_anchors(self._model.metadata, popef.TensorType.INPUT)

    def getUserOutputAnchors(self) -> list[popef.Anchor]:
        """Anchors that every run of the main programs writes for the user."""
        return popef.user_anchors(self._model.metadata, popef.TensorType.OUTPUT)

    def setUserInputHandler(
        self,
        handler: Callable[[popef.Anchor], Callable[[Array], None]],
        predicate: AnchorCallbackPredicate | None = None,
    ) -> None:
        """Connect input anchors to the user's callbacks: `handler(anchor)` makes the one that fills an array
        of the compiled shape (one batch of one replica) before each run. `predicate` chooses the anchors;
        default: the main programs'."""
        for anchor, policy in self._choose(popef.TensorType.INPUT, predicate):
            if policy is AnchorCallbackPolicy.BIND_USER_CB:
                self._connect_input(
                    anchor, _fill(self._stream(anchor), handler(anchor), bool(self.batch_size))
                )
            elif policy is AnchorCallbackPolicy.BIND_EMPTY_CB:
                self._connect_input(
                    anchor, _fill(self._stream(anchor), lambda array: None, bool(self.batch_size))
                )

    def setUserOutputHandler(
        self,
        handler: Callable[[popef.Anchor], Callable[[Array], None]],
        predicate: AnchorCallbackPredicate | None = None,
    ) -> None:
        """Connect output anchors: `handler(anchor)` makes the callback that takes the rows of each run."""
        batched = bool(self.batch_size)
        for anchor, policy in self._choose(popef.TensorType.OUTPUT, predicate):
            if policy is AnchorCallbackPolicy.BIND_USER_CB:
                axis = self._stream(anchor).batch_axis
                self._connect_output(
                    anchor, _take_rows(handler(anchor), axis) if batched else _take_only_row(handler(anchor))
                )
            elif policy is AnchorCallbackPolicy.BIND_EMPTY_CB:
                self._connect_output(anchor, lambda rows: None)

    def createQueueManager(
        self,
        num_buffers: int = 2,
        timeout_callback: TimeoutCallback | None = None,
        timeout_ns: int | None = None,
        input_predicate: AnchorCallbackPredicate | None = None,
        output_predicate: AnchorCallbackPredicate | None = None,
    ) -> QueueManager:
        """Connect every anchor that the predicates choose to a queue; default: those of the main programs.

        `timeout_ns`: see QueueManager. `num_buffers`, the slots of the real library's ring buffers, must be
        at least 1 and changes nothing here: rows are read where the caller has them, when the device asks for
        them.
        """
        if num_buffers < 1:
            raise ModelRuntimeError(f"num_buffers must be at least 1, found {num_buffers}")
        chosen_inputs = self._bind_empty(popef.TensorType.INPUT, input_predicate)
        chosen_outputs = self._bind_empty(popef.TensorType.OUTPUT, output_predicate)
        inputs = {a.name(): (a, self._row_shape(a)) for a in chosen_inputs}
        queues = QueueManager(
            inputs,
            chosen_outputs,
            self.rows_per_run,
            timeout_callback=timeout_callback,
            timeout_ns=timeout_ns,
            check_rows=self.check_rows,
            alone=self.runs_alone,
        )
        for anchor in chosen_inputs:
            self._connect_input(anchor, queues.inputQueue(anchor.name()).read)
        for anchor in chosen_outputs:
            self._connect_output(anchor, queues.outputQueue(anchor.name()).write)
        self._queues = queues
        return queues

    def runLoadPrograms(self) -> None:
        """Bring the weights onto the device and make the main programs ready.

        Raises ModelRuntimeError naming the weights for which no file holds tensor data.
        """
        engine = self._bound()
        data = {tensor.info.name(): tensor for tensor in self._model.tensors}
        for index in self._load:
            for stream in self._executable.program(index).streams:
                if stream.handle in self._reads:
                    continue
                if stream.tensor not in data:
                    missing = sorted(
                        s.tensor for s in self._executable.program(index).streams if s.tensor not in data
                    )
                    raise ModelRuntimeError(
                        f"model {self._executable.name!r} loads {len(missing)} weights that no PopEF file "
                        f"holds, the first being {missing[0]!r}; give weights.popef (parameter weights_path)"
                    )
                engine.connect_input(stream.handle, _deliver(data[stream.tensor]))
            engine.run(index)
        for index in self._main:
            engine.load(index)

    def runMainPrograms(self) -> int:
        """Run the main programs once; the rows computed, 0 after `stop` or when the queues were disconnected.

        With queues it waits for rows first, as their timeout says.
        """
        engine = self._bound()
        queues = self._queues
        if self._stopped or (queues is not None and not queues.wait(engine.free_at_ns)):
            return 0
        start_ns = time.perf_counter_ns()
        ready_ns = time.perf_counter_ns if queues is None else queues.ready_ns
        rows = lateness_ns = 0
        try:
            for index in self._main:
                rows = engine.run(index, ready_ns)
                lateness_ns = max(lateness_ns, engine.lateness_ns)
        except (RunCancelledError, StoppedError):
            return 0
        if self.observer is not None:
            self.observer(start_ns, time.perf_counter_ns(), rows, lateness_ns)
        return rows

    def compute(self, inputs: Mapping[str, Array], ready_ns: int | None = None) -> dict[str, Array]:
        """Run the main programs on rows that the caller has, past handlers and queues, as often as it takes
        (ours).

        `inputs` has an array of shape (rows, *row shape) for each user input anchor, the result one for each
        user output anchor; a model without a batch has one whole tensor a row. `ready_ns` is since when a
        paced device could have had them, on the clock of time.perf_counter_ns (None: now). Raises RunError
        and DeviceLostError, and like `check_rows`.
        """
        rows = len(next(iter(inputs.values())))
        self.check_rows(rows)
        most = self.rows_per_run
        if rows > most:
            parts = [
                {name: array[i : i + most] for name, array in inputs.items()} for i in range(0, rows, most)
            ]
            pieces = [self.compute(part, ready_ns) for part in parts]
            return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
        engine = self._bound()
        start_ns = time.perf_counter_ns()
        outputs: dict[str, Array] = {}
        lateness_ns = 0
        for index, taken, given in self._plan:
            outputs.update(
                zip(given, engine.compute(index, [inputs[name] for name in taken], ready_ns), strict=True)
            )
            lateness_ns = max(lateness_ns, engine.lateness_ns)
        if self.observer is not None:
            self.observer(start_ns, time.perf_counter_ns(), rows, lateness_ns)
        return outputs

    def check_rows(self, rows: int) -> None:
        """Raise ModelRuntimeError where so many rows would have to be spread over batches, but a row's result
        may depend on its neighbours (ours)."""
        if self.runs_alone and rows > self.batch_size:
            raise ModelRuntimeError(
                f"expected at most the compiled batch of {self.batch_size} rows, found {rows}: the rows of "
                f"model {self._executable.name!r} are not proven to be independent ({self.row_dependence}), "
                "so that a request spread over batches would get other results; send less, compile a "
                "larger batch or batch 1, or set join_dependent_rows to have it spread all the same"
            )

    def runSavePrograms(self) -> None:
        """Run the save programs once."""
        for index in self._save:
            self._bound().run(index)

    def stop(self) -> None:
        """Have no further run start, and end the wait for rows: `runMainPrograms` returns 0 from now on."""
        self._stopped = True
        if self._queues is not None:
            self._queues.disconnectAll()

    def cancel(self) -> None:
        """Stop, and end the run in flight, from any thread and without waiting for its end: its rows are
        lost."""
        self.stop()
        engine = self._engine
        if engine is not None:
            engine.cancel()

    def _make_plan(self) -> list[tuple[int, list[str], list[str]]]:
        """The main programs, with the anchors of their inputs and outputs in the order of their streams."""
        names = {
            anchor.handle(): anchor.name()
            for anchor in (*self.getUserInputAnchors(), *self.getUserOutputAnchors())
        }
        plan = []
        for index in self._main:
            streams = self._executable.program(index).streams
            taken = [names[s.handle] for s in streams if s.direction is Direction.HOST_TO_DEVICE]
            given = [names[s.handle] for s in streams if s.direction is Direction.DEVICE_TO_HOST]
            plan.append((index, taken, given))
        return plan

    def _bound(self) -> Engine:
        if self._engine is None:
            raise ModelRuntimeError("the session is bound to no device; call bindToDevice first")
        return self._engine

    def _choose(
        self, kind: popef.TensorType, predicate: AnchorCallbackPredicate | None
    ) -> list[tuple[popef.Anchor, AnchorCallbackPolicy]]:
        predicate = predicate or _default_predicate(self._model.metadata)
        return [
            (anchor, predicate(anchor)) for anchor in self._model.metadata.anchors() if anchor.type() == kind
        ]

    def _bind_empty(
        self, kind: popef.TensorType, predicate: AnchorCallbackPredicate | None
    ) -> list[popef.Anchor]:
        """Connect the user's anchors that are to be empty; those that are to have a queue come back."""
        users = {anchor.name() for anchor in popef.user_anchors(self._model.metadata, kind)}
        chosen = []
        for anchor, policy in self._choose(kind, predicate):
            if policy is AnchorCallbackPolicy.BIND_USER_CB:
                chosen.append(anchor)
            elif policy is AnchorCallbackPolicy.BIND_EMPTY_CB and anchor.name() in users:
                if kind == popef.TensorType.INPUT:
                    self._connect_input(
                        anchor, _fill(self._stream(anchor), lambda array: None, bool(self.batch_size))
                    )
                else:
                    self._connect_output(anchor, lambda rows: None)
        return chosen

    def _row_shape(self, anchor: popef.Anchor) -> tuple[int, ...]:
        stream = self._stream(anchor)
        return stream.row_shape if self.batch_size else stream.shape

    def _stream(self, anchor: popef.Anchor) -> Stream:
        for program in self._executable.programs:
            for stream in program.streams:
                if stream.handle == anchor.handle():
                    return stream
        raise ModelRuntimeError(
            f"anchor {anchor.name()!r} has no stream in executable {self._executable.name!r}"
        )

    def _connect_input(self, anchor: popef.Anchor, read: ReadCallback) -> None:
        self._reads[anchor.handle()] = read
        if self._engine is not None:
            self._engine.connect_input(anchor.handle(), read)

    def _connect_output(self, anchor: popef.Anchor, write: WriteCallback) -> None:
        self._writes[anchor.handle()] = write
        if self._engine is not None:
            self._engine.connect_output(anchor.handle(), write)


def read_model(paths: Path | Sequence[Path]) -> popef.Model:
    """The one model in some PopEF files."""
    reader = popef.Reader()
    for path in [paths] if isinstance(paths, (str, PathLike)) else paths:
        reader.parseFile(path)
    return popef.ModelBuilder(reader).createModel()


def _default_predicate(metadata: popef.Metadata) -> AnchorCallbackPredicate:
    accept, reject = AnchorCallbackPolicy.BIND_USER_CB, AnchorCallbackPolicy.BIND_EMPTY_CB
    return orBind(accept, reject, predProgramFlowMain(metadata.programFlow()), predProgramNotAssigned())


def _fill(stream: Stream, fill: Callable[[Array], None], batched: bool) -> ReadCallback:
    """A stream whose rows the user writes into an array of the compiled shape."""

    def read(most: int) -> Array:
        array = np.zeros(stream.shape, stream.dtype)
        fill(array)
        return np.moveaxis(array, stream.batch_axis, 0)[:most] if batched else array[None]

    return read


def _take_rows(take: Callable[[Array], None], axis: int) -> WriteCallback:
    return (lambda rows: take(np.moveaxis(rows, 0, axis))) if axis else take


def _take_only_row(take: Callable[[Array], None]) -> WriteCallback:
    return lambda rows: take(rows[0])


def _deliver(tensor: popef.TensorReader) -> ReadCallback:
    """A stream that holds one tensor."""
    return lambda most: np.asarray(tensor.data())[None]


def _replicas(metadata: popef.Metadata) -> int:
    return max(1, metadata.replicationFactor())


def _iterations(metadata: popef.Metadata) -> int:
    return max(1, metadata.deviceIterations())


def _check_target(metadata: popef.Metadata, executable: Executable) -> None:
    wanted = model_target(metadata)
    if wanted.ipu_version != executable.target.ipu_version:
        raise ModelRuntimeError(
            f"executable {executable.name!r} is for IPU version {executable.target.ipu_version}, its "
            f"metadata says {wanted.ipu_version}; they do not belong together"
        )


def _check_anchors(metadata: popef.Metadata, executable: Executable) -> None:
    """Every user anchor must be a stream of the executable, in shape and type; every main stream an
    anchor."""
    programs = _main_programs(metadata, executable)
    streams = {
        (stream.handle, stream.direction): stream for program in programs for stream in program.streams
    }
    directions = {
        popef.TensorType.INPUT: Direction.HOST_TO_DEVICE,
        popef.TensorType.OUTPUT: Direction.DEVICE_TO_HOST,
    }
    for kind, direction in directions.items():
        for anchor in popef.user_anchors(metadata, kind):
            stream = streams.pop((anchor.handle(), direction), None)
            if stream is None:
                raise ModelRuntimeError(
                    f"anchor {anchor.name()!r} has handle {anchor.handle()!r}, which is no "
                    f"{direction.name.lower()} stream of executable {executable.name!r}; its metadata "
                    "belongs to another executable"
                )
            _check_anchor(metadata, anchor, stream, executable.name)
    if streams:
        handle = next(iter(streams))[0]
        raise ModelRuntimeError(
            f"stream {handle!r} of executable {executable.name!r} has no anchor in the metadata"
        )


def _check_anchor(metadata: popef.Metadata, anchor: popef.Anchor, stream: Stream, executable: str) -> None:
    info = anchor.tensorInfo()
    replicas = _replicas(metadata)
    if replicas > 1 and (not anchor.isPerReplica() or tuple(info.shape()[:1]) != (replicas,)):
        raise ModelRuntimeError(
            f"anchor {anchor.name()!r} of a model with replication factor {replicas}: expected isPerReplica "
            f"and the replicas as leading dimension, found isPerReplica {anchor.isPerReplica()} and shape "
            f"{tuple(info.shape())}; tensors that all replicas share are not supported"
        )
    shape, dtype = (
        popef.replica_shape(metadata, anchor),
        np.dtype(popef.popefTypeToNumpyDType(info.dataType())),
    )
    if (shape, dtype) != (stream.shape, stream.dtype):
        raise ModelRuntimeError(
            f"anchor {anchor.name()!r} is {dtype.name} of shape {shape} in the metadata, but "
            f"{stream.dtype.name} of shape {stream.shape} in executable {executable!r}; its metadata "
            "belongs to another executable"
        )


def _main_programs(metadata: popef.Metadata, executable: Executable) -> list[Program]:
    mains = [executable.program(index) for index in metadata.programFlow().main()]
    wrong = [program.name for program in mains if program.kind is not ProgramKind.MAIN]
    if wrong:
        raise ModelRuntimeError(
            f"the program flow's main part names program {wrong[0]!r}, which is no main program"
        )
    return mains
