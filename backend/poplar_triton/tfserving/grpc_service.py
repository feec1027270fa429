"""PredictionService, ModelService and the health check over gRPC: conversion of requests, responses
and errors. Each call has a thread.

Clients query the server's health by grpc.health.v1 once (Check), or get it at each change (Watch).
A watch uses a thread only while a status is sent to it, so thousands of clients may watch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Any, NoReturn, TypeAlias

import grpc
from google.protobuf.message import DecodeError, Message

from popef._tools.text import escape
from poplar_triton.tfserving import messages_pb2 as messages
from poplar_triton.tfserving import wire
from poplar_triton.tfserving.check import MAX_NAME, Given, answer, describe_signature
from poplar_triton.tfserving.entries import KIND, MANY_VALUES, EntryCounter, compact
from poplar_triton.tfserving.metrics import Observe
from poplar_triton.tfserving.models import (
    DEFAULT_SIGNATURE,
    Code,
    Models,
    ModelSpec,
    Servable,
    ServingError,
    as_serving_error,
    refuse,
)
from poplar_triton.tfserving.threads import Threads
from poplar_triton.tfserving.unfinished import Unfinished, UnfinishedCalls, find_address
from poplar_triton.tfserving.work_process import WorkProcess

_NAMES = ("PredictionService", "ModelService")
SERVICES = frozenset(("", *_NAMES, *(f"tensorflow.serving.{name}" for name in _NAMES)))
"""Services that clients may query: the server, and its services. The short names are
tensorflow_model_server's."""
MAX_WATCHES = 4096
"""Maximum number of watches; see Unfinished for which one ends above it."""


class HealthStatus(IntEnum):
    """Values of grpc.health.v1.HealthCheckResponse.ServingStatus."""

    SERVING = 1
    NOT_SERVING = 2
    SERVICE_UNKNOWN = 3


Send = Callable[["HealthStatus | None"], None]
"""Function that sends a status to a client that watches; None ends its call."""


@dataclass(slots=True, eq=False)
class _HealthWatch:
    service: str
    context: Any
    send: Send
    told: HealthStatus | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Health:
    """Health of one server over gRPC. Threads may use it at the same time."""

    def __init__(self, unfinished: UnfinishedCalls, max_watches: int = MAX_WATCHES) -> None:
        self._unfinished = unfinished
        self._lock = threading.Lock()
        self._watches: Unfinished[_HealthWatch] = Unfinished(max_watches)
        self._is_serving = self._is_closed = False

    def set_serving(self, is_serving: bool) -> None:
        """Set whether the server serves, and notify the clients that watch. It waits for none of
        them."""
        with self._lock:
            self._is_serving = is_serving
            watches = list(self._watches)
        for watch in watches:
            self._unfinished.threads.submit(self._tell, watch)

    def check(self, service: str) -> HealthStatus:
        """Return whether a service is served. Raises ServingError, NOT_FOUND, for an unknown
        service."""
        status = self._find_status(service)
        if status is HealthStatus.SERVICE_UNKNOWN:
            raise ServingError(
                Code.NOT_FOUND,
                f"service {escape(service, MAX_NAME)!r} is not known; expected one of "
                f"{sorted(SERVICES)}",
            )
        return status

    def watch(self, service: str, context: Any, send: Send) -> None:
        """Send the status to a client now, and at each change until it leaves. The protocol says
        that an unknown service may become known, so its client stays."""
        watch = _HealthWatch(service, context, send)
        address = find_address(context)
        with self._lock:
            shed = self._watches.add(address, watch)

        def leave() -> None:
            with self._lock:
                self._watches.remove(address, watch)

        if shed is not None:
            shed.context.cancel()
        if not context.add_callback(leave):
            leave()  # the client has already gone
        self._tell(watch)
        if self._is_closed:
            send(None)

    def close(self) -> None:
        """End all watches."""
        with self._lock:
            self._is_closed = True
            watches = list(self._watches)
        for watch in watches:
            watch.send(None)

    def _find_status(self, service: str) -> HealthStatus:
        if service not in SERVICES:
            return HealthStatus.SERVICE_UNKNOWN
        return HealthStatus.SERVING if self._is_serving else HealthStatus.NOT_SERVING

    def _tell(self, watch: _HealthWatch) -> None:
        """Send the current status, unless the client has it."""
        with watch.lock:
            status = self._find_status(watch.service)
            if status is not watch.told:
                watch.told = status
                with self._unfinished.waiting(watch.context):  # the client may not read
                    watch.send(status)


