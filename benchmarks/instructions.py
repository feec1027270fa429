"""ONNX Runtime and our kernels with AVX2 and without AVX-512, on a processor that has both.

ONNX Runtime has no switch for that. It asks the system whether AVX-512's registers are saved (the
instruction `xgetbv`), and a copy of its library is told that only those of AVX2 are.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import onnxruntime
from simipu.kernels import OPTION, find_kernels

NATIVE, AVX2 = "native", "avx2"
ASKS = bytes.fromhex("31c9 0f01d0")
"""xor ecx, ecx; xgetbv: which registers the system saves, into eax."""
ANSWERS = bytes.fromhex("31c9 b007 90")
"""xor ecx, ecx; mov al, 7; nop: those of x87, SSE and AVX."""


def has_avx512() -> bool:
    """Return whether the kernels use AVX-512 on this processor."""
    return find_kernels().instructions == "avx512"


@contextmanager
def _limited_library() -> Iterator[Path]:
    """Yield a folder with a copy of the package `onnxruntime` that sees no AVX-512."""
    package = Path(onnxruntime.__file__).parent
    with TemporaryDirectory() as folder:
        copy = Path(folder, package.name)
        shutil.copytree(package, copy, ignore=shutil.ignore_patterns("tools", "transformers"))
        (library,) = (copy / "capi").glob("onnxruntime_pybind11_state*.so")
        code = library.read_bytes()
        if ASKS not in code:
            raise SystemExit(f"benchmarks: {library.name} has no check of AVX-512 that we know")
        library.write_bytes(code.replace(ASKS, ANSWERS))
        yield Path(folder)


def run_with_avx2(command: Sequence[str]) -> None:
    """Run a command of Python with AVX2 only; raises SystemExit if it fails."""
    with _limited_library() as folder:
        environment = {**os.environ, "PYTHONPATH": str(folder), OPTION: AVX2}
        done = subprocess.run([sys.executable, *command], env=environment, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
