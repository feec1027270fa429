"""Session: a model bound to a device, its weights loaded, its programs ready to run.

Every run of main programs is here, whoever has the rows: a caller, handlers or queues. What is known of a
model before it runs is compiled.py's, what its streams are connected to connections.py's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from os import PathLike
from pickle import PicklingError

import numpy as np
from simipu import DeviceLostError, Engine, GraphOptions, RunCancelledError, SimulatedExecutable

import popef
from model_runtime.compiled import CompiledModel, RunCost, specialise
from model_runtime.connections import Connections, Handler, deliver
from model_runtime.devices import Device, DeviceManager, DeviceWaitConfig
from model_runtime.environment import host_sync_timeout_seconds
from model_runtime.errors import ModelRuntimeError, StoppedError
from model_runtime.exits import attend
from model_runtime.predicates import AnchorCallbackPredicate
from model_runtime.queues import Array, QueueManager, TimeoutCallback

Path = str | PathLike[str]
Observer = Callable[[int, int, int, int], None]
Work = list[tuple[int, list[Array], list[str]]]
"""Main programs, each with the rows of its inputs and the anchors of its outputs."""


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
    does; `auto_reset` has a session go on after its device was lost, without it nothing runs any more;
    `batch_axis` has the rows lie along that axis of every tensor (None: along those it was compiled for).
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
    executable: SimulatedExecutable | None = None
    join_dependent_rows: bool = False
    auto_reset: bool = True
    batch_axis: int | None = None


class Session(CompiledModel):
    """Runs one model. Programs are run by one thread at a time.

    Raises LoadError or ModelRuntimeError when the executable, its metadata and its weights do not fit
    together.
    """

    def __init__(
        self, model: popef.Model | Path | Sequence[Path], config: SessionConfig | None = None
    ) -> None:
        self._config = config = config or SessionConfig()
        self._paths = resolve_paths(model)
        model = model if isinstance(model, popef.Model) else read_model(model)
        super().__init__(
            model,
            specialise(
                model,
                config.executable
                or SimulatedExecutable.deserialize(
                    model.executable.executable(), check_package_hash=config.check_package_hash
                ),
                config.batch_axis,
            ),
        )
        self.runs_alone = bool(self.row_dependence) and not config.join_dependent_rows
        """Whether a request shares no batch with another, and has at most one."""
        self.runs_at_once = self.overlapped_runs if config.paced else 1
        """Runs that a paced device has begun when the first of them ends."""
        self.lost: DeviceLostError | None = None
        """How the device was lost, after which nothing runs any more; None with `auto_reset`."""
        self.is_stopped = False
        """Whether `stop` was called."""
        self.observer: Observer | None = None
        """Called after each run of the main programs, in the thread that ran them, with its start and end (on
        the clock of time.perf_counter_ns), its number of rows, and by how many ns the CPU was late (see
        Engine.lateness_ns)."""
        self._streams = Connections(model, self.executable, bool(self.batch_size))
        self._queues: QueueManager | None = None
        self._device: Device | None = None
        self._engine: Engine | None = None
        attend(self)
        if config.policy is LaunchPolicy.Immediate:
            self.bindToDevice()

    def __reduce__(self) -> tuple[type[Session], tuple[Sequence[str], SessionConfig]]:
        """Pickle by path and configuration: handlers, queues and the device stay here."""
        return type(self), (self.paths(), self._config)

    def paths(self) -> Sequence[str]:
        """The files that the model was read from, absolute (ours). PicklingError for a popef.Model, which
        another process cannot open again."""
        if self._paths is None:
            raise PicklingError(
                f"model {self.executable.name!r} was given as a popef.Model, which cannot be pickled; make "
                "the session or runner from the paths of its PopEF files"
            )
        return self._paths

    def model(self) -> popef.Model:
        """The PopEF model."""
        return self.popef_model

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
            target = self.executable.target
            needed = target.with_ipus(max(self.popef_model.metadata.numIpus(), target.num_ipus))
            device = self._config.device_manager.attach(needed, self._config.wait_config)
        self.unloadFromDevice()
        device.bind(self)
        self._device = device
        self._engine = Engine(
            self.executable,
            device.device(),
            replication_factor=self.replicas,
            device_iterations=self.iterations,
            graph_options=self._config.graph_options,
            isolated=self._config.isolated,
            paced=self._config.paced,
        )
        self._streams.attach(self._engine)

    def unloadFromDevice(self) -> None:
        """Give up device and weights; handlers and queues stay for the next bindToDevice."""
        if self._engine is not None:
            self._engine.unload()
        self._engine = self._device = None
        self._streams.attach(None)

    def setUserInputHandler(self, handler: Handler, predicate: AnchorCallbackPredicate | None = None) -> None:
        """Connect input anchors to the user's callbacks: `handler(anchor)` makes the one that fills an array
        of the compiled shape (one batch of one replica) before each run. `predicate` chooses the anchors;
        default: the main programs'."""
        self._streams.handle_inputs(handler, predicate)

    def setUserOutputHandler(
        self, handler: Handler, predicate: AnchorCallbackPredicate | None = None
    ) -> None:
        """Connect output anchors: `handler(anchor)` makes the callback that takes the rows of each run."""
        self._streams.handle_outputs(handler, predicate)

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
        inputs = self._streams.choose_queued(popef.TensorType.INPUT, input_predicate)
        outputs = self._streams.choose_queued(popef.TensorType.OUTPUT, output_predicate)
        queues = QueueManager(
            {anchor.name(): (anchor, self._streams.row_shape(anchor)) for anchor in inputs},
            outputs,
            self.rows_per_run,
            # A paced device spends the time of a run's empty iterations, too: it begins with all that come.
            rows_per_iteration=self.rows_per_run if self._config.paced else self.rows_per_iteration,
            timeout_callback=timeout_callback,
            timeout_ns=timeout_ns,
            check_rows=self.check_rows,
            alone=self.runs_alone,
            starts_runs=not self.getUserInputAnchors(),
        )
        for anchor in inputs:
            self._streams.connect_input(anchor, queues.inputQueue(anchor.name()).read)
        for anchor in outputs:
            self._streams.connect_output(anchor, queues.outputQueue(anchor.name()).write)
        self._queues = queues
        return queues

    def runLoadPrograms(self) -> None:
        """Bring the weights onto the device and make the main programs ready.

        Raises ModelRuntimeError naming the weights for which no file holds tensor data.
        """
        engine = self._bound()
        for index in self.popef_model.metadata.programFlow().load():
            self._deliver_weights(engine, index)
            engine.run(index)
        for index, _, _ in self.plan:
            engine.load(index)

    def runMainPrograms(self) -> int:
        """Run the main programs once; the rows computed, 0 after `stop` or when the queues were disconnected.

        With queues it waits for rows first, as their timeout says.
        """
        queues = self._queues
        free_at_ns = self._engine.free_at_ns if self._engine is not None else None
        if self.is_stopped:
            return 0
        granted = self.rows_per_run if queues is None else queues.wait(free_at_ns)
        if not granted:
            return 0
        # Asked for after the wait: whoever has none until there is a request is not told so again and again.
        engine = self._bound()
        try:
            work = [(index, engine.pull(index, granted), given) for index, _, given in self.plan]
            rows = len(work[0][1][0]) if work[0][1] else 1
            # Asked where it counts only, that is when paced.
            ready_ns = queues.ready_ns() if queues is not None and free_at_ns is not None else None
            self._run(work, rows, ready_ns, to_streams=True)
        except (RunCancelledError, StoppedError):
            return 0
        return rows

    def run(self, inputs: Mapping[str, Array], ready_ns: int | None = None) -> dict[str, Array]:
        """Run the main programs on rows that the caller has, past handlers and queues, as often as it takes
        (ours).

        `inputs` has an array of shape (rows, *row shape) for each user input anchor, the result one for each
        user output anchor; a model without a batch has one whole tensor a row, and one without inputs one
        row. `ready_ns` is since when a
        paced device could have had them, on the clock of time.perf_counter_ns (None: now). Raises RunError
        and DeviceLostError, and like `check_rows`.
        """
        rows = len(next(iter(inputs.values()))) if inputs else 1
        if self.runs_alone:
            self.check_rows(rows)
        most = self.rows_per_run
        if rows > most:
            parts = [
                {name: array[i : i + most] for name, array in inputs.items()} for i in range(0, rows, most)
            ]
            pieces = [self.run(part, ready_ns) for part in parts]
            return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
        work = [(index, [inputs[name] for name in taken], given) for index, taken, given in self.plan]
        return self._run(work, rows, ready_ns)

    def check_rows(self, rows: int) -> None:
        """Raise ModelRuntimeError where so many rows would have to be spread over batches, but a row's result
        may depend on its neighbours (ours)."""
        if self.runs_alone and rows > self.batch_size:
            raise ModelRuntimeError(
                f"expected at most the compiled batch of {self.batch_size} rows, found {rows}: the rows of "
                f"model {self.executable.name!r} are not proven to be independent ({self.row_dependence}), "
                "so that a request spread over batches would get other results; send less, compile a "
                "larger batch or batch 1, or set join_dependent_rows to have it spread all the same"
            )

    def check_device(self) -> None:
        """Raise ModelRuntimeError where the device was lost and no other is to take its place (ours)."""
        if self.lost is not None:
            raise ModelRuntimeError(f"the device was lost and auto_reset is off: {self.lost}") from self.lost

    def runSavePrograms(self) -> None:
        """Run the save programs once."""
        for index in self.popef_model.metadata.programFlow().save():
            self._bound().run(index)

    def stop(self) -> None:
        """Have no further run start, and end the wait for rows: `runMainPrograms` returns 0 from now on."""
        self.is_stopped = True
        if self._queues is not None:
            self._queues.disconnectAll()

    def cancel(self) -> None:
        """Stop, and end the run in flight, from any thread and without waiting for its end: its rows are
        lost."""
        self.stop()
        engine = self._engine
        if engine is not None:
            engine.cancel()

    def _run(self, work: Work, rows: int, ready_ns: int | None, to_streams: bool = False) -> dict[str, Array]:
        """Run each main program once on its rows: the one place where a run is counted and a device lost.
        The outputs by anchor, or none, where they go to handlers and queues."""
        if self.lost is not None:
            self.check_device()
        engine = self._bound()
        if self.branch_costs:
            self.run_cost = self._find_cost(work[0])
        outputs: dict[str, Array] = {}
        start_ns, lateness_ns = time.perf_counter_ns(), 0
        try:
            for index, arrays, given in work:
                results = engine.compute(index, arrays, ready_ns, to_streams)
                outputs.update(zip(given, results, strict=not to_streams))
                if engine.lateness_ns > lateness_ns:
                    lateness_ns = engine.lateness_ns
        except DeviceLostError as error:
            if not self._config.auto_reset:
                self.lost = error
            raise
        if self.observer is not None:
            self.observer(start_ns, time.perf_counter_ns(), rows, lateness_ns)
        return outputs

    def _find_cost(self, work: tuple[int, list[Array], list[str]]) -> RunCost:
        """Of the dearest of the models that the rows of a run are for."""
        index, arrays, _ = work
        program = self.executable.program(index)
        selector = next(arrays[i] for i, name in enumerate(self.plan[0][1]) if name == program.selector)
        asked = {program.find_branch(row) for row in selector.reshape(len(selector), -1)}
        return max((self.branch_costs[number] for number in asked), key=lambda cost: cost.modelled_seconds)

    def _bound(self) -> Engine:
        if self._engine is None:
            raise ModelRuntimeError("the session is bound to no device; call bindToDevice first")
        return self._engine

    def _deliver_weights(self, engine: Engine, index: int) -> None:
        """Connect the streams of a load program to the files' tensor data, where the user has not connected
        them."""
        data = {tensor.info.name(): tensor for tensor in self.popef_model.tensors}
        streams = self.executable.program(index).streams
        for stream in streams:
            if self._streams.reads(stream.handle):
                continue
            if stream.tensor not in data:
                missing = sorted(each.tensor for each in streams if each.tensor not in data)
                raise ModelRuntimeError(
                    f"model {self.executable.name!r} loads {len(missing)} weights that no PopEF file "
                    f"holds, the first being {missing[0]!r}; give weights.popef (parameter weights_path)"
                )
            engine.connect_input(stream.handle, deliver(data[stream.tensor]))


def resolve_paths(model: popef.Model | Path | Sequence[Path]) -> Sequence[str] | None:
    """The absolute paths of a model's files; None for a popef.Model."""
    if isinstance(model, popef.Model):
        return None
    listed = [model] if isinstance(model, (str, PathLike)) else model
    return [os.path.abspath(path) for path in listed]


def read_model(paths: Path | Sequence[Path]) -> popef.Model:
    """The one model in some PopEF files."""
    reader = popef.Reader()
    for path in [paths] if isinstance(paths, (str, PathLike)) else paths:
        reader.parseFile(path)
    return popef.ModelBuilder(reader).createModel()
