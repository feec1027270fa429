"""Client of a tritonserver for the process that has started it: over HTTP, or over gRPC if HTTP is
off.

Loads use gRPC if possible: over HTTP Triton answers no other request on the same thread meanwhile.
They run in a child process, because gRPC, and the numpy that Triton's client imports, would stay in
the supervisor. The keys of restricted APIs are among the server's own options and are sent with
each request. No proxy is used, whatever the environment says, because the server is on this
machine.
"""

from __future__ import annotations

import http
import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from popef._tools.child import run_python
from popef._tools.zero_requests import LENGTH_HEADER, ZeroInput, encode_head
from poplar_triton.errors import ServerError
from poplar_triton.serving.options import find_option, is_on, make_grpc_headers, make_http_headers

HOST = "127.0.0.1"
ASK_SECONDS = 5
"""Timeout of a request about the server's state, which Triton answers without computing."""
LOAD_SECONDS = 600
"""Timeout of a model's load. The load continues in the server after that, but the client stops
waiting."""
_MAX_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 16
_CHILD = "from poplar_triton.serving.endpoint import load_as_child; load_as_child()"
_CHILD_SECONDS = 10.0
"""Time for a child process to start and to end, in addition to the load."""
READY, UNAVAILABLE = "READY", "UNAVAILABLE"
"""States of versions in the repository index: served, and not loaded because of an error."""
UNKNOWN_MODEL = "Request for unknown model"
"""Triton's message for a model or version that does not exist or is not loaded; its error codes
differ."""
_ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104  what a server may have been told to listen on


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """An entry of the repository index."""

    name: str
    version: str
    state: str
    reason: str


def make_endpoint(options: Sequence[str], http_port: int, grpc_port: int) -> Endpoint:
    """Return the endpoint of a server that was started with `options` on these ports."""
    if not is_on(options, "--allow-http"):
        return _make_grpc_endpoint(options, grpc_port)
    address = _reach(find_option(options, "--http-address"))
    loader = LoadProcess(options, grpc_port) if is_on(options, "--allow-grpc") else None
    return HttpEndpoint(f"http://{address}:{http_port}", make_http_headers(options), loader)


def _make_grpc_endpoint(options: Sequence[str], port: int) -> GrpcEndpoint:
    address = _reach(find_option(options, "--grpc-address"))
    return GrpcEndpoint(address, port, make_grpc_headers(options), _read_certificates(options))


class NoAnswerError(ServerError):
    """Error of a server that did not answer a request. `is_late` is set if it sent nothing at
    all."""

    def __init__(self, text: str, *, is_late: bool) -> None:
        super().__init__(text)
        self.is_late = is_late


class UnreachableError(ServerError):
    """Error of a request that did not reach the server."""


def _reach(address: str | None) -> str:
    """Return the address at which to reach a server that listens on `address`."""
    return HOST if address is None or address in _ANY_ADDRESS else bracket(address)


def bracket(address: str) -> str:
    """Return an address as it stands before a port: IPv6 in brackets."""
    return f"[{address}]" if ":" in address else address


