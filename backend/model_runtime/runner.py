"""ModelRunner: takes arrays and returns arrays; it contains the session, its thread and its
queues."""

from __future__ import annotations

import concurrent.futures
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any, ClassVar

import numpy as np
from simipu import FORKS, GraphOptions, choose_accelerator

import popef
from model_runtime.descriptions import DataDesc, FusedRequests, describe_anchor, describe_tensors
from model_runtime.devices import Device, DeviceWaitConfig
from model_runtime.environment import host_sync_timeout_seconds
from model_runtime.errors import ModelRuntimeError, StoppedError
from model_runtime.queues import OutputBuffer, OutputSlot
from model_runtime.request_flow import RequestFlow, RequestTracepoint, RequestTracepoints
from model_runtime.session import LaunchPolicy, Session, SessionConfig
from model_runtime.shutdown import endless_wait, exit_daemon_thread
from popef._tools.arrays import Array
from popef._tools.memory import spare_memory_bytes

NO_BATCHING_DIM = 0xFFFFFFFF
_NUMERICS = ("exact", "fast")
"""Default of `batching_dim`: a request holds whole compiled batches."""
NEVER_NS = 2**63 - 1


@dataclass(slots=True)
class ModelRunnerConfig:
    """Configuration of a ModelRunner; names and defaults are the real library's.

    Args:
        device_wait_config: how long to wait for a device.
        thread_safe: whether to lock each call; Python calls are safe either way.
        timeout_ns: how long an incomplete batch waits for more rows; 0 means forever.
        validate_io_params: whether to check names, shapes and types.
        check_package_hash: whether to reject an executable of another generation.
        batching_dim: the dimension along which a request may have any size: that of the compiled
            batch, or any other that all tensors share. By default a request holds whole compiled
            batches.
        ring_buffer_size_multiplier: accepted without effect; rows are read from the caller's
            arrays.
        auto_reset: whether to go on with a new device after one was lost.
        flush_on_waiting_outputs: whether to record requests (getRequestTracepoints). Dummy data are
            never run without a request.
        batch_size_timeout_ns: like timeout_ns, for an incomplete batch.
        data_parallel_timeout_ns: like timeout_ns, for replicas without a batch.
        is_batch_size_timeout_enabled: whether the two timeouts count; the shortest of all applies.
        request_tracepoints_buffer_size: number of requests that are kept; 0 means all.
        replica_to_device: replica 0's device.
        flush_by_name: (inputs, outputs) for dummy data, without effect because the rows of dummy
            data are never computed.
        num_threads: number of CPU threads that one operator may use; 0 means all cores (ours).
        load_seconds: maximum time in seconds until the model is ready (ours).
        memory_bytes: memory limit for the values of a load or a run, without weights; 0 means the
            memory that is free (ours).
        join_dependent_rows: see SessionConfig (ours).
        index_check: effect of an index outside of its table, "error" or "clamp"; see
            simipu.GraphOptions (ours).
        numerics: "exact" rounds half and fp8 as the chip does, "fast" computes in fp32 (ours).
        accelerator: what computes the model instead of ONNX Runtime's CPU kernels: "openvino",
            "cuda" or "tensorrt"; "" means these kernels (ours).
        accelerator_options: parameters of the accelerator by name, as in a config.pbtxt (ours).
        accelerator_fallback: whether the CPU kernels compute what the accelerator cannot (ours).
    """

    device_wait_config: DeviceWaitConfig = field(default_factory=DeviceWaitConfig)
    thread_safe: bool = True
    timeout_ns: int = 10_000_000
    validate_io_params: bool = True
    check_package_hash: bool = True
    batching_dim: int = NO_BATCHING_DIM
    ring_buffer_size_multiplier: int = 2
    auto_reset: bool = False
    flush_on_waiting_outputs: bool = False
    batch_size_timeout_ns: int = NEVER_NS
    data_parallel_timeout_ns: int = NEVER_NS
    is_batch_size_timeout_enabled: bool = False
    request_tracepoints_buffer_size: int = 1000
    replica_to_device: Mapping[int, Device] = field(default_factory=dict)
    flush_by_name: tuple[Mapping[str, Any], Mapping[str, Any]] = field(
        default_factory=lambda: ({}, {})
    )
    num_threads: int = 0
    load_seconds: float = 300.0
    memory_bytes: int = 0
    join_dependent_rows: bool = False
    index_check: str = "error"
    numerics: str = "exact"
    accelerator: str = ""
    accelerator_options: Mapping[str, str] = field(default_factory=dict)
    accelerator_fallback: bool = False
    OURS: ClassVar = tuple(
        "num_threads load_seconds memory_bytes join_dependent_rows index_check numerics "
        "accelerator accelerator_options accelerator_fallback".split()
    )
    """Names of the fields that the real class lacks."""

    def flush_after_ns(self) -> int:
        """Return the effective timeout of an incomplete batch; 0 means forever."""
        waits = [self.timeout_ns]
        if self.is_batch_size_timeout_enabled:
            waits += [self.batch_size_timeout_ns, self.data_parallel_timeout_ns]
        return min((wait for wait in waits if 0 < wait < NEVER_NS), default=0)


