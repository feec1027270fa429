"""The models of a Triton that is asked over gRPC (--triton): requests are forwarded, errors passed on.

What a model takes is asked anew once a second at most, and after a refusal, so a model that was loaded anew
is seen without being told. Without a version Triton is asked for its newest: it keeps the older one until the
newer one is ready, and the answer says which one it came from.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor, np_to_triton_dtype, serialize_byte_tensor

from commands.serving.endpoint import UNKNOWN_MODEL
from commands.tfserving.dtypes import BY_DTYPE
from commands.tfserving.errors import Code, ServingError
from commands.tfserving.models import Array, Call, ModelSpec, Signature, State, TensorSpec, VersionStatus
from commands.tfserving.settings import TritonTls
from commands.tfserving.sources import ModelSource, VersionPolicy, find_version, not_known, not_served
from popef.text import find_name_fault

FRESH_SECONDS = 1.0
"""For so long what a model takes is not asked again."""
ASK_SECONDS = 5.0
"""For what Triton says of its models: milliseconds, but half a minute where a store is away."""
_MOST_KNOWN = 4096
_MOST_VERSION = 2**63 - 1
_RESTRICTED = "This protocol is restricted"
"""Triton's words for what --grpc-restricted-protocol keeps from those without the key."""
_READY = "READY"
_STATES = {
    _READY: State.AVAILABLE,
    "LOADING": State.LOADING,
    "UNLOADING": State.UNLOADING,
    "UNAVAILABLE": State.END,
}
_UNLOADED = ("", "unloaded")
"""Reasons of a version that is not served which are no fault."""
# The real defaults wait for up to two minutes before a server that was away is tried again. Pings notice a
# machine that is gone: more often than every five minutes Triton takes them for an attack.
_CHANNEL_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 600_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # How large messages may be is Triton's to say, and the server's that they come in by.
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
)
_Key: TypeAlias = "tuple[str, int | None]"
"""A model's name, and the version that is asked for."""
_DATATYPES = {dtype: np_to_triton_dtype(dtype) for dtype in BY_DTYPE}
_DTYPES = {datatype: dtype for dtype, datatype in _DATATYPES.items()}
"""Triton's types and ours: all that TensorFlow's clients may have. BF16 is not among them."""


