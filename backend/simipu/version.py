"""Versions of the simulator's executables and of `onnx`, and the text of PopRT's `--version`.
Nothing else is imported, so that it is printed at once."""

from __future__ import annotations

import hashlib
from importlib import util
from pathlib import Path

from popef._tools.version import __version__

FORMAT_VERSION = 4
"""Version of the format. Every change that makes an older reader misunderstand a newer payload, or
compute something else, increases it."""


def package_hash() -> str:
    """Return the hash that identifies this version of the simulator, as the Poplar package hash
    identifies an SDK.

    Executables contain it. Loading one with another hash fails unless `check_package_hash` is off.
    """
    return hashlib.sha1(
        f"simipu executable format {FORMAT_VERSION}".encode(), usedforsecurity=False
    ).hexdigest()[:10]


def find_onnx_version() -> str:
    """Return the version of the package `onnx`, which is not imported: that takes 0.1 s."""
    spec = util.find_spec("onnx")
    assert spec is not None
    assert spec.origin is not None
    for folder in Path(spec.origin).parents[1].glob("onnx-*.dist-info"):
        return folder.name
    # Installed in an unusual way. Imported here: it takes 2 MiB.
    from importlib import metadata

    return metadata.version("onnx")


def describe_poprt() -> str:
    """Return the real tool's three lines: its version, and its SDK at build time and run time."""
    sdk = f"simulated IPU (package hash {package_hash()})"
    return f"PopRT version: {__version__}\nSDK built with: {sdk}\nSDK at run time: {sdk}"
