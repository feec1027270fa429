"""Session: a model bound to a device, with its weights loaded and its programs ready to run.

Every run of main programs starts here, with rows from a caller, from handlers or from queues.
compiled_model.py has the facts about a model before it runs, and stream_connections.py the
connections of its streams.
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
from model_runtime.compiled_model import CompiledModel, RunCost, specialise
from model_runtime.devices import Device, DeviceManager, DeviceWaitConfig
from model_runtime.environment import check_engine_options, host_sync_timeout_seconds
from model_runtime.errors import ModelRuntimeError, StoppedError
from model_runtime.predicate_factory.anchor_callbacks import AnchorCallbackPredicate
from model_runtime.queues import QueueManager, TimeoutCallback
from model_runtime.shutdown import stop_at_exit
from model_runtime.stream_connections import Handler, StreamConnections, make_weight_reader
from popef._tools.arrays import Array

Path = str | PathLike[str]
Observer = Callable[[int, int, int, int, RunCost], None]
Work = list[tuple[int, list[Array], list[str]]]
"""Main programs, each with the rows of its inputs and the anchors of its outputs."""


class LaunchPolicy(IntEnum):
    """Time at which a session takes a device."""

    Immediate = 0
    """The session's constructor takes the device."""
    Deferred = 1
    """The user's call of bindToDevice takes the device."""


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """Configuration of a session. All but the first three fields are our additions.

    Args:
        check_package_hash: whether to reject an executable of another generation of the simulator.
        policy: when to take a device.
        wait_config: how long to wait for a device.
        device_manager: the machine that has the devices.
        graph_options: configuration of ONNX Runtime.
        isolated: whether to run it in a child process.
        paced: whether to delay every row until its modelled time has passed.
        executable: replaces one in the PopEF file that cannot be simulated.
        join_dependent_rows: whether several requests may share a batch, and a request span several
            batches, even if a row's result may depend on its neighbours, as in the real library.
        auto_reset: whether a session goes on after its device was lost; if not, no further run
            starts.
        batch_axis: axis of the rows in every tensor; None means those it was compiled for.
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
    """Session that runs one model. One thread at a time runs programs.

    Args:
        model: a PopEF file, several, or a popef.Model.
        config: the configuration; None means the defaults.

    Raises:
        LoadError: if the executable cannot be loaded.
        ModelRuntimeError: if the executable, its metadata and its weights do not fit together.

    Example:
        >>> import numpy as np
        >>> import model_runtime
        >>> session = model_runtime.Session("model.popef")
        >>> session.run({"x": np.ones((2, 4), np.float32)})["y"].shape
        (2, 4)
        >>> session.stop()
    """

    def __init__(
        self, model: popef.Model | Path | Sequence[Path], config: SessionConfig | None = None
    ) -> None:
        check_engine_options()
        self._config = config = config or SessionConfig()
        self._paths = resolve_paths(model)
        model = model if isinstance(model, popef.Model) else read_model(model)
        executable = config.executable or SimulatedExecutable.deserialize(
            model.executable.executable(), check_package_hash=config.check_package_hash
        )
        super().__init__(model, specialise(model, executable, config.batch_axis))
        self.runs_alone = bool(self.row_dependence) and not config.join_dependent_rows
        """True if a request shares no batch with another, and has at most one batch."""
        self.runs_at_once = self.overlapped_runs if config.paced else 1
        """Number of runs that a paced device has begun when the first of them ends."""
        self.lost: DeviceLostError | None = None
        """Error by which the device was lost, after which no run starts; always None with
        `auto_reset`."""
        self.is_stopped = False
        """True after `stop` was called."""
        self.observer: Observer | None = None
        """Function called after each run of the main programs, in the thread that ran them.

        Its arguments are the start and end of the run (on the clock of time.perf_counter_ns), its
        number of rows, the lateness of the CPU in ns (see Engine.lateness_ns), and its modelled
        cost.
        """
        self._streams = StreamConnections(model, self.executable, bool(self.batch_size))
        self._sources = model.sources()
        self._queues: QueueManager | None = None
        self._device: Device | None = None
        self._engine: Engine | None = None
        stop_at_exit(self)
        if config.policy is LaunchPolicy.Immediate:
            self.bindToDevice()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.describe_source()}>"

    def describe_source(self) -> str:
        """Return what the model was read from, in words (our addition)."""
        return ", ".join(map(str, self._paths)) if self._paths is not None else "a popef.Model"

    def __reduce__(self) -> tuple[type[Session], tuple[Sequence[str], SessionConfig]]:
        """Pickle by path and configuration: handlers, queues and the device stay here."""
        return type(self), (self.paths(), self._config)

    def paths(self) -> Sequence[str]:
        """Return the absolute paths of the files that the model was read from (our addition).

        Returns:
            The paths in the order in which they were given.

        Raises:
            PicklingError: for a popef.Model, which another process cannot open again.
        """
        if self._paths is None:
            raise PicklingError(
                f"model {self.executable.name!r} was given as a popef.Model, which cannot be "
                "pickled; make the session or runner from the paths of its PopEF files"
            )
        return self._paths

    def model(self) -> popef.Model:
        """Return the PopEF model."""
        return self.popef_model

    @property
    def device(self) -> Device:
        """Device that the session is bound to."""
        if self._device is None:
            raise ModelRuntimeError("the session is not bound to a device; call bindToDevice first")
        return self._device

    @property
    def kernels(self) -> str:
        """Names of what computes the loaded programs (our addition): accelerators, or else the
        kernels of half precision, or "reference" for the onnx reference."""
        return self._require_engine().kernels

    def bindToDevice(self, device: Device | None = None) -> None:
        """Take a device and put the executable on it. The load programs load the weights.

        Args:
            device: the device; None means one that fits the model.

        Raises:
            ModelRuntimeError: if no device is free in time, or weights are missing.
        """
        if device is None:
            target = self.executable.target
            replicated = target.with_ipus(max(self.popef_model.metadata.numIpus(), target.num_ipus))
            device = self._config.device_manager.attach(replicated, self._config.wait_config)
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
        """Release device and weights; handlers and queues stay for the next bindToDevice."""
        if self._engine is not None:
            self._engine.unload()
        self._engine = self._device = None
        self._streams.attach(None)

    def setUserInputHandler(
        self, handler: Handler, predicate: AnchorCallbackPredicate | None = None
    ) -> None:
        """Connect input anchors to the user's callbacks.

        `handler(anchor)` returns the callback that fills an array of the compiled shape (one batch
        of one replica) before each run. `predicate` chooses the anchors; default: those of the main
        programs.
        """
        self._streams.handle(popef.TensorType.INPUT, handler, predicate)

    def setUserOutputHandler(
        self, handler: Handler, predicate: AnchorCallbackPredicate | None = None
    ) -> None:
        """Connect output anchors; `handler(anchor)` returns the callback that receives the rows of
        each run."""
        self._streams.handle(popef.TensorType.OUTPUT, handler, predicate)

    def createQueueManager(
        self,
        num_buffers: int = 2,
        timeout_callback: TimeoutCallback | None = None,
        timeout_ns: int | None = None,
        input_predicate: AnchorCallbackPredicate | None = None,
        output_predicate: AnchorCallbackPredicate | None = None,
    ) -> QueueManager:
        """Connect every anchor that the predicates choose to a queue.

        Args:
            num_buffers: slots of the real library's ring buffers; at least 1. It has no effect:
                rows are read from the caller's arrays when the device needs them.
            timeout_callback: see QueueManager.
            timeout_ns: see QueueManager.
            input_predicate: which input anchors; default: those of the main programs.
            output_predicate: which output anchors; default: those of the main programs.

        Returns:
            The queues.

        Raises:
            ModelRuntimeError: for `num_buffers` below 1.
        """
        if num_buffers < 1:
            raise ModelRuntimeError(f"num_buffers must be at least 1, found {num_buffers}")
        inputs = self._streams.select_queued_anchors(popef.TensorType.INPUT, input_predicate)
        outputs = self._streams.select_queued_anchors(popef.TensorType.OUTPUT, output_predicate)
        queues = QueueManager(
            {anchor.name(): (anchor, self._streams.row_shape(anchor)) for anchor in inputs},
            outputs,
            self.rows_per_run,
            # A paced device spends the time of a run's empty iterations, too: it begins with all
            # that come.
            rows_per_iteration=self.rows_per_run if self._config.paced else self.rows_per_iteration,
            timeout_callback=timeout_callback,
            timeout_ns=timeout_ns,
            check_rows=self.check_rows,
            runs_alone=self.runs_alone,
            starts_runs=not self.getUserInputAnchors(),
        )
        for anchor in inputs:
            self._streams.connect_input(anchor, queues.inputQueue(anchor.name()).read)
        for anchor in outputs:
            self._streams.connect_output(anchor, queues.outputQueue(anchor.name()).write)
        self._queues = queues
        return queues

    def runLoadPrograms(self) -> None:
        """Load the weights onto the device and prepare the main programs.

        Raises ModelRuntimeError that names the weights without tensor data in the files.
        """
        engine = self._require_engine()
        self._check_files()
        for index in self.popef_model.metadata.programFlow().load():
            self._deliver_weights(engine, index)
            engine.run(index)
        for index, _, _ in self.plan:
            engine.load(index)
        for source in self._sources:  # runs do not read all that a load reads
            source.release_pages()

    def runMainPrograms(self) -> int:
        """Run the main programs once. With queues, first wait for rows, as their timeout says.

        Returns:
            The number of rows computed; 0 after `stop`, or if the queues were disconnected.
        """
        queues = self._queues
        free_at_ns = self._engine.free_at_ns if self._engine is not None else None
        if self.is_stopped:
            return 0
        granted = self.rows_per_run if queues is None else queues.wait(free_at_ns)
        if not granted:
            return 0
        # Check after the wait, so that a session without a device does not raise before there is a
        # request.
        engine = self._require_engine()
        try:
            work = [(index, engine.pull(index, granted), names) for index, _, names in self.plan]
            rows = len(work[0][1][0]) if work[0][1] else 1
            # Needed only if the device is paced.
            ready_ns = queues.ready_ns() if queues is not None and free_at_ns is not None else None
            self._run(work, rows, ready_ns, to_streams=True)
        except (RunCancelledError, StoppedError):
            return 0
        return rows

    def run(
        self,
        inputs: Mapping[str, Array],
        ready_ns: int | None = None,
        out: Mapping[str, Array] | None = None,
        *,
        counts: bool = True,
    ) -> dict[str, Array]:
        """Run the main programs on the caller's rows, without handlers and queues, as often as
        needed (our addition).

        In a model without a batch, each row is a whole tensor; a model without inputs has one row.

        Args:
            inputs: an array of shape (rows, *row shape) for each user input anchor.
            ready_ns: time since which a paced device could have had the rows, on the clock of
                time.perf_counter_ns; None means now.
            out: contiguous memory for the outputs, of the shapes and dtypes of the result, which
                may be used: then the result has these arrays.
            counts: whether the observer is called; if not, the rows are a part of a run, which
                `count_run` counts.

        Returns:
            An array of shape (rows, *row shape) for each user output anchor.

        Raises:
            RunError: if the run failed.
            DeviceLostError: if the device was lost.
            ModelRuntimeError: as `check_rows` does.
        """
        rows = len(next(iter(inputs.values()))) if inputs else 1
        if self.runs_alone:
            self.check_rows(rows)
        max_rows = self.rows_per_run
        if rows > max_rows:
            parts = [
                {name: array[i : i + max_rows] for name, array in inputs.items()}
                for i in range(0, rows, max_rows)
            ]
            pieces = [self.run(part, ready_ns) for part in parts]
            return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}
        find = inputs.__getitem__
        work: Work = []
        for index, sources, names in self.plan:
            work.append((index, list(map(find, sources)), names))
        return self._run(work, rows, ready_ns, out=out, counts=counts)

    def may_divide(self, rows: int) -> bool:
        """Return whether the CPU may compute so many rows of one run in parts (our addition).

        Args:
            rows: number of rows.
        """
        is_plain = not self._config.paced and not self.branch_costs
        return is_plain and not self.row_dependence and rows <= self.rows_per_run

    def count_run(self, start_ns: int, rows: int) -> None:
        """Call the observer for a run whose rows were computed in parts (our addition).

        Args:
            start_ns: start of the first part, on the clock of time.perf_counter_ns.
            rows: number of rows of all parts.
        """
        if self.observer is not None:
            self.observer(start_ns, time.perf_counter_ns(), rows, 0, self.run_cost)

    def check_rows(self, rows: int) -> None:
        """Check that a request may have so many rows (our addition).

        Args:
            rows: number of rows.

        Raises:
            ModelRuntimeError: if the rows need several batches, but a row's result may depend on
                its neighbours.
        """
        if self.runs_alone and rows > self.batch_size:
            raise ModelRuntimeError(
                f"expected at most the compiled batch of {self.batch_size} rows, found {rows}: the "
                f"rows of model {self.executable.name!r} are not proven to be independent "
                f"({self.row_dependence}), so that a request spread over batches would get other "
                "results; send less, compile a larger batch or batch 1, or set join_dependent_rows "
                "to have it spread all the same"
            )

    def check_device(self) -> None:
        """Check that the device is usable (our addition).

        Raises:
            ModelRuntimeError: if the device was lost and will not be replaced.
        """
        if self.lost is not None:
            raise ModelRuntimeError(
                f"the device was lost and auto_reset is off: {self.lost}"
            ) from self.lost

    def runSavePrograms(self) -> None:
        """Run the save programs once."""
        self._check_files()
        for index in self.popef_model.metadata.programFlow().save():
            self._require_engine().run(index)

    def stop(self) -> None:
        """Prevent further runs, and end the wait for rows: `runMainPrograms` returns 0 from now
        on."""
        self.is_stopped = True
        if self._queues is not None:
            self._queues.disconnectAll()

    def cancel(self) -> None:
        """Stop, and cancel the current run, whose rows are lost.

        Any thread may call this; it does not wait for the end of the run.
        """
        self.stop()
        engine = self._engine
        if engine is not None:
            engine.cancel()

    def end_run(self, is_unwanted: Callable[[], bool]) -> None:
        """End the current run, whose rows are lost; later runs are as before (our addition).

        Any thread may call this; it does not wait for the end of the run.

        Args:
            is_unwanted: called once no later run can be ended in the place of the current one; if
                it returns False, nothing happens.
        """
        engine = self._engine
        if engine is not None:
            engine.end_run(is_unwanted)

    def _run(
        self,
        work: Work,
        rows: int,
        ready_ns: int | None,
        to_streams: bool = False,
        out: Mapping[str, Array] | None = None,
        *,
        counts: bool = True,
    ) -> dict[str, Array]:
        """Run each main program once on its rows. This is the only place that detects a lost
        device.

        Returns:
            The outputs by anchor; empty if they go to handlers and queues.

        Raises:
            DeviceLostError: if the device was lost.
        """
        if self.lost is not None:
            self.check_device()
        engine = self._engine or self._require_engine()
        if engine.reads_files:
            self._check_files()
        if self.branch_costs:
            self.run_cost = self._find_cost(work[0])
        outputs: dict[str, Array] = {}
        start_ns, lateness_ns = time.perf_counter_ns(), 0
        try:
            for index, arrays, names in work:
                memory = None if out is None else list(map(out.__getitem__, names))
                results = engine.compute(index, arrays, ready_ns, to_streams, memory)
                outputs.update(zip(names, results, strict=not to_streams))
                if engine.lateness_ns > lateness_ns:
                    lateness_ns = engine.lateness_ns
        except DeviceLostError as error:
            if not self._config.auto_reset:
                self.lost = error
            raise
        if counts and self.observer is not None:
            self.observer(start_ns, time.perf_counter_ns(), rows, lateness_ns, self.run_cost)
        return outputs

    def _check_files(self) -> None:
        """Check that no file was written to. Its mapped weights would give other answers, or end
        the process if the file is shorter.

        Raises:
            ModelRuntimeError: if one was.
        """
        try:
            for source in self._sources:
                source.check()
        except popef.PopefError as error:
            raise ModelRuntimeError(str(error)) from error

    def _find_cost(self, work: tuple[int, list[Array], list[str]]) -> RunCost:
        """Return the cost of the most expensive of the models that the rows of a run are for."""
        index, arrays, _ = work
        program = self.executable.program(index)
        selector = next(
            arrays[i] for i, name in enumerate(self.plan[0][1]) if name == program.selector
        )
        branches = {program.find_branch(row) for row in selector.reshape(len(selector), -1)}
        return max(
            (self.branch_costs[number] for number in branches),
            key=lambda cost: cost.modelled_seconds,
        )

    def _require_engine(self) -> Engine:
        if self._engine is None:
            raise ModelRuntimeError("the session is not bound to a device; call bindToDevice first")
        return self._engine

    def _deliver_weights(self, engine: Engine, index: int) -> None:
        """Connect the streams of a load program to the files' tensor data, unless the user has
        connected them.

        Raises:
            ModelRuntimeError: if no file holds a weight.
        """
        data = {tensor.info.name(): tensor for tensor in self.popef_model.tensors}
        streams = self.executable.program(index).streams
        for stream in streams:
            if self._streams.reads(stream.handle):
                continue
            if stream.tensor not in data:
                missing = sorted(stream.tensor for stream in streams if stream.tensor not in data)
                raise ModelRuntimeError(
                    f"model {self.executable.name!r}: {len(missing)} of its weights are in none of "
                    f"the PopEF files, for example {missing[0]!r}; add weights.popef (parameter "
                    "weights_path)"
                )
            engine.connect_input(stream.handle, make_weight_reader(data[stream.tensor]))


def resolve_paths(model: popef.Model | Path | Sequence[Path]) -> Sequence[str] | None:
    """Return the absolute paths of a model's files; None for a popef.Model."""
    if isinstance(model, popef.Model):
        return None
    listed = [model] if isinstance(model, (str, PathLike)) else model
    return [os.path.abspath(path) for path in listed]


def read_model(paths: Path | Sequence[Path]) -> popef.Model:
    """Read the one model in some PopEF files."""
    reader = popef.Reader()
    for path in [paths] if isinstance(paths, (str, PathLike)) else paths:
        try:
            reader.parseFile(path)
        except (FileNotFoundError, IsADirectoryError) as error:
            text = f"{error.strerror}; expected a PopEF file, such as poprt --export_popef writes"
            raise type(error)(error.errno, text, os.fspath(path)) from error
    return popef.ModelBuilder(reader).createModel()
