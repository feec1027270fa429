"""The command `poplar-triton tfserving`."""

from __future__ import annotations

import argparse
import importlib.util
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from popef._tools.arguments import Parser, whole_number
from popef._tools.console import UsageError
from popef._tools.text import escape, find_name_fault
from poplar_triton.errors import ServerError
from poplar_triton.serving.command import add_life_arguments
from poplar_triton.serving.health import HealthServer
from poplar_triton.serving.log import make_tell
from poplar_triton.serving.server import check_repository, is_model_folder
from poplar_triton.tfserving.config_files import (
    ConfigFileError,
    read_model_configs,
    read_monitoring_config,
    read_ssl_config,
)
from poplar_triton.tfserving.settings import (
    GRPC_PORT,
    MAX_CONNECTIONS_PER_ADDRESS,
    METRICS_PATH,
    REST_BODY_BYTES,
    REST_PORT,
    ModelSource,
    Settings,
    TritonTls,
)

EXAMPLES = (
    "poplar-triton tfserving models",
    "poplar-triton tfserving --port 8500 --rest_api_port 8501 --model_config_file models.config",
    "poplar-triton tfserving --model_name magika --model_base_path /models/magika --processes 2",
    "poplar-triton tfserving --triton 127.0.0.1:8001",
)
EPILOG = (
    "Options with underscores have the names, meanings and defaults of "
    "tensorflow_model_server;\nthe default of --rest_api_port is that of its container. Port 0 "
    "disables a protocol."
)
_PACKAGES = ("aiohttp", "grpc")
_MAX_SECONDS, _MAX_MS, _MAX_RETRIES, _MAX_PROCESSES = 86400, 86_400_000, 1000, 256
_MAX_BODY_BYTES = 1 << 30
_MAX_CONNECTIONS = 1 << 16
_MAX_CHANNEL_NUMBER = 2**31 - 1
_MICROSECONDS = 1_000_000
"""Number of microseconds in a second."""


def add_arguments(parser: Parser) -> None:
    """Add the arguments of `tfserving`."""
    _add_models(parser)
    _add_ports(parser)
    _add_triton(parser)
    parser.add_argument(
        "--processes",
        type=whole_number(1, _MAX_PROCESSES),
        default=1,
        metavar="N",
        help="number of processes on the same ports; each loads its own copy of the models "
        "(default: %(default)s)",
    )
    add_life_arguments(parser)


def _add_models(parser: Parser) -> None:
    parser.add_path(
        "model_repository",
        folder=True,
        type=Path,
        nargs="?",
        metavar="MODEL_REPOSITORY",
        help="folder of model folders, as in a Triton model repository",
    )
    parser.add_path(
        "--model_config_file",
        type=Path,
        metavar="FILE",
        help="ModelServerConfig in protobuf text format",
    )
    parser.add_argument(
        "--model_name",
        default="default",
        metavar="NAME",
        help="model name for --model_base_path (default: %(default)s)",
    )
    parser.add_path(
        "--model_base_path", folder=True, type=Path, metavar="FOLDER", help="folder of one model"
    )
    parser.add_argument(
        "--file_system_poll_wait_seconds",
        type=whole_number(0, _MAX_SECONDS),
        default=1,
        metavar="N",
        help="interval in seconds of checks for new versions; 0: check once (default: %(default)s)",
    )
    parser.add_argument(
        "--max_num_load_retries",
        type=whole_number(0, _MAX_RETRIES),
        default=5,
        metavar="N",
        help="retries for a version that does not load (default: %(default)s)",
    )
    parser.add_argument(
        "--load_retry_interval_micros",
        type=whole_number(-_MAX_SECONDS * _MICROSECONDS, _MAX_SECONDS * _MICROSECONDS),
        default=60 * _MICROSECONDS,
        metavar="N",
        help="interval between retries; negative: retry at once (default: one minute)",
    )
    _add_switch(
        parser,
        "--allow_version_labels_for_unavailable_models",
        "allow labels for versions that are not served",
    )
    _add_switch(
        parser,
        "--isolate-models",
        "compute each model in a child process, like parameter sim_isolation; a crash in it "
        "affects no other model",
    )


