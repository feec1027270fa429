"""Real models, end to end: compiled by the real command, loaded in one real server, asked over HTTP
and gRPC, compared.

Every model of `models.json` is compiled in fp32 and in fp16 with float partials, which poprt looks
into with inputs that it makes up. A server loads all of a precision, one after the other, and keeps
them. Each is asked by several clients at once, all with different data, in requests of 1, 3, B and
2B + 1 rows of a compiled batch B, or of the compiled shape where its rows are not independent;
every answer is compared with ONNX Runtime on the original file.

Ends with status 1 when an answer in fp32 is wrong, one in fp16 is far off without a warning of
poprt's, or a model does not compile that should.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import memory
import model_report
import model_table
import model_throughput
import report
import tritonclient.grpc as grpcclient
from model_clients import check, load
from model_compile import compile_all
from model_results import Result, judge
from poplar_triton.serving.server import TritonServer
from rich.console import Console
from rich.progress import Progress

PRECISIONS = ("fp32", "fp16")
DOCUMENT = Path(__file__).parents[1] / "docs" / "models.md"
"""Written where nothing was left out."""


def serve_all(
    results: list[Result], repository: Path, log: Path, seconds: float, progress: Progress
) -> None:
    """Load the models compiled in a precision into one server, query one after the other, then take
    the next precision.

    A small machine does not hold both.
    """
    options = ("--model-control-mode=explicit",)
    with (
        TritonServer(repository, log=log, options=options) as server,
        grpcclient.InferenceServerClient(server.grpc_url) as client,
    ):
        for precision in PRECISIONS:
            compiled = [
                result for result in results if result.precision == precision and not result.refusal
            ]
            loaded = []
            for result in progress.track(compiled, description=f"loading {precision}"):
                if served := load(client, server, result, seconds):
                    loaded.append((served, result))
            for served, result in progress.track(loaded, description=f"asking {precision}"):
                check(server, served, result, seconds)
            for served, _ in loaded:
                client.unload_model(served.name)
            memory.wait_for_stubs(server.pid, 0, seconds)


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="NAME",
        help="models, by their names in models.json",
    )
    parser.add_argument(
        "--precision", nargs="+", choices=PRECISIONS, default=PRECISIONS, help="(default: both)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=300,
        help="for each step of a model (default %(default).0f)",
    )
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="leave the compiled models, results and log there"
    )
    parser.add_argument(
        "--throughput",
        action="store_true",
        help="recurrent models beside ONNX Runtime in a Python model, too",
    )
    parser.add_argument(
        "--rounds", type=int, default=3, help="of --throughput (default %(default)s)"
    )
    return parser.parse_args()


def main() -> int:
    """Measure, and print the report."""
    options = parse_options()
    console = report.make_console()
    models = model_table.read_models(options.only)
    results = [Result(model, precision) for model in models for precision in options.precision]
    with tempfile.TemporaryDirectory() as name:
        folder = options.keep or Path(name)
        repository = folder / "models"
        repository.mkdir(parents=True, exist_ok=True)
        # Bars go to the other stream: the tables may be redirected.
        with Progress(console=Console(stderr=True), transient=True) as progress:
            compile_all(results, repository, options.seconds, progress)
            serve_all(results, repository, folder / "log", options.seconds, progress)
        (folder / "results.json").write_text(
            json.dumps([_to_json(result) for result in results], indent=1)
        )
        compared = (
            model_throughput.compare(results, repository, folder, options.rounds, console)
            if options.throughput
            else []
        )
    problems = {result.name: problem for result in results if (problem := judge(result))}
    tables = model_report.make_tables(results, compared)
    for table in tables:
        console.print(table.to_rich())
    if len(results) == len(PRECISIONS) * len(model_table.read_models()):
        DOCUMENT.write_text(model_report.make_document(tables, results))
    for served, problem in problems.items():
        console.print(f"{served}: {problem}", style="red", soft_wrap=True, markup=False)
    return 1 if problems else 0


def _to_json(result: Result) -> dict[str, Any]:
    fields = dataclasses.asdict(result)
    return {**fields, "model": result.model.name, "problem": judge(result)}


if __name__ == "__main__":
    sys.exit(main())
