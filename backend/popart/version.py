"""Versions of PopART and of the opsets that its builders offer by default."""

from __future__ import annotations

import hashlib

from popart.builder.opsets import DEFAULT_VERSION
from popef._tools.version import __version__ as _own_version

defaultAiOnnxOpset = DEFAULT_VERSION
defaultAiOnnxMlOpset = 1
defaultAiGraphcoreOpset = 1
_NUMBER = (3, 4, 0)
"""Version of the SDK whose PopART this follows."""
__version__ = f"{'.'.join(map(str, _NUMBER))}+sim.{_own_version}"
"""Version of the distribution, in the form of pip's local versions; popart's pyproject.toml and
those of poptorch and popdist repeat it."""


def versionNumber() -> tuple[int, int, int]:
    """Return the version of the PopART whose API this is."""
    return _NUMBER


def versionString() -> str:
    """Return the version of the PopART whose API this is, and ours."""
    return f"{'.'.join(map(str, _NUMBER))} (poplar-triton {_own_version})"


def packageHash() -> str:
    """Return a hash of this package's version."""
    return hashlib.sha256(versionString().encode()).hexdigest()[:10]
