"""The chip's arithmetic in C (kernels.h defines it), as a library of operators for ONNX Runtime:
the path of the library, and whether it can be used on this machine.

It is compiled when the project is installed. Without it `numerics` expresses the same arithmetic
with ONNX Runtime's own operators: the same numbers, but slower.
"""

from __future__ import annotations

import ctypes
import logging
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import onnxruntime

from popef._tools.text import restore_characters
from simipu.errors import LoadError

LIBRARY = Path(__file__).with_name("libsimipu.so")
OPTION = "SIMIPU_KERNELS"
"""Environment variable that selects the kernels: `none`, or an instruction set of the machine."""
NONE = "none"
CHOICES = ("avx512", "avx2", "neon", "portable", NONE)

_log = logging.getLogger("simipu")


@dataclass(frozen=True, slots=True)
class Kernels:
    """Kernels that compute sums in half and round. `instructions` is their instruction set, one of
    CHOICES; `reason` says why there are none."""

    instructions: str
    reason: str = ""

    @property
    def are_there(self) -> bool:
        """Return whether the library can be used."""
        return self.instructions != NONE


@cache
def find_kernels() -> Kernels:
    """Load the library, once per process, and log the result. Raises LoadError if the environment
    variable requests kernels that are not available."""
    option = os.environ.get(OPTION, "")
    if option not in ("", *CHOICES):
        raise LoadError(
            f"environment variable {OPTION}: expected {', '.join(CHOICES)}, found {option!r}"
        )
    kernels = Kernels(NONE, f"{OPTION} is {NONE}") if option == NONE else _load()
    if option not in ("", kernels.instructions):
        raise LoadError(
            f"environment variable {OPTION}: expected the kernels of this machine, "
            f"{kernels.instructions}{kernels.reason and f' ({kernels.reason})'}, found {option!r}"
        )
    if kernels.are_there:
        _log.info("kernels: %s", kernels.instructions)
    else:
        _log.info("no kernels: %s", kernels.reason)
    return kernels


@cache
def warn_of_none() -> None:
    """Log a warning, once per process, that a model in half is computed without kernels."""
    reason = find_kernels().reason
    _log.warning(
        "no kernels: %s; half precision gives the same numbers, several times slower", reason
    )


def _load() -> Kernels:
    if not LIBRARY.is_file():
        return Kernels(
            NONE,
            f"{LIBRARY} is missing: there was no C compiler when the project was installed; "
            "install again",
        )
    try:
        library = ctypes.CDLL(str(LIBRARY))
        onnxruntime.SessionOptions().register_custom_ops_library(restore_characters(str(LIBRARY)))
    except Exception as error:  # noqa: BLE001  ONNX Runtime's exceptions have no common base
        return Kernels(NONE, f"{LIBRARY} does not load: {error}")
    library.simipu_instructions.restype = ctypes.c_char_p
    return Kernels(library.simipu_instructions().decode())
