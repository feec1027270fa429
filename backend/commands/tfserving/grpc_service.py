"""PredictionService, ModelService and the health check over gRPC: requests into ours, answers and errors into
theirs. Each call has a thread."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NoReturn, TypeAlias

import grpc
from google.protobuf.message import DecodeError, Message

from commands.tfserving import messages_pb2 as messages
from commands.tfserving import wire
from commands.tfserving.check import MAX_NAME, Given, answer
from commands.tfserving.entries import EntryCounter
from commands.tfserving.errors import Code, ServingError, as_serving_error
from commands.tfserving.metrics import Observe
from commands.tfserving.models import DEFAULT_SIGNATURE, Models, ModelSpec, Servable
from commands.tfserving.signatures import describe_signature
from commands.tfserving.threads import Threads
from popef.text import escape

_SERVING = "tensorflow.serving"
_SIGNATURE_DEF = "signature_def"
_MAP_URL = f"type.googleapis.com/{_SERVING}.SignatureDefMap"
_MOST_DETAILS = 2000
"""Bytes of an error: gRPC sends it as a header, those beyond ASCII as three each, and clients take 8 KiB."""
_MOST_BYTES_OF_A_CHARACTER = 4
_CODES = {code.value[0]: code for code in grpc.StatusCode}
_NEVER_SECONDS = 1e9
"""What is more is gRPC's way to say that there is no deadline; the longest that it sends is three years."""
_NO_MODEL = messages.ModelSpec()
_NOT_SERVED = {
    "PredictionService": ("Classify", "Regress", "MultiInference"),
    "ModelService": ("HandleReloadConfigRequest",),
}

Context: TypeAlias = Any
"""grpc.ServicerContext, which has no types."""
Handler = Callable[[Any, Context], Message]


class GrpcCall:
    """A call over gRPC (see models.Call)."""

    def __init__(self, context: Context, threads: Threads) -> None:
        self._context = context
        self.waiting = threads.waiting
        """See Call."""

    def seconds_left(self) -> float | None:
        """See Call."""
        left: float | None = self._context.time_remaining()
        return None if left is None or left > _NEVER_SECONDS else left

    def is_wanted(self) -> bool:
        """See Call."""
        return bool(self._context.is_active())

    def when_given_up(self, callback: Callable[[], None]) -> None:
        """See Call."""
        if not self._context.add_callback(callback):
            callback()


def make_handlers(
    models: Models, observe: Observe, is_serving: Callable[[], bool], threads: Threads, *, as_content: bool
) -> list[grpc.GenericRpcHandler]:
    """What a server answers whose calls are on `threads`. `as_content`: outputs as tensor_content instead of
    typed values."""
    service = _Service(models, threads, as_content)
    prediction = {
        "Predict": _method(service.predict, messages.PredictRequest, "Predict", observe),
        "GetModelMetadata": _method(
            service.read_metadata, messages.GetModelMetadataRequest, "GetModelMetadata", observe
        ),
    }
    status = {"GetModelStatus": _method(service.read_status, messages.GetModelStatusRequest, "", observe)}
    health = {"Check": _method(_make_health_check(is_serving), messages.HealthCheckRequest, "", observe)}
    return [
        _serve(f"{_SERVING}.PredictionService", {**prediction, **_refuse_all("PredictionService")}),
        _serve(f"{_SERVING}.ModelService", {**status, **_refuse_all("ModelService")}),
        _serve("grpc.health.v1.Health", health),
    ]