PROCESS_NAME = "process of large requests"
_SERVING = "tensorflow.serving"
_SIGNATURE_DEF = "signature_def"
_MAP_URL = f"type.googleapis.com/{_SERVING}.SignatureDefMap"
_MAX_DETAILS = 2000
"""Maximum size of an error message. gRPC sends it as a header with three bytes for each byte beyond
ASCII, and clients accept 8 KiB."""
_MAX_BYTES_OF_A_CHARACTER = 4
"""Bytes of a character in UTF-8, at most: gRPC limits the bytes of an error's text."""
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_NEVER_SECONDS = 1e9
"""Number of seconds above which gRPC means that there is no deadline; the longest deadline that it
sends is three years."""
_NO_MODEL = messages.ModelSpec()

Context: TypeAlias = Any
"""Context of a call: grpc.ServicerContext, which has no types."""
Handler = Callable[[Any, Context], Message]


class GrpcCall:
    """Call over gRPC. Its methods are those of `models.Call`."""

    def __init__(self, context: Context, threads: Threads) -> None:
        self._context = context
        self.waiting = threads.waiting

    def seconds_left(self) -> float | None:
        seconds: float | None = self._context.time_remaining()
        return None if seconds is None or seconds > _NEVER_SECONDS else seconds

    def is_wanted(self) -> bool:
        return bool(self._context.is_active())

    def when_given_up(self, callback: Callable[[], None]) -> None:
        if not self._context.add_callback(callback):
            callback()


def make_handlers(
    models: Models,
    observe: Observe,
    health: Health,
    unfinished: UnfinishedCalls,
    *,
    as_content: bool,
    process: WorkProcess | None = None,
) -> list[grpc.GenericRpcHandler]:
    """Return the handlers of a server whose calls run on the threads of `unfinished`.

    With `as_content` outputs are sent as tensor_content instead of typed values. `process` makes
    requests of many values compact (None: a process of its own).
    """
    process = process or WorkProcess(PROCESS_NAME)
    service = _GrpcService(models, observe, health, unfinished, as_content, process)
    method, kinds = service.make_method, messages
    services = {
        f"{_SERVING}.PredictionService": {
            "Predict": method(service.predict, kinds.PredictRequest, "Predict"),
            "GetModelMetadata": method(
                service.read_metadata, kinds.GetModelMetadataRequest, "GetModelMetadata"
            ),
            **{name: _refuse(name) for name in ("Classify", "Regress", "MultiInference")},
        },
        f"{_SERVING}.ModelService": {
            "GetModelStatus": method(service.read_status, kinds.GetModelStatusRequest),
            "HandleReloadConfigRequest": _refuse("HandleReloadConfigRequest"),
        },
        "grpc.health.v1.Health": {
            "Check": method(service.check_health, kinds.HealthCheckRequest),
            "Watch": grpc.stream_stream_rpc_method_handler(service.watch_health),
        },
    }
    return [
        grpc.method_handlers_generic_handler(name, methods) for name, methods in services.items()
    ]


