"""The command `poplar-triton tfserving`."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from popef._tools.arguments import Parser
from popef._tools.console import UsageError
from popef._tools.text import escape, find_name_fault
from poplar_triton.errors import ServerError
from poplar_triton.limits import TFSERVING, require_limits
from poplar_triton.serving.command import (
    MAX_PORT,
    add_address,
    add_life_arguments,
    add_number,
    print_places,
    start_health,
)
from poplar_triton.serving.health import HealthServer
from poplar_triton.serving.log import Log
from poplar_triton.serving.repository import check_repository, is_model_folder
from poplar_triton.serving.supervisor import StopRequest
from poplar_triton.tfserving.config_files import (
    MonitoringConfig,
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
    ServerSettings,
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
"""Maximum number in a channel argument of gRPC, a C int."""
_MICROSECONDS = 1_000_000
"""Number of microseconds in a second."""
_TRITON_FILES = {
    "root_certificates": "root certificate that signs Triton's certificate",
    "private_key": "private key of the client certificate for Triton",
    "certificate_chain": "client certificate for Triton",
}
"""Fields of TritonTls, and what is in the file of each."""


def add_arguments(parser: Parser) -> None:
    """Add the arguments of `tfserving`."""
    _add_models(parser)
    _add_ports(parser)
    _add_triton(parser)
    add_number(
        parser,
        "--processes",
        (1, _MAX_PROCESSES),
        1,
        "number of processes on the same ports; each loads its own copy of the models",
    )
    add_life_arguments(parser)


def _add_models(parser: Parser) -> None:
    parser.add_path(
        "model_repository",
        folder=True,
        reads="folder",
        type=Path,
        nargs="?",
        metavar="MODEL_REPOSITORY",
        help="folder of model folders, as in a Triton model repository",
    )
    _add_file(parser, "--model_config_file", "ModelServerConfig in protobuf text format")
    parser.add_argument(
        "--model_name",
        metavar="NAME",
        help="model name for --model_base_path (default: default)",
    )
    parser.add_path(
        "--model_base_path", folder=True, type=Path, metavar="FOLDER", help="folder of one model"
    )
    text = "interval in seconds of checks for new versions; 0: check once"
    add_number(parser, "--file_system_poll_wait_seconds", (0, _MAX_SECONDS), 1, text)
    text = "retries for a version that does not load"
    add_number(parser, "--max_num_load_retries", (0, _MAX_RETRIES), 5, text)
    add_number(
        parser,
        "--load_retry_interval_micros",
        (-_MAX_SECONDS * _MICROSECONDS, _MAX_SECONDS * _MICROSECONDS),
        60 * _MICROSECONDS,
        "interval between retries; negative: retry at once (default: one minute)",
    )
    text = "allow labels for versions that are not served"
    _add_switch(parser, "--allow_version_labels_for_unavailable_models", text)
    _add_switch(
        parser,
        "--isolate-models",
        "compute each model in a child process, like parameter sim_isolation; a crash in it "
        "affects no other model",
    )


def _add_ports(parser: Parser) -> None:
    add_number(parser, "--port", (0, MAX_PORT), GRPC_PORT, "gRPC port")
    add_number(parser, "--rest_api_port", (0, MAX_PORT), REST_PORT, "REST port")
    add_address(parser, "--address", "both ports")
    text = "timeout of a REST request"
    add_number(parser, "--rest_api_timeout_in_ms", (1, _MAX_MS), 30_000, text)
    text, limits = "maximum size of a REST request body", (1, _MAX_BODY_BYTES)
    add_number(parser, "--http-max-input-size", limits, REST_BODY_BYTES, text, "BYTES")
    add_number(
        parser,
        "--max-connections-per-address",
        (0, _MAX_CONNECTIONS),
        MAX_CONNECTIONS_PER_ADDRESS,
        "maximum number of REST connections per client address and process, without those from "
        "this machine; 0: no limit",
    )
    text = "enable CORS: allow requests from pages of other sites"
    _add_switch(parser, "--rest_api_enable_cors_support", text)
    text = "SSLConfig with the certificates of the gRPC port"
    _add_file(parser, "--ssl_config_file", text)
    text = (
        f"MonitoringConfig with the path of the metrics on the REST port (default: {METRICS_PATH})"
    )
    _add_file(parser, "--monitoring_config_file", text)
    parser.add_argument(
        "--grpc_channel_arguments",
        type=_read_channel_arguments,
        default={},
        metavar="NAME=VALUE,...",
        help="gRPC channel arguments, such as grpc.max_receive_message_length=-1 for no size "
        "limit (default: 128 MiB)",
    )
    text = "return tensor_content instead of typed values"
    _add_switch(parser, "--enable_serialization_as_tensor_content", text)
    text = "no effect: the health check is always available"
    _add_switch(parser, "--enable_grpc_healthcheck_service", text)


def _add_triton(parser: Parser) -> None:
    parser.add_argument(
        "--triton",
        metavar="HOST:PORT",
        help="forward requests to this Triton server over gRPC, instead of computing",
    )
    _add_switch(parser, "--triton_ssl", "use TLS for the connection to Triton")
    for name, what in _TRITON_FILES.items():
        _add_file(parser, f"--triton_{name}", f"PEM: {what}")


def _add_file(parser: Parser, name: str, text: str) -> None:
    parser.add_path(name, reads="file", type=Path, metavar="FILE", help=text)


def _add_switch(parser: Parser, name: str, text: str) -> None:
    """Add a switch with the syntax of tensorflow_model_server: --name, --name=true,
    --name=false."""
    kind, metavar = _read_switch, "true|false"
    parser.add_argument(
        name, nargs="?", type=kind, const=True, default=False, metavar=metavar, help=text
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
    require_limits(replace(TFSERVING, threads=TFSERVING.threads * settings.processes))
    stop = StopRequest()
    with ExitStack() as stack:
        log = stack.enter_context(Log())
        processes = Processes(settings, log.tell)
        health = start_health(options, processes, stack)
        with processes:
            stop.catch_signals()
            _introduce(settings, health, log)
            while not stop.wait(LOOK_SECONDS):
                if not processes.look():
                    return 1
            log.show("stopping")
    return 0


def read_settings(options: argparse.Namespace) -> ServerSettings:
    """Return the settings of a command line. Raises UsageError, ServerError or ConfigFileError for
    an error in it."""
    if not options.port and not options.rest_api_port:
        raise UsageError("expected --port or --rest_api_port, found 0 for both")
    if options.port == options.rest_api_port:
        raise UsageError(
            f"--rest_api_port: expected another port than --port, found {options.port} for both"
        )
    monitoring = MonitoringConfig(enabled=True)
    if options.monitoring_config_file:
        monitoring = read_monitoring_config(options.monitoring_config_file)
    return ServerSettings(
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
        metrics_path=monitoring.path if monitoring.enabled else "",
        poll_seconds=options.file_system_poll_wait_seconds,
        load_retries=options.max_num_load_retries,
        load_retry_seconds=options.load_retry_interval_micros / _MICROSECONDS,
        loose_labels=options.allow_version_labels_for_unavailable_models,
        isolate_models=options.isolate_models,
        drain_seconds=options.drain_seconds,
        start_seconds=options.start_seconds,
    )


def _find_sources(options: argparse.Namespace) -> Sequence[ModelSource]:
    """Return the models to serve. Models of a Triton server have no folders."""
    given_options = [
        name
        for name in ("model_repository", "model_config_file", "model_base_path")
        if getattr(options, name) is not None
    ]
    if options.triton is not None:
        if set(given_options) - {"model_config_file"}:
            raise UsageError(
                "--triton: cannot be combined with local models, only with --model_config_file"
            )
    elif options.model_name is not None and options.model_base_path is None:
        raise UsageError(
            "--model_name requires --model_base_path, the folder of the one model to serve; "
            "MODEL_REPOSITORY serves all its models by the names of their folders"
        )
    elif len(given_options) != 1:
        raise UsageError(
            "expected one of MODEL_REPOSITORY, --model_config_file, --model_base_path and "
            f"--triton, found {len(given_options)}"
        )
    if options.model_config_file is not None:
        return read_model_configs(options.model_config_file)
    if options.model_base_path is not None:
        name = "default" if options.model_name is None else options.model_name
        if fault := find_name_fault(name):
            raise UsageError(f"--model_name: {fault}")
        return [ModelSource(name, options.model_base_path.resolve())]
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
    files = {name: getattr(options, f"triton_{name}") for name in _TRITON_FILES}
    if not options.triton_ssl:
        for name, file in files.items():
            if file is not None:
                raise UsageError(f"--triton_{name} requires --triton_ssl")
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


def _introduce(settings: ServerSettings, health: HealthServer | None, log: Log) -> None:
    """Print where the server is."""
    places = {}
    if settings.grpc_port:
        places["gRPC"] = f"{settings.address}:{settings.grpc_port}"
    if settings.rest_port:
        name = f"/{escape(min(settings.names))}" if settings.names else ""
        places["REST"] = f"http://{settings.address}:{settings.rest_port}/v1/models{name}"
    print_places(log, places, health)