def _add_ports(parser: Parser) -> None:
    port = whole_number(0, 65535)
    parser.add_argument(
        "--port", type=port, default=GRPC_PORT, metavar="N", help="gRPC port (default: %(default)s)"
    )
    parser.add_argument(
        "--rest_api_port",
        type=port,
        default=REST_PORT,
        metavar="N",
        help="REST port (default: %(default)s)",
    )
    parser.add_argument(
        "--address",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="listen address of both ports; 0.0.0.0 for all addresses (default: %(default)s)",
    )
    parser.add_argument(
        "--rest_api_timeout_in_ms",
        type=whole_number(1, _MAX_MS),
        default=30_000,
        metavar="N",
        help="timeout of a REST request (default: %(default)s)",
    )
    parser.add_argument(
        "--http-max-input-size",
        type=whole_number(1, _MAX_BODY_BYTES),
        default=REST_BODY_BYTES,
        metavar="BYTES",
        help="maximum size of a REST request body (default: %(default)s)",
    )
    parser.add_argument(
        "--max-connections-per-address",
        type=whole_number(0, _MAX_CONNECTIONS),
        default=MAX_CONNECTIONS_PER_ADDRESS,
        metavar="N",
        help="maximum number of REST connections per client address and process, without those "
        "from "
        "this machine; 0: no limit (default: %(default)s)",
    )
    _add_switch(
        parser,
        "--rest_api_enable_cors_support",
        "enable CORS: allow requests from pages of other sites",
    )
    parser.add_path(
        "--ssl_config_file",
        type=Path,
        metavar="FILE",
        help="SSLConfig with the certificates of the gRPC port",
    )
    parser.add_path(
        "--monitoring_config_file",
        type=Path,
        metavar="FILE",
        help="MonitoringConfig with the path of the metrics on the REST port (default: "
        f"{METRICS_PATH})",
    )
    parser.add_argument(
        "--grpc_channel_arguments",
        type=_read_channel_arguments,
        default={},
        metavar="NAME=VALUE,...",
        help="gRPC channel arguments, such as grpc.max_receive_message_length=-1 for no size "
        "limit (default: 128 MiB)",
    )
    _add_switch(
        parser,
        "--enable_serialization_as_tensor_content",
        "return tensor_content instead of typed values",
    )
    _add_switch(
        parser,
        "--enable_grpc_healthcheck_service",
        "no effect: the health check is always available",
    )


def _add_triton(parser: Parser) -> None:
    parser.add_argument(
        "--triton",
        metavar="HOST:PORT",
        help="forward requests to this Triton server over gRPC, instead of computing",
    )
    _add_switch(parser, "--triton_ssl", "use TLS for the connection to Triton")
    for name, what in (
        ("root_certificates", "root certificate that signs Triton's certificate"),
        ("private_key", "private key of the client certificate for Triton"),
        ("certificate_chain", "client certificate for Triton"),
    ):
        parser.add_path(f"--triton_{name}", type=Path, metavar="FILE", help=f"PEM: {what}")


def _add_switch(parser: Parser, name: str, text: str) -> None:
    """Add a switch with the syntax of tensorflow_model_server: --name, --name=true,
    --name=false."""
    parser.add_argument(
        name,
        nargs="?",
        type=_read_switch,
        const=True,
        default=False,
        metavar="true|false",
        help=text,
    )


def run(options: argparse.Namespace) -> int:
    """Serve until asked to stop. Return 0 then, and 1 if the server could not start or ended by
    itself."""
    lacking = [package for package in _PACKAGES if importlib.util.find_spec(package) is None]
    if lacking:
        raise ServerError(
            f"tfserving requires the package {lacking[0]}, which is not installed; `pip install "
            "'poplar-triton[tfserving]'`"
        )
    # Imported late: the other commands must not load gRPC and the models' engine.
    from poplar_triton.tfserving.processes import LOOK_SECONDS, Processes

    settings = read_settings(options)
    stop = _StopRequest()
    with ExitStack() as stack:
        processes = Processes(settings, options.start_seconds, make_tell())
        health = None
        if options.health_port is not None:
            health = stack.enter_context(
                HealthServer(options.health_address, options.health_port, processes)
            )
        with processes:
            stop.catch_signals()
            _introduce(settings, health)
            while not stop.asked:
                if not processes.look():
                    return 1
                time.sleep(LOOK_SECONDS)
            print("stopping", flush=True)
    return 0


def read_settings(options: argparse.Namespace) -> Settings:
    """Return the settings of a command line. Raises UsageError, ServerError or ConfigFileError for
    an error in it."""
    if not options.port and not options.rest_api_port:
        raise UsageError("expected --port or --rest_api_port, found 0 for both")
    if options.port == options.rest_api_port:
        raise UsageError(
            f"--rest_api_port: expected another port than --port, found {options.port} for both"
        )
    monitoring = (
        read_monitoring_config(options.monitoring_config_file)
        if options.monitoring_config_file
        else None
    )
    return Settings(
        sources=tuple(_find_sources(options)),
        triton=options.triton,
        triton_tls=_read_triton_tls(options),
        address=options.address,
        grpc_port=options.port,
        rest_port=options.rest_api_port,
        processes=options.processes,
        tls=read_ssl_config(options.ssl_config_file) if options.ssl_config_file else None,
        as_content=options.enable_serialization_as_tensor_content,
        channel_arguments=options.grpc_channel_arguments,
        rest_seconds=options.rest_api_timeout_in_ms / 1000,
        rest_body_bytes=options.http_max_input_size,
        rest_connections_per_address=options.max_connections_per_address,
        cors=options.rest_api_enable_cors_support,
        metrics_path=METRICS_PATH
        if monitoring is None
        else monitoring.path
        if monitoring.enabled
        else "",
        poll_seconds=options.file_system_poll_wait_seconds,
        load_retries=options.max_num_load_retries,
        load_retry_seconds=options.load_retry_interval_micros / _MICROSECONDS,
        loose_labels=options.allow_version_labels_for_unavailable_models,
        isolate_models=options.isolate_models,
        drain_seconds=options.drain_seconds,
    )


