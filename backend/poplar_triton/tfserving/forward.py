"""Models of a Triton server behind gRPC (--triton): requests are forwarded, and errors passed on.

A model's inputs and outputs are queried at most once a second, and again after a rejected request.
So a reloaded model is noticed without notification. Without a version the request goes to Triton's
newest. Triton keeps the older one until the newer one is ready, and the response has the version
that computed it.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor, np_to_triton_dtype, serialize_byte_tensor

from popef._tools.arrays import Array
from popef._tools.text import find_name_fault
from poplar_triton.serving.endpoint import UNKNOWN_MODEL
from poplar_triton.tfserving.models import (
    BY_DTYPE,
    Call,
    Code,
    ModelSpec,
    ServingError,
    Signature,
    TensorSpec,
    VersionState,
    VersionStatus,
    make_spec,
    refuse,
)
from poplar_triton.tfserving.settings import (
    ModelSource,
    TritonTls,
    VersionPolicy,
    find_version,
    not_known,
    not_served,
)

FRESH_SECONDS = 1.0
"""Time for which the answer about a model's inputs and outputs is cached."""
ASK_SECONDS = 5.0
"""Timeout of a question to Triton about its models. An answer takes milliseconds, but half a minute
if a store is unreachable."""
_MAX_KNOWN = 4096
"""Maximum number of remembered models and versions: names come from clients, who are untrusted."""
_MAX_VERSION = 2**63 - 1
_RESTRICTED = "This protocol is restricted"
"""Triton's message to clients without the key of --grpc-restricted-protocol."""
_STATES = {
    "READY": VersionState.AVAILABLE,
    "LOADING": VersionState.LOADING,
    "UNLOADING": VersionState.UNLOADING,
    "UNAVAILABLE": VersionState.END,
}
_UNLOADED = ("", "unloaded")
"""Reasons that are not errors for a version that is not served."""
# By default gRPC waits up to two minutes before it retries a server that was away. Pings detect a
# machine that is gone. Triton treats pings more often than every five minutes as an attack.
_CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 600_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # Triton limits the size of messages, and so does the server that receives them.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
)
_Key: TypeAlias = "tuple[str, int | None]"
"""Model name and requested version."""
_DATATYPES = {dtype: np_to_triton_dtype(dtype) for dtype in BY_DTYPE}
_DTYPES = {datatype: dtype for dtype, datatype in _DATATYPES.items()}
"""numpy types by Triton's names, for all types that TensorFlow's clients may use. BF16 is not among
them."""


