"""How a tritonserver is asked by whoever has started it: over HTTP, or over gRPC where HTTP is off. Loads go
over gRPC where that can be: over HTTP Triton answers nobody else on the same thread meanwhile.

The keys of restricted APIs are among the server's own options and are sent along. No proxy is asked, whatever
the environment says: the server is this machine's.
"""

from __future__ import annotations

import http
import json
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

from commands.errors import ServerError
from commands.serving.options import find_option, is_on, make_grpc_headers, make_http_headers

HOST = "127.0.0.1"
ASK_SECONDS = 5
LOAD_SECONDS = 600
"""For a model to load; it goes on in the server after that, but nobody waits for it."""
_MOST_BYTES = 64 << 20
UNKNOWN_MODEL = "Request for unknown model"
"""Triton's words for a model or version that is not there or not loaded; the codes are several."""
_ANY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104  what a server may have been told to listen on


@dataclass(frozen=True, slots=True)
class ServedVersion:
    """An entry of the repository index."""

    name: str
    version: str
    state: str
    reason: str


class Endpoint(Protocol):
    """The questions; ServerError where one is not answered, with the reason."""

    def is_live(self) -> bool | None:
        """Whether the server is live; None while nobody listens. One that does not let us ask is."""

    def is_ready(self, seconds: float) -> bool:
        """Whether the server says that it is ready, within `seconds`. One that does not let us ask is."""

    def is_model_ready(self, model: str, version: str, seconds: float) -> bool:
        """Whether a version of a model says that it is ready: from Triton 25.12 on not with a dead instance,
        from 26.03 on only where its own is_ready() says so."""

    def list_models(self) -> list[ServedVersion]:
        """The repository index, for which the server looks into the repository: it takes half a minute where
        a store is away."""

    def read_config(self, model: str, version: str = "") -> dict[str, Any] | None:
        """The configuration that a model, or this version of it, is served with; None where it is not."""

    def load(self, model: str, config: Mapping[str, Any] | None = None) -> None:
        """Load a model; with a configuration anew, though its files are what they were: the old one serves
        until the new one does."""


def make_endpoint(options: Sequence[str], http_port: int, grpc_port: int) -> Endpoint:
    """The endpoint of a server that was started with `options` on these ports."""
    address = _reach(find_option(options, "--grpc-address"))
    grpc = GrpcEndpoint(address, grpc_port, make_grpc_headers(options), _read_certificates(options))
    if not is_on(options, "--allow-http"):
        return grpc
    address = _reach(find_option(options, "--http-address"))
    loader = grpc if is_on(options, "--allow-grpc") else None
    return HttpEndpoint(f"http://{address}:{http_port}", make_http_headers(options), loader)


class UnreachableError(ServerError):
    """A question did not get to the server."""


def _reach(address: str | None) -> str:
    """Where a server can be asked that listens on `address`."""
    if address is None or address in _ANY_ADDRESS:
        return HOST
    return f"[{address}]" if ":" in address else address


class HttpEndpoint:
    """Over HTTP, where Triton has no TLS; loads over `loader` first."""

    def __init__(self, url: str, headers: Mapping[str, str], loader: GrpcEndpoint | None = None) -> None:
        self._url = url
        self._headers = dict(headers)
        self._loader = loader
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def is_live(self) -> bool | None:
        """See Endpoint."""
        return self._is_fine("/v2/health/live", ASK_SECONDS)

    def is_ready(self, seconds: float) -> bool:
        """See Endpoint."""
        return bool(self._is_fine("/v2/health/ready", seconds))

    def is_model_ready(self, model: str, version: str, seconds: float) -> bool:
        """See Endpoint."""
        return bool(self._is_fine(f"/v2/models/{_quote_version(model, version)}/ready", seconds))

    def list_models(self) -> list[ServedVersion]:
        """See Endpoint."""
        index = self._ask("/v2/repository/index", b"{}")
        if not isinstance(index, list):
            raise ServerError("expected the list of models, found something else")
        return [
            ServedVersion(*(str(entry.get(key, "")) for key in ("name", "version", "state", "reason")))
            for entry in index
        ]

    def read_config(self, model: str, version: str = "") -> dict[str, Any] | None:
        """See Endpoint."""
        with _none_where_unknown():
            config = self._ask(f"/v2/models/{_quote_version(model, version)}/config")
            return config if isinstance(config, dict) else {}
        return None

    def load(self, model: str, config: Mapping[str, Any] | None = None) -> None:
        """See Endpoint."""
        if self._loader is not None:
            with suppress(UnreachableError):
                self._loader.load(model, config)
                return
        parameters = {} if config is None else {"config": json.dumps(config)}
        body = json.dumps({"parameters": parameters}).encode()
        self._ask(f"/v2/repository/models/{quote(model, safe='')}/load", body, LOAD_SECONDS)

    def _is_fine(self, path: str, seconds: float) -> bool | None:
        try:
            with self._open(path, None, seconds):
                return True
        except urllib.error.HTTPError as error:
            with error:
                return error.code == http.HTTPStatus.FORBIDDEN  # restricted, with a key that we do not know
        except OSError:
            return None

    def _ask(self, path: str, body: bytes | None = None, seconds: float = ASK_SECONDS) -> Any:
        try:
            with self._open(path, body, seconds) as answer:
                text = answer.read(_MOST_BYTES)
            return json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            with error:
                raise ServerError(f"{error}: {_find_reason(error.read(_MOST_BYTES))}") from error
        except (OSError, ValueError) as error:
            raise ServerError(str(error)) from error

    def _open(self, path: str, body: bytes | None, seconds: float) -> Any:
        request = urllib.request.Request(f"{self._url}{path}", body, self._headers)  # noqa: S310  http: ours
        return self._opener.open(request, timeout=seconds)


