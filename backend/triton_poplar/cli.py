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

from poprt.profile import command as profile_command
from rich.console import Console
from rich.table import Table
from simipu import SimIpuError

import popef
from triton_poplar import doctor
from triton_poplar.errors import ModelConfigError, ServerError
from triton_poplar.install import install
from triton_poplar.recipes import RecipeError, build
from triton_poplar.server import TritonServer

Command = Callable[[argparse.Namespace], int]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 fine, 1 bad input or a missing part, 2 usage, 130 interrupted before the server was ready."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    words = list(sys.argv[1:] if arguments is None else arguments)
    own, triton_options = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    options = _parser().parse_args(own)
    options.triton_options = triton_options
    try:
        run: Command = options.run
        return run(options)
    except KeyboardInterrupt:
        return 130
    except (ServerError, RecipeError, ModelConfigError, SimIpuError, popef.PopefError, OSError) as error:
        print(f"poplar-triton: error: {error}", file=sys.stderr)
        return 1


def _serve(options: argparse.Namespace) -> int:
    doctor.require()
    with _server(options, log=None) as server:
        failed = server.failed_models()
        for model, reason in sorted(failed.items()):
            print(f"poplar-triton: model {model!r} is not served: {reason.partition(chr(10))[0]}", file=sys.stderr)
        name = _first_model(options.model_repository, failed)
        print(f"\nHTTP     http://{server.http_url}\ngRPC     {server.grpc_url}\nmetrics  {server.metrics_url}")
        print(f"Try: curl -s http://{server.http_url}/v2/models/{name}\nCtrl-C stops the server.\n", flush=True)
        try:
            while server.poll() is None:
                time.sleep(0.5)
            print(f"poplar-triton: error: tritonserver ended by itself, status {server.poll()}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)  # stopping takes seconds and must not be cut short
            print("stopping", flush=True)
    if server.exit_status:
        print(f"poplar-triton: error: tritonserver ended with status {server.exit_status}", file=sys.stderr)
        return 1
    return 0


def _demo(options: argparse.Namespace) -> int:
    from triton_poplar.demo import runner

    doctor.require()
    console = Console()
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
    build(options.model_repository, force=options.force, only=options.only or None, console=Console())
    return 0


def _install(options: argparse.Namespace) -> int:
    print(f"wrote {install(options.backends_dir)}")
    return 0


def _doctor(options: argparse.Namespace) -> int:
    findings = doctor.examine()
    if options.json:
        print(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        table = Table("what", "found", "how to get it")
        for finding in findings:
            table.add_row(finding.subject, finding.found, finding.remedy or "ok")
        Console().print(table)
    return 1 if any(finding.remedy for finding in findings) else 0


def _server(options: argparse.Namespace, log: Path | None) -> TritonServer:
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="poplar-triton", description="Serve PopEF models on Triton, on a simulated IPU.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="start the embedded tritonserver on a model repository",
        epilog="Options after -- go to tritonserver as they are.",
    )
    _add_server_options(serve, (8000, 8001, 8002))
    serve.set_defaults(run=_serve)
    demo = commands.add_parser("demo", help="serve the example models, ask them and compare with ONNX Runtime")
    _add_server_options(demo, (0, 0, 0))
    demo.set_defaults(run=_demo)
    make = commands.add_parser("build", help="compile the models of a repository that have a recipe.json")
    make.add_argument("model_repository", type=Path, metavar="MODEL_REPOSITORY")
    make.add_argument("--only", nargs="+", default=[], metavar="MODEL", help="these models only")
    make.add_argument("--force", action="store_true", help="compile again what is up to date")
    make.set_defaults(run=_build)
    profile = commands.add_parser("profile", help="what a model would take on the chip: time, memory, where they go (modelled)")
    profile_command.add_arguments(profile)
    profile.set_defaults(run=profile_command.run)
    put = commands.add_parser("install", help="put the backend into an existing Triton server")
    put.add_argument("backends_dir", type=Path, metavar="BACKENDS_DIR", help="for instance /opt/tritonserver/backends")
    put.set_defaults(run=_install)
    look = commands.add_parser("doctor", help="what this machine lacks for the embedded server, and how to get it")
    look.add_argument("--json", action="store_true", help="machine-readable")
    look.set_defaults(run=_doctor)
    return parser


def _add_server_options(parser: argparse.ArgumentParser, ports: tuple[int, int, int]) -> None:
    parser.add_argument("model_repository", type=Path, metavar="MODEL_REPOSITORY")
    for name, port in zip(("http", "grpc", "metrics"), ports, strict=True):
        parser.add_argument(
            f"--{name}-port", type=int, default=port, metavar="N", help="0: any free one (default: %(default)s)"
        )


if __name__ == "__main__":
    sys.exit(main())