class _Service:
    def __init__(self, models: Models, threads: Threads, as_content: bool) -> None:
        self._models = models
        self._threads = threads
        self._as_content = as_content

    def predict(self, request: messages.PredictRequest, context: Context) -> messages.PredictResponse:
        """Predict."""
        spec = _read_spec(request)
        call = GrpcCall(context, self._threads)
        servable = self._models.find(spec, call)
        outputs = answer(
            servable, spec.signature, request.inputs, _describe, list(request.output_filter), call
        )
        response = messages.PredictResponse()
        _write_spec(response.model_spec, servable)
        response.model_spec.signature_name = DEFAULT_SIGNATURE
        for name, array in outputs.items():
            wire.write_tensor(response.outputs[name], array, as_content=self._as_content)
        return response

    def read_metadata(
        self, request: messages.GetModelMetadataRequest, context: Context
    ) -> messages.GetModelMetadataResponse:
        """GetModelMetadata."""
        spec = _read_spec(request)
        if not request.metadata_field:
            raise ServingError(
                Code.INVALID_ARGUMENT, "GetModelMetadataRequest must specify at least one metadata_field"
            )
        for field in request.metadata_field:
            if field != _SIGNATURE_DEF:
                raise ServingError(
                    Code.INVALID_ARGUMENT, f"Metadata field {escape(field, MAX_NAME)} is not supported"
                )
        servable = self._models.find(spec, GrpcCall(context, self._threads))
        response = messages.GetModelMetadataResponse()
        _write_spec(response.model_spec, servable)
        packed = response.metadata[_SIGNATURE_DEF]
        packed.type_url = _MAP_URL
        packed.value = describe_signature(servable.signature).SerializeToString()
        return response

    def read_status(
        self, request: messages.GetModelStatusRequest, context: Context
    ) -> messages.GetModelStatusResponse:
        """GetModelStatus."""
        response = messages.GetModelStatusResponse()
        call = GrpcCall(context, self._threads)
        for found in self._models.list_versions(_read_spec(request), call):
            response.model_version_status.add(
                version=found.version,
                state=found.state,
                status=messages.Status(error_code=found.code, error_message=found.message),
            )
        return response


def _read_spec(request: Any) -> ModelSpec:
    if not request.HasField("model_spec"):
        raise ServingError(Code.INVALID_ARGUMENT, "Missing ModelSpec")
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
    return Given(dtype, wire.read_shape(name, tensor), partial(wire.read_values, name, tensor, dtype))


def _write_spec(spec: messages.ModelSpec, servable: Servable) -> None:
    spec.name = servable.name
    spec.version.value = servable.version


def _method(call: Handler, kind: type[Message], api: str, observe: Observe) -> grpc.RpcMethodHandler:
    """A call that is counted, with its errors and how long it took; `api` is "" for one that is not."""

    def handle(data: bytes, context: Context) -> bytes:
        start = time.perf_counter()
        code, model = Code.CANCELLED, ""
        try:
            request = _parse(kind, data)
            model = getattr(request, "model_spec", _NO_MODEL).name
            response: bytes = (call(request, context)).SerializeToString()
            code = Code.OK
            return response
        except Exception as error:  # noqa: BLE001  whatever it is, the call gets its answer
            found = as_serving_error(error)
            code = found.code
            _abort(context, found)
        finally:
            if api:
                observe(model, api, "GRPC", code, time.perf_counter() - start)

    return grpc.unary_unary_rpc_method_handler(handle)


def _parse(kind: type[Message], data: bytes) -> Any:
    EntryCounter(kind.DESCRIPTOR.name).check(data)
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise ServingError(
            Code.INVALID_ARGUMENT,
            f"expected a {kind.DESCRIPTOR.name} of {_SERVING}, found {len(data)} other bytes",
        ) from error


def _abort(context: Context, error: ServingError) -> NoReturn:
    text = escape(error, _MOST_DETAILS)
    if len(text.encode()) > _MOST_DETAILS:
        text = escape(error, _MOST_DETAILS // _MOST_BYTES_OF_A_CHARACTER)
    context.abort(_CODES[error.code], text)
    raise AssertionError("abort raises")


def _make_health_check(is_serving: Callable[[], bool]) -> Handler:
    def check(_: messages.HealthCheckRequest, __: Context) -> messages.HealthCheckResponse:
        return messages.HealthCheckResponse(status=1 if is_serving() else 2)

    return check


def _refuse_all(service: str) -> Mapping[str, grpc.RpcMethodHandler]:
    """What TensorFlow Serving has and a model without tf.Example has not."""
    return {name: _refuse(name) for name in _NOT_SERVED[service]}


def _refuse(name: str) -> grpc.RpcMethodHandler:
    def handle(_: bytes, context: Context) -> bytes:
        context.abort(grpc.StatusCode.UNIMPLEMENTED, f"{name} is not served by poplar-triton; Predict is")
        raise AssertionError("abort raises")

    return grpc.unary_unary_rpc_method_handler(handle)


def _serve(name: str, methods: Mapping[str, grpc.RpcMethodHandler]) -> grpc.GenericRpcHandler:
    return grpc.method_handlers_generic_handler(name, dict(methods))