def _quote_version(model: str, version: str) -> str:
    name = quote(model, safe="")
    return f"{name}/versions/{quote(version, safe='')}" if version else name


@contextmanager
def _none_where_unknown() -> Iterator[None]:
    """Go on after the block where the server says that it does not serve that."""
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
    """Files for TLS: who the server is, and, where it wants to know that of its clients, who we are."""

    root: Path
    key: Path | None
    chain: Path | None


def _read_certificates(options: Sequence[str]) -> Certificates | None:
    """Those of `options`: whom the server trusts, or else itself, is whom we trust; None without TLS."""
    own = find_option(options, "--grpc-server-cert")
    mutual = is_set(options, "--grpc-use-ssl-mutual")
    if own is None or not (mutual or is_set(options, "--grpc-use-ssl")):
        return None
    key = find_option(options, "--grpc-server-key") if mutual else None
    root = find_option(options, "--grpc-root-cert") or own
    return Certificates(Path(root), Path(key) if key else None, Path(own) if mutual else None)


def is_set(options: Sequence[str], name: str) -> bool:
    """A switch of Triton's that is off unless `options` say otherwise."""
    return find_option(options, name) is not None and is_on(options, name)


class GrpcEndpoint:
    """Over gRPC. Where a call does not come through (TLS with a certificate of another name, or a client of
    ours that the server does not know), a server whose port is open counts as ready."""

    def __init__(
        self, address: str, port: int, headers: Mapping[str, str], certificates: Certificates | None
    ) -> None:
        self._place = (address, port)
        self._headers = tuple(headers.items())
        self._certificates = certificates
        self._known: Any = None

    def is_live(self) -> bool | None:
        """See Endpoint."""
        if not self._is_open():
            return None
        with suppress(ServerError):
            return bool(self._ask("ServerLive").live)
        return True

    def is_ready(self, seconds: float) -> bool:
        """See Endpoint."""
        with suppress(ServerError):
            return bool(self._ask("ServerReady", seconds).ready)
        return self._is_open()

    def is_model_ready(self, model: str, version: str, seconds: float) -> bool:
        """See Endpoint."""
        try:
            return bool(self._ask("ModelReady", seconds, name=model, version=version).ready)
        except UnreachableError:
            return self._is_open()
        except ServerError:
            return False

    def list_models(self) -> list[ServedVersion]:
        """See Endpoint."""
        index = self._ask("RepositoryIndex")
        return [ServedVersion(each.name, each.version, each.state, each.reason) for each in index.models]

    def read_config(self, model: str, version: str = "") -> dict[str, Any] | None:
        """See Endpoint."""
        from google.protobuf import json_format

        with _none_where_unknown():
            answer = self._ask("ModelConfig", name=model, version=version)
            return dict(json_format.MessageToDict(answer.config, preserving_proto_field_name=True))
        return None

    def load(self, model: str, config: Mapping[str, Any] | None = None) -> None:
        """See Endpoint."""
        parameters = {} if config is None else {"config": {"string_param": json.dumps(config)}}
        self._ask("RepositoryModelLoad", LOAD_SECONDS, model_name=model, parameters=parameters)

    def _is_open(self) -> bool:
        with suppress(OSError), socket.create_connection(self._place, timeout=ASK_SECONDS):
            return True
        return False

    def _ask(self, method: str, seconds: float = ASK_SECONDS, **fields: Any) -> Any:
        """The answer to a call of Triton's service, the request made of its fields."""
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
        # As with HTTP: nothing stands between.
        options = [("grpc.enable_http_proxy", 0), ("grpc.max_receive_message_length", _MOST_BYTES)]
        files = self._certificates
        if files is None:
            return grpc.insecure_channel(place, options)
        root, key, chain = (file and file.read_bytes() for file in (files.root, files.key, files.chain))
        return grpc.secure_channel(place, grpc.ssl_channel_credentials(root, key, chain), options)