class _StopRequest:
    """Request to stop. See serving.supervisor.StopRequest for why a handler does no more."""

    asked = False

    def catch_signals(self) -> None:
        """Handle SIGTERM and SIGINT from now on; both ask to stop."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._ask)

    def _ask(self, _: int, __: FrameType | None) -> None:
        self.asked = True


def _find_sources(options: argparse.Namespace) -> Sequence[ModelSource]:
    """Return the models to serve. Models of a Triton server have no folders."""
    given = [
        name
        for name in ("model_repository", "model_config_file", "model_base_path")
        if getattr(options, name) is not None
    ]
    if options.triton is not None:
        if set(given) - {"model_config_file"}:
            raise UsageError(
                "--triton: cannot be combined with local models, only with --model_config_file"
            )
    elif len(given) != 1:
        raise UsageError(
            "expected one of MODEL_REPOSITORY, --model_config_file, --model_base_path and "
            f"--triton, found {len(given)}"
        )
    if options.model_config_file is not None:
        return read_model_configs(options.model_config_file)
    if options.model_base_path is not None:
        if fault := find_name_fault(options.model_name):
            raise UsageError(f"--model_name: {fault}")
        return [ModelSource(options.model_name, options.model_base_path.resolve())]
    return [] if options.model_repository is None else _list_repository(options.model_repository)


def _list_repository(repository: Path) -> list[ModelSource]:
    check_repository(repository)
    folders = sorted(folder for folder in repository.resolve().iterdir() if folder.is_dir())
    sources = [ModelSource(folder.name, folder) for folder in folders if is_model_folder(folder)]
    for source in sources:
        if fault := find_name_fault(source.name):
            raise ServerError(escape(f"{source.folder}: model name: {fault}; rename the folder"))
    return sources


def _read_triton_tls(options: argparse.Namespace) -> TritonTls | None:
    files = {
        name: getattr(options, f"triton_{name}")
        for name in ("root_certificates", "private_key", "certificate_chain")
    }
    if not options.triton_ssl:
        if any(files.values()):
            raise UsageError("--triton_root_certificates and similar options require --triton_ssl")
        return None
    if (files["private_key"] is None) != (files["certificate_chain"] is None):
        raise UsageError(
            "--triton_private_key and --triton_certificate_chain are required together, found one "
            "of them"
        )
    return TritonTls(**{name: file.read_bytes() if file else None for name, file in files.items()})


def _read_switch(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0"):
        raise argparse.ArgumentTypeError(f"expected true or false, found {text!r}")
    return text.lower() in ("true", "1")


def _read_channel_arguments(text: str) -> dict[str, int | str]:
    arguments: dict[str, int | str] = {}
    for word in filter(None, text.split(",")):
        name, separator, value = word.partition("=")
        if not separator or not name:
            raise argparse.ArgumentTypeError(f"expected NAME=VALUE, found {word!r}")
        is_number = value.removeprefix("-").isdecimal()
        if is_number and not -_MAX_CHANNEL_NUMBER <= int(value) <= _MAX_CHANNEL_NUMBER:
            raise argparse.ArgumentTypeError(f"expected a 32-bit number for {name}, found {value}")
        arguments[name] = int(value) if is_number else value
    return arguments


def _introduce(settings: Settings, health: HealthServer | None) -> None:
    """Print where the server is."""
    where = settings.address
    name = escape(min(settings.names, default="MODEL"))
    lines = [
        "",
        *([f"gRPC     {where}:{settings.grpc_port}"] if settings.grpc_port else []),
        *(
            [f"REST     http://{where}:{settings.rest_port}/v1/models/{name}"]
            if settings.rest_port
            else []
        ),
        *([f"health   {health.url}/ready"] if health else []),
        "Ctrl-C stops the server.",
        "",
    ]
    print("\n".join(lines), flush=True)


__all__ = ["EPILOG", "EXAMPLES", "ConfigFileError", "add_arguments", "read_settings", "run"]
