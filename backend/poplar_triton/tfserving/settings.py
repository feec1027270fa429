"""Settings of a server, read and checked once; its processes get them unchanged. They include the
sources of served models: the folder of each, its versions to serve, and their labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from triton_poplar.server_start import START_SECONDS

from popef._tools.text import MAX_NAME_CHARACTERS, escape
from poplar_triton.tfserving.models import Code, ModelSpec, ServingError, refuse


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """Policy that chooses which of the existing versions are served: the newest `latest`, those in
    `specific`, or with neither all of them."""

    latest: int | None = 1
    specific: frozenset[int] = frozenset()

    def choose(self, versions: Iterable[int]) -> set[int]:
        """Return the versions to serve."""
        newest_first = sorted(versions, reverse=True)
        if self.specific:
            return set(self.specific.intersection(newest_first))
        return set(newest_first if self.latest is None else newest_first[: self.latest])


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Source of a model. `folder` holds a folder for each version, named by its number. `policy`
    None means that of its config.pbtxt, or the newest version. `labels` are other names of
    versions."""

    name: str
    folder: Path
    policy: VersionPolicy | None = None
    labels: Mapping[str, int] = field(default_factory=dict)


def find_version(spec: ModelSpec, labels: Mapping[str, int]) -> int | None:
    """Return the version that a request names, by number or by label, or None for the newest.
    Raises ServingError for an unknown label."""
    if spec.label is None:
        return spec.version
    version = labels.get(spec.label)
    if version is None:
        raise refuse(
            f"Unrecognized servable version label: {escape(spec.label, MAX_NAME_CHARACTERS)}"
        )
    return version


def not_served(spec: ModelSpec, version: int | None) -> ServingError:
    """Return the error of a request for a model, or a version of it, that is not served."""
    name = escape(spec.name, MAX_NAME_CHARACTERS)
    which = f"Latest({name})" if version is None else f"Specific({name}, {version})"
    return ServingError(Code.NOT_FOUND, f"Servable not found for request: {which}")


def not_known(spec: ModelSpec, version: int | None) -> ServingError:
    """Return the error of a status request for a model that has no versions, or not this one."""
    which = "any versions" if version is None else f"version {version}"
    return ServingError(
        Code.NOT_FOUND, f"Could not find {which} of model {escape(spec.name, MAX_NAME_CHARACTERS)}"
    )


GRPC_PORT, REST_PORT = 8500, 8501
"""Default ports of TensorFlow Serving's documentation and container."""
METRICS_PATH = "/monitoring/prometheus/metrics"
REST_BODY_BYTES = 64 << 20
"""Maximum size of a body over REST: the default of Triton's --http-max-input-size."""
GRPC_MESSAGE_BYTES = 128 << 20
"""Maximum size of a gRPC request, unless grpc.max_receive_message_length says otherwise."""
MAX_UNFINISHED_BODIES = 1024
"""Maximum number of requests over REST with incomplete bodies; Unfinished says which one is refused
above it."""
MAX_STREAMS = 256
"""Maximum number of calls under way on one connection over gRPC; its client sends further calls
later."""
MAX_CONNECTIONS_PER_ADDRESS = 1024
"""Maximum number of connections over REST of one client address."""
MAX_CALLS = 1024
"""Maximum number of requests under way in a process over either protocol; more are refused with
RESOURCE_EXHAUSTED."""


@dataclass(frozen=True, slots=True)
class ServerTls:
    """Certificates of the gRPC port, in PEM. With `client_ca` clients must present a certificate
    that it signed."""

    key: bytes = field(repr=False)
    certificate: bytes
    client_ca: bytes | None = None


@dataclass(frozen=True, slots=True)
class TritonTls:
    """TLS settings for requests to a Triton, in PEM; None means the system's or those of Triton's
    options."""

    root_certificates: bytes | None = None
    private_key: bytes | None = field(default=None, repr=False)
    certificate_chain: bytes | None = None


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Settings of a server. `grpc_port` and `rest_port` are 0 if unused. With `triton`, HOST:PORT,
    requests go to that server, and only names and labels of the sources count."""

    sources: tuple[ModelSource, ...]
    triton: str | None = None
    triton_tls: TritonTls | None = None
    address: str = "127.0.0.1"
    grpc_port: int = GRPC_PORT
    rest_port: int = REST_PORT
    processes: int = 1
    tls: ServerTls | None = None
    as_content: bool = False
    channel_arguments: Mapping[str, int | str] = field(default_factory=dict)
    rest_seconds: float = 30.0
    rest_body_bytes: int = REST_BODY_BYTES
    rest_connections_per_address: int = MAX_CONNECTIONS_PER_ADDRESS
    cors: bool = False
    metrics_path: str = METRICS_PATH
    poll_seconds: float = 1.0
    load_retries: int = 5
    load_retry_seconds: float = 60.0
    loose_labels: bool = False
    isolate_models: bool = False
    drain_seconds: float = 0.0
    start_seconds: float = START_SECONDS
    """Time limit of the start, which the loads of all models share."""

    @property
    def names(self) -> list[str]:
        """Names of the models that are known in advance, for which metrics are kept."""
        return [source.name for source in self.sources]