class HttpEndpoint:
    """Endpoint over HTTP, for which Triton has no TLS. Loads try `loader` first.

    Each request raises ServerError with the reason if it gets no answer.
    """

    def __init__(
        self, url: str, headers: Mapping[str, str], loader: LoadProcess | None = None
    ) -> None:
        self._url = url
        self._headers = dict(headers)
        self._loader = loader
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def is_live(self) -> bool | None:
        """Return whether the server is live, or None if nothing listens. A server that rejects the
        question counts as live."""
        return self._is_fine("/v2/health/live", ASK_SECONDS)

    def is_ready(self, seconds: float) -> bool:
        """Return whether the server answers within `seconds` that it is ready. A server that
        rejects the question counts as ready."""
        return bool(self._is_fine("/v2/health/ready", seconds))

    def is_model_ready(self, model: str, version: str, seconds: float) -> bool:
        """Return whether a version of a model says that it is ready.

        From Triton 25.12 on it is not ready with a dead instance. From 26.03 on it is ready only if
        its own is_ready() says so.
        """
        return bool(self._is_fine(f"/v2/models/{_quote_version(model, version)}/ready", seconds))

    def list_models(self) -> list[ServedVersion]:
        """Return the repository index. The server reads the repository for it, which takes half a
        minute if a store is unreachable."""
        index = self._ask("/v2/repository/index", b"{}")
        if not isinstance(index, list):
            raise ServerError(f"expected the list of models, found {type(index).__name__}")
        return [
            ServedVersion(
                *(str(entry.get(key, "")) for key in ("name", "version", "state", "reason"))
            )
            for entry in index
        ]

    def read_config(
        self, model: str, version: str = "", seconds: float = ASK_SECONDS
    ) -> dict[str, Any] | None:
        """Return the configuration with which a model, or this version of it, is served, or None if
        it is not served."""
        with _none_where_unknown():
            config = self._ask(f"/v2/models/{_quote_version(model, version)}/config", None, seconds)
            return config if isinstance(config, dict) else {}
        return None

    def load(
        self, model: str, config: Mapping[str, Any] | None = None, seconds: float = LOAD_SECONDS
    ) -> None:
        """Load a model. With a configuration it is reloaded though its files are unchanged; the old
        one serves until the new one does. The call waits at most `seconds`, but the load goes
        on."""
        if self._loader is not None:
            with suppress(UnreachableError):
                self._loader.load(model, config, seconds)
                return
        parameters = {} if config is None else {"config": json.dumps(config)}
        body = json.dumps({"parameters": parameters}).encode()
        self._ask(f"/v2/repository/models/{quote(model, safe='')}/load", body, seconds)

    def infer_zeros(
        self, model: str, version: str, inputs: Sequence[ZeroInput], seconds: float
    ) -> None:
        """Send a version of a model a request of zeros. Raises NoAnswerError for an internal error,
        or if nothing comes within `seconds`. A refused request counts as an answer."""
        head = encode_head(inputs, binary_outputs=True).encode()
        body = head + bytes(sum(source.num_bytes for source in inputs))
        headers = {LENGTH_HEADER: str(len(head))}
        path = f"/v2/models/{_quote_version(model, version)}/infer"
        try:
            with self._open(path, body, seconds, headers) as answer:
                while answer.read(_CHUNK_BYTES):
                    pass
        except urllib.error.HTTPError as error:
            with error:
                if error.code == http.HTTPStatus.INTERNAL_SERVER_ERROR:
                    reason = _find_reason(error.read(_CHUNK_BYTES))
                    raise NoAnswerError(reason, is_late=False) from error
        except TimeoutError as error:
            raise NoAnswerError(f"nothing within {seconds:g} s", is_late=True) from error
        except OSError as error:
            if isinstance(getattr(error, "reason", None), TimeoutError):
                raise NoAnswerError(f"nothing within {seconds:g} s", is_late=True) from error
            raise NoAnswerError(str(error), is_late=False) from error

    def _is_fine(self, path: str, seconds: float) -> bool | None:
        try:
            with self._open(path, None, seconds):
                return True
        except urllib.error.HTTPError as error:
            with error:
                # Restricted with a key that this client does not know.
                return error.code == http.HTTPStatus.FORBIDDEN
        except OSError:
            return None

    def _ask(self, path: str, body: bytes | None = None, seconds: float = ASK_SECONDS) -> Any:
        try:
            with self._open(path, body, seconds) as answer:
                text = answer.read(_MAX_BYTES)
            return json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            with error:
                raise ServerError(f"{error}: {_find_reason(error.read(_MAX_BYTES))}") from error
        except (OSError, ValueError) as error:
            raise ServerError(str(error)) from error

    def _open(
        self,
        path: str,
        body: bytes | None,
        seconds: float,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        all_headers = {**self._headers, **(headers or {})}
        request = urllib.request.Request(f"{self._url}{path}", body, all_headers)  # noqa: S310  http: ours
        return self._opener.open(request, timeout=seconds)


def _quote_version(model: str, version: str) -> str:
    name = quote(model, safe="")
    return f"{name}/versions/{quote(version, safe='')}" if version else name


@contextmanager
def _none_where_unknown() -> Iterator[None]:
    """Ignore the error in the block if the server says that it does not serve the model."""
    try:
        yield
    except ServerError as error:
        if UNKNOWN_MODEL not in str(error):
            raise


def _find_reason(body: bytes) -> str:
    with suppress(ValueError):
        answer = json.loads(body)
        if isinstance(answer, dict) and "error" in answer:
            return str(answer["error"])
    return body.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files for TLS: the server's certificate and, if the server requires one of its clients, the
    client's."""

    root: Path
    key: Path | None
    chain: Path | None


def _read_certificates(options: Sequence[str]) -> Certificates | None:
    """Return the certificates that `options` name, or None without TLS.

    This client trusts the root that the server trusts, or else the server's own certificate.
    """
    own = find_option(options, "--grpc-server-cert")
    mutual = is_set(options, "--grpc-use-ssl-mutual")
    if own is None or not (mutual or is_set(options, "--grpc-use-ssl")):
        return None
    key = find_option(options, "--grpc-server-key") if mutual else None
    root = find_option(options, "--grpc-root-cert") or own
    return Certificates(Path(root), Path(key) if key else None, Path(own) if mutual else None)


def is_set(options: Sequence[str], name: str) -> bool:
    """Return whether `options` turn on a switch of Triton that is off by default."""
    return find_option(options, name) is not None and is_on(options, name)


class GrpcEndpoint:
    """Endpoint over gRPC. A call may fail because of TLS with a certificate of another name, or
    because the server does not know the client. Then a server whose port is open counts as
    ready."""

    def __init__(
        self, address: str, port: int, headers: Mapping[str, str], certificates: Certificates | None
    ) -> None:
        self._place = (address, port)
        self._headers = tuple(headers.items())
        self._certificates = certificates
        self._known: Any = None

    def is_live(self) -> bool | None:
        if not self._is_open():
            return None
        with suppress(ServerError):
            return bool(self._ask("ServerLive").live)
        return True

    def is_ready(self, seconds: float) -> bool:
        with suppress(ServerError):
            return bool(self._ask("ServerReady", seconds).ready)
        return self._is_open()

    def is_model_ready(self, model: str, version: str, seconds: float) -> bool:
        try:
            return bool(self._ask("ModelReady", seconds, name=model, version=version).ready)
        except UnreachableError:
            return self._is_open()
        except ServerError:
            return False

    def list_models(self) -> list[ServedVersion]:
        index = self._ask("RepositoryIndex")
        return [
            ServedVersion(model.name, model.version, model.state, model.reason)
            for model in index.models
        ]

    def read_config(
        self, model: str, version: str = "", seconds: float = ASK_SECONDS
    ) -> dict[str, Any] | None:
        from google.protobuf import json_format

        with _none_where_unknown():
            answer = self._ask("ModelConfig", seconds, name=model, version=version)
            return dict(json_format.MessageToDict(answer.config, preserving_proto_field_name=True))
        return None

    def load(
        self, model: str, config: Mapping[str, Any] | None = None, seconds: float = LOAD_SECONDS
    ) -> None:
        parameters = {} if config is None else {"config": {"string_param": json.dumps(config)}}
        self._ask("RepositoryModelLoad", seconds, model_name=model, parameters=parameters)

    def _is_open(self) -> bool:
        with suppress(OSError), socket.create_connection(self._place, timeout=ASK_SECONDS):
            return True
        return False

    def _ask(self, method: str, seconds: float = ASK_SECONDS, **fields: Any) -> Any:
        """Call a method of Triton's service with a request made of `fields`, and return the
        response."""
        import grpc
        from google.protobuf import json_format
        from tritonclient.grpc import service_pb2, service_pb2_grpc

        request = json_format.ParseDict(fields, getattr(service_pb2, f"{method}Request")())
        try:
            if self._known is None:
                self._known = service_pb2_grpc.GRPCInferenceServiceStub(self._connect())
            return getattr(self._known, method)(request, timeout=seconds, metadata=self._headers)
        except OSError as error:
            raise UnreachableError(str(error)) from error
        except grpc.RpcError as error:
            kind = UnreachableError if error.code() is grpc.StatusCode.UNAVAILABLE else ServerError
            raise kind(f"{error.code().name}: {error.details()}") from error

    def _connect(self) -> Any:
        import grpc

        place = ":".join(map(str, self._place))
        # Use no proxy, as with HTTP.
        options = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", _MAX_BYTES)]
        files = self._certificates
        if files is None:
            return grpc.insecure_channel(place, options)
        root, key, chain = (
            file and file.read_bytes() for file in (files.root, files.key, files.chain)
        )
        return grpc.secure_channel(place, grpc.ssl_channel_credentials(root, key, chain), options)


Endpoint: TypeAlias = HttpEndpoint | GrpcEndpoint
"""Client of a server: both have the methods of HttpEndpoint, except `infer_zeros`."""


class LoadProcess:
    """Loads models over gRPC, each in a child process, which is ended if it takes too long."""

    def __init__(self, options: Sequence[str], port: int) -> None:
        self._options = list(options)
        self._port = port

    def load(self, model: str, config: Mapping[str, Any] | None, seconds: float) -> None:
        """See HttpEndpoint. Raises UnreachableError if the load did not reach the server."""
        question = {
            # The options have keys, and every user may read the arguments of a process.
            "options": self._options,
            "port": self._port,
            "load": [model, config, seconds],
        }
        try:
            ended = run_python(
                _CHILD,
                seconds=seconds + _CHILD_SECONDS,
                input=json.dumps(question).encode(),
                capture_output=True,
            )
            answer = json.loads(ended.stdout)
        except subprocess.TimeoutExpired:
            raise ServerError(f"not loaded within {seconds:g} s") from None
        except (OSError, ValueError) as error:  # it did not start, or it died
            raise UnreachableError(f"the child process for loads over gRPC: {error}") from error
        if answer is not None:
            kind = UnreachableError if answer["unreachable"] else ServerError
            raise kind(answer["text"])


def load_as_child() -> None:
    """Load the model that standard input describes. The answer on standard output is null, or the
    error."""
    question = json.load(sys.stdin)
    answer = None
    try:
        _make_grpc_endpoint(question["options"], question["port"]).load(*question["load"])
    except ServerError as error:
        answer = {"unreachable": isinstance(error, UnreachableError), "text": str(error)}
    print(json.dumps(answer))
