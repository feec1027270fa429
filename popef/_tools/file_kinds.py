"""What a file is, by its first bytes, for errors about a file that is not what was expected.

People give a file that a tool has left in the place of a model (a Git LFS pointer, a page that says
"Not Found"), or a model of another framework. The error of a parser says where the bytes end to
make sense; these tables say what they are, and what to do. Nothing here decides whether a file is
valid.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

HEAD_BYTES = 4096
"""Number of bytes that are enough to recognise a file."""
_MAX_LEVELS, _MAX_ENTRIES = 3, 200
"""Levels of folders, and entries of each, that are searched for models: a repository has models,
versions and files."""


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file: `name` with its article, and `advice`, which says what to do with it."""

    name: str
    advice: str

    def __str__(self) -> str:
        return f"{self.name}; {self.advice}"


ONNX = FileKind("an ONNX model", "compile it with poprt")
POPEF = FileKind("a PopEF file", "it is compiled already: serve it, or give the ONNX model")
EMPTY = FileKind("an empty file", "write or download it again")
_EXPORT = "export the model to ONNX (torch.onnx.export)"
_UNPACK = "unpack it, and give the file in it"
_CONVERT = "convert it to ONNX (tf2onnx)"
_AGAIN = "the download failed, or needs a login: download the file again"
LFS_POINTER = FileKind("a Git LFS pointer", "fetch the file itself with `git lfs pull`")
_STARTS = (
    (b"version https://git-lfs.github.com/spec/", LFS_POINTER),
    (b"version https://hawser.github.com/spec/", LFS_POINTER),
    (b"# xet version ", FileKind("a pointer of Git Xet", "fetch the file itself with `git xet`")),
    (b"/annex/objects/", FileKind("a git-annex pointer", "fetch the file with `git annex get`")),
    (b"\x89HDF\r\n\x1a\n", FileKind("an HDF5 file (Keras)", _CONVERT)),
    (b"\x93NUMPY", FileKind("a numpy array (.npy)", "give the model, not its data")),
    (b"GGUF", FileKind("a GGUF file (llama.cpp)", "export the original model to ONNX")),
    (b"ggml", FileKind("a GGML file (llama.cpp)", "export the original model to ONNX")),
    (b"\x1f\x8b", FileKind("a gzip archive", _UNPACK)),
    (b"BZh", FileKind("a bzip2 archive", _UNPACK)),
    (b"\xfd7zXZ\x00", FileKind("an xz archive", _UNPACK)),
    (b"\x28\xb5\x2f\xfd", FileKind("a zstd archive", _UNPACK)),
    (b"7z\xbc\xaf\x27\x1c", FileKind("a 7z archive", _UNPACK)),
    (b"Rar!\x1a\x07", FileKind("a RAR archive", _UNPACK)),
    (b"\x7fELF", FileKind("a program or shared library (ELF)", "give the model")),
    (b"%PDF-", FileKind("a PDF document", "give the model")),
    (b"\x89PNG\r\n", FileKind("a PNG image", "give the model")),
    (b"\xff\xd8\xff", FileKind("a JPEG image", "give the model")),
    (b"ftrt", FileKind("a TensorRT engine", "give the ONNX model that it was made of")),
    (b"ptrt", FileKind("a TensorRT engine", "give the ONNX model that it was made of")),
)
"""Kinds by the bytes that a file begins with."""
_AT_FOUR = {
    b"TFL3": FileKind("a TensorFlow Lite model", _CONVERT),
    b"ORTM": FileKind("a model in ONNX Runtime's own format (.ort)", "give the .onnx file"),
}
"""Kinds by their FlatBuffers identifier, at byte 4."""
_PYTORCH = FileKind("a PyTorch archive (torch.save)", _EXPORT)
_IN_ZIP = (
    (b"constants.pkl", FileKind("a TorchScript archive", _EXPORT)),
    (b"data.pkl", _PYTORCH),
    (b"/version", _PYTORCH),
    (b".weights.h5", FileKind("a Keras archive (.keras)", _CONVERT)),
    (b".npy", FileKind("a numpy archive (.npz)", "give the model, not its data")),
    (b".onnx", FileKind("a zip archive with an ONNX file", _UNPACK)),
    (b".popef", FileKind("a zip archive with a PopEF file", _UNPACK)),
)
"""Kinds of zip archives by a part of the name of one of their first members."""
_PAGES = (b"<!doctype html", b"<html", b"<head", b"<body", b"<script")
_POPEF_HEADER = struct.Struct("<IIQ")
"""Segments less 1, words of the first one, and its root pointer."""
_MARKS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be", b"\xef\xbb\xbf": "utf-8"}
_TAR_MAGIC, _TAR_PLACE = b"ustar", 257
"""Magic of a tar archive, and its position in the header of the first file (POSIX ustar)."""
_MIN_ONNX_VERSION, _MAX_ONNX_VERSION = 3, 31
"""Range of an ONNX model's `ir_version`, its first field. Above it are printable characters, so
that no text is taken for a model."""
_PICKLE_PROTOCOLS = range(2, 6)
"""Protocols of pickle that begin with the opcode PROTO and their number: protocols 0 and 1 have no
such beginning."""
_MAX_SAFETENSORS_HEADER = 100_000_000
"""Maximum size of the header of a safetensors file, by its specification."""
_MAX_SHOWN = 40
_REFUSAL = re.compile(
    r"(\d{3}\b|(\w+ )?not found\b|error\b|access denied\b|invalid )", re.IGNORECASE
)
"""Beginning of a line by which stores refuse a download. No other contents are shown: the error of
a model reaches the clients of a server, and its file may be a link to one that they may not
read."""


