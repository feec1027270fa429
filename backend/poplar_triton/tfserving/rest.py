"""REST: the paths, errors and headers of TensorFlow Serving's HTTP server
(model_servers/http_server.cc and http_rest_api_handler.cc), as an aiohttp application.

The event loop reads and writes sockets. Work that takes time runs on threads, and is notified when
its client no longer waits.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import unquote

from aiohttp import web
from aiohttp.typedefs import Handler

from popef._tools.text import escape
from poplar_triton.tfserving.check import answer, describe_array, describe_signature
from poplar_triton.tfserving.json_answers import JsonProcess
from poplar_triton.tfserving.metrics import Counters
from poplar_triton.tfserving.models import (
    BY_NUMBER,
    Code,
    Models,
    ModelSpec,
    ServingError,
    Signature,
    VersionStatus,
    as_serving_error,
    refuse,
)
from poplar_triton.tfserving.rest_bodies import BodyError, BodyLimits, BodyReader, make_logger
from poplar_triton.tfserving.settings import MAX_CALLS, ServerSettings
from poplar_triton.tfserving.threads import Core, Threads

_T = TypeVar("_T")


class RestCall:
    """Call over REST that lasts `seconds` from now on. Its methods are those of `models.Call`."""

    def __init__(self, seconds: float | None, threads: Threads) -> None:
        self.waiting = threads.waiting
        self._end = None if seconds is None else time.monotonic() + seconds
        self._lock = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._is_given_up = False

    def seconds_left(self) -> float | None:
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def is_wanted(self) -> bool:
        return not self._is_given_up and self.seconds_left() != 0

    def when_given_up(self, callback: Callable[[], None]) -> None:
        with self._lock:
            if not self._is_given_up:
                self._callbacks.append(callback)
                return
        callback()

    def give_up(self) -> None:
        """Record that the client no longer waits."""
        with self._lock:
            self._is_given_up = True
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()


class RestCalls:
    """Calls of a server. `seconds` is the timeout of each; None means as long as its client
    waits."""

    def __init__(self, seconds: float | None, core: Core | None = None) -> None:
        self._seconds = seconds
        self._threads = Threads("REST", core)

    async def run(self, work: Callable[[RestCall], _T]) -> _T:
        """Return or raise the result of `work`. Raises asyncio.TimeoutError when its time is over.
        Cancelling this gives the call up."""
        call = RestCall(self._seconds, self._threads)
        future = asyncio.get_running_loop().run_in_executor(self._threads, work, call)
        try:
            return await within(future, self._seconds)
        finally:
            call.give_up()
            del future  # its error refers to this frame; the cycle would keep the request

    def close(self) -> None:
        """Accept no more calls; cancelled ones end by themselves."""
        self._threads.shutdown(wait=False)


async def within(work: Awaitable[_T], seconds: float | None) -> _T:
    """Replace asyncio.wait_for, which before Python 3.12 loses a cancellation that arrives at the
    moment when the work is done."""
    future = asyncio.ensure_future(work)
    try:
        await asyncio.wait({future}, timeout=seconds)
        if not future.done():
            raise asyncio.TimeoutError
        return future.result()
    finally:
        future.cancel()
        del future, work


_KEEP_ALIVE_SECONDS = 120
"""Timeout of a connection without a request, or with headers that do not end."""
_MAX_ERROR = 2000
"""Maximum number of characters of an error."""
_MAX_VERSION = (1 << 63) - 1
_SERVED = re.compile(r"/v1/.*", re.IGNORECASE | re.ASCII)
_NAME = r"(?P<name>[^/:]+)"
_WHICH = r"(?:/versions/(?P<version>\d+)|/labels/(?P<label>[^/:]+))?"
_ORIGIN = re.compile(r"https?://")
_STATUS = {
    Code.OK: 200,
    Code.CANCELLED: 499,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.ABORTED: 409,
    Code.OUT_OF_RANGE: 400,
    Code.UNIMPLEMENTED: 501,
    Code.UNAVAILABLE: 503,
    Code.UNAUTHENTICATED: 401,
}
"""HTTP status of each code; all others are 500."""
_JSON = {"Content-Type": "application/json"}
_CORS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Methods": "POST, GET",
    "Access-Control-Allow-Headers": "Content-Type",
}
_NOT_FOUND = (
    b"<html><head><title>404 Not Found</title></head><body><h1>Not Found</h1></body></html>"
)


@dataclass(frozen=True, slots=True)
class RestLimits:
    """Limits of requests: their bodies, and how many complete ones may be under way."""

    bodies: BodyLimits
    calls: int = MAX_CALLS


_BODIES_AT_ONCE = 4
"""Number of bodies of the maximum size that may be held at a time."""


def make_application(
    models: Models,
    settings: ServerSettings,
    counters: Counters,
    core: Core | None = None,
    limits: RestLimits | None = None,
) -> web.Application:
    """Return the application that serves `models` and the metrics. `core`: see Threads. `limits`
    None: those of the settings."""
    most = settings.rest_body_bytes
    limits = limits or RestLimits(BodyLimits(most, most * _BODIES_AT_ONCE))
    service = _RestService(models, settings, counters, core, limits)

    # No router: like TensorFlow Serving, match paths before decoding, so that %2F is no separator.
    @web.middleware
    async def serve(request: web.Request, handler: Handler) -> web.StreamResponse:  # noqa: ARG001
        if settings.metrics_path and request.raw_path.split("?")[0] == settings.metrics_path:
            return _write_metrics(request.raw_path, settings.metrics_path, counters)
        if not _SERVED.fullmatch(request.raw_path):
            return web.Response(status=404, body=_NOT_FOUND, content_type="text/html")
        _drop_stalled(request, limits.bodies.seconds)
        response = await service.handle(request)
        if settings.cors:
            response.headers.update(_CORS)
        return response

    application = web.Application(middlewares=[serve])
    application.on_cleanup.append(service.close)
    return application


def make_runner(
    application: web.Application,
    stop_seconds: float = 30.0,
    count_malformed: Callable[[], None] = lambda: None,
) -> web.AppRunner:
    """Return the runner of the application. On cleanup requests under way have `stop_seconds` to
    end.

    A client that disconnects has its request cancelled. Bodies arrive as they were sent, because
    `rest_bodies` decompresses them within bounds. `count_malformed` is called for each request that
    is not HTTP.
    """
    return web.AppRunner(
        application,
        access_log=None,
        auto_decompress=False,
        handler_cancellation=True,
        keepalive_timeout=_KEEP_ALIVE_SECONDS,
        shutdown_timeout=stop_seconds,
        logger=make_logger(count_malformed),
    )


def _drop_stalled(request: web.Request, seconds: float) -> None:
    """Make the system end the connection of a client that does not read; its response is held until
    then."""
    if request.transport is not None:
        connection = request.transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))


def _write_metrics(path: str, expected: str, counters: Counters) -> web.Response:
    if path != expected:
        return web.Response(
            status=400, text=f"Unexpected path: {escape(path, _MAX_ERROR)}. Should be {expected}"
        )
    return web.Response(body=counters.write_page(), content_type="text/plain")


def _write_error(code: Code, message: str, status: int | None = None) -> web.Response:
    text = json.dumps({"error": escape(message, _MAX_ERROR)}, ensure_ascii=False, indent=4)
    return web.Response(
        status=_STATUS.get(code, 500) if status is None else status,
        body=text.encode("utf-8", "backslashreplace"),
        headers=_JSON,
    )


def _describe_error(error: ServingError) -> web.Response:
    """Return the response for an error. It is a function of its own, so that no frame in the
    error's traceback refers to the error. Such a cycle would keep the request in memory."""
    return _write_error(error.code, str(error))


