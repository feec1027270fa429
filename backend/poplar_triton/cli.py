"""The `poplar-triton` command: serve, tfserving, demo, build, profile, compare, tune, export,
migrate, install, doctor.

The supervisor of `serve` runs as long as the server. So a command imports its modules itself, and
only the called command adds its arguments. This keeps numpy and ONNX Runtime out of the supervisor.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Container, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from popef._tools.arguments import Parser
from popef._tools.console import print_line, run
from popef._tools.version import __version__
from poplar_triton import doctor
from poplar_triton.errors import CommandError, RecipeError, ServerError
from poplar_triton.serving import command as serve_command
from poplar_triton.serving.command import MAX_PORT, add_number, make_server
from poplar_triton.serving.installation import install
from poplar_triton.serving.repository import check_repository, find_repository

Command = Callable[[argparse.Namespace], int]
Commands = argparse._SubParsersAction  # noqa: SLF001  what add_subparsers returns has no other name
Add = Callable[..., Parser]
"""Function that adds the parser of a command: `_add` with the command's name and text."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return 0 on success, 1 for bad input or a missing part, 2 for wrong usage,
    and 130 if interrupted before the server was ready."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    end = words.index("--") if "--" in words else len(words)
    own, triton_options = words[:end], words[end + 1 :]
    called = [word for word in own if word in _COMMANDS][:1]
    if called and called[0] not in _SERVERS:
        from poprt.terminal import configure_logging

        configure_logging("poplar-triton", "WARNING")
    parser = make_parser(called if called or own in _LISTINGS else None)
    parser.set_defaults(triton_options=triton_options, own_process=arguments is None)
    return run(parser, own, (CommandError, *(() if called == ["serve"] else _find_model_errors())))


_LISTINGS: tuple[list[str], ...] = ([], ["-h"], ["--help"])
"""Words that need no command's arguments."""
_SERVERS = ("serve", "tfserving")
"""Commands that have a log of their own."""


def _find_model_errors() -> tuple[type[Exception], ...]:
    """Return the errors of commands that read or run models themselves."""
    from model_runtime import ModelRuntimeError
    from simipu.errors import SimIpuError
    from triton_poplar.errors import ModelConfigError

    return ModelConfigError, ModelRuntimeError, SimIpuError


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
        urls = server.http_url, server.grpc_url
        ipu_seconds = _ipu_seconds(options.model_repository)
        equal = runner.run(*urls, options.model_repository, console, ipu_seconds=ipu_seconds)
    return 0 if equal and server.exit_status == 0 else 1


def _build(options: argparse.Namespace) -> int:
    from poprt.terminal import make_console

    from poplar_triton.recipes import build, read_recipes

    if not read_recipes(options.model_repository):
        raise RecipeError(
            f"{options.model_repository}: expected model folders with a recipe.json, found none; "
            "nothing to build"
        )
    only, console = options.only or None, make_console()
    build(options.model_repository, force=options.force, only=only, console=console)
    return 0


def _install(options: argparse.Namespace) -> int:
    print_line(f"wrote {install(options.backends_dir)}")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    from poprt.terminal import cell, make_console
    from rich.table import Table

    packages = map(doctor.examine_package, doctor.SDK_PACKAGES)
    findings = [*doctor.examine(), doctor.examine_kernels(), *packages, doctor.examine_tensorflow()]
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        table = Table("what", "found", "how to get it")
        for finding in findings:
            table.add_row(*map(cell, (finding.subject, finding.found, finding.advice)))
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


def make_parser(names: Container[str] | None = None) -> Parser:
    """Return the parser of all commands. Those of the commands that are not among `names` (None:
    all) have no arguments, and their modules are not imported."""
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
    for name, (text, add_command) in _COMMANDS.items():
        if names is None or name in names:
            add_command(partial(_add, commands, name, text))
        else:
            commands.add_parser(name, help=text)
    return parser


def _add_serve(add: Add) -> None:
    serve = add(serve_command.run, serve_command.EXAMPLES, serve_command.EPILOG)
    serve_command.add_arguments(serve)
    _add_server_options(serve, find_repository, (8000, 8001, 8002))


