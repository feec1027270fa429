"""The command popef_dump: what a PopEF file holds, in the words of the real tool (Listing 1.1 of the backend guide)."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from .describe import tree
from .enums import BlobType
from .errors import PopefError
from .reader import FeedReader, Reader, TensorReader
from .scan import Blob

# Listing 1.1 gives the words for the first three; tensor and feed data follow their pattern.
_TITLES = {
    BlobType.OPAQUE: ("OpaqueBlob", "Structure size"),
    BlobType.POPLAR_EXECUTABLE: ("Executable", "header size"),
    BlobType.METADATA: ("Metadata", ""),
    BlobType.DATA_TENSOR: ("TensorData", "header size"),
    BlobType.DATA_FEED: ("FeedData", "header size"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; 0 when the file is fine, 1 when it is not, 2 (from argparse) for a wrong call."""
    options = _parser().parse_args(argv)
    try:
        with Reader() as reader:
            reader.parseFile(options.file)
            blobs = [blob for blob in reader.blobs() if not options.metadata or _is_metadata(blob)]
            text = _json(options.file, blobs, values=options.all) if options.json else _log(blobs, values=options.all)
    except (OSError, PopefError) as error:
        message = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        print(
            f"popef_dump: {options.file}: {message}" if isinstance(error, OSError) else f"popef_dump: {message}",
            file=sys.stderr,
        )
        return 1
    sys.stdout.write(text)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="popef_dump", description="Print what a PopEF file holds.")
    parser.add_argument("file", help="the PopEF file")
    parser.add_argument("-m", "--metadata", action="store_true", help="only the metadata")
    parser.add_argument("--all", action="store_true", help="also summarise the values of tensor and feed data")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of log lines")
    return parser


def _is_metadata(blob: Blob) -> bool:
    return blob.header.type() is BlobType.METADATA


def _log(blobs: list[Blob], *, values: bool) -> str:
    return "".join(f"{_stamp()} [popef:cpp] [debug] {line}\n" for blob in blobs for line in _lines(blob, values=values))


def _stamp() -> str:
    now = time.time()
    return time.strftime("[%H:%M:%S", time.localtime(now)) + f".{int(now * 1000) % 1000:03}]"


def _lines(blob: Blob, *, values: bool) -> list[str]:
    title, size_name = _TITLES[blob.header.type()]
    size = f" {size_name}: {blob.structure_bytes}" if size_name else ""
    lines = [f"Read header: {blob.header}", f"start end: {blob.start} {blob.end}", f"Read {title}: {blob.structure}{size}"]
    summary = _summary(blob) if values else None
    if summary is not None:
        lines.append(f"{title} values: {json.dumps(summary)}")
    return lines


def _json(path: str, blobs: list[Blob], *, values: bool) -> str:
    return json.dumps({"file": path, "blobs": [_blob_json(blob, values=values) for blob in blobs]}, indent=2) + "\n"


def _blob_json(blob: Blob, *, values: bool) -> dict[str, Any]:
    result: dict[str, Any] = {
        "start": blob.start,
        "end": blob.end,
        "header": tree(blob.header.SCHEMA, blob.header.values()),
        "structureSize": blob.structure_bytes,
        "payloadSize": blob.payload_bytes,
        "structure": tree(blob.structure.SCHEMA, blob.structure.values()),
    }
    summary = _summary(blob) if values else None
    if summary is not None:
        result["values"] = summary
    return result


def _summary(blob: Blob) -> dict[str, Any] | None:
    """Count, extremes and first values of tensor and feed data; None for other blobs. Not-a-numbers are text."""
    if blob.header.type() not in (BlobType.DATA_TENSOR, BlobType.DATA_FEED):
        return None
    read = TensorReader if blob.header.type() is BlobType.DATA_TENSOR else FeedReader
    data = read(blob).data().reshape(-1)
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
