"""Other builds of the kernels than the installed one: with sanitizers, and with the driver that
draws what to compute.

    python tests/support/kernel_builds.py SECONDS          draws for so long, then runs the
                                                            operators' tests
    python tests/support/kernel_builds.py SECONDS aarch64  draws for so long on an emulated
                                                            processor, compiled by a cross compiler
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from simipu.kernels import build

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests" / "simipu" / "kernels"
SANITIZERS = ("-O0", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover")


@cache
def find_reason() -> str:
    """Return the reason why nothing can be built here; "" if it can."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "nothing.c"
        source.write_text("int main(void) { return 0; }\n", encoding="utf-8")
        try:
            build.run([*build.find_compiler(), *SANITIZERS, str(source), "-o", f"{folder}/nothing"])
        except build.CompilerError as error:
            return f"no C compiler with sanitizers: {error}"
    return ""


def build_fuzzer(folder: Path, flags: tuple[str, ...] = SANITIZERS) -> Path:
    """Build the driver with all sets of instructions in `folder`. What it draws is small, and all
    of it is work for several threads."""
    flags = (*flags, "-DSIMIPU_SMALL_JOB=1")
    # Not the unit `dispatch`, which the driver includes.
    objects = build.compile_units(folder, build.find_sets(), flags)
    command = [*build.find_compiler(), *build.FLAGS, "-D_GNU_SOURCE", *flags]
    sources = [str(TESTS / name) for name in ("fuzz.c", "plain.c")]
    program = folder / "fuzz"
    build.run([*command, f"-I{build.SOURCES}", *sources, *objects, "-lm", "-o", str(program)])
    return program


def build_library(folder: Path) -> Path:
    """Build the library as installed, except for the sanitizers."""
    library = folder / "libsimipu.so"
    objects = build.compile_units(folder, extra=SANITIZERS)
    build.link(objects, library, SANITIZERS)
    return library


def run_operators(library: Path) -> int:
    """Run the operators' tests with that library; their status."""
    runtimes = [
        subprocess.run(
            [*build.find_compiler(), f"-print-file-name={name}"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    # Python's own memory has leaks by design.
    environment = {
        **os.environ,
        "LD_PRELOAD": ":".join(runtimes),
        "ASAN_OPTIONS": "detect_leaks=0",
        "SIMIPU_TESTED_LIBRARY": str(library),
    }
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(TESTS / "test_operators.py"),
    ]
    return subprocess.run(command, env=environment, check=False).returncode


def fuzz_aarch64(seconds: str) -> int:
    """Run the fuzzer of aarch64, and link the library; return the fuzzer's status."""
    os.environ.setdefault("CC", "aarch64-linux-gnu-gcc")
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = build_fuzzer(Path(folder), ("-O3", "-static"))
        build.link(build.compile_units(Path(folder)), Path(folder) / "libsimipu.so")
        return subprocess.run(["qemu-aarch64", fuzzer, seconds], check=False).returncode


def main() -> int:
    """Run the fuzzer and the operators; return the status of the first that fails."""
    if sys.argv[2:] == ["aarch64"]:
        return fuzz_aarch64(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        fuzzer = build_fuzzer(Path(folder))
        status = subprocess.run([fuzzer, sys.argv[1]], check=False).returncode
        return status or run_operators(build_library(Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