class _RestService:
    def __init__(
        self,
        models: Models,
        settings: ServerSettings,
        counters: Counters,
        core: Core | None,
        limits: RestLimits,
    ) -> None:
        self._models = models
        self._seconds = settings.rest_seconds if settings.rest_seconds > 0 else None
        self._computed = RestCalls(self._seconds, core)
        self._json = JsonProcess()
        self._observe = counters.observe
        self._most_calls = limits.calls
        self._calls = 0
        self._bodies = BodyReader(limits.bodies)

    async def handle(self, request: web.Request) -> web.Response:
        """Return the response to a request below /v1/, including an error response."""
        try:
            return await self._dispatch(request)
        except BodyError as error:
            return _write_error(error.code, str(error), error.status)
        except Exception as error:  # noqa: BLE001  whatever it is, the request gets its answer
            return _describe_error(as_serving_error(error))

    async def _dispatch(self, request: web.Request) -> web.Response:
        for (verb, path), handler in _ROUTES.items():
            if verb == request.method and (match := path.fullmatch(request.raw_path)):
                return await handler(self, request, _read_spec(match))
        # TensorFlow Serving answers this, with status 400, also to methods that a path lacks.
        raise refuse(f"Malformed request: {request.method} {request.raw_path}")

    async def predict(self, request: web.Request, spec: ModelSpec) -> web.Response:
        """Answer a request with the outputs of a model."""
        return await self._observed("Predict", spec.name, self._predict(request, spec))

    async def reject(self, request: web.Request, _spec: ModelSpec) -> web.Response:
        """Reject classify and regress."""
        method = request.raw_path.rpartition(":")[2].capitalize()
        raise ServingError(
            Code.UNIMPLEMENTED, f"{method} is not supported by poplar-triton; use predict"
        )

    async def list_versions(self, _request: web.Request, spec: ModelSpec) -> web.Response:
        """Answer with the states of a model's versions."""
        if not spec.name:
            raise refuse("Missing model name in request.")
        versions = await self._run(lambda call: self._models.list_versions(spec, call))
        return _write_json(_describe_versions(versions))

    async def read_metadata(self, _request: web.Request, spec: ModelSpec) -> web.Response:
        """Answer with the signature of a model."""
        return await self._observed("GetModelMetadata", spec.name, self._read_metadata(spec))

    async def allow_origin(self, request: web.Request, _spec: ModelSpec) -> web.Response:
        """Answer the CORS preflight request that a browser sends before a page may send a request
        to another origin."""
        if _ORIGIN.search(request.headers.get("Origin", "")):
            return web.Response()
        raise ServingError(Code.FAILED_PRECONDITION, "Origin header is missing in CORS preflight")

    async def _observed(self, api: str, model: str, work: Awaitable[web.Response]) -> web.Response:
        """Do the work of a request, and count it."""
        start = time.perf_counter()
        code = Code.CANCELLED
        try:
            response = await work
            code = Code.OK
            return response
        except Exception as error:
            code = error.code if isinstance(error, BodyError) else as_serving_error(error).code
            raise
        finally:
            self._observe(model, api, "REST", code, time.perf_counter() - start)

    async def _predict(self, request: web.Request, spec: ModelSpec) -> web.Response:
        async with self._bodies.read(request) as body:
            answer = await self._run(partial(self._compute, body, spec))
            return web.Response(body=answer, headers=_JSON)

    def _compute(self, body: bytearray, spec: ModelSpec, call: RestCall) -> bytes:
        servable = self._models.find(spec, call)
        format, signature, inputs = self._json.read(body, servable.signature, call)
        outputs = answer(servable, signature, inputs, describe_array, (), call)
        return self._json.write(outputs, format, call)

    async def _read_metadata(self, spec: ModelSpec) -> web.Response:
        servable = await self._run(lambda call: self._models.find(spec, call))
        model_spec = {"name": servable.name, "signature_name": "", "version": str(servable.version)}
        signatures = {"signature_def": _describe_signatures(servable.signature)}
        return _write_json({"model_spec": model_spec, "metadata": {"signature_def": signatures}})

    async def _run(self, work: Callable[[RestCall], _T]) -> _T:
        """Run the work of a complete request on a thread."""
        if self._calls >= self._most_calls:
            raise ServingError(
                Code.RESOURCE_EXHAUSTED,
                f"{self._most_calls} requests are running, the maximum; try again later",
            )
        self._calls += 1
        try:
            return await self._computed.run(work)
        except asyncio.TimeoutError:
            raise ServingError(
                Code.DEADLINE_EXCEEDED,
                f"no response within the {self._seconds:g} s of --rest_api_timeout_in_ms; send "
                "fewer rows",
            ) from None
        finally:
            self._calls -= 1

    async def close(self, _: web.Application) -> None:
        """End the threads, and the process of large JSON."""
        self._json.close()
        self._computed.close()