@dataclass(frozen=True, slots=True)
class _GrpcService:
    """Methods of all services, and what they need."""

    models: Models
    observe: Observe
    health: Health
    unfinished: UnfinishedCalls
    as_content: bool
    process: WorkProcess

    def predict(
        self, request: messages.PredictRequest, context: Context
    ) -> messages.PredictResponse:
        """Answer a request for Predict."""
        spec = _read_spec(request)
        call = GrpcCall(context, self.unfinished.threads)
        servable = self.models.find(spec, call)
        outputs = answer(
            servable, spec.signature, request.inputs, _describe, list(request.output_filter), call
        )
        response = messages.PredictResponse()
        _write_spec(response.model_spec, servable)
        response.model_spec.signature_name = DEFAULT_SIGNATURE
        for name, array in outputs.items():
            wire.write_tensor(response.outputs[name], array, as_content=self.as_content)
        return response

    def read_metadata(
        self, request: messages.GetModelMetadataRequest, context: Context
    ) -> messages.GetModelMetadataResponse:
        """Answer a request for GetModelMetadata."""
        spec = _read_spec(request)
        if not request.metadata_field:
            raise refuse("GetModelMetadataRequest must specify at least one metadata_field")
        for name in request.metadata_field:
            if name != _SIGNATURE_DEF:
                raise refuse(f"Metadata field {escape(name, MAX_NAME)} is not supported")
        servable = self.models.find(spec, GrpcCall(context, self.unfinished.threads))
        response = messages.GetModelMetadataResponse()
        _write_spec(response.model_spec, servable)
        packed = response.metadata[_SIGNATURE_DEF]
        packed.type_url = _MAP_URL
        packed.value = describe_signature(servable.signature).SerializeToString()
        return response

    def read_status(
        self, request: messages.GetModelStatusRequest, context: Context
    ) -> messages.GetModelStatusResponse:
        """Answer a request for GetModelStatus."""
        response = messages.GetModelStatusResponse()
        call = GrpcCall(context, self.unfinished.threads)
        for status in self.models.list_versions(_read_spec(request), call):
            response.model_version_status.add(
                version=status.version,
                state=status.state,
                status=messages.Status(error_code=status.code, error_message=status.message),
            )
        return response

    def check_health(
        self, request: messages.HealthCheckRequest, _: Context
    ) -> messages.HealthCheckResponse:
        """Answer a request for Check."""
        return messages.HealthCheckResponse(status=self.health.check(request.service))

    def watch_health(
        self, requests: Iterator[bytes], context: Context, send: Callable[[bytes | None], None]
    ) -> None:
        """Answer a call of Watch, which continues after its thread has ended."""

        def tell(status: HealthStatus | None) -> None:
            send(
                None
                if status is None
                else messages.HealthCheckResponse(status=status).SerializeToString()
            )

        data = self._read(requests, context)
        try:
            service = self._parse(messages.HealthCheckRequest, data, context).service
        except ServingError as error:
            _abort(context, *_describe_error(error))
        self.health.watch(service, context, tell)

    # With this attribute gRPC passes `send` to the method; gRPC's own health service does the same.
    watch_health.experimental_non_blocking = True  # type: ignore[attr-defined]

    def make_method(
        self, call: Handler, kind: type[Message], api: str = ""
    ) -> grpc.RpcMethodHandler:
        """Return the handler of a method that counts each call, with its errors and duration. A
        method is not counted if `api` is ""."""

        def handle(requests: Iterator[bytes], context: Context) -> bytes:
            data = self._read(requests, context)
            start = time.perf_counter()
            code, text, model = Code.CANCELLED, "", ""
            try:
                request = self._parse(kind, data, context)
                model = getattr(request, "model_spec", _NO_MODEL).name
                response: bytes = (call(request, context)).SerializeToString()
                code = Code.OK
                return response
            except Exception as error:  # noqa: BLE001  whatever it is, the call gets its answer
                # Keep no reference to the error here. It refers to this frame, and the cycle would
                # keep the request until it is collected.
                code, text = _describe_error(error)
            finally:
                if api:
                    self.observe(model, api, "GRPC", code, time.perf_counter() - start)
            _abort(context, code, text)

        # gRPC gets a stream of requests, of which one is read: so the call is known first.
        return grpc.stream_unary_rpc_method_handler(handle)

    def _read(self, requests: Iterator[bytes], context: Context) -> bytes:
        """Return the whole request of a call. A call without a request is aborted."""
        data = self.unfinished.read(requests, context)
        if data is None:
            _abort(context, Code.INVALID_ARGUMENT, "expected a request, found the call's end")
        return data

    def _parse(self, kind: type[Message], data: bytes, context: Context) -> Any:
        """Return the message. Raises ServingError for invalid bytes and for too many parts."""
        name, compacted = kind.DESCRIPTOR.name, data
        if name != KIND:
            EntryCounter(name).check(data)
        elif not EntryCounter(name, MANY_VALUES).check(data):
            compacted = self.process.run(GrpcCall(context, self.unfinished.threads), compact, data)
        try:
            return kind.FromString(compacted)
        except DecodeError as error:
            raise refuse(
                f"expected a {name} of {_SERVING}, found {len(data)} other bytes"
            ) from error


def _read_spec(request: Any) -> ModelSpec:
    if not request.HasField("model_spec"):
        raise refuse("Missing ModelSpec")
    spec = request.model_spec
    choice = spec.WhichOneof("version_choice")
    return ModelSpec(
        spec.name,
        spec.version.value if choice == "version" else None,
        spec.version_label if choice == "version_label" else None,
        spec.signature_name,
    )


def _describe(name: str, tensor: messages.Tensor) -> Given:
    dtype = wire.read_dtype(name, tensor)
    return Given(
        dtype, wire.read_shape(name, tensor), partial(wire.read_values, name, tensor, dtype)
    )


def _write_spec(spec: messages.ModelSpec, servable: Servable) -> None:
    spec.name = servable.name
    spec.version.value = servable.version


def _describe_error(error: Exception) -> tuple[Code, str]:
    serving_error = as_serving_error(error)
    text = escape(serving_error, _MAX_DETAILS)
    if len(text.encode()) > _MAX_DETAILS:
        text = escape(serving_error, _MAX_DETAILS // _MAX_BYTES_OF_A_CHARACTER)
    return serving_error.code, text


def _abort(context: Context, code: Code, text: str) -> NoReturn:
    context.abort(_CODES[code], text)
    raise AssertionError("abort raises")


def _refuse(name: str) -> grpc.RpcMethodHandler:
    def handle(_: Iterator[bytes], context: Context) -> bytes:
        context.abort(
            grpc.StatusCode.UNIMPLEMENTED, f"{name} is not supported by poplar-triton; use Predict"
        )
        raise AssertionError("abort raises")

    return grpc.stream_unary_rpc_method_handler(handle)
