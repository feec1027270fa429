"""The `popef_dump` command: prints what a file holds, as the real tool does (Listing 1.1 of the backend guide)."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime

from popef.describe import json_text, tree
from popef.enums import BlobType, enumerant
from popef.errors import PopefError
from popef.reader import Blob, Reader
from popef.schema import BLOB_HEADER, PAYLOAD_STRUCTURE

_READ = {
    BlobType.POPLAR_EXECUTABLE: ("Executable", "header size"),
    BlobType.METADATA: ("Metadata", ""),
    BlobType.DATA_TENSOR: ("TensorDataInfo", "Structure size"),
    BlobType.DATA_FEED: ("FeedDataInfo", "Structure size"),
    BlobType.OPAQUE: ("OpaqueBlob", "Structure size"),
}
"""What the real tool calls each structure, and what it says before its size."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 fine, 1 bad input, 2 usage."""
    parser = argparse.ArgumentParser(prog="popef_dump", description="Print the content of a PopEF file.")
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("-m", dest="metadata_only", action="store_true", help="metadata only")
    parser.add_argument("--all", action="store_true", help="also the values of tensor data and feeds, abridged")
    parser.add_argument("--json", action="store_true", help="machine-readable")
    options = parser.parse_args(arguments)
    try:
        reader = Reader()
        reader.parseFile(options.file)
        if options.json:
            print(json.dumps([_as_json(blob) for blob in reader.blobs()], indent=2))
        else:
            for line in iter_lines(reader, metadata_only=options.metadata_only, values=options.all):
                stamp = datetime.now().strftime("%H:%M:%S.%f")[:-3]
                print(line if options.metadata_only else f"[{stamp}] [popef:cpp] [debug] {line}")
    except (PopefError, OSError) as error:
        print(f"popef_dump: error: {error}", file=sys.stderr)
        return 1
    return 0


def iter_lines(reader: Reader, *, metadata_only: bool = False, values: bool = False) -> Iterator[str]:
    """The lines of the dump, without time stamps."""
    for blob in reader.blobs():
        if metadata_only:
            if blob.type is BlobType.METADATA:
                yield _structure(blob)
            continue
        yield "Read header: " + json_text(tree(BLOB_HEADER, _header(blob)))
        yield f"start end: {blob.start} {blob.end}"
        yield _read_line(blob)
    if values and not metadata_only:
        for tensor in reader.tensors():
            yield f"Data of {tensor.info.name()}: {_abridge(str(tensor.data()))}"
        for feed in reader.feeds():
            yield f"Data of {feed.info.name()}: {_abridge(str(feed.data()))}"


def _read_line(blob: Blob) -> str:
    name, size_label = _READ[blob.type]
    size = blob.payload_start - blob.structure_start
    suffix = f" {size_label}: {size}" if size_label else ""
    return f"Read {name}: {_structure(blob)}{suffix}"


def _structure(blob: Blob) -> str:
    return json_text(tree(PAYLOAD_STRUCTURE[blob.type], blob.values))


def _header(blob: Blob) -> dict[str, object]:
    return {"version": blob.version, "type": blob.type, "size": blob.end - blob.start}


def _abridge(text: str) -> str:
    return " ".join(text.split())


def _as_json(blob: Blob) -> dict[str, object]:
    return {
        "start": blob.start,
        "end": blob.end,
        "type": enumerant(blob.type),
        "version": blob.version,
        "structure": tree(PAYLOAD_STRUCTURE[blob.type], blob.values),
        "payloadSize": len(blob.payload),
    }


if __name__ == "__main__":
    sys.exit(main())