class TensorMemory(np.ndarray[Any, np.dtype[Any]]):
    """A tensor that the runner made: an array with the members of the real class."""

    @property
    def data_size_bytes(self) -> int:
        """Size in bytes."""
        return self.nbytes

    def getView(self) -> TensorMemoryView:
        """Return a view of the same memory."""
        return self.view(np.ndarray)


TensorMemoryView = Array
ConstTensorMemoryView = Array


class InputMemoryView(dict[str, ConstTensorMemoryView]):
    """Arrays by input name; they stay the caller's and must stay unchanged until the result is
    available."""


class InputMemory(InputMemoryView):
    """Arrays by input name, which own their memory, as all Python arrays do."""


class OutputMemoryView(dict[str, TensorMemoryView]):
    """Arrays by output name, to write results into."""


class OutputMemory(dict[str, TensorMemory]):
    """Results by output name."""


class Promise(concurrent.futures.Future[OutputMemory]):
    """Results of a request.

    `outcome` holds the results or the error too. It can be read without the lock, which a fork may
    have held forever.
    """

    outcome: OutputMemory | BaseException | None = None

    def set_result(self, result: OutputMemory) -> None:
        """Store the results."""
        self.outcome = result
        super().set_result(result)

    def set_exception(self, exception: BaseException | None) -> None:
        """Store the error."""
        self.outcome = exception
        super().set_exception(exception)


class OutputFutureMemory(Mapping[str, TensorMemory]):
    """Pending results; reading one waits for it."""

    def __init__(self, names: Collection[str], promise: Promise, runner: object) -> None:
        self._names = list(names)
        self._future = promise
        # Keep the runner alive until the results are read.
        self._runner: object | None = runner
        self._process_id = FORKS.process_id

    def wait(self, timeout: float | None = None) -> OutputMemory:
        """Wait for all results.

        Args:
            timeout: maximum time in seconds; None means no limit.

        Returns:
            The results by output name. An error of the request is raised.

        Raises:
            TimeoutError: after `timeout` seconds.
            StoppedError: in a process that was forked before the results arrived: only the parent
                gets them.
        """
        if self._process_id != FORKS.process_id:
            return self._outcome_before_fork()
        try:
            if timeout is not None:
                return self._future.result(timeout)
            with endless_wait:
                return self._future.result()
        except StoppedError:
            exit_daemon_thread()
            raise
        finally:
            if self._future.done():
                self._runner = None

    def done(self) -> bool:
        """Return whether the results or an error are available."""
        if self._process_id != FORKS.process_id:
            return True
        return self._future.done()

    def then(self, callback: Callable[[OutputMemory | None, BaseException | None], None]) -> None:
        """Call `callback` once, with the results or with the error (our addition).

        The call is made now, or by the thread that delivers the results, which must not be blocked.
        """

        def tell(promise: concurrent.futures.Future[OutputMemory]) -> None:
            error = promise.exception()
            callback(None if error is not None else promise.result(), error)

        self._runner = None
        self._future.add_done_callback(tell)

    def _outcome_before_fork(self) -> OutputMemory:
        outcome = self._future.outcome
        if outcome is None:
            raise StoppedError(
                "the request was made before this process was forked; the parent has its results"
            )
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def __getitem__(self, name: str) -> TensorMemory:
        return self.wait()[name]

    def __iter__(self) -> Any:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class PopefPaths(tuple[str, ...]):
    """Paths of the files of one model."""

    def __new__(cls, *paths: str | PathLike[str]) -> PopefPaths:
        """Accept any number of paths."""
        return super().__new__(cls, [fspath(path) for path in paths])