class TritonModels:
    """The models of the Triton at `target`, HOST:PORT of its gRPC: those of `sources`, whose folders do not
    count, or all where there are none (see Models). Threads may share it.

    A Triton that is away is UNAVAILABLE until it is back.
    """

    def __init__(
        self, target: str, sources: Sequence[ModelSource] = (), tls: TritonTls | None = None
    ) -> None:
        self._calls = _Calls(target, tls)
        self._sources = {source.name: source for source in sources}
        self._known: dict[_Key, _Known] = {}
        self._asked: dict[_Key, Future[_Known]] = {}
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the channel; what is under way is cancelled."""
        self._calls.close()

    def find(self, spec: ModelSpec, call: Call) -> ForwardedServable:
        """See Models."""
        source, version = self._resolve(spec)
        key = spec.name, version
        known = self._known.get(key)
        if known is None or time.monotonic() >= known.stale_at:
            try:
                with call.waiting():
                    known = self._learn(spec, source, version)
            except _NotServedError:
                raise not_served(spec, version) from None
        return ForwardedServable(self, self._calls, key, known)

    def list_versions(self, spec: ModelSpec, call: Call) -> list[VersionStatus]:
        """See Models."""
        try:
            source, version = self._resolve(spec)
            with call.waiting():
                found = self._find_statuses(spec.name)
        except (_NotServedError, ServingError) as error:
            if isinstance(error, ServingError) and error.code is not Code.NOT_FOUND:
                raise
            raise not_known(spec, spec.version) from None
        if source is not None:
            served = _choose(source, [each.version for each in found if each.state is State.AVAILABLE])
            found = [each for each in found if each.state is not State.AVAILABLE or each.version in served]
        found = [status for status in found if version in (None, status.version)]
        if not found:
            raise not_known(spec, version)
        return sorted(found, key=lambda status: status.version, reverse=True)

    def forget(self, key: _Key) -> None:
        """Have what a model takes be asked before its next request."""
        self._known.pop(key, None)

    def _resolve(self, spec: ModelSpec) -> tuple[ModelSource | None, int | None]:
        """What is configured of a model, and the version that is asked for; ServingError where neither can
        be."""
        if not spec.name:
            raise ServingError(Code.INVALID_ARGUMENT, "ModelSpec has no name specified.")
        source = self._sources.get(spec.name)
        if find_name_fault(spec.name) or (self._sources and source is None):
            raise not_served(spec, spec.version)
        version = find_version(spec, {} if source is None else source.labels)
        # Triton takes -1 for the newest.
        if version is not None and not 0 <= version <= _MOST_VERSION:
            raise not_served(spec, version)
        return source, version

    def _learn(self, spec: ModelSpec, source: ModelSource | None, version: int | None) -> _Known:
        """What a model takes, asked by one of those that need it at a time; the others wait for that one."""
        key = spec.name, version
        with self._lock:
            asked = self._asked.get(key)
            is_first = asked is None
            if asked is None:
                asked = self._asked[key] = Future()
        if not is_first:
            return asked.result()
        try:
            known = self._ask(key, source)
        except BaseException as error:
            self._note(key, None)
            asked.set_exception(error)
            raise
        self._note(key, known)
        asked.set_result(known)
        return known

    def _note(self, key: _Key, known: _Known | None) -> None:
        with self._lock:
            del self._asked[key]
            self._known.pop(key, None)
            if known is not None:
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[key] = known

    def _ask(self, key: _Key, source: ModelSource | None) -> _Known:
        name, version = key
        wanted = version
        if source is not None:
            wanted = self._choose_version(source, version)
        text = "" if wanted is None else str(wanted)
        metadata = self._calls.ask("ModelMetadata", name=name, version=text)
        config = self._calls.ask("ModelConfig", name=name, version=text)
        newest = max(map(int, metadata.versions), default=0)
        stale_at = time.monotonic() + FRESH_SECONDS
        return _Known(_read_signature(metadata, config.config), wanted or newest, text, stale_at)

    def _choose_version(self, source: ModelSource, version: int | None) -> int | None:
        """The version to ask Triton for, of those that it has and that are to be served."""
        ready = self._calls.ask("ModelMetadata", name=source.name)
        chosen = _choose(source, map(int, ready.versions))
        if not chosen or (version is not None and version not in chosen):
            raise _NotServedError
        # The newest of all is Triton's to choose: it may be another one by then.
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
            # Who may not see the index is still told which versions are ready.
            metadata = self._calls.ask("ModelMetadata", name=name)
            return [VersionStatus(int(each), State.AVAILABLE) for each in metadata.versions]
        return [
            _read_status(entry) for entry in index.models if entry.name == name and entry.version.isdecimal()
        ]


@dataclass(frozen=True, slots=True)
class _Known:
    """What was learned of a version: `asked_as` is what Triton is to be asked for, "" for its newest, which
    `version` was. `stale_at` by the monotonic clock."""

    signature: Signature
    version: int
    asked_as: str
    stale_at: float


class ForwardedServable:
    """A version of a model on Triton, for one request. Where none was asked for, its number is known to be
    that of the answer once there is one."""

    def __init__(self, models: TritonModels, calls: _Calls, key: _Key, known: _Known) -> None:
        self.name = key[0]
        self.version = known.version
        self.signature = known.signature
        self._models = models
        self._calls = calls
        self._key = key
        self._asked_as = known.asked_as

    def predict(self, inputs: Mapping[str, Array], outputs: Sequence[str], call: Call) -> dict[str, Array]:
        """See Servable."""
        request = service_pb2.ModelInferRequest(model_name=self.name, model_version=self._asked_as)
        for name, array in inputs.items():
            datatype = _DATATYPES[array.dtype]
            request.inputs.add(name=name, datatype=datatype, shape=array.shape)
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
        with _naming_answer(self.name):
            self.version = int(answer.model_version or self.version)
            return dict(_decode_outputs(answer))


class _NotServedError(Exception):
    """Triton does not have that model, or not that version of it ready."""


class _Calls:
    """Triton's service: errors as ServingError, its code and message, or _NotServedError."""

    def __init__(self, target: str, tls: TritonTls | None) -> None:
        self._channel = _connect(target, tls)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._where = f"Triton at {target}"

    def ask(self, method: str, **fields: object) -> Any:
        """The answer to a question of ours."""
        request = getattr(service_pb2, f"{method}Request")(**fields)
        try:
            return getattr(self._stub, method)(request, timeout=ASK_SECONDS)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise ServingError(
                    Code.UNAVAILABLE,
                    f"{self._where}: expected {method} to be answered in {ASK_SECONDS:g} s",
                ) from error
            raise self._read_error(error) from error

    def forward(self, request: Any, call: Call) -> Any:
        """The answer to an inference, which is cancelled when `call` is given up."""
        future = self._stub.ModelInfer.future(request, timeout=call.seconds_left())
        call.when_given_up(future.cancel)
        try:
            with call.waiting():
                return future.result()
        except grpc.FutureCancelledError as error:
            raise ServingError(Code.CANCELLED, "the request was given up") from error
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
    credentials = grpc.ssl_channel_credentials(tls.root_certificates, tls.private_key, tls.certificate_chain)
    return grpc.secure_channel(target, credentials, _CHANNEL_OPTIONS)


