"""`python -m poplar_serving`: builds the operators, exports a PopEF file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from model_runtime import ModelRuntimeError
from simipu import SimIpuError

from popef._tools.arguments import Parser, positive
from popef._tools.console import print_line, run
from popef._tools.version import __version__
from poplar_serving.errors import ServingError
from poplar_serving.exporting import export
from poplar_serving.library import SOURCES, build


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Return 0 on success, 1 for bad input or a missing part, 2 for wrong
    usage."""
    return run(make_parser(), arguments, (ServingError, ModelRuntimeError, SimIpuError))


def _build(options: argparse.Namespace) -> int:
    print_line(f"wrote {build(options.output, options.python)}")
    return 0


def _export(options: argparse.Namespace) -> int:
    names = options.output_names.split(",") if options.output_names else None
    export(
        options.popef,
        options.export_dir,
        output_names=names,
        purge_export_dir=options.purge_export_dir,
        timeout=options.timeout,
    )
    print_line(f"wrote {options.export_dir}")
    return 0


def _sources(_: argparse.Namespace) -> int:
    print_line(SOURCES)
    return 0


def make_parser() -> Parser:
    """Return the parser of this command."""
    parser = Parser(
        prog="python -m poplar_serving",
        description="Serve PopEF inside TensorFlow SavedModels.",
        version=f"poplar_serving {__version__}",
    )
    text = "compile the operators for the installed TensorFlow"
    make = parser.add_command("build", _build, text)
    make.add_path(
        "--output",
        writes="file",
        type=Path,
        metavar="FILE",
        help="output file (default: where poplar_serving.load looks)",
    )
    make.add_path(
        "--python", metavar="FILE", help="interpreter that runs models (default: this one)"
    )
    put = parser.add_command("export", _export, "write a SavedModel that runs a PopEF file")
    popef_help = "PopEF files of one model"
    put.add_path("popef", nargs="+", reads="file", type=Path, metavar="POPEF", help=popef_help)
    put.add_path(
        "export_dir",
        folder=True,
        writes="folder",
        type=Path,
        metavar="EXPORT_DIR",
        help="output folder, such as my_model/1",
    )
    put.add_argument(
        "--output_names",
        metavar="NAME,NAME",
        help="names of the outputs (default: output_0,output_1 and so on)",
    )
    put.add_argument("--purge_export_dir", action="store_true", help="empty EXPORT_DIR first")
    put.add_argument(
        "--timeout",
        type=positive,
        metavar="US",
        help="microseconds that a batch waits for batches of other replicas (default: 5000)",
    )
    text = "print the folder of the operators' sources, to link them into a server"
    parser.add_command("sources", _sources, text)
    return parser


if __name__ == "__main__":
    sys.exit(main())
