"""Files that people give in the place of a model, made by the tools that make them, and a word that
an error about each must have."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Mapping

import numpy as np


def _zip(members: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return made.getvalue()


def _tar() -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("model.onnx"))
    return made.getvalue()


def _numpy(*, many: bool) -> bytes:
    made = io.BytesIO()
    array = np.arange(12.0)
    if many:
        np.savez(made, array)
    else:
        np.save(made, array)
    return made.getvalue()


def _safetensors() -> bytes:
    header = {"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(16)


_LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "4d" * 32 + "\nsize 12345678\n"
_S3 = '<?xml version="1.0"?>\n<Error><Code>NoSuchKey</Code><Message>no key</Message></Error>'
_IR = '<?xml version="1.0"?>\n<net name="m" version="11"><layers></layers></net>'

POINTERS = {
    "Git LFS": _LFS.encode(),
    "Git LFS ": _LFS.replace("\n", "\r\n").encode(),
    "git-annex": b"/annex/objects/SHA256E-s2--aa.onnx\n",
    "HTML": b"<!DOCTYPE html><html><body>Not Found</body></html>",
    "HTML ": b"\xef\xbb\xbf\n  <HTML>\n<head><title>Sign in</title></head>",
    "HTML  ": "<!doctype html>\n<html>Ä</html>".encode("utf-16"),
    "XML": _S3.encode(),
}
"""What tools leave in the place of a file, weights included."""
FILES = {
    **POINTERS,
    "OpenVINO": _IR.encode(),
    "JSON": b'{"error": "Repository not found"}',
    "text": b'name: "m"\nbackend: "poplar"\n',
    "PyTorch": _zip({"archive/data.pkl": b"x", "archive/version": b"3"}),
    "TorchScript": _zip({"net/constants.pkl": b"x", "net/data.pkl": b"x"}),
    "Keras": _zip({"metadata.json": b"{}", "model.weights.h5": b"x"}),
    "npz": _numpy(many=True),
    "npy": _numpy(many=False),
    "zip": _zip({"README": b"x"}, zipfile.ZIP_DEFLATED),
    "zip archive with an ONNX": _zip({"model.onnx": b"x"}),
    "pickle": pickle.dumps({"state_dict": [1.0]}),
    "safetensors": _safetensors(),
    "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(40),
    "gzip": gzip.compress(b"model"),
    "xz": lzma.compress(b"model"),
    "tar": _tar(),
    "TensorFlow Lite": struct.pack("<I", 28) + b"TFL3" + bytes(40),
    ".ort": struct.pack("<I", 28) + b"ORTM" + bytes(40),
    "GGUF": b"GGUF" + struct.pack("<IQQ", 3, 0, 0),
    "SavedModel": b"\x08\x01\x12\xd2\x04\x0a\x40" + bytes(600),
    "GraphDef": b"\x0a\x1f\x0a\x01x\x12\x0bPlaceholder" + bytes(40),
    "ELF": b"\x7fELF\x02\x01\x01" + bytes(60),
}
"""Content by a word that says what it is."""
