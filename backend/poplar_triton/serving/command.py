"""The command `poplar-triton serve`."""

from __future__ import annotations

import argparse
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from triton_poplar.server_start import START_SECONDS

from popef._tools.arguments import Parser, whole_number
from popef._tools.child import make_module_command, run_program
from popef._tools.console import UsageError
from popef._tools.text import escape
from popef._tools.zero_requests import Answer, find_answer, make_curl
from poplar_triton import doctor
from poplar_triton.errors import ServerError
from poplar_triton.limits import require_limits
from poplar_triton.serving.endpoint import HOST, READY, UNAVAILABLE
from poplar_triton.serving.health import HealthServer, Reporter
from poplar_triton.serving.log import Log, LogFormat
from poplar_triton.serving.options import find_all, find_option, is_on
from poplar_triton.serving.repository import is_remote
from poplar_triton.serving.server import Interrupt, TritonServer
from poplar_triton.serving.server_state import ServerState
from poplar_triton.serving.starting import RESTART_WINDOW_SECONDS
from poplar_triton.serving.supervisor import OnDeadStub, SupervisionSettings, Supervisor

EXAMPLES = (
    "poplar-triton serve models --http-port 9000",
    "poplar-triton serve model_repository --build",
    "poplar-triton serve models --health-port 8003 --drain-seconds 10 --on-dead-stub reload "
    "--restart 3",
    "poplar-triton serve s3://bucket/models --server /opt/tritonserver/bin/tritonserver",
    "poplar-triton serve models -- --log-verbose=1 --cache-config local,size=104857600",
)
EPILOG = "Options after -- are passed to tritonserver."
_PORT_OPTIONS = ("--http-port", "--grpc-port", "--metrics-port")
_MODE = "--model-control-mode"
_KEY = "poplar-supervisor"
_REPOSITORY_API = "model-repository"
_MAX_SECONDS, _MAX_RESTARTS = 86400, 1000
_MAX_QUOTED = 100
MAX_PORT = 65535
MAX_ASKED = 20
"""Maximum number of models whose configurations are read for an example of a request."""


def add_arguments(parser: Parser) -> None:
    """Add the arguments of `serve`, except the ports of the server."""
    parser.add_argument(
        "--build",
        action="store_true",
        help="first compile the models that have a recipe.json and are not ready to serve, as "
        "`poplar-triton build` does",
    )
    add_life_arguments(parser)
    add_number(
        parser,
        "--max-drain-seconds",
        (0, _MAX_SECONDS),
        0,
        "seconds to keep serving after SIGTERM while requests still arrive, as on open gRPC "
        "streams (default: --drain-seconds)",
    )
    parser.add_argument(
        "--on-dead-stub",
        choices=[action.value for action in OnDeadStub],
        default=OnDeadStub.REPORT.value,
        help="action if the process of an instance has died: report it; reload its model; exit "
        "Triton, which --restart can restart (default: %(default)s)",
    )
    window = f"{RESTART_WINDOW_SECONDS / 60:g} minutes"
    text = f"number of restarts of an ended Triton within {window}"
    add_number(parser, "--restart", (0, _MAX_RESTARTS), 0, text)
    add_number(
        parser,
        "--canary-seconds",
        (0, _MAX_SECONDS),
        0,
        "interval in seconds of test requests of zeros to each model; a model that does not "
        "respond is not ready (default: no test requests)",
    )
    parser.add_argument(
        "--log-format",
        choices=[format.value for format in LogFormat],
        default=LogFormat.TEXT.value,
        help="format of the lines on stderr, Triton's lines included: text, or json with one "
        "object per line (default: %(default)s)",
    )
    parser.add_path(
        "--server",
        reads="file",
        type=Path,
        metavar="PATH",
        help="path of tritonserver, such as /opt/tritonserver/bin/tritonserver (default: the "
        "installed wheel's)",
    )