class TritonModels:
    """Models of the Triton at `target`, HOST:PORT of its gRPC: those of `sources`, whose folders do
    not count, or all if there are none (see Models).

    Threads may share it. While Triton is away, requests get UNAVAILABLE.
    """

    def __init__(
        self, target: str, sources: Sequence[ModelSource] = (), tls: TritonTls | None = None
    ) -> None:
        self._calls = _TritonClient(target, tls)
        self._sources = {source.name: source for source in sources}
        self._known: dict[_Key, _KnownModel] = {}
        self._asked: dict[_Key, Future[_KnownModel]] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the channel, and cancel requests under way."""
        self._calls.close()

    def find(self, spec: ModelSpec, call: Call) -> ForwardedServable:
        source, version = self._resolve(spec)
        key = spec.name, version
        known_model = self._known.get(key)
        if known_model is None or time.monotonic() >= known_model.stale_at:
            try:
                with call.waiting():
                    known_model = self._learn(spec, source, version)
            except _NotServedError:
                raise not_served(spec, version) from None
        return ForwardedServable(self, self._calls, key, known_model)

    def list_versions(self, spec: ModelSpec, call: Call) -> list[VersionStatus]:
        try:
            source, version = self._resolve(spec)
            with call.waiting():
                statuses = self._find_statuses(spec.name)
        except (_NotServedError, ServingError) as error:
            if isinstance(error, ServingError) and error.code is not Code.NOT_FOUND:
                raise
            raise not_known(spec, spec.version) from None
        ready = [status.version for status in statuses if status.state is VersionState.AVAILABLE]
        hidden = set() if source is None else set(ready) - _choose(source, ready)
        statuses = [
            status
            for status in statuses
            if version in (None, status.version)
            and (status.state is not VersionState.AVAILABLE or status.version not in hidden)
        ]
        if not statuses:
            raise not_known(spec, version)
        return sorted(statuses, key=lambda status: status.version, reverse=True)

    def forget(self, key: _Key) -> None:
        """Discard the cached inputs and outputs of a model, so that its next request queries
        them."""
        self._known.pop(key, None)

    def _resolve(self, spec: ModelSpec) -> tuple[ModelSource | None, int | None]:
        """Return the configured source of a model and the requested version. Raises ServingError if
        neither is possible."""
        if not spec.name:
            raise refuse("ModelSpec has no name specified.")
        source = self._sources.get(spec.name)
        if find_name_fault(spec.name) or (self._sources and source is None):
            raise not_served(spec, spec.version)
        version = find_version(spec, {} if source is None else source.labels)
        # Triton takes -1 for the newest.
        if version is not None and not 0 <= version <= _MAX_VERSION:
            raise not_served(spec, version)
        return source, version

    def _learn(
        self, spec: ModelSpec, source: ModelSource | None, version: int | None
    ) -> _KnownModel:
        """Return the inputs and outputs of a model. One of the calls that need them asks Triton;
        the others wait for it."""
        key = spec.name, version
        with self._lock:
            future = self._asked.get(key)
            is_first = future is None
            if future is None:
                future = self._asked[key] = Future()
        if not is_first:
            return future.result()
        try:
            known_model = self._ask(key, source)
        except BaseException as error:
            self._note(key, None)
            future.set_exception(error)
            raise
        self._note(key, known_model)
        future.set_result(known_model)
        return known_model

    def _note(self, key: _Key, known_model: _KnownModel | None) -> None:
        with self._lock:
            del self._asked[key]
            self._known.pop(key, None)
            if known_model is not None:
                if len(self._known) >= _MAX_KNOWN:
                    self._known.clear()
                self._known[key] = known_model

    def _ask(self, key: _Key, source: ModelSource | None) -> _KnownModel:
        name, version = key
        requested = version if source is None else self._choose_version(source, version)
        text = "" if requested is None else str(requested)
        metadata = self._calls.ask("ModelMetadata", name=name, version=text)
        config = self._calls.ask("ModelConfig", name=name, version=text)
        newest = max(map(int, metadata.versions), default=0)
        stale_at = time.monotonic() + FRESH_SECONDS
        return _KnownModel(
            _read_signature(metadata, config.config), requested or newest, text, stale_at
        )

    def _choose_version(self, source: ModelSource, version: int | None) -> int | None:
        """Return the version to request from Triton, among those that it has and that are to be
        served."""
        ready = self._calls.ask("ModelMetadata", name=source.name)
        chosen = _choose(source, map(int, ready.versions))
        if not chosen or (version is not None and version not in chosen):
            raise _NotServedError
        # Triton chooses the newest of all, because it may be another one by then.
        policy = source.policy
        if version is None and policy is not None and policy.specific:
            return max(chosen)
        return version

    def _find_statuses(self, name: str) -> list[VersionStatus]:
        try:
            index = self._calls.ask("RepositoryIndex")
        except ServingError as error:
            if _RESTRICTED not in str(error):
                raise
            # A client without access to the index still learns which versions are ready.
            metadata = self._calls.ask("ModelMetadata", name=name)
            return [
                VersionStatus(int(version), VersionState.AVAILABLE) for version in metadata.versions
            ]
        return [
            _read_status(entry)
            for entry in index.models
            if entry.name == name and entry.version.isdecimal()
        ]


@dataclass(frozen=True, slots=True)
class _KnownModel:
    """Cached facts about a version. `asked_as` is the version in requests to Triton: "" for its
    newest, which `version` was. `stale_at` is a monotonic time."""

    signature: Signature
    version: int
    asked_as: str
    stale_at: float


class ForwardedServable:
    """Version of a model on Triton, for one request. If the request names none, its number is that
    of the response once there is one."""

    def __init__(
        self, models: TritonModels, calls: _TritonClient, key: _Key, known_model: _KnownModel
    ) -> None:
        self.name = key[0]
        self.version = known_model.version
        self.signature = known_model.signature
        self._models = models
        self._calls = calls
        self._key = key
        self._asked_as = known_model.asked_as

    def predict(
        self, inputs: Mapping[str, Array], outputs: Sequence[str], call: Call
    ) -> dict[str, Array]:
        request = service_pb2.ModelInferRequest(model_name=self.name, model_version=self._asked_as)
        for name, array in inputs.items():
            datatype = _DATATYPES[array.dtype]
            shape = (*array.shape, *[1] * self.signature.inputs[name].num_ones)
            request.inputs.add(name=name, datatype=datatype, shape=shape)
            request.raw_input_contents.append(_encode(array))
        for name in outputs:
            request.outputs.add(name=name)
        try:
            answer = self._calls.forward(request, call)
        except _NotServedError:
            self._models.forget(self._key)
            raise not_served(ModelSpec(self.name), self._key[1]) from None
        except ServingError as error:
            if error.code in (Code.INVALID_ARGUMENT, Code.NOT_FOUND):
                self._models.forget(self._key)
            raise
        try:
            self.version = int(answer.model_version or self.version)
            return dict(_decode_outputs(answer, self.signature.outputs))
        except (ValueError, KeyError, struct.error) as error:
            raise ServingError(
                Code.INTERNAL,
                f"model {self.name!r}: expected outputs of the declared types and shapes from "
                f"Triton, found {error!r}",
            ) from error


class _NotServedError(Exception):
    """Error of a model, or a version of it, that Triton does not have ready."""


class _TritonClient:
    """Client of Triton's service. It raises errors as ServingError, with its code and message, or
    as _NotServedError."""

    def __init__(self, target: str, tls: TritonTls | None) -> None:
        self._channel = _connect(target, tls)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._where = f"Triton at {target}"

    def ask(self, method: str, **fields: object) -> Any:
        """Call a method of Triton and return the response."""
        request = getattr(service_pb2, f"{method}Request")(**fields)
        try:
            return getattr(self._stub, method)(request, timeout=ASK_SECONDS)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise ServingError(
                    Code.UNAVAILABLE,
                    f"{self._where}: expected a response to {method} within {ASK_SECONDS:g} s",
                ) from error
            raise self._read_error(error) from error

    def forward(self, request: Any, call: Call) -> Any:
        """Return the response to an inference, which is cancelled when `call` is given up."""
        future = self._stub.ModelInfer.future(request, timeout=call.seconds_left())
        call.when_given_up(future.cancel)
        try:
            with call.waiting():
                return future.result()
        except grpc.FutureCancelledError as error:
            raise ServingError(Code.CANCELLED, "the request was cancelled") from error
        except grpc.RpcError as error:
            raise self._read_error(error) from error

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _read_error(self, error: grpc.RpcError) -> Exception:
        text = error.details() or ""
        if UNKNOWN_MODEL in text:
            return _NotServedError()
        code = Code(error.code().value[0])
        return ServingError(code, f"{self._where}: {text}" if code is Code.UNAVAILABLE else text)


def _connect(target: str, tls: TritonTls | None) -> grpc.Channel:
    if tls is None:
        return grpc.insecure_channel(target, _CHANNEL_OPTIONS)
    credentials = grpc.ssl_channel_credentials(
        tls.root_certificates, tls.private_key, tls.certificate_chain
    )
    return grpc.secure_channel(target, credentials, _CHANNEL_OPTIONS)


def _choose(source: ModelSource, versions: Iterable[int]) -> set[int]:
    return (source.policy or VersionPolicy(None)).choose(versions)


def _read_status(entry: Any) -> VersionStatus:
    """Read an entry of the repository index. An unknown state, of a newer Triton, counts as not
    served."""
    state = _STATES.get(entry.state, VersionState.UNKNOWN)
    if state is VersionState.END and entry.reason not in _UNLOADED:
        return VersionStatus(int(entry.version), state, Code.INTERNAL, entry.reason)
    return VersionStatus(int(entry.version), state)


def _read_signature(metadata: Any, config: Any) -> Signature:
    """Return the signature of a model. Raises ServingError for a type that clients cannot send."""
    inputs, outputs = (
        {
            tensor.name: _read_tensor(metadata.name, kind, tensor, scalars, config.max_batch_size)
            for tensor in tensors
        }
        for kind, tensors, scalars in (
            ("input", metadata.inputs, _find_scalars(config.input)),
            ("output", metadata.outputs, _find_scalars(config.output)),
        )
    )
    return Signature(
        inputs,
        outputs,
        frozenset(tensor.name for tensor in config.input if tensor.optional),
    )


def _find_scalars(entries: Any) -> frozenset[str]:
    """Return the names of the entries that have an empty reshape."""
    return frozenset(
        entry.name for entry in entries if entry.HasField("reshape") and not entry.reshape.shape
    )


def _read_tensor(
    model: str, kind: str, tensor: Any, scalars: Container[str], max_batch_size: int
) -> TensorSpec:
    dtype = _DTYPES.get(tensor.datatype)
    if dtype is None:
        raise ServingError(
            Code.UNIMPLEMENTED,
            f"model {model!r}: expected {kind} {tensor.name!r} to be of type "
            f"{', '.join(_DTYPES)}; found {tensor.datatype}, which cannot be forwarded",
        )
    return make_spec(
        dtype,
        tensor.shape,
        is_batched=max_batch_size > 0,
        is_scalar=tensor.name in scalars,
    )


def _encode(array: Array) -> bytes:
    """Return the bytes of an input; each string follows its length."""
    if not array.dtype.hasobject:
        return array.tobytes()
    return bytes(serialize_byte_tensor(array).item()) if array.size else b""


def _decode_outputs(answer: Any, specs: Mapping[str, TensorSpec]) -> Iterator[tuple[str, Array]]:
    """Yield the outputs by name. Raises ValueError, KeyError or struct.error for an invalid
    response."""
    for output, content in zip(answer.outputs, answer.raw_output_contents, strict=True):
        dtype = _DTYPES[output.datatype]
        if min(output.shape, default=0) < 0:
            raise ValueError(f"shape {list(output.shape)} of {output.name!r}")
        flat = (
            deserialize_bytes_tensor(content) if dtype.hasobject else np.frombuffer(content, dtype)
        )
        shape = tuple(output.shape)
        num_ones = specs[output.name].num_ones
        if num_ones and shape[1:] == (1,) * num_ones:
            shape = shape[:1]
        yield output.name, flat.reshape(shape)
