"""The `poplar-triton` command: serve, tfserving, build, demo, profile, install, doctor."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from model_runtime.errors import ModelRuntimeError
from poprt.terminal import cell, make_console
from rich.table import Table
from simipu import SimIpuError

from commands import doctor
from commands.errors import CommandError, RecipeError, ServerError
from commands.install import install
from commands.profile import command as profile_command
from commands.recipes import build, read_recipes
from commands.serving import command as serve_command
from commands.serving.command import make_server
from commands.serving.server import check_repository, find_repository
from commands.tfserving import command as tfserving_command
from popef.arguments import Parser, find_version, whole_number
from popef.console import print_line, run

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


def _demo(options: argparse.Namespace) -> int:
    from commands.demo import examples, runner

    check_repository(options.model_repository)
    if not examples(options.model_repository):
        raise ServerError(f"{options.model_repository}: expected one of the example models, found none")
    doctor.require()
    console = make_console()
    log = options.model_repository.parent / ".cache" / "demo-tritonserver.log"
    log.parent.mkdir(exist_ok=True)
    with console.status("starting tritonserver"), make_server(options, log) as server:
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
    findings = [*doctor.examine(), doctor.examine_kernels()]
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        table = Table("what", "found", "how to get it")
        for finding in findings:
            table.add_row(*map(cell, (finding.subject, finding.found, finding.remedy or "ok")))
        make_console().print(table)
    return 1 if any(finding.remedy for finding in findings) else 0


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
    text = "start a tritonserver on a model repository, and keep it serving"
    serve = _add(
        commands, "serve", serve_command.run, text, serve_command.EXAMPLES, epilog=serve_command.EPILOG
    )
    serve_command.add_arguments(serve)
    _add_server_options(serve, (8000, 8001, 8002), with_store=True)
    text = "serve models to TensorFlow Serving's clients, over gRPC and REST"
    tfserving = _add(
        commands,
        "tfserving",
        tfserving_command.run,
        text,
        tfserving_command.EXAMPLES,
        epilog=tfserving_command.EPILOG,
    )
    tfserving_command.add_arguments(tfserving)
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
        _add(commands, "profile", profile_command.run, text, profile_command.EXAMPLES)
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


def _add_server_options(parser: Parser, ports: tuple[int, int, int], *, with_store: bool = False) -> None:
    kind = find_repository if with_store else Path
    parser.add_path("model_repository", folder=True, type=kind, metavar="MODEL_REPOSITORY")
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
