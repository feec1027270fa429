"""The TensorFlow that this package stands on: a stock one, of a version that works."""

from __future__ import annotations

from typing import Final

MIN_VERSION: Final = (2, 16)
"""Older ones pin protobuf and numpy below what this project needs; 2.21 is what is tested."""
GRAPHCORE_MARK: Final = "+gc"
"""What the versions of Graphcore's own TensorFlow contain, as 2.6.3+gc3.4.0."""


def check_tensorflow(version: str) -> None:
    """Check the version of the TensorFlow that is imported.

    Args:
        version: The version.

    Raises:
        ImportError: For Graphcore's own TensorFlow, and for one that is too old.
    """
    if GRAPHCORE_MARK in version:
        raise ImportError(
            f"tensorflow {version} is Graphcore's own, and tensorflow-ipu has overwritten a part "
            "of it: install both again, in two environments"
        )
    numbers = [int(part) for part in version.split(".")[:2] if part.isdecimal()]
    if tuple(numbers) < MIN_VERSION:
        raise ImportError(
            f"tensorflow.python.ipu requires TensorFlow {'.'.join(map(str, MIN_VERSION))} or "
            f"later, found {version}: pip install 'tensorflow-cpu>=2.21'"
        )
