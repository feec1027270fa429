"""The chip's arithmetic in C (kernels.h says what it computes), as a library of operators for ONNX Runtime:
where it is, and whether it can be used here.

It is compiled when the project is installed. Without it `numerics` writes the same arithmetic out in ONNX
Runtime's own operators: the same numbers, slower.
"""

from __future__ import annotations

import ctypes
import logging
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import onnxruntime

from simipu.errors import LoadError

LIBRARY = Path(__file__).with_name("libsimipu.so")
OPTION = "SIMIPU_KERNELS"
"""The environment variable that chooses: `none`, or a set of instructions that the machine has."""
NONE = "none"
CHOICES = ("avx512", "avx2", "portable", NONE)

_log = logging.getLogger("simipu")


@dataclass(frozen=True, slots=True)
class Kernels:
    """What computes sums in half and rounds: the instructions that the kernels use, one of CHOICES, and, of
    none, why."""

    instructions: str
    reason: str = ""

    @property
    def are_there(self) -> bool:
        """Whether the library can be used."""
        return self.instructions != NONE


@cache
def find_kernels() -> Kernels:
    """Load the library, once for a process, and say in the log what was found. Raises LoadError when the
    environment asks for what there is not."""
    wanted = os.environ.get(OPTION, "")
    if wanted not in ("", *CHOICES):
        raise LoadError(f"environment variable {OPTION}: expected {', '.join(CHOICES)}, found {wanted!r}")
    found = Kernels(NONE, f"{OPTION} is {NONE}") if wanted == NONE else _load()
    if wanted not in ("", found.instructions):
        raise LoadError(
            f"environment variable {OPTION}: expected what this machine has, found {wanted!r}; it has "
            f"{found.instructions}{found.reason and f' ({found.reason})'}"
        )
    if found.are_there:
        _log.info("kernels: %s", found.instructions)
    else:
        _log.info("no kernels: %s", found.reason)
    return found


@cache
def warn_of_none() -> None:
    """Say, once for a process, that a model in half is computed without kernels."""
    reason = find_kernels().reason
    _log.warning("no kernels: %s; half precision gives the same numbers, several times slower", reason)


def _load() -> Kernels:
    if not LIBRARY.is_file():
        return Kernels(
            NONE,
            f"{LIBRARY} is missing: there was no C compiler when the project was installed; install again",
        )
    try:
        library = ctypes.CDLL(str(LIBRARY))
        onnxruntime.SessionOptions().register_custom_ops_library(str(LIBRARY))
    except Exception as error:  # noqa: BLE001  ONNX Runtime's have no base
        return Kernels(NONE, f"{LIBRARY} does not load: {error}")
    library.simipu_instructions.restype = ctypes.c_char_p
    return Kernels(library.simipu_instructions().decode())
