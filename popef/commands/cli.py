"""The command `popef`: verify, extract, diff, compress, decompress, merge, split."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Collection, Sequence

from .._tools.arguments import Parser, count
from .._tools.console import Progress, UsageError, print_line, run
from .._tools.text import did_you_mean, name_some
from .._tools.version import __version__
from ..enums import BlobType, enumerant
from ..errors import PopefError, Severity
from ..reader import Reader
from ..scan import Blob
from .compare import iter_differences
from .rewrite import count_bytes, extract, merge, recode, split, write_payload
from .verify import Verification


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0 for success and 1 for bad input or a difference.

    A wrong call exits with 2 (argparse).
    """
    return run(make_parser(), argv)


def make_parser() -> Parser:
    parser = Parser(
        prog="popef",
        description="Check, split, merge and rewrite PopEF files.",
        version=f"popef {__version__}",
        examples=(
            "popef verify model.popef",
            "popef extract model.popef -o payloads",
            "popef COMMAND --help",
        ),
    )

    examples: tuple[str, ...] = (
        "popef verify executable.popef weights.popef",
        "popef verify --strict --json model.popef",
    )
    text = "check files against every rule of FORMAT.md; print one line per finding"
    command = parser.add_command("verify", _verify, text, examples=examples)
    command.add_path(
        "files", nargs="+", reads="file", metavar="FILE", help="PopEF files of one model"
    )
    command.add_argument("--strict", action="store_true", help="fail on warnings too")
    command.add_argument(
        "--json", action="store_true", help="print one JSON document instead of lines"
    )

    examples = (
        "popef extract model.popef -o payloads",
        "popef extract model.popef --type opaque --name popart -o - | xxd",
    )
    text = "write payloads: arrays as .npy, executables decompressed, metadata as JSON"
    command = parser.add_command("extract", _extract, text, examples=examples)
    command.add_path("file", reads="file", metavar="FILE")
    command.add_argument(
        "--blob",
        type=count,
        action="append",
        metavar="N",
        help="only the blob with this index; repeatable",
    )
    command.add_argument(
        "--name", action="append", metavar="NAME", help="only blobs with this name; repeatable"
    )
    kinds = {enumerant(kind): kind for kind in BlobType}
    command.add_argument(
        "--type", choices=kinds, action="append", help="only blobs of this type; repeatable"
    )
    command.add_argument("--raw", action="store_true", help="the raw bytes, compressed or not")
    _add_output_folder(command, "; -: stdout")
    command.add_argument("--overwrite", action="store_true", help="replace existing files")

    text = "compare two files, blob by blob and field by field; exit 1 if they differ"
    examples = ("popef diff old.popef new.popef",)
    command = parser.add_command("diff", _diff, text, examples=examples)
    command.add_path("first", reads="file", metavar="FIRST")
    command.add_path("second", reads="file", metavar="SECOND")
    command.add_argument("--json", action="store_true", help="print a JSON list instead of lines")

    for name, done in (("compress", "compressed"), ("decompress", "decompressed")):
        examples = (f"popef {name} model.popef -o other.popef", f"popef {name} models/*.popef")
        text = f"write files again with every executable {done}"
        command = parser.add_command(name, _recode, text, examples=examples)
        command.add_path("files", nargs="+", reads="file", metavar="FILE")
        command.add_path(
            "-o",
            "--output",
            writes="file",
            metavar="FILE",
            help=f"output file (default: FILE_{done}.popef); for one input file only",
        )
        command.set_defaults(compress=name == "compress", done=done)

    examples = ("popef merge executable.popef weights.popef -o model.popef",)
    text = "merge the blobs of several files into one"
    command = parser.add_command("merge", _merge, text, examples=examples)
    command.add_path("files", nargs="+", reads="file", metavar="FILE")
    command.add_path(
        "-o", "--output", required=True, writes="file", metavar="FILE", help="output file"
    )

    examples = ("popef split model.popef --by data -o parts",)
    text = "split the blobs of one file into several"
    command = parser.add_command("split", _split, text, examples=examples)
    command.add_path("file", reads="file", metavar="FILE")
    command.add_argument(
        "--by",
        choices=("model", "data", "blob"),
        default="model",
        help="one file per model, separate data, or one file per blob",
    )
    _add_output_folder(command)
    return parser


