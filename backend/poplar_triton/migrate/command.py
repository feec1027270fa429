"""Arguments of `poplar-triton migrate`, and its steps: read, match, write, check."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

from poprt.cli import LIMITS, supervised
from poprt.terminal import cell, make_console

from popef._tools.arguments import Parser
from popef._tools.console import UsageError, naming, print_line, quieted
from popef._tools.text import escape
from poplar_triton.errors import MigrationError
from poplar_triton.migrate.check import Checked, check_repository
from poplar_triton.migrate.graphs import Graphs
from poplar_triton.migrate.output import encode, make_report, print_all
from poplar_triton.migrate.repository import find_models
from poplar_triton.migrate.verdicts import Judged, judge_all
from poplar_triton.migrate.writing import check_output, write_repository

EXAMPLES = (
    "poplar-triton migrate models --graphs onnx",
    "poplar-triton migrate models --graphs onnx exported --write served --check",
)


def add_arguments(parser: Parser) -> None:
    """Give `parser` the arguments that `run` reads."""
    add = parser.add_argument
    parser.add_path(
        "repository",
        folder=True,
        reads="folder",
        type=Path,
        metavar="REPOSITORY",
        help="model repository of a Graphcore SDK, or one of its model folders",
    )
    graphs_help = (
        "folders or files with ONNX models, SavedModels and PyTorch files, which are searched with "
        "all folders in them (default: the repository itself)"
    )
    parser.add_path(
        "--graphs",
        folder=True,
        reads="path",
        nargs="+",
        type=Path,
        default=[],
        metavar="FOLDER",
        help=graphs_help,
    )
    write_help = "write a repository with the models that run; the given one is not changed"
    parser.add_path(
        "--write", folder=True, writes="folder", type=Path, metavar="OUTPUT", help=write_help
    )
    link_help = "with --write: make links to graphs, do not copy them"
    add("--link", action="store_true", help=link_help)
    check_help = (
        "with --write: start a server on OUTPUT, send requests of 1, batch and batch + 1 rows to "
        "each model, and compare the answers with ONNX Runtime in fp32"
    )
    add("--check", action="store_true", help=check_help)
    add("--json", action="store_true", help="machine-readable")
    html_help = "write the table as a page, too"
    parser.add_path("--html", writes="file", type=Path, metavar="FILE", help=html_help)
    for option in LIMITS:
        option.add_to(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command in a child process with limits."""
    for name in ("check", "link"):
        if getattr(options, name) and options.write is None:
            raise UsageError(f"--{name}: expected --write OUTPUT with it")
    return supervised(_run)(options)


def _run(options: argparse.Namespace) -> int:
    repository: Path = options.repository
    for folder in options.graphs:
        if not folder.exists():
            raise MigrationError(f"--graphs {escape(folder)}: there is no such file or folder")
    if options.write is not None:
        check_output(options.write, repository)
    graphs = Graphs(options.graphs or [repository])
    checked: list[Checked] = []
    with quieted("triton_poplar"), tempfile.TemporaryDirectory(prefix="poplar-migrate-") as scratch:
        models = find_models(repository)
        judged = judge_all(models, graphs, Path(scratch), len(os.sched_getaffinity(0)))
        if not judged:
            raise MigrationError(
                f"{escape(repository)}: expected folders of models, each with a version folder "
                "such as 1, found none"
            )
        if options.write is not None:
            written_models = write_repository(repository, judged, options.write, links=options.link)
            if options.check and written_models:
                checked = check_repository(options.write, written_models, Path(scratch))
    _tell(options, judged, graphs, checked)
    all_run = all(model.verdict.is_good for model in judged)
    return 0 if all_run and all(check.is_right for check in checked) else 1


def _tell(
    options: argparse.Namespace, judged: list[Judged], graphs: Graphs, checked: list[Checked]
) -> None:
    faults = graphs.faults
    if options.html is not None:
        with naming(options.html):
            page = make_report(options.repository, judged, faults, checked)
            options.html.write_text(page, encoding="utf-8")
    if options.json:
        print(json.dumps(encode(judged, faults, checked, options.write), indent=2))
        return
    console = make_console()
    print_all(judged, faults, console)
    for check in checked:
        console.print(cell(" ".join(check.row)))
    if options.write is not None:
        print_line(f"wrote {escape(options.write)}; poplar-triton serve {escape(options.write)}")
