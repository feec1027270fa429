"""The poplar backend: the only file that imports Triton's Python utilities. It converts Triton's
requests to those of `triton_poplar`, and the results to Triton's responses.

It works from a backend directory (`backend: "poplar"`) and as model.py in a model's version folder
(`backend: "python"`).
"""

from __future__ import annotations

import functools
import gc
import json
import os
import platform
import queue
import threading
import time
from collections.abc import Callable, Sequence
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
import triton_python_backend_utils as pb_utils
from triton_poplar.dlpack import CapsuleOnce, to_capsule
from triton_poplar.errors import ModelConfigError, RequestError
from triton_poplar.log import log_to_stderr
from triton_poplar.model_state import ModelState, complete_config
from triton_poplar.parameters import BackendState
from triton_poplar.response_tensors import ResponseTensors, TensorPool

from popef._tools.arrays import Array
from popef._tools.lazy import importing, leave_out_protobuf, stand_in
from popef._tools.memory import GROWTH
from popef._tools.text import escape, name_file
from popef._tools.version import __version__

if TYPE_CHECKING:  # modules that import ONNX Runtime are imported when a model is loaded
    from concurrent.futures import ThreadPoolExecutor

    from triton_poplar.instance_state import ModelInstanceState
    from triton_poplar.request import Request
    from triton_poplar.statistics import HistogramMetric

Given = ParamSpec("Given")
Loaded = TypeVar("Loaded")

NUMPY_IS_OLD = np.__version__.startswith("1.")
"""Whether the stub's binding to numpy works; with numpy 2, tensors go through DLPack capsules."""

HOUSEKEEPING_SECONDS = 1.0
"""Interval between updates of metrics and checks for cancelled requests. Each such call takes 50
us, too long to make it for every request."""
MAX_FORWARDS = 16
"""Maximum number of requests for some outputs that wait at once for a response with all, which
Triton then has in its cache."""
ORPHANED_SECONDS = 3.0
"""Time that the stub has to exit after its server has died."""

log_to_stderr()


def _with_one_line_errors(load: Callable[Given, Loaded]) -> Callable[Given, Loaded]:
    """Decorate a function that loads a model: its errors reach Triton's log in one line.

    Triton adds places of the traceback to a message. They are kept for a defect of the backend
    only.
    """

    @functools.wraps(load)
    def load_or_raise(*given: Given.args, **named: Given.kwargs) -> Loaded:
        try:
            try:
                return load(*given, **named)
            except ModelConfigError as error:
                raise ModelConfigError(escape(error)) from None
        except ModelConfigError as error:
            # A bare `raise` adds no place to the traceback (except in Python 3.10).
            error.__traceback__ = None
            raise
        except Exception as error:  # noqa: BLE001  a defect of the backend
            raise RuntimeError(escape(f"poplar backend: {error!r}")).with_traceback(
                error.__traceback__
            ) from None

    return load_or_raise