def recognize_file(path: str | os.PathLike[str]) -> FileKind | None:
    """Return what a regular file is; None if that is unknown, or the file cannot be read."""
    try:
        if not os.path.isfile(path):
            return None
        with open(path, "rb") as stream:
            return recognize(stream.read(HEAD_BYTES))
    except OSError:
        return None


def name_models(folder: str | os.PathLike[str], *suffixes: str) -> list[str]:
    """Return the paths of model files in a folder, relative to it and sorted: those that end in the
    first suffix of which there is one. Few levels and entries are searched, and no links."""
    paths = sorted(_iter_files(os.fspath(folder), suffixes, _MAX_LEVELS))
    by_suffix = ([path for path in paths if path.endswith(suffix)] for suffix in suffixes)
    return next(filter(None, by_suffix), [])


def _iter_files(folder: str, suffixes: tuple[str, ...], levels: int) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            listed = sorted(islice(entries, _MAX_ENTRIES), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in listed:
        if entry.name.endswith(suffixes) and entry.is_file():
            yield entry.name
        elif levels > 1 and entry.is_dir(follow_symlinks=False):
            for path in _iter_files(entry.path, suffixes, levels - 1):
                yield os.path.join(entry.name, path)


def recognize(head: bytes) -> FileKind | None:
    """Return what a file is that begins with `head`, or None if that is unknown."""
    if not head:
        return EMPTY
    for start, kind in _STARTS:
        if head.startswith(start):
            return kind
    return (
        _AT_FOUR.get(head[4:8])
        or _recognize_archive(head)
        or _recognize_text(head)
        or _recognize_binary(head)
    )


def recognize_substitute(head: bytes) -> FileKind | None:
    """Return what a file is that a tool has left in the place of another one: a pointer, or a page.

    Raw numbers never begin so.
    """
    kind = recognize(head)
    names = ("pointer", "page", "XML", "answer")
    return kind if kind is not None and any(name in kind.name for name in names) else None


def describe_found(
    source: bytes | str | os.PathLike[str], expected: FileKind, error: object
) -> str:
    """Return what a file or its bytes are in the place of the expected kind, or the parser's error
    if that is unknown."""
    kind = recognize(source[:HEAD_BYTES]) if isinstance(source, bytes) else recognize_file(source)
    return " ".join(str(error).split()) if kind in (None, expected) else str(kind)


def explain(path: str | os.PathLike[str], expected: FileKind) -> str:
    """Return what to add to the error about a file that is not of the expected kind, or ""."""
    kind = recognize_file(path)
    return "" if kind in (None, expected) else f"; it is {kind}"


def explain_bytes(content: bytes, expected: FileKind) -> str:
    """Return what to add to the error about bytes that are not of the expected kind, or ""."""
    kind = recognize(content[:HEAD_BYTES])
    return "" if kind in (None, expected) else f"; this is {kind}"


def _recognize_archive(head: bytes) -> FileKind | None:
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        for name, kind in _IN_ZIP:
            if name in head:
                return kind
        return FileKind("a zip archive", _UNPACK)
    if head[_TAR_PLACE:].startswith(_TAR_MAGIC):
        return FileKind("a tar archive", _UNPACK)
    if head[0] == 0x80 and len(head) > 1 and head[1] in _PICKLE_PROTOCOLS:  # noqa: PLR2004  PROTO
        return FileKind("a Python pickle (PyTorch, scikit-learn)", _EXPORT)
    size = int.from_bytes(head[:8], "little")
    if head[8:10] in (b'{"', b"{}", b"{ ") and 1 < size <= _MAX_SAFETENSORS_HEADER:
        advice = "it has weights without a graph: export the model to ONNX"
        return FileKind("a safetensors file", advice)
    return None


def _recognize_text(head: bytes) -> FileKind | None:
    encoding = next((name for mark, name in _MARKS.items() if head.startswith(mark)), "utf-8")
    text = head.decode(encoding, "ignore").lstrip("\ufeff").strip()
    lower = text[:HEAD_BYTES].lower().encode()
    if lower.startswith(_PAGES) or (lower.startswith(b"<") and b"<html" in lower):
        return FileKind("a web page (HTML)", _AGAIN)
    if lower.startswith((b"<?xml", b"<error", b"<net ")):
        if b"<net " in lower:
            return FileKind("an OpenVINO model (XML)", "give the ONNX model")
        return FileKind("an XML document, as stores answer errors", _AGAIN)
    if not text or not all(letter.isprintable() or letter in "\r\n\t" for letter in text):
        return None
    if text.startswith(("{", "[")):
        return FileKind("JSON text", f"{_AGAIN}, or give the model")
    line = text.splitlines()[0]
    if len(line) <= _MAX_SHOWN and _REFUSAL.match(line):
        return FileKind(f"the answer of a store ({line!r})", _AGAIN)
    return FileKind("a text file", "give the model")


def _recognize_binary(head: bytes) -> FileKind | None:
    if head.startswith(b"\x08\x01\x12"):
        return FileKind("a TensorFlow SavedModel", "poprt --framework tensorflow reads its folder")
    if head[0] == 0x0A and any(name in head for name in (b"Placeholder", b"Const", b"NoOp")):  # noqa: PLR2004  field 1
        return FileKind("a TensorFlow graph (GraphDef)", _CONVERT)
    # Field 1, which is the version.
    if head[:1] == b"\x08" and _MIN_ONNX_VERSION <= max(head[1:2], default=0) <= _MAX_ONNX_VERSION:
        return ONNX
    if len(head) >= _POPEF_HEADER.size:
        segments, words, root = _POPEF_HEADER.unpack_from(head)
        # A header is one small segment, whose root is a structure right behind the pointer.
        if not segments and 1 < words < 64 and not root & 0xFFFFFFFF and root >> 32:  # noqa: PLR2004
            return POPEF
    return None