def add_life_arguments(parser: Parser) -> None:
    """Add the arguments that every server has: how it starts and stops, and where its state is
    shown."""
    text = "port of /ready, /live and /metrics; 0: any free port (default: no such port)"
    add_number(parser, "--health-port", (0, MAX_PORT), None, text)
    add_address(parser, "--health-address", "the health port")
    text = "seconds to keep serving, with /ready 503, between SIGTERM and the stop"
    add_number(parser, "--drain-seconds", (0, _MAX_SECONDS), 0, text)
    text = "time limit in seconds for the server to load its models and become ready"
    add_number(parser, "--start-seconds", (1, _MAX_SECONDS), START_SECONDS, text)


def add_number(
    parser: Parser,
    name: str,
    limits: tuple[int, int],
    default: int | None,
    text: str,
    metavar: str = "N",
) -> None:
    """Add an option with a whole number within `limits`. Its help ends with the default, unless
    `text` tells it."""
    shown = text if "(default: " in text else f"{text} (default: %(default)s)"
    kind = whole_number(*limits)
    parser.add_argument(name, type=kind, default=default, metavar=metavar, help=shown)


def add_address(parser: Parser, name: str, what: str) -> None:
    """Add the option with the address on which `what` listens."""
    text = f"listen address of {what}; 0.0.0.0 for all addresses (default: %(default)s)"
    parser.add_argument(name, type=_read_address, default=HOST, metavar="ADDRESS", help=text)