def _route(verb: str, path: str) -> tuple[str, re.Pattern[str]]:
    """Return the key of a route. Its path ignores case, except in groups `(?-i:...)`."""
    return verb, re.compile(path, re.IGNORECASE | re.ASCII)


_Handler = Callable[[_RestService, web.Request, ModelSpec], Awaitable[web.Response]]
_ROUTES: Mapping[tuple[str, re.Pattern[str]], _Handler] = {
    _route("POST", rf"/v1/models/{_NAME}{_WHICH}:(?-i:predict)"): _RestService.predict,
    _route("POST", rf"/v1/models/{_NAME}{_WHICH}:(?-i:classify|regress)"): _RestService.reject,
    _route("GET", rf"/v1/models/{_NAME}{_WHICH}/(?-i:metadata)"): _RestService.read_metadata,
    # Like TensorFlow Serving, also for "/METADATA".
    _route("GET", rf"/v1/models(?:/{_NAME})?{_WHICH}(?:/metadata)?"): _RestService.list_versions,
    _route("OPTIONS", r"/v1/.*"): _RestService.allow_origin,
}
"""Function that answers a request, by method and path; the first route that matches."""


def _read_spec(match: re.Match[str]) -> ModelSpec:
    name, version, label = map(match.groupdict().get, ("name", "version", "label"))
    return ModelSpec(
        _unquote(name or "", "model name"),
        None if version is None else _read_version(version),
        None if label is None else _unquote(label, "model version label"),
    )