def _add_output_folder(command: Parser, more: str = "") -> None:
    text = f"output folder (default: current folder{more})"
    command.add_path(
        "-o", "--output", folder=True, writes="folder", default=".", metavar="DIR", help=text
    )


def _verify(options: argparse.Namespace) -> int:
    verification = Verification(options.files)
    errors = sum(finding.severity is Severity.ERROR for finding in verification.findings)
    warnings = len(verification.findings) - errors
    if options.json:
        findings = [
            {
                "severity": finding.severity.value,
                "rule": str(finding.rule or "limit"),
                "text": finding.text,
            }
            for finding in verification.findings
        ]
        print(json.dumps({"files": options.files, "findings": findings}, indent=2))
    else:
        for finding in verification.findings:
            print_line(finding)
        sys.stdout.flush()
        print(
            f"popef: {len(verification.blobs)} sound blobs, {errors} errors, {warnings} warnings",
            file=sys.stderr,
        )
    return int(errors > 0 or (options.strict and warnings > 0))


def _extract(options: argparse.Namespace) -> int:
    with Reader(mapped=False) as reader:
        reader.parseFile(options.file)
        blobs = [blob for blob in reader.blobs() if _wanted(blob, options)]
        _check_names(options, {blob.name for blob in reader.blobs()})
        if not blobs:
            raise PopefError(
                f"{options.file}: expected a blob to extract, found none that matches; see "
                "popef_dump"
            )
        if options.output == "-":
            if len(blobs) > 1:
                raise PopefError(
                    f"{options.file}: expected one blob for stdout, got {len(blobs)}; choose with "
                    "--blob"
                )
            write_payload(blobs[0], sys.stdout.buffer, raw=options.raw)
            return 0
        os.makedirs(options.output, exist_ok=True)
        progress = Progress("extracting", sum(map(count_bytes, blobs)))
        for blob in progress.track(blobs, count_bytes):
            print_line(extract(blob, options.output, raw=options.raw, overwrite=options.overwrite))
    return 0


def _wanted(blob: Blob, options: argparse.Namespace) -> bool:
    return (
        (options.blob is None or blob.index in options.blob)
        and (options.type is None or enumerant(blob.type) in options.type)
        and (options.name is None or getattr(blob.structure, "name", None) in options.name)
    )


def _diff(options: argparse.Namespace) -> int:
    with Reader(mapped=False) as first, Reader(mapped=False) as second:
        first.parseFile(options.first)
        second.parseFile(options.second)
        differences = list(iter_differences(first, second))
    if options.json:
        print(json.dumps(differences, indent=2))
    else:
        for difference in differences:
            print_line(difference)
    return int(bool(differences))


def _check_names(options: argparse.Namespace, known_names: Collection[str]) -> None:
    """Raise PopefError for a name that no blob has."""
    for name in options.name or ():
        if name not in known_names:
            raise PopefError(
                f"{options.file}: --name: expected the name of a blob, found {name!r}; names are "
                f"{name_some(sorted(filter(None, known_names)))}{did_you_mean(name, known_names)}"
            )


def _recode(options: argparse.Namespace) -> int:
    if options.output is not None and len(options.files) > 1:
        raise UsageError(
            f"--output: expected one input file, got {len(options.files)}; omit --output"
        )
    for file in options.files:
        root, extension = os.path.splitext(file)
        target = options.output or f"{root}_{options.done}{extension}"
        recode(file, target, compress=options.compress)
        print_line(f"{target}: {os.path.getsize(target)} bytes, {file} has {os.path.getsize(file)}")
    return 0


def _merge(options: argparse.Namespace) -> int:
    merge(options.files, options.output)
    print_line(options.output)
    return 0


def _split(options: argparse.Namespace) -> int:
    for path in split(options.file, options.output, options.by):
        print_line(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