def _make_graph_options(config: ModelRunnerConfig) -> GraphOptions:
    if config.numerics not in _NUMERICS:
        raise ModelRuntimeError(
            f"numerics: expected {' or '.join(_NUMERICS)}, found {config.numerics!r}"
        )
    options = {name: str(value) for name, value in config.accelerator_options.items()}
    return GraphOptions(
        num_threads=config.num_threads,
        limit_seconds=host_sync_timeout_seconds(),
        ready_seconds=config.load_seconds,
        memory_bytes=config.memory_bytes or spare_memory_bytes(),
        exact=config.numerics == "exact",
        index_check=config.index_check,
        accelerators=(choose_accelerator(config.accelerator, options),)
        if config.accelerator
        else (),
        falls_back=config.accelerator_fallback,
    )


class ModelRunner:
    """Runner of a model for any number of threads. `close` it, or use it in a `with`.

    A runner that is dropped with all its pending results ends by itself some time later. A runner
    that is alive when the interpreter exits ends then. Either way the current run is cancelled
    without a wait.

    Args:
        model: a PopEF file, several, or a popef.Model.
        config: the configuration; None means the defaults.

    Raises:
        ModelRuntimeError: if the model cannot be loaded, or no device is free in time.
        LoadError: if the executable cannot be loaded.

    Example:
        >>> import numpy as np
        >>> import model_runtime
        >>> config = model_runtime.ModelRunnerConfig(batching_dim=0)
        >>> with model_runtime.ModelRunner("model.popef", config) as runner:
        ...     results = runner.execute({"x": np.ones((3, 4), np.float32)})
        >>> results["y"].shape, float(results["y"][0, 0])
        ((3, 4), 2.0)
    """

    def __init__(
        self,
        model: str | PathLike[str] | Sequence[str | PathLike[str]] | popef.Model,
        config: ModelRunnerConfig | None = None,
    ) -> None:
        self._config = config = config or ModelRunnerConfig()
        session_config = SessionConfig(
            check_package_hash=config.check_package_hash,
            policy=LaunchPolicy.Deferred,
            wait_config=config.device_wait_config,
            graph_options=_make_graph_options(config),
            join_dependent_rows=config.join_dependent_rows,
            auto_reset=config.auto_reset,
            batch_axis=None if config.batching_dim == NO_BATCHING_DIM else config.batching_dim,
        )
        self._session = Session(model, session_config)
        inputs = self._session.getUserInputAnchors()
        outputs = self._session.getUserOutputAnchors()
        axes = self._session.batch_axes
        self._axes = {tensor.name(): axes[tensor.handle()] for tensor in (*inputs, *outputs)}
        self._session.bindToDevice(config.replica_to_device.get(0))
        self._session.runLoadPrograms()
        metadata = self._session.model().metadata
        self._inputs, self._outputs = (
            {anchor.name(): describe_anchor(metadata, anchor) for anchor in user_anchors}
            for user_anchors in (inputs, outputs)
        )
        self._batched = bool(self._session.batch_size)
        self._tracepoints: RequestTracepoints | None = None
        if config.flush_on_waiting_outputs:
            self._tracepoints = RequestTracepoints(config.request_tracepoints_buffer_size)
        self._fused = FusedRequests.of(metadata)
        self._request_flow = RequestFlow(
            self._session,
            timeout_ns=config.flush_after_ns(),
            num_buffers=config.ring_buffer_size_multiplier,
        )
        # Before the thread is there: Ctrl-C may come while it starts.
        self._finalizer = weakref.finalize(self, self._request_flow.abandon)
        self._finalizer.atexit = False
        self._request_flow.start("model_runtime session")

    def __reduce__(self) -> tuple[type[ModelRunner], tuple[Sequence[str], ModelRunnerConfig]]:
        """Pickle by path and configuration: the other process loads the model."""
        return type(self), (self._session.paths(), self._config)

    @property
    def session(self) -> Session:
        """Underlying session."""
        return self._session

    def __repr__(self) -> str:
        tensors = describe_tensors(self.getExecuteInputs(), self.getExecuteOutputs())
        return f"<{type(self).__name__} of {self._session.describe_source()}: {tensors}>"

    def getExecuteInputs(self) -> list[DataDesc]:
        """Return the inputs of a request; shapes are those of one compiled batch."""
        return list(self._inputs.values())

    def getExecuteOutputs(self) -> list[DataDesc]:
        """Return the outputs of a request; shapes are those of one compiled batch."""
        return list(self._outputs.values())

    def execute(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array] | None = None
    ) -> OutputMemory:
        """Compute a request, wait and return the results.

        Args:
            inputs: arrays by input name, in the shapes and dtypes of `getExecuteInputs`; along
                `batching_dim` they may have any size.
            outputs: arrays by output name to write the results into; None means memory of the
                runner's.

        Returns:
            The results by output name.

        Raises:
            ModelRuntimeError: for inputs that do not fit.
            RunError: if the run failed.
            DeviceLostError: if the device was lost.
        """
        return self.executeAsync(inputs, outputs).wait()

    def executeAsync(
        self, inputs: Mapping[str, Array], outputs: Mapping[str, Array] | None = None
    ) -> OutputFutureMemory:
        """Start a request; otherwise as `execute`.

        Args:
            inputs: arrays by input name, which must stay unchanged until the result is available.
            outputs: arrays by output name to write the results into, which must stay unchanged,
                too.

        Returns:
            The pending results.

        Raises:
            ModelRuntimeError: for inputs that do not fit.
        """
        names: Collection[str] = self._outputs
        if not isinstance(inputs, Mapping):
            raise ModelRuntimeError(
                f"inputs: expected a dict of arrays by the names {', '.join(self._inputs)}, found "
                f"{type(inputs).__name__}"
            )
        if self._fused is not None:
            inputs, names = self._complete_inputs(self._fused, inputs)
        arrays = self._take_inputs(inputs)
        rows = self._count_rows(arrays)
        buffers = self._make_output_buffers(outputs, rows, names)
        promise = Promise()
        axes = self._axes if self._batched else None

        # The session thread holds this function. It must refer neither to the runner nor to the
        # caller's result, or both would stay alive.
        def done(error: Exception | None) -> None:
            if error is None:
                promise.set_result(_collect(buffers, axes))
            else:
                promise.set_exception(error)

        started, ended = (
            (None, done) if self._tracepoints is None else self._tracepoints.watch(rows, done)
        )
        with self._request_flow.queues.lock:
            self._request_flow.enqueue_request(arrays, rows, started)
            self._request_flow.set_request_outputs(buffers, rows, ended)
        return OutputFutureMemory(names, promise, self)

    def getRequestTracepoints(self) -> list[RequestTracepoint]:
        """Return records of the last requests, in the order in which they ended (our addition, see
        request_flow.py).

        There are at most request_tracepoints_buffer_size of them, and none unless
        flush_on_waiting_outputs is on.
        """
        return [] if self._tracepoints is None else self._tracepoints.read()

    def close(self) -> None:
        """Stop after the current run, and unload. Requests without results get a StoppedError."""
        self._finalizer.detach()
        self._request_flow.stop()
        self._session.unloadFromDevice()

    def __enter__(self) -> ModelRunner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _complete_inputs(
        self, fused: FusedRequests, inputs: Mapping[str, Array]
    ) -> tuple[Mapping[str, Array], Collection[str]]:
        """Complete the inputs of a request to a fused model.

        Returns:
            The inputs, and the names of the request's outputs.

        Raises:
            ModelRuntimeError: if an input is missing.
        """
        number, complete = fused.complete(inputs)
        missing = sorted(self._inputs.keys() - inputs.keys() - {popef.INDEX})
        if self._config.validate_io_params and missing:
            raise ModelRuntimeError(
                f"input {missing[0]!r} is not given; set validate_io_params to False for requests "
                "that have the inputs of one of the fused models only"
            )
        return complete, fused.models[number].outputs

    def _rows_first(self, name: str, array: Array) -> Array:
        """Return the array with rows along the leading axis; without a batch the whole tensor is
        one row."""
        if not self._batched:
            return array[None]
        axis = self._axes[name]
        return np.moveaxis(array, axis, 0) if 0 < axis < array.ndim else array

    def _take_inputs(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the inputs with their rows along the leading axis.

        Raises:
            ModelRuntimeError: for other inputs than those of the model.
        """
        if self._config.validate_io_params:
            _check_names("input", inputs, self._inputs)
        missing = sorted(self._inputs.keys() - inputs.keys())
        if missing:
            raise ModelRuntimeError(
                f"input {missing[0]!r} is not given; the model's inputs are "
                f"{', '.join(self._inputs)}"
            )
        return {
            name: self._rows_first(name, _as_numbers(name, inputs[name])) for name in self._inputs
        }

    def _count_rows(self, arrays: Mapping[str, Array]) -> int:
        if not self._batched:
            return 1
        counts = {name: len(array) if array.ndim else 1 for name, array in arrays.items()}
        rows = next(iter(counts.values()))
        if set(counts.values()) != {rows} or not rows:
            raise ModelRuntimeError(
                f"inputs: expected equal batch sizes of at least 1, found {counts}"
            )
        batch = self._session.batch_size
        if self._config.batching_dim == NO_BATCHING_DIM and rows % batch:
            for name, array in arrays.items():  # rows of another shape are the graver fault
                self._request_flow.queues.inputQueue(name).check(array)
            raise ModelRuntimeError(
                f"the request has batch size {rows}, which is not a multiple of the compiled "
                f"{batch}; set batching_dim to 0 for requests of any size"
            )
        return rows

    def _make_output_buffers(
        self, outputs: Mapping[str, Array] | None, rows: int, names: Collection[str]
    ) -> dict[str, OutputBuffer]:
        """Return the buffers for the results; `names` are the outputs of this request."""
        if outputs is None:
            return {name: OutputSlot() if name in names else None for name in self._outputs}
        if self._config.validate_io_params:
            _check_names("output", outputs, self._outputs)
        for name, array in outputs.items():
            description, axis = self._outputs[name], self._axes[name]
            shape = description.shape
            if self._batched:
                shape = (*shape[:axis], rows, *shape[axis + 1 :])
            if array.shape != shape or array.dtype != description.numpy_data_type():
                raise ModelRuntimeError(
                    f"output {name!r}: expected {description.numpy_data_type().name} of shape "
                    f"{shape}, found {array.dtype.name} of shape {array.shape}"
                )
        return {
            name: self._rows_first(name, np.asarray(outputs[name]))
            if name in outputs and name in names
            else None
            for name in self._outputs
        }


def _collect(buffers: Mapping[str, OutputBuffer], axes: Mapping[str, int] | None) -> OutputMemory:
    """Return the results, with their rows along the given axes; None for a model without a
    batch."""
    memory = OutputMemory()
    for name, buffer in buffers.items():
        array = buffer.array if isinstance(buffer, OutputSlot) else buffer
        if array is not None:
            memory[name] = (array[0] if axes is None else np.moveaxis(array, 0, axes[name])).view(
                TensorMemory
            )
    return memory


def _as_numbers(name: str, given: object) -> Array:
    """Return an input as an array. Raises ModelRuntimeError for texts, objects and ragged lists."""
    with suppress(ValueError):  # a ragged list
        array = np.asarray(given)
        if array.dtype.kind not in "OSU":
            return array
    raise ModelRuntimeError(
        f"input {name!r}: expected an array of numbers, found {type(given).__name__}"
    )


def _check_names(kind: str, given: Mapping[str, Any], known: Mapping[str, Any]) -> None:
    extra = sorted(given.keys() - known.keys())
    if extra:
        raise ModelRuntimeError(
            f"{kind} {extra[0]!r} is not known; the model's {kind}s are {', '.join(known)}"
        )