class TritonPythonModel:
    """One instance of a model. Triton runs each instance in a separate process, the stub."""

    _instance: ModelInstanceState
    _sender: threading.Thread
    _state: ModelState

    @staticmethod
    @_with_one_line_errors
    def auto_complete_config(
        auto_complete_model_config: pb_utils.ModelConfig,
    ) -> pb_utils.ModelConfig:
        """Fill in missing fields of the configuration.

        Triton runs this in a separate process and hangs if that process dies, so only the headers
        of PopEF files are read, in pure Python.
        """
        config = auto_complete_model_config.as_dict()
        for name, value in complete_config(
            config, Path(name_file(pb_utils.get_model_dir()))
        ).items():
            config[name] = value
        return auto_complete_model_config

    @_with_one_line_errors
    def initialize(self, args: dict[str, str]) -> None:
        """Load the model. Triton reports an error that is raised here as the reason why the model
        did not load."""
        # Imported here: the process that completes configurations must not load ONNX Runtime, and
        # needs no asyncio. In the first request the stub imports asyncio for one function of it,
        # and would get 2 MiB and take 20 ms for the rest.
        with importing():
            stand_in("asyncio", iscoroutine="asyncio.coroutines")
            leave_out_protobuf()

            from triton_poplar.instance_state import ModelInstanceState
            from triton_poplar.request import Request
            from triton_poplar.sessions import limit_growth

        self._make_request = Request
        version_folder = Path(name_file(args["model_repository"]), args["model_version"])
        on_gpu = args["model_instance_kind"] == "GPU"
        gpu = int(args["model_instance_device_id"]) if on_gpu else None
        self._state = ModelState(
            json.loads(args["model_config"]), version_folder, BackendState.of_server(), gpu
        )
        self._state.validate()
        self._dtypes = {name: tensor.dtype for name, tensor in self._state.inputs.items()}
        self._only_input = next(iter(self._dtypes), "") if len(self._dtypes) == 1 else ""
        self._has_choice = len(self._state.outputs) > 1
        self._tensors = TensorPool(self._state, _make_tensor, _find_memory)
        self._answers: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._is_synchronous = self._state.parameters.synchronous_execution
        self._forwards: ThreadPoolExecutor | None = None
        if self._state.is_cached and self._has_choice:
            from concurrent.futures import ThreadPoolExecutor

            self._forwards = ThreadPoolExecutor(MAX_FORWARDS, "partial requests")
        respond = None if self._is_synchronous else self._answers.put
        self._instance = ModelInstanceState(
            self._state,
            args["model_instance_name"],
            respond,
            _is_cancelled,
        )
        pb_utils.Logger.log_info(
            f"[poplar] {escape(self._instance.name)}: numerics "
            f"{self._state.parameters.sim_numerics}, kernels {self._instance.kernels}"
        )
        if not self._is_synchronous:
            self._sender = self._start(self._send_answers, "responses")
        # Loaded objects live as long as the model: exempt them from garbage collection.
        gc.freeze()
        limit_growth(self._state)
        self._closed = threading.Event()
        self._start(self._run_housekeeping, "housekeeping")
        self._start(functools.partial(self._end_with_server, os.getppid()), "server watch")

    def execute(
        self, requests: Sequence[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse] | None:
        """Answer every request exactly once, even after an error.

        Returns:
            The responses in the order of the requests, or None if they are sent: those of a long
            call part by part, those of asynchronous execution when their rows have been computed.
        """
        try:
            all_requests = list(map(self._take, requests))
            partial: list[Request] = []
            if self._forwards is not None:
                partial = [each for each in all_requests if each.is_partial and each.error is None]
                all_requests = [request for request in all_requests if request not in partial]
            waits = not self._is_synchronous and self._instance.is_worth_waiting(all_requests)
            parts = (
                []
                if waits
                else self._instance.split(all_requests)
                if len(all_requests) > 1
                else [all_requests]
            )
            if len(parts) == 1 and not partial:
                return self._compute(all_requests)
        except Exception as error:  # noqa: BLE001  a defect of the backend; every request is still answered
            return [_refuse(error) for _ in requests]
        # Once a sender exists, the server crashes if `execute` raises an error or returns anything
        # but None.
        for request in partial:
            reply, request.reply = request.reply, _Reply(request.reply.get_response_sender())
            self._forward(reply, request.reply)
        if not all_requests:
            return None
        for request in all_requests:
            request.reply = _Reply(request.reply.get_response_sender())
        if waits:
            self._instance.submit(all_requests)
        for part in parts:
            self._compute_part(part)
        return None

    def is_ready(self) -> bool:
        """Return whether the instance answers requests. Triton 26.03 and later call this in each
        readiness check, while `execute` runs; older versions never do."""
        return self._instance.is_ready and (self._is_synchronous or self._sender.is_alive())

    def finalize(self) -> None:
        """Answer the requests in flight, then release the model."""
        self._closed.set()
        GROWTH.stop()
        if self._forwards is not None:
            self._forwards.shutdown()
        self._instance.close()
        self._answers.put(None)
        for thread in self._threads:
            thread.join(10)
        self._tensors.clear()
        # The stub unmaps its shared memory before Python ends. What Python frees there afterwards,
        # such as a request in a cycle of references, is a segmentation fault.
        gc.collect()

    def _compute(self, requests: Sequence[Request]) -> list[pb_utils.InferenceResponse]:
        """Return the responses of a call, in tensors of an earlier call where there are any."""
        pool = self._tensors
        tensors = pool.take(requests)
        self._instance.execute(requests)
        return list(map(_respond, requests, tensors, repeat(pool)))

    def _compute_part(self, requests: Sequence[Request]) -> None:
        """Answer a part of a long call. An error that is raised here would crash the server."""
        try:
            self._instance.execute(requests, is_part=True)
        except Exception as error:  # noqa: BLE001
            for request in requests:
                request.reply.send(_refuse(error))
        for request in requests:
            request.reply.send(_answer(request))

    def _forward(self, request: pb_utils.InferenceRequest, reply: _Reply) -> None:
        """Answer a request for some outputs from a request for all, in a thread.

        The key of Triton's response cache has no outputs, and the stub drops those that were not
        requested. The response with all of them is cached first, and Triton keeps the first one.
        """
        assert self._forwards is not None
        try:
            self._forwards.submit(_answer_from_all, self._state, request, reply)
        except RuntimeError as error:  # no thread can be started
            reply.send(_refuse(error))

    def _take(self, request: pb_utils.InferenceRequest) -> Request:
        tensors, inputs = request.inputs(), {}
        # Triton rejects unknown and missing names, so that with one input there is only one.
        only_input = self._only_input if len(tensors) == 1 else ""
        for tensor in tensors:
            name = only_input or tensor.name()
            # With numpy 1 the stub has already copied the tensor into an array.
            inputs[name] = (
                tensor.as_numpy() if NUMPY_IS_OLD else _view(tensor, self._dtypes.get(name))
            )
        # Triton rejects unknown names, so that with one output there is nothing to choose.
        names = request.requested_output_names() if self._has_choice else ()
        return self._make_request(self._state, inputs, names, request, request.timeout())

    def _start(self, target: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)
        return thread

    def _send_answers(self) -> None:
        """Send responses in the order in which they are ready, until the model is unloaded."""
        for request in iter(self._answers.get, None):
            request.reply.send(_answer(request))

    def _run_housekeeping(self) -> None:
        """Update the limit of memory and Triton's metrics, withdraw cancelled requests and end runs
        of which all are, at intervals, until the model is unloaded."""
        publish = _make_publisher(self._state, self._instance)
        while not self._closed.wait(HOUSEKEEPING_SECONDS):
            GROWTH.look()
            try:
                publish()
                self._instance.withdraw_cancelled(_is_cancelled)
                self._instance.end_unwanted_run(_is_cancelled)
            except pb_utils.TritonModelException as error:
                pb_utils.Logger.log_warn(f"[poplar] housekeeping: {error}")

    def _end_with_server(self, server: int) -> None:
        """End the process after its server has died, until the model is unloaded.

        Triton's stub ends then, too, except in a call to the server, such as `is_cancelled`, or
        the update of a metric: it waits for the answer for ever.
        """
        while not self._closed.wait(HOUSEKEEPING_SECONDS):
            if os.getppid() != server:
                time.sleep(ORPHANED_SECONDS)
                os._exit(1)


def _is_cancelled(request: Request) -> bool:
    """Return whether a request's client has gone."""
    return bool(request.reply.is_cancelled())


class _Reply:
    """Sender of one request's response. After the response the sender must not be used: the server
    has freed its memory."""

    def __init__(self, sender: pb_utils.InferenceResponseSender) -> None:
        self._sender = sender
        self._lock = threading.Lock()
        self._sent = False

    def send(self, response: pb_utils.InferenceResponse) -> None:
        """Send the response, once; a second one would crash the server."""
        with self._lock:
            if self._sent:
                return
            self._sent = True
            try:
                self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            except pb_utils.TritonModelException as error:
                pb_utils.Logger.log_warn(f"[poplar] a response could not be sent: {error}")

    def is_cancelled(self) -> bool:
        """Return whether the client has cancelled the request before it was answered."""
        with self._lock:
            try:
                return not self._sent and self._sender.is_cancelled()
            except pb_utils.TritonModelException:
                return False


def _answer_from_all(state: ModelState, request: pb_utils.InferenceRequest, reply: _Reply) -> None:
    """Request all outputs from the model, and answer a request with those that it asks for."""
    try:
        full_request = pb_utils.InferenceRequest(
            inputs=request.inputs(),
            requested_output_names=list(state.outputs),
            model_name=state.name,
            model_version=int(state.version),
            timeout=request.timeout(),
        )
        response = full_request.exec()
        error = response.error() if response.has_error() else None
        reply.send(pb_utils.InferenceResponse(() if error else response.output_tensors(), error))
    except Exception as error:  # noqa: BLE001  whatever it is, the request gets its answer
        reply.send(_refuse(error))


def _make_publisher(state: ModelState, instance: ModelInstanceState) -> Callable[[], None]:
    """Return a function that publishes an instance's metrics. It does nothing if the server has no
    metrics."""
    try:
        return _Publisher(state, instance).publish
    except pb_utils.TritonModelException as error:
        pb_utils.Logger.log_warn(f"[poplar] no metrics: {error}")
        return lambda: None


class _Publisher:
    """Sets Triton's custom metrics to an instance's sums."""

    def __init__(self, state: ModelState, instance: ModelInstanceState) -> None:
        from triton_poplar.statistics import (
            BUILD_INFO,
            ERROR_KINDS,
            ERRORS,
            HISTOGRAMS,
            LOAD,
            METRICS,
        )

        self._instance = instance
        # The label `process` tells the old and the new instance of a reloaded model apart.
        # Otherwise they share a series, and the end of the old instance frees it while the new one
        # uses it.
        process = str(os.getpid())
        labels = {"model": state.name, "version": state.version, "instance": instance.name}
        labels |= {"process": process, "numerics": state.parameters.sim_numerics}
        labels["kernels"] = instance.kernels
        self._families: list[pb_utils.MetricFamily] = []
        self._metrics = [
            (
                metric,
                self._make_family(metric.name, metric.help, metric.is_counter).Metric(
                    labels=labels
                ),
            )
            for metric in METRICS
        ]
        errors = self._make_family(ERRORS.name, ERRORS.help)
        self._errors = {
            kind: errors.Metric(labels={**labels, "kind": kind}) for kind in ERROR_KINDS
        }
        self._histograms = [(metric, self._make_histogram(metric, labels)) for metric in HISTOGRAMS]
        self._published: dict[str, float] = {}
        self._facts = [
            self._set_once(LOAD, instance.load_seconds, labels),
            self._set_once(BUILD_INFO, 1, {**_describe_build(), "process": process}),
        ]

    def publish(self) -> None:
        """Bring every metric that has changed up to date."""
        statistics = self._instance.read_statistics()
        for metric, series in self._metrics:
            self._set(metric.name, series, metric.value(statistics), metric.is_counter)
        for kind, series in self._errors.items():
            self._set(kind, series, statistics.errors[kind], True)
        for histogram, parts in self._histograms:
            latest = histogram.value(statistics)
            values = {le: float(count) for le, count in latest.iter_buckets()}
            values |= {"count": values["+Inf"], "sum": latest.sum_ns / 1e9}
            for part, value in values.items():
                self._set(f"{histogram.name} {part}", parts[part], value, True)

    def _make_histogram(
        self, metric: HistogramMetric, labels: dict[str, str]
    ) -> dict[str, pb_utils.Metric]:
        """Return the series of a histogram, by `le`, "sum" and "count".

        They are counters, which can be increased by many values at once. Triton's own histograms
        take one value at a time, 18 us each.
        """
        buckets, total, count = (
            self._make_family(name, metric.help) for name in metric.series_names()
        )
        bounds = metric.value(self._instance.statistics).iter_buckets()
        series = {le: buckets.Metric(labels={**labels, "le": le}) for le, _ in bounds}
        return {**series, "sum": total.Metric(labels=labels), "count": count.Metric(labels=labels)}

    def _set_once(
        self, fact: tuple[str, str], value: float, labels: dict[str, str]
    ) -> pb_utils.Metric:
        """Publish a value that does not change."""
        series = self._make_family(*fact, is_counter=False).Metric(labels=labels)
        series.set(value)
        return series

    def _make_family(self, name: str, text: str, is_counter: bool = True) -> pb_utils.MetricFamily:
        """Return the family of a metric. It is kept, because Triton drops a metric whose family is
        freed."""
        kind = pb_utils.MetricFamily.COUNTER if is_counter else pb_utils.MetricFamily.GAUGE
        family = pb_utils.MetricFamily(name=name, description=text, kind=kind)
        self._families.append(family)
        return family

    def _set(self, key: str, series: pb_utils.Metric, value: float, is_counter: bool) -> None:
        before = self._published.get(key, 0)
        if value != before:
            self._published[key] = value
            if is_counter:
                series.increment(value - before)
            else:
                series.set(value)


def _describe_build() -> dict[str, str]:
    """Return the labels of poplar_build_info."""
    import onnxruntime

    versions = {"version": __version__, "onnxruntime": onnxruntime.__version__}
    return {**versions, "python": platform.python_version()}


def _view(tensor: pb_utils.Tensor, dtype: np.dtype[Any] | None) -> Array:
    """Return the tensor's memory as an array, without a copy; booleans are transferred as bytes."""
    array = np.from_dlpack(CapsuleOnce(tensor))
    return array.view(np.bool_) if dtype == np.bool_ and array.dtype == np.uint8 else array


class _ResponseMemory:
    """Memory of a tensor, for numpy to write to; it keeps the tensor."""

    def __init__(self, tensor: pb_utils.Tensor) -> None:
        self._tensor = tensor
        interface = np.from_dlpack(CapsuleOnce(tensor)).__array_interface__  # read-only
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def _find_memory(tensor: pb_utils.Tensor, array: Array) -> Array:
    """Return the memory of a tensor that was made of an array with this dtype."""
    return np.asarray(_ResponseMemory(tensor)).view(array.dtype)


def _respond(
    request: Request, kept_tensors: ResponseTensors | None = None, pool: TensorPool | None = None
) -> pb_utils.InferenceResponse:
    """Return the response to a request, in kept tensors if given; new ones are kept in the pool."""
    try:
        outputs = request.outputs()
    except RequestError as error:
        code = getattr(pb_utils.TritonError, error.code)
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(escape(error), code))
    if kept_tensors is not None:
        return pb_utils.InferenceResponse(kept_tensors.fill(outputs))
    if pool is not None:
        return pb_utils.InferenceResponse(pool.make(request, outputs))
    return pb_utils.InferenceResponse(list(map(_make_tensor, outputs, outputs.values())))


def _answer(request: Request) -> pb_utils.InferenceResponse:
    """Return the response to a request, also after an error."""
    try:
        return _respond(request)
    except Exception as error:  # noqa: BLE001
        return _refuse(error)


def _make_tensor(name: str, array: Array) -> pb_utils.Tensor:
    if NUMPY_IS_OLD:
        return pb_utils.Tensor(name, array)
    return pb_utils.Tensor.from_dlpack(name, to_capsule(array))


def _refuse(error: Exception) -> pb_utils.InferenceResponse:
    """Return the response to a request after a defect of the backend."""
    text = escape(f"poplar backend: {error!r}")
    return pb_utils.InferenceResponse(
        error=pb_utils.TritonError(text, pb_utils.TritonError.INTERNAL)
    )
