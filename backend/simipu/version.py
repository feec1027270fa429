"""Version of the simulator's executables, and the text of PopRT's `--version`. Nothing else is
imported, so that it is printed at once."""

from __future__ import annotations

import hashlib

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


def describe_poprt() -> str:
    """Return the real tool's three lines: its version, and its SDK at build time and run time."""
    sdk = f"simulated IPU (package hash {package_hash()})"
    return f"PopRT version: {__version__}\nSDK built with: {sdk}\nSDK at run time: {sdk}"