def _read_address(text: str) -> str:
    """Check an address to listen on. This is an argparse type."""
    try:
        socket.getaddrinfo(text, 0, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError, TypeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "no host name"
        raise argparse.ArgumentTypeError(
            f"expected an address of this machine such as {HOST}, found "
            f"{escape(repr(text), _MAX_QUOTED)} ({reason})"
        ) from None
    return text


def start_health(
    options: argparse.Namespace, reporter: Reporter, stack: ExitStack
) -> HealthServer | None:
    """Start the health port of the options, if they name one, until the end of `stack`."""
    if options.health_port is None:
        return None
    return stack.enter_context(HealthServer(options.health_address, options.health_port, reporter))


def print_places(
    log: Log, places: Mapping[str, str], health: HealthServer | None, request: str = ""
) -> None:
    """Print where a server is, and a request that it answers."""
    lines = ["", *(f"{name:8} {place}" for name, place in places.items())]
    lines += [f"health   {health.url}/ready"] if health else []
    lines += [f"Try: {request}"] if request else []
    log.show("\n".join([*lines, "Ctrl-C stops the server.", ""]))


def run(options: argparse.Namespace) -> int:
    """Serve until asked to stop. Return 0 then, and 1 if the server could not start, or ended by
    itself and may not be restarted."""
    settings = SupervisionSettings(
        options.drain_seconds,
        options.max_drain_seconds,
        OnDeadStub(options.on_dead_stub),
        options.restart,
        options.canary_seconds,
    )
    if settings.canary_seconds and not is_on(options.triton_options, "--allow-http"):
        raise UsageError(
            "--canary-seconds: requires Triton's HTTP, found --allow-http=false after the --"
        )
    options.triton_options = _allow_reload(options.triton_options, settings.on_dead_stub)
    (require_limits if options.server else doctor.require)()
    state = ServerState()
    interrupt = Interrupt()
    interrupt.catch_signals()
    with ExitStack() as stack:
        log = stack.enter_context(Log(LogFormat(options.log_format)))
        health = start_health(options, state, stack)

        def begin(_: TritonServer) -> None:
            # The ports are reserved by now: compiling takes minutes.
            if options.build:
                _build(options.model_repository)
            supervisor.start(interrupt.pause)

        server = make_server(options, copy=log.copy, begin=begin)
        supervisor = Supervisor(server, state, settings, log.tell)
        with server:
            supervisor.catch_signals()
            interrupt.check()
            _introduce(server, health, log)
            was_asked = supervisor.run()
            if was_asked:
                log.show("stopping")
        if was_asked and server.exit_status:
            log.tell(f"warning: tritonserver ended with status {server.exit_status}")
    return 0 if was_asked else 1


def make_server(
    options: argparse.Namespace,
    log: Path | None = None,
    copy: Callable[[str], None] | None = None,
    begin: Callable[[TritonServer], None] | None = None,
) -> TritonServer:
    """Return the server of a command's options. Raises UsageError for options of Triton that this
    command sets itself."""
    for argument in options.triton_options:
        if (name := argument.partition("=")[0]) in _PORT_OPTIONS:
            raise UsageError(f"{name}: expected before the --, found after it")
    return TritonServer(
        options.model_repository,
        http_port=options.http_port,
        grpc_port=options.grpc_port,
        metrics_port=options.metrics_port,
        options=options.triton_options,
        log=log,
        copy=copy,
        begin=begin,
        program=getattr(options, "server", None),
        start_seconds=getattr(options, "start_seconds", None),
    )


def _build(repository: Path | str) -> None:
    """Compile the models of a repository in a child process: the supervisor does not load the
    compiler. Raises ServerError if that fails, for a reason that the child has printed."""
    if is_remote(repository):
        raise UsageError(f"--build: expected a folder of models, found {repository}")
    command = [*make_module_command("poplar_triton.cli"), "build", str(Path(repository).absolute())]
    if run_program(command, is_shown=True).returncode:
        raise ServerError("the models were not compiled, so nothing is served")


def _allow_reload(triton_options: Sequence[str], on_dead_stub: OnDeadStub) -> list[str]:
    """Return the options with which the supervisor may load models. They let no other client load
    models that could not before."""
    options = list(triton_options)
    if on_dead_stub is not OnDeadStub.RELOAD:
        return options
    mode = find_option(options, _MODE)
    if mode not in (None, "explicit"):
        raise UsageError(
            f"--on-dead-stub reload: expected {_MODE}=explicit after the --, found {mode}"
        )
    if mode is None:
        options += [f"{_MODE}=explicit", "--load-model=*"]
        secret = secrets.token_hex(16)
        for name in ("--http-restricted-api", "--grpc-restricted-protocol"):
            restricted = (value.partition(":")[0].split(",") for value in find_all(options, name))
            if not any(_REPOSITORY_API in apis for apis in restricted):
                options.append(f"{name}={_REPOSITORY_API}:{_KEY}={secret}")
    return options


def _introduce(server: TritonServer, health: HealthServer | None, log: Log) -> None:
    """Print where the server is and a request that it answers, and on stderr which models it does
    not serve."""
    places = {
        "HTTP": f"http://{server.http_url}",
        "gRPC": server.grpc_url,
        "metrics": server.metrics_url,
    }
    served = _list_served(server, log.tell)
    if served == []:
        places["models"] = "none is served"
    print_places(log, places, health, _find_request(server, served or ()))


def _list_served(server: TritonServer, tell: Callable[[str], None]) -> list[str] | None:
    """Return the names of the models that are served, after a message on stderr for each of the
    others. Return None if the server does not tell."""
    try:
        models = sorted(server.list_models(), key=lambda model: model.name)
    except ServerError as error:
        tell(f"warning: {error}; see its output")
        return None
    for model_version in models:
        if model_version.state == UNAVAILABLE:
            tell(
                f"model {model_version.name!r} is not served: "
                f"{model_version.reason.partition(chr(10))[0]}"
            )
    return [model.name for model in models if model.state == READY]


def _find_request(server: TritonServer, models: Sequence[str]) -> str:
    """Return a command that sends a request to one of the models that are served, or "" if there is
    none that can be asked with zeros. The model is the first of those whose answer is most
    readable: a label, then values."""
    if not server.answers_anyone:
        return ""
    requests: list[tuple[Answer, str]] = []
    for model in models[:MAX_ASKED]:
        with suppress(ServerError, ValueError):
            if config := server.endpoint.read_config(model):
                request = make_curl(server.http_url, model, config)
                requests.append((find_answer(config), request))
    return min(requests, key=lambda request: request[0])[1] if requests else ""
