"""What a server was started with, read and checked once: its processes get it as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from commands.tfserving.sources import ModelSource

GRPC_PORT, REST_PORT = 8500, 8501
"""Those of TensorFlow Serving's documentation and container."""
METRICS_PATH = "/monitoring/prometheus/metrics"
REST_BODY_BYTES = 64 << 20
"""Triton's own --http-max-input-size."""
GRPC_MESSAGE_BYTES = 128 << 20
"""Size of a gRPC request, unless grpc.max_receive_message_length says otherwise."""
MOST_CALLS = 1024
"""Requests under way in a process over either protocol; more are refused, RESOURCE_EXHAUSTED."""


@dataclass(frozen=True, slots=True)
class ServerTls:
    """The certificates of the gRPC port, in PEM. With `client_ca` clients have to show one that it signed."""

    key: bytes = field(repr=False)
    certificate: bytes
    client_ca: bytes | None = None


@dataclass(frozen=True, slots=True)
class TritonTls:
    """How a Triton is asked over TLS, in PEM; None: as the system and Triton's options have it."""

    root_certificates: bytes | None = None
    private_key: bytes | None = field(default=None, repr=False)
    certificate_chain: bytes | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """`grpc_port` and `rest_port` are 0 where there is none. With `triton`, HOST:PORT, requests go to that
    one, and of the sources only names and labels count."""

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
    cors: bool = False
    metrics_path: str = METRICS_PATH
    poll_seconds: float = 1.0
    load_retries: int = 5
    load_retry_seconds: float = 60.0
    loose_labels: bool = False
    drain_seconds: float = 0.0

    @property
    def names(self) -> list[str]:
        """The models that are known beforehand: those that metrics are kept of."""
        return [source.name for source in self.sources]