def _unquote(text: str, what: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise refuse(f"Failed to decode {what}:{text}") from None


def _read_version(digits: str) -> int:
    # Python itself rejects thousands of digits.
    if len(digits.lstrip("0")) > len(str(_MAX_VERSION)) or int(digits) > _MAX_VERSION:
        raise refuse(f"Failed to convert version: {digits} to numeric.")
    return int(digits)


def _write_json(document: object) -> web.Response:
    text = json.dumps(document, ensure_ascii=False, indent=1)
    return web.Response(body=text.encode("utf-8", "backslashreplace"), headers=_JSON)


def _describe_versions(versions: Sequence[VersionStatus]) -> dict[str, Any]:
    return {
        "model_version_status": [
            {
                "version": str(version.version),
                "state": version.state.name,
                "status": {"error_code": version.code.name, "error_message": version.message},
            }
            for version in versions
        ]
    }


def _describe_signatures(signature: Signature) -> dict[str, Any]:
    """Return protobuf's JSON of a SignatureDefMap, under the real messages' field names."""
    return {
        name: {
            "inputs": _describe_tensors(description.inputs),
            "outputs": _describe_tensors(description.outputs),
            "method_name": description.method_name,
            "defaults": {},
        }
        for name, description in describe_signature(signature).signature_def.items()
    }


def _describe_tensors(infos: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: {
            "dtype": BY_NUMBER[info.dtype].name,
            "tensor_shape": {
                "dim": [{"size": str(dim.size), "name": dim.name} for dim in info.tensor_shape.dim],
                "unknown_rank": info.tensor_shape.unknown_rank,
            },
            "name": info.name,
        }
        for name, info in infos.items()
    }
