"""The `poplar-triton` command: serve, build, demo, profile, install, doctor."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict
from pathlib import Path

from model_runtime.errors import ModelRuntimeError
from poprt.supervision import supervised
from poprt.terminal import cell, make_console
from rich.table import Table
from simipu import SimIpuError

from commands import doctor
from commands.errors import CommandError, RecipeError, ServerError
from commands.install import install
from commands.profile import command as profile_command
from commands.recipes import build, read_recipes
from commands.server import TritonServer, check_repository
from popef.arguments import Parser, find_version, whole_number
from popef.console import UsageError, print_line, run
from popef.text import escape

LOOK_SECONDS = 0.5
"""Between two looks whether the server runs still."""

Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 fine, 1 bad input or a missing part, 2 usage, 130 interrupted before the server was
    ready."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    words = list(sys.argv[1:] if arguments is None else arguments)
    own, triton_options = (
        (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    )
    parser = _parser()
    parser.set_defaults(triton_options=triton_options, own_process=arguments is None)
    return run(parser, own, (CommandError, ModelRuntimeError, SimIpuError))


def _serve(options: argparse.Namespace) -> int:
    doctor.require()
    with _server(options, log=None) as server:
        failed = _failed_models(server)
        name = escape(_first_model(options.model_repository, failed))
        print(
            f"\nHTTP     http://{server.http_url}\ngRPC     {server.grpc_url}\nmetrics  {server.metrics_url}"
        )
        print(
            f"Try: curl -s http://{server.http_url}/v2/models/{name}\nCtrl-C stops the server.\n", flush=True
        )
        try:
            while server.poll() is None:
                time.sleep(LOOK_SECONDS)
            print(
                f"poplar-triton: error: tritonserver ended by itself, status {server.poll()}", file=sys.stderr
            )
            return 1
        except KeyboardInterrupt:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)  # stopping takes seconds and must not be cut short
            print("stopping", flush=True)
    if server.exit_status:
        print(f"poplar-triton: error: tritonserver ended with status {server.exit_status}", file=sys.stderr)
        return 1
    return 0


def _failed_models(server: TritonServer) -> Collection[str]:
    """The models that are not served, each said on stderr; none where the server does not tell."""
    try:
        failed = server.failed_models()
    except ServerError as error:
        print_line(f"poplar-triton: warning: {error}; see its output", stderr=True)
        return ()
    for model, reason in sorted(failed.items()):
        print_line(
            f"poplar-triton: model {model!r} is not served: {reason.partition(chr(10))[0]}", stderr=True
        )
    return failed


def _demo(options: argparse.Namespace) -> int:
    from commands.demo import examples, runner

    check_repository(options.model_repository)
    if not examples(options.model_repository):
        raise ServerError(f"{options.model_repository}: expected one of the example models, found none")
    doctor.require()
    console = make_console()
    log = options.model_repository.parent / ".cache" / "demo-tritonserver.log"
    log.parent.mkdir(exist_ok=True)
    with console.status("starting tritonserver"), _server(options, log=log) as server:
        equal = runner.run(
            server.http_url,
            server.grpc_url,
            options.model_repository,
            console,
            ipu_seconds=_ipu_seconds(options.model_repository),
        )
    return 0 if equal and server.exit_status == 0 else 1


def _build(options: argparse.Namespace) -> int:
    if not read_recipes(options.model_repository):
        raise RecipeError(
            f"{options.model_repository}: expected model folders with a recipe.json, found none; nothing to "
            "build"
        )
    build(options.model_repository, force=options.force, only=options.only or None, console=make_console())
    return 0


def _install(options: argparse.Namespace) -> int:
    print_line(f"wrote {install(options.backends_dir)}")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    findings = doctor.examine()
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        table = Table("what", "found", "how to get it")
        for finding in findings:
            table.add_row(*map(cell, (finding.subject, finding.found, finding.remedy or "ok")))
        make_console().print(table)
    return 1 if any(finding.remedy for finding in findings) else 0


def _server(options: argparse.Namespace, log: Path | None) -> TritonServer:
    for argument in options.triton_options:
        if (name := argument.partition("=")[0]) in ("--http-port", "--grpc-port", "--metrics-port"):
            raise UsageError(f"{name}: expected before the --, found after it")
    return TritonServer(
        options.model_repository,
        http_port=options.http_port,
        grpc_port=options.grpc_port,
        metrics_port=options.metrics_port,
        options=options.triton_options,
        log=log,
    )


def _first_model(repository: Path, failed: Collection[str]) -> str:
    names = {file.parent.name for file in repository.glob("*/config.pbtxt")}
    return min(names.difference(failed), default="MODEL")


def _ipu_seconds(repository: Path) -> Callable[[str, int], float]:
    """Modelled seconds that the IPU takes for so many rows of a model: whole runs."""
    from model_runtime import Session

    sessions: dict[str, Session] = {}

    def seconds(model: str, rows: int) -> float:
        if model not in sessions:
            sessions[model] = Session(repository / model / "1" / "executable.popef")
        session = sessions[model]
        return -(-rows // session.rows_per_run) * session.seconds

    return seconds


def _parser() -> Parser:
    parser = Parser(
        prog="poplar-triton",
        description="Serve PopEF models on Triton, on a simulated IPU.",
        version=f"poplar-triton {find_version()}",
        examples=("poplar-triton doctor", "poplar-triton serve models", "poplar-triton COMMAND --help"),
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = _add(
        commands,
        "serve",
        _serve,
        "start the embedded tritonserver on a model repository",
        (
            "poplar-triton serve models --http-port 9000",
            "poplar-triton serve models -- --log-verbose=1 --cache-config local,size=104857600",
        ),
        epilog="Options after -- go to tritonserver as they are.",
    )
    _add_server_options(serve, (8000, 8001, 8002))
    examples: tuple[str, ...] = ("poplar-triton demo model_repository",)
    demo = _add(
        commands, "demo", _demo, "serve the example models, ask them and compare with ONNX Runtime", examples
    )
    _add_server_options(demo, (0, 0, 0))
    examples = (
        "poplar-triton build model_repository",
        "poplar-triton build model_repository --only magika --force",
    )
    make = _add(
        commands, "build", _build, "compile the models of a repository that have a recipe.json", examples
    )
    make.add_path("model_repository", folder=True, type=Path, metavar="MODEL_REPOSITORY")
    make.add_argument("--only", nargs="+", default=[], metavar="MODEL", help="these models only")
    make.add_argument("--force", action="store_true", help="compile again what is up to date")
    text = "what a model would take on the chip: time, memory, where they go (modelled)"
    profile_command.add_arguments(
        _add(commands, "profile", supervised(profile_command.run), text, profile_command.EXAMPLES)
    )
    examples = ("poplar-triton install /opt/tritonserver/backends",)
    put = _add(commands, "install", _install, "put the backend into an existing Triton server", examples)
    put.add_path(
        "backends_dir",
        folder=True,
        type=Path,
        metavar="BACKENDS_DIR",
        help="such as /opt/tritonserver/backends",
    )
    text = "what this machine lacks for the embedded server, and how to get it"
    look = _add(commands, "doctor", _doctor, text, ("poplar-triton doctor", "poplar-triton doctor --json"))
    look.add_argument("--json", action="store_true", help="machine-readable")
    return parser


def _add(
    commands: argparse._SubParsersAction[Parser],
    name: str,
    run: Command,
    text: str,
    examples: Sequence[str],
    epilog: str | None = None,
) -> Parser:
    described = text[0].upper() + text[1:] + "."
    command: Parser = commands.add_parser(
        name, help=text, description=described, examples=examples, epilog=epilog
    )
    command.set_defaults(run=run)
    return command


def _add_server_options(parser: Parser, ports: tuple[int, int, int]) -> None:
    parser.add_path("model_repository", folder=True, type=Path, metavar="MODEL_REPOSITORY")
    port_type = whole_number(0, 65535)
    for name, port in zip(("http", "grpc", "metrics"), ports, strict=True):
        parser.add_argument(
            f"--{name}-port",
            type=port_type,
            default=port,
            metavar="N",
            help="0: any free one (default: %(default)s)",
        )


if __name__ == "__main__":
    sys.exit(main())
