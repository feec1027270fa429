"""The poplar backend: the one file that meets Triton. It turns Triton's requests into ours and our answers
into Triton's.

Works from a backend directory (`backend: "poplar"`) and as model.py in a model's version folder (`backend:
"python"`).
"""

from __future__ import annotations

import asyncio  # noqa: F401  the stub imports it during the first request otherwise, which then takes 20 ms longer
import functools
import gc
import json
import os
import platform
import queue
import threading
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils
from triton_poplar.auto_complete import complete_config
from triton_poplar.backend_state import BackendState
from triton_poplar.dlpack import to_capsule
from triton_poplar.errors import ModelConfigError, RequestError
from triton_poplar.log import log_to_stderr
from triton_poplar.model_state import ModelState

from popef._tools.text import escape

if TYPE_CHECKING:  # what brings ONNX Runtime is imported where a model is loaded
    from triton_poplar.instance_state import ModelInstanceState
    from triton_poplar.request import Request
    from triton_poplar.statistics import HistogramMetric, Metric

Given = ParamSpec("Given")
Loaded = TypeVar("Loaded")

NUMPY_IS_OLD = np.__version__.startswith("1.")
"""The stub's binding to numpy works with numpy 1 only; with numpy 2 tensors go through DLPack capsules."""

HOUSEKEEPING_SECONDS = 1.0
"""How often: a call per metric, or to ask whether a request was cancelled, takes 50 us, too long to do it
with every one."""


log_to_stderr()


def _told_plainly(load: Callable[Given, Loaded]) -> Callable[Given, Loaded]:
    """Have Triton say why a model cannot be loaded as we say it, in one line; a defect of ours with the
    places that Triton adds of the traceback."""

    @functools.wraps(load)
    def load_plainly(*given: Given.args, **named: Given.kwargs) -> Loaded:
        try:
            try:
                return load(*given, **named)
            except ModelConfigError as error:
                raise ModelConfigError(escape(error)) from None
        except ModelConfigError as error:
            # What is raised again as it is gets no place of its own (but in Python 3.10), so that there is
            # none to add.
            error.__traceback__ = None
            raise
        except Exception as error:  # noqa: BLE001  a defect of ours, which Triton shall tell in one line
            raise RuntimeError(escape(f"poplar backend: {error!r}")).with_traceback(
                error.__traceback__
            ) from None

    return load_plainly