def _choose(source: ModelSource, versions: Iterable[int]) -> set[int]:
    return (source.policy or VersionPolicy(None)).choose(versions)


def _read_status(entry: Any) -> VersionStatus:
    """An entry of the repository index. A state that is not known, of a newer Triton, is not served."""
    state = _STATES.get(entry.state, State.UNKNOWN)
    if state is State.END and entry.reason not in _UNLOADED:
        return VersionStatus(int(entry.version), state, Code.INTERNAL, entry.reason)
    return VersionStatus(int(entry.version), state)


def _read_signature(metadata: Any, config: Any) -> Signature:
    """The signature of a model; ServingError for a type that clients have no way to send."""
    return Signature(
        {tensor.name: _read_tensor(metadata.name, "input", tensor) for tensor in metadata.inputs},
        {tensor.name: _read_tensor(metadata.name, "output", tensor) for tensor in metadata.outputs},
        frozenset(tensor.name for tensor in config.input if tensor.optional),
    )


def _read_tensor(model: str, kind: str, tensor: Any) -> TensorSpec:
    dtype = _DTYPES.get(tensor.datatype)
    if dtype is None:
        raise ServingError(
            Code.UNIMPLEMENTED,
            f"model {model!r}: expected {kind} {tensor.name!r} to be of type {', '.join(_DTYPES)}; found "
            f"{tensor.datatype}, which is not forwarded",
        )
    return TensorSpec(dtype, tuple(tensor.shape))


def _encode(array: Array) -> bytes:
    """The bytes of an input: of strings each behind its length."""
    if not array.dtype.hasobject:
        return array.tobytes()
    return bytes(serialize_byte_tensor(array).item()) if array.size else b""


def _decode_outputs(answer: Any) -> Iterator[tuple[str, Array]]:
    """The outputs by name. ValueError, KeyError or struct.error for what is no answer."""
    for output, content in zip(answer.outputs, answer.raw_output_contents, strict=True):
        dtype = _DTYPES[output.datatype]
        if min(output.shape, default=0) < 0:
            raise ValueError(f"shape {list(output.shape)} of {output.name!r}")
        flat = deserialize_bytes_tensor(content) if dtype.hasobject else np.frombuffer(content, dtype)
        yield output.name, flat.reshape(tuple(output.shape))


@contextmanager
def _naming_answer(model: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, KeyError, struct.error) as error:
        raise ServingError(
            Code.INTERNAL,
            f"model {model!r}: expected outputs of its types and shapes from Triton, found {error!r}",
        ) from error