def _add_tfserving(add: Add) -> None:
    from poplar_triton.tfserving import command

    command.add_arguments(add(command.run, command.EXAMPLES, command.EPILOG))


def _add_demo(add: Add) -> None:
    examples = ("poplar-triton demo model_repository",)
    _add_server_options(add(_demo, examples), Path, (0, 0, 0))


def _add_build(add: Add) -> None:
    examples = (
        "poplar-triton build model_repository",
        "poplar-triton build model_repository --only magika --force",
    )
    make = add(_build, examples)
    repository_help = "folder of model folders, some of which have a recipe.json"
    make.add_path(
        "model_repository",
        folder=True,
        reads="folder",
        type=Path,
        metavar="MODEL_REPOSITORY",
        help=repository_help,
    )
    make.add_argument(
        "--only", nargs="+", default=[], metavar="MODEL", help="compile only these models"
    )
    make.add_argument("--force", action="store_true", help="recompile models that are up to date")


def _add_profile(add: Add) -> None:
    from poplar_triton.profile import command

    command.add_arguments(add(command.run, command.EXAMPLES))


def _add_compare(add: Add) -> None:
    from poplar_triton.compare import command

    compare = add(command.run, command.EXAMPLES)
    compare.surplus_advice = "did you mean poplar-triton profile MODEL --compare {word}?"
    command.add_arguments(compare)


def _add_tune(add: Add) -> None:
    from poplar_triton.tune import command

    command.add_arguments(add(command.run, command.EXAMPLES))


def _add_export(add: Add) -> None:
    from poplar_triton.export import command

    command.add_arguments(add(command.run, command.EXAMPLES))


def _add_migrate(add: Add) -> None:
    from poplar_triton.migrate import command

    command.add_arguments(add(command.run, command.EXAMPLES))


def _add_install(add: Add) -> None:
    put = add(_install, ("poplar-triton install /opt/tritonserver/backends",))
    put.add_path(
        "backends_dir",
        folder=True,
        reads="folder",
        type=Path,
        metavar="BACKENDS_DIR",
        help="backend directory of the Triton server, such as /opt/tritonserver/backends",
    )


def _add_doctor(add: Add) -> None:
    look = add(_doctor, ("poplar-triton doctor", "poplar-triton doctor --json"))
    look.add_argument("--json", action="store_true", help="machine-readable")


_COMMANDS: dict[str, tuple[str, Callable[[Add], None]]] = {
    "serve": ("start a tritonserver on a model repository and supervise it", _add_serve),
    "tfserving": ("serve models to TensorFlow Serving clients, over gRPC and REST", _add_tfserving),
    "demo": (
        "serve the example models, query them and compare the answers with ONNX Runtime",
        _add_demo,
    ),
    "build": ("compile the models of a repository that have a recipe.json", _add_build),
    "profile": ("estimate a model's time and memory on the chip (modelled)", _add_profile),
    "compare": (
        "compare chips (modelled) with this machine (measured): speed, energy and cost",
        _add_compare,
    ),
    "tune": (
        "find the fastest configuration of a model on this machine: engine, threads, instances",
        _add_tune,
    ),
    "export": (
        "write a model for Triton's onnxruntime or openvino backend, or as plain ONNX",
        _add_export,
    ),
    "migrate": (
        "find the graphs of a repository of a real IPU, and write one that serves without it",
        _add_migrate,
    ),
    "install": ("install the backend into an existing Triton server", _add_install),
    "doctor": ("check this machine's prerequisites for the embedded server", _add_doctor),
}
"""What each command does, and the function that adds its arguments, in the order of the help."""


def _add(
    commands: Commands[Parser],
    name: str,
    text: str,
    run: Command,
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
    parser: Parser, kind: Callable[[str], Path | str], ports: tuple[int, int, int]
) -> None:
    repository_help = "folder of model folders, as in a Triton model repository"
    parser.add_path(
        "model_repository",
        folder=True,
        reads="folder",
        type=kind,
        metavar="MODEL_REPOSITORY",
        help=repository_help,
    )
    for name, port in zip(("http", "grpc", "metrics"), ports, strict=True):
        add_number(parser, f"--{name}-port", (0, MAX_PORT), port, "0: any free port")


if __name__ == "__main__":
    sys.exit(main())
