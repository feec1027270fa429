"""The `poplar-triton` command: serve, tfserving, build, demo, profile, install, doctor.

The supervisor of `serve` runs as long as the server. So a command imports its modules itself, and
only the called command adds its arguments. This keeps numpy and ONNX Runtime out of the supervisor.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from popef._tools.arguments import Parser, whole_number
from popef._tools.console import print_line, run
from popef._tools.version import __version__
from poplar_triton import doctor
from poplar_triton.errors import CommandError, RecipeError, ServerError
from poplar_triton.serving import command as serve_command
from poplar_triton.serving.command import make_server
from poplar_triton.serving.installation import install
from poplar_triton.serving.server import check_repository, find_repository

Command = Callable[[argparse.Namespace], int]
Commands = argparse._SubParsersAction  # noqa: SLF001  what add_subparsers returns has no other name


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return 0 on success, 1 for bad input or a missing part, 2 for wrong usage,
    and 130 if interrupted before the server was ready."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    words = list(sys.argv[1:] if arguments is None else arguments)
    own, triton_options = (
        (words[: words.index("--")], words[words.index("--") + 1 :])
        if "--" in words
        else (words, [])
    )
    called = [word for word in own[:1] if word in _COMMANDS]
    parser = make_parser(called)
    parser.set_defaults(triton_options=triton_options, own_process=arguments is None)
    return run(parser, own, (CommandError, *(() if called == ["serve"] else _find_model_errors())))


def _find_model_errors() -> tuple[type[Exception], ...]:
    """Return the errors of commands that read or run models themselves."""
    from model_runtime.errors import ModelRuntimeError
    from simipu.errors import SimIpuError

    return ModelRuntimeError, SimIpuError


def _demo(options: argparse.Namespace) -> int:
    from poprt.terminal import make_console

    from poplar_triton.demo import examples, runner

    check_repository(options.model_repository)
    if not examples(options.model_repository):
        raise ServerError(
            f"{options.model_repository}: expected one of the example models, found none"
        )
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
    from poprt.terminal import make_console

    from poplar_triton.recipes import build, read_recipes

    if not read_recipes(options.model_repository):
        raise RecipeError(
            f"{options.model_repository}: expected model folders with a recipe.json, found none; "
            "nothing to build"
        )
    build(
        options.model_repository,
        force=options.force,
        only=options.only or None,
        console=make_console(),
    )
    return 0


def _install(options: argparse.Namespace) -> int:
    print_line(f"wrote {install(options.backends_dir)}")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from poprt.terminal import cell, make_console
    from rich.table import Table

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
    """Return the modelled seconds that the IPU takes for `rows` rows of a model, in whole runs."""
    from model_runtime import Session

    sessions: dict[str, Session] = {}

    def seconds(model: str, rows: int) -> float:
        if model not in sessions:
            sessions[model] = Session(repository / model / "1" / "executable.popef")
        session = sessions[model]
        return -(-rows // session.rows_per_run) * session.seconds

    return seconds


def make_parser(names: Iterable[str] = ()) -> Parser:
    """Return the parser of these commands, or of all."""
    parser = Parser(
        prog="poplar-triton",
        description="Serve PopEF models on Triton, on a simulated IPU.",
        version=f"poplar-triton {__version__}",
        examples=(
            "poplar-triton doctor",
            "poplar-triton serve models",
            "poplar-triton COMMAND --help",
        ),
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in names or _COMMANDS:
        _COMMANDS[name](commands)
    return parser


def _add_serve(commands: Commands[Parser]) -> None:
    text = "start a tritonserver on a model repository and supervise it"
    serve = _add(
        commands,
        "serve",
        serve_command.run,
        text,
        serve_command.EXAMPLES,
        epilog=serve_command.EPILOG,
    )
    serve_command.add_arguments(serve)
    _add_server_options(serve, (8000, 8001, 8002), with_store=True)


def _add_tfserving(commands: Commands[Parser]) -> None:
    from poplar_triton.tfserving import command

    text = "serve models to TensorFlow Serving clients, over gRPC and REST"
    command.add_arguments(
        _add(commands, "tfserving", command.run, text, command.EXAMPLES, epilog=command.EPILOG)
    )


def _add_demo(commands: Commands[Parser]) -> None:
    examples = ("poplar-triton demo model_repository",)
    text = "serve the example models, query them and compare the answers with ONNX Runtime"
    _add_server_options(_add(commands, "demo", _demo, text, examples), (0, 0, 0))


def _add_build(commands: Commands[Parser]) -> None:
    examples = (
        "poplar-triton build model_repository",
        "poplar-triton build model_repository --only magika --force",
    )
    make = _add(
        commands,
        "build",
        _build,
        "compile the models of a repository that have a recipe.json",
        examples,
    )
    make.add_path("model_repository", folder=True, type=Path, metavar="MODEL_REPOSITORY")
    make.add_argument(
        "--only", nargs="+", default=[], metavar="MODEL", help="compile only these models"
    )
    make.add_argument("--force", action="store_true", help="recompile models that are up to date")


def _add_profile(commands: Commands[Parser]) -> None:
    from poplar_triton.profile import command

    text = "estimate a model's time and memory on the chip (modelled)"
    command.add_arguments(_add(commands, "profile", command.run, text, command.EXAMPLES))


def _add_install(commands: Commands[Parser]) -> None:
    examples = ("poplar-triton install /opt/tritonserver/backends",)
    put = _add(
        commands,
        "install",
        _install,
        "install the backend into an existing Triton server",
        examples,
    )
    put.add_path(
        "backends_dir",
        folder=True,
        type=Path,
        metavar="BACKENDS_DIR",
        help="backend directory of the Triton server, such as /opt/tritonserver/backends",
    )


def _add_doctor(commands: Commands[Parser]) -> None:
    text = "check this machine's prerequisites for the embedded server"
    look = _add(
        commands, "doctor", _doctor, text, ("poplar-triton doctor", "poplar-triton doctor --json")
    )
    look.add_argument("--json", action="store_true", help="machine-readable")


_COMMANDS: dict[str, Callable[[Commands[Parser]], None]] = {
    "serve": _add_serve,
    "tfserving": _add_tfserving,
    "demo": _add_demo,
    "build": _add_build,
    "profile": _add_profile,
    "install": _add_install,
    "doctor": _add_doctor,
}
"""Functions that each add a parser, in the order of the help."""


def _add(
    commands: Commands[Parser],
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


def _add_server_options(
    parser: Parser, ports: tuple[int, int, int], *, with_store: bool = False
) -> None:
    kind = find_repository if with_store else Path
    parser.add_path("model_repository", folder=True, type=kind, metavar="MODEL_REPOSITORY")
    port_type = whole_number(0, 65535)
    for name, port in zip(("http", "grpc", "metrics"), ports, strict=True):
        parser.add_argument(
            f"--{name}-port",
            type=port_type,
            default=port,
            metavar="N",
            help="0: any free port (default: %(default)s)",
        )


if __name__ == "__main__":
    sys.exit(main())