class TritonPythonModel:
    """One instance of a model, in a process of its own."""

    _instance: ModelInstanceState
    _sender: threading.Thread
    _state: ModelState

    @staticmethod
    @_told_plainly
    def auto_complete_config(auto_complete_model_config: pb_utils.ModelConfig) -> pb_utils.ModelConfig:
        """Fill in what the configuration lacks. Runs in a process of its own whose death would hang the
        server: nothing but headers is read, in pure Python."""
        config = auto_complete_model_config.as_dict()
        for name, value in complete_config(config, Path(pb_utils.get_model_dir())).items():
            config[name] = value
        return auto_complete_model_config

    @_told_plainly
    def initialize(self, args: dict[str, str]) -> None:
        """Load the model; whatever is raised here becomes the reason that Triton gives for the failed
        load."""
        # Not at the top of the file: that would bring ONNX Runtime into the process that completes
        # configurations.
        from triton_poplar.instance_state import ModelInstanceState
        from triton_poplar.request import Request

        self._make_request = Request
        version_folder = Path(args["model_repository"], args["model_version"])
        self._state = ModelState(json.loads(args["model_config"]), version_folder, BackendState.of_server())
        self._state.validate()
        self._dtypes = {name: tensor.dtype for name, tensor in self._state.inputs.items()}
        self._answers: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._is_synchronous = self._state.parameters.synchronous_execution
        respond = None if self._is_synchronous else self._answers.put
        self._instance = ModelInstanceState(
            self._state, args["model_instance_name"], respond, lambda request: request.reply.is_cancelled()
        )
        pb_utils.Logger.log_info(
            f"[poplar] {escape(self._instance.name)}: numerics {self._state.parameters.sim_numerics}, "
            f"kernels {self._instance.kernels}"
        )
        if not self._is_synchronous:
            self._sender = self._start(self._send_answers, "responses")
        # What is here now stays: the garbage collector need not look at it again and again while requests are
        # served.
        gc.freeze()
        self._closed = threading.Event()
        self._start(self._keep_house, "housekeeping")

    def execute(
        self, requests: Sequence[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse] | None:
        """Answer every request, exactly once and whatever fails: synchronous with the list that is returned,
        asynchronous through the requests' senders, some time later."""
        if self._is_synchronous:
            return self._compute(requests)
        self._hand_over(requests)
        return None

    def is_ready(self) -> bool:
        """Whether the instance answers requests. Triton 26.03 and later ask at each readiness check, beside
        `execute`; older ones never do."""
        return self._instance.is_ready and (self._is_synchronous or self._sender.is_alive())

    def finalize(self) -> None:
        """Release the model: what is in flight is answered first."""
        self._closed.set()
        self._instance.close()
        self._answers.put(None)
        for thread in self._threads:
            thread.join(10)

    def _compute(
        self, requests: Sequence[pb_utils.InferenceRequest]
    ) -> list[pb_utils.InferenceResponse] | None:
        """The responses in the order of the requests; None for a long call, whose answers are sent."""
        try:
            taken = [self._take(request, request) for request in requests]
            parts = self._instance.split(taken)
            if len(parts) == 1:
                self._instance.execute(taken)
                return [_respond(request) for request in taken]
        except Exception as error:  # noqa: BLE001  a defect of ours: every request still gets its answer
            return [_refuse(error) for _ in requests]
        for request in taken:
            request.reply = _Reply(request.reply.get_response_sender())
        for part in parts:
            self._compute_part(part)
        return None

    def _compute_part(self, requests: Sequence[Request]) -> None:
        """Answer a part of a long call. Nothing is raised: the server would crash."""
        try:
            self._instance.execute(requests, is_part=True)
        except Exception as error:  # noqa: BLE001
            for request in requests:
                request.reply.send(_refuse(error))
        for request in requests:
            request.reply.send(_answer(request))

    def _hand_over(self, requests: Sequence[pb_utils.InferenceRequest]) -> None:
        """Have the session thread compute. From the first sender on nothing may be raised, and nothing but
        None returned: the server would crash."""
        replies = [_Reply(request.get_response_sender()) for request in requests]
        try:
            taken = [self._take(request, reply) for request, reply in zip(requests, replies, strict=True)]
        except Exception as error:  # noqa: BLE001
            for reply in replies:
                reply.send(_refuse(error))
            return
        self._instance.submit(taken)

    def _take(self, request: pb_utils.InferenceRequest, reply: Any) -> Request:
        if NUMPY_IS_OLD:
            # The stub has copied the tensor into an array of its own already.
            inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        else:
            inputs = {
                tensor.name(): _view(tensor, self._dtypes.get(tensor.name())) for tensor in request.inputs()
            }
        names = request.requested_output_names()
        return self._make_request(self._state, inputs, names, reply, request.timeout())

    def _start(self, target: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)
        return thread

    def _send_answers(self) -> None:
        """Send what is ready, in its order, until the model is unloaded."""
        for request in iter(self._answers.get, None):
            request.reply.send(_answer(request))

    def _keep_house(self) -> None:
        """Now and then bring the instance's sums to Triton's metrics, and look for requests that nobody wants
        any more."""
        publish = _make_publisher(self._state, self._instance)
        while not self._closed.wait(HOUSEKEEPING_SECONDS):
            try:
                publish()
                self._instance.withdraw_cancelled(lambda request: request.reply.is_cancelled())
            except pb_utils.TritonModelException as error:
                pb_utils.Logger.log_warn(f"[poplar] housekeeping: {error}")


class _Reply:
    """The way to answer a request. Once it has answered the sender must not be asked anything: the server
    would look at what it has freed."""

    def __init__(self, sender: pb_utils.InferenceResponseSender) -> None:
        self._sender = sender
        self._lock = threading.Lock()
        self._sent = False

    def send(self, response: pb_utils.InferenceResponse) -> None:
        """Send the one response; a second would crash the server."""
        with self._lock:
            if self._sent:
                return
            self._sent = True
            try:
                self._sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            except pb_utils.TritonModelException as error:
                pb_utils.Logger.log_warn(f"[poplar] a response could not be sent: {error}")

    def is_cancelled(self) -> bool:
        """Whether the client has given the request up before it was answered."""
        with self._lock:
            try:
                return not self._sent and self._sender.is_cancelled()
            except pb_utils.TritonModelException:
                return False


def _make_publisher(state: ModelState, instance: ModelInstanceState) -> Callable[[], None]:
    """What publishes an instance's sums; nothing where the server has no metrics."""
    try:
        return _Publisher(state, instance).publish
    except pb_utils.TritonModelException as error:
        pb_utils.Logger.log_warn(f"[poplar] no metrics: {error}")
        return lambda: None


class _Publisher:
    """Sets Triton's custom metrics to an instance's sums."""

    def __init__(self, state: ModelState, instance: ModelInstanceState) -> None:
        from triton_poplar.statistics import BUILD_INFO, ERROR_KINDS, ERRORS, HISTOGRAMS, LOAD, METRICS

        self._instance = instance
        # The process too: when a model is reloaded its old and its new instance live together for a while,
        # and the end of the one would free a series that both have, under the server's feet.
        process = str(os.getpid())
        labels = {
            "model": state.name,
            "version": state.version,
            "instance": instance.name,
            "process": process,
        }
        labels["numerics"] = state.parameters.sim_numerics
        labels["kernels"] = instance.kernels
        self._metrics = [(metric, *_make_metric(metric, labels)) for metric in METRICS]
        errors = _make_family(ERRORS)
        self._errors = {kind: errors.Metric(labels={**labels, "kind": kind}) for kind in ERROR_KINDS}
        self._families = [errors]
        self._histograms = [(metric, self._make_histogram(metric, labels)) for metric in HISTOGRAMS]
        self._published: dict[str, float] = {}
        self._facts = [
            self._set_once(LOAD, instance.load_seconds, labels),
            self._set_once(BUILD_INFO, 1, {**_describe_build(), "process": process}),
        ]

    def publish(self) -> None:
        """Bring every metric that has changed up to date."""
        statistics = self._instance.read_statistics()
        for metric, _, series in self._metrics:
            self._set(metric.name, series, metric.value(statistics), metric.is_counter)
        for kind, series in self._errors.items():
            self._set(kind, series, statistics.errors[kind], True)
        for histogram, parts in self._histograms:
            found = histogram.value(statistics)
            values = {le: float(count) for le, count in found.iter_buckets()}
            values |= {"count": values["+Inf"], "sum": found.sum_ns / 1e9}
            for part, value in values.items():
                self._set(f"{histogram.name} {part}", parts[part], value, True)

    def _make_histogram(self, metric: HistogramMetric, labels: dict[str, str]) -> dict[str, pb_utils.Metric]:
        """Series of a histogram, by `le`, "sum" and "count". They are counters, which can be set to what was
        counted: Triton's own kind takes one value at a time, 18 us each."""
        buckets, total, count = (self._make_counter(name, metric.help) for name in metric.series_names())
        bounds = metric.value(self._instance.statistics).iter_buckets()
        series = {le: buckets.Metric(labels={**labels, "le": le}) for le, _ in bounds}
        return {**series, "sum": total.Metric(labels=labels), "count": count.Metric(labels=labels)}

    def _make_counter(self, name: str, text: str) -> pb_utils.MetricFamily:
        family = pb_utils.MetricFamily(name=name, description=text, kind=pb_utils.MetricFamily.COUNTER)
        self._families.append(family)
        return family

    def _set_once(self, fact: tuple[str, str], value: float, labels: dict[str, str]) -> pb_utils.Metric:
        """Publish what does not change."""
        name, text = fact
        family = pb_utils.MetricFamily(name=name, description=text, kind=pb_utils.MetricFamily.GAUGE)
        self._families.append(family)
        series = family.Metric(labels=labels)
        series.set(value)
        return series

    def _set(self, key: str, series: pb_utils.Metric, value: float, is_counter: bool) -> None:
        before = self._published.get(key, 0)
        if value != before:
            self._published[key] = value
            if is_counter:
                series.increment(value - before)
            else:
                series.set(value)


def _describe_build() -> dict[str, str]:
    """The labels of poplar_build_info."""
    found = {}
    for label, package in (("version", "poplar-triton"), ("onnxruntime", "onnxruntime")):
        try:
            found[label] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[label] = "unknown"  # it runs from a folder
    return {**found, "python": platform.python_version()}


def _make_family(metric: Metric) -> pb_utils.MetricFamily:
    kind = pb_utils.MetricFamily.COUNTER if metric.is_counter else pb_utils.MetricFamily.GAUGE
    return pb_utils.MetricFamily(name=metric.name, description=metric.help, kind=kind)


def _make_metric(metric: Metric, labels: dict[str, str]) -> tuple[pb_utils.MetricFamily, pb_utils.Metric]:
    """The family too: Triton drops a metric whose family is gone."""
    family = _make_family(metric)
    return family, family.Metric(labels=labels)


def _view(tensor: pb_utils.Tensor, dtype: np.dtype[Any] | None) -> npt.NDArray[Any]:
    """The tensor's memory as an array, without a copy; booleans travel as bytes."""
    array = np.from_dlpack(tensor)
    return array.view(np.bool_) if dtype == np.bool_ and array.dtype == np.uint8 else array


def _respond(request: Request) -> pb_utils.InferenceResponse:
    try:
        outputs = request.outputs()
    except RequestError as error:
        code = getattr(pb_utils.TritonError, error.code)
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(escape(error), code))
    return pb_utils.InferenceResponse([_make_tensor(name, array) for name, array in outputs.items()])


def _answer(request: Request) -> pb_utils.InferenceResponse:
    """Its response, whatever fails."""
    try:
        return _respond(request)
    except Exception as error:  # noqa: BLE001
        return _refuse(error)


def _make_tensor(name: str, array: npt.NDArray[Any]) -> pb_utils.Tensor:
    if NUMPY_IS_OLD:
        return pb_utils.Tensor(name, array)
    return pb_utils.Tensor.from_dlpack(name, to_capsule(array))


def _refuse(error: Exception) -> pb_utils.InferenceResponse:
    """The answer when something of ours is broken."""
    text = escape(f"poplar backend: {error!r}")
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(text, pb_utils.TritonError.INTERNAL))
