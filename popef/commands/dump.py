"""The command popef_dump: prints the content of a PopEF file in the wording of the real tool
(Listing 1.1 of the backend guide)."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from .._tools.arguments import Parser
from .._tools.console import naming, run
from .._tools.text import escape_lines
from .._tools.version import __version__
from ..enums import BlobType, enumerant
from ..log import log_line
from ..reader import FeedReader, Reader, TensorReader
from ..record import tree
from ..scan import TITLES, Blob, describe_blob
from .words import describe_words


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0 for a valid file and 1 for an invalid one. A wrong call exits with
    2 (argparse)."""
    return run(make_parser(), argv)


def _print(options: argparse.Namespace) -> int:
    for line in _lines(options):
        with naming("standard output"):
            print(escape_lines(line))
    return 0


def make_parser() -> Parser:
    parser = Parser(
        prog="popef_dump",
        description="Print the contents of a PopEF file.",
        version=f"popef_dump {__version__}",
        examples=(
            "popef_dump --metadata model.popef",
            "popef_dump --json --all weights.popef",
            "popef_dump --words damaged.popef",
        ),
    )
    parser.set_defaults(run=_print)
    parser.add_path("file", reads="file", help="PopEF file")
    parser.add_argument("-m", "--metadata", action="store_true", help="print only the metadata")
    parser.add_argument(
        "--all", action="store_true", help="also summarise the values of tensor and feed data"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--json", action="store_true", help="print one JSON document instead of log lines"
    )
    form.add_argument(
        "--words",
        action="store_true",
        help="print every word of headers and structures with its meaning, also of a damaged file",
    )
    return parser


def _lines(options: argparse.Namespace) -> Iterator[str]:
    if options.words:
        yield from describe_words(
            options.file, lambda kind: not options.metadata or kind is BlobType.METADATA
        )
        return
    with Reader(mapped=False) as reader:
        reader.parseFile(options.file)
        blobs = [
            blob
            for blob in reader.blobs()
            if not options.metadata or blob.type is BlobType.METADATA
        ]
        if options.json:
            document = {
                "file": options.file,
                "blobs": [_blob_json(blob, values=options.all) for blob in blobs],
            }
            yield json.dumps(document, indent=2)
        else:
            yield from _log(blobs, values=options.all)


def _log(blobs: Iterable[Blob], *, values: bool) -> Iterator[str]:
    for blob in blobs:
        lines = describe_blob(blob)
        if values and (summary := _summary(blob)) is not None:
            lines.append(f"{TITLES[blob.type][0]} values: {json.dumps(summary)}")
        for line in lines:
            yield log_line(time.time(), logging.DEBUG, line)


def _blob_json(blob: Blob, *, values: bool) -> dict[str, Any]:
    result: dict[str, Any] = {
        "start": blob.start,
        "end": blob.end,
        "header": tree(blob.header),
        "structureSize": blob.structure_bytes,
        "payloadSize": blob.payload_bytes,
        "structure": None if blob.structure is None else tree(blob.structure),
    }
    if values and (summary := _summary(blob)) is not None:
        result["values"] = summary
    return result


def _summary(blob: Blob) -> dict[str, Any] | None:
    """Return count, extremes and first values of tensor and feed data; None for other blobs.

    Not-a-numbers are given as text.
    """
    if blob.type not in (BlobType.DATA_TENSOR, BlobType.DATA_FEED):
        return None
    data_type = blob.structure.tensorInfo.dataType
    if not data_type.known:
        return {"unknown data type": enumerant(data_type)}
    data = (
        (TensorReader if blob.type is BlobType.DATA_TENSOR else FeedReader)(blob).data().reshape(-1)
    )
    summary: dict[str, Any] = {"count": data.size, "first": [_number(value) for value in data[:8]]}
    if data.size:
        # min and max are not defined for every 8-bit float dtype
        exact = data.astype(np.float32) if data.dtype.kind == "V" else data
        summary |= {"min": _number(exact.min()), "max": _number(exact.max())}
        summary["mean"] = _number(exact.mean(dtype=np.float64))
    return summary


def _number(value: Any) -> Any:
    plain = value.item() if hasattr(value, "item") else value
    if isinstance(plain, (bool, int)):
        return plain
    number = float(plain)
    return number if np.isfinite(number) else str(number)


if __name__ == "__main__":
    sys.exit(main())
