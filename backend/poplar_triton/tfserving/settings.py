"""Settings of a server, read and checked once; its processes get them unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from poplar_triton.tfserving.sources import ModelSource

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
class Settings:
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

    @property
    def names(self) -> list[str]:
        """Names of the models that are known in advance, for which metrics are kept."""
        return [source.name for source in self.sources]
