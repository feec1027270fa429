"""Compilation of the kernels: by setup.py, which runs this file before anything is installed, and
by tests, with sanitizers.

The library does not depend on Python or its version.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent
FLAGS = [
    *("-std=c11", "-O3", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden", "-pthread"),
    # Every product and sum is rounded as written in the source.
    *("-ffp-contract=off", "-fno-math-errno"),
]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"]
SETS: dict[str, dict[str, list[str]]] = {
    "x86_64": {"avx2": AVX2, "avx512": AVX512},
    "aarch64": {"neon": ["-DSIMIPU_NEON"]},
}
"""Compiler flags of each instruction set besides the portable one, by kind of machine."""
COMMON = ("registry", "operators", "recurrent", "calls", "nodes", "dispatch")
"""Compilation units that are compiled once."""


class CompilerError(Exception):
    """There is no C compiler, or it reports an error."""


def find_sets() -> dict[str, list[str]]:
    """Return the flags of each instruction set of the machines that the compiler compiles for."""
    # Cross compilers are found by CC; gcc and clang both name their target.
    done = run([*find_compiler(), "-dumpmachine"])
    return {"portable": [], **SETS.get(done.split("-")[0], {})}


def compile_units(
    folder: Path, names: Iterable[str] = (), extra: tuple[str, ...] = ()
) -> list[str]:
    """Compile units into `folder`, and return the paths of their object files. Without names these
    are all units: the COMMON ones, and set.c once for each instruction set. Raises CompilerError if
    there is no compiler or it reports an error."""
    compiler, sets = find_compiler(), find_sets()
    folder.mkdir(parents=True, exist_ok=True)

    def compile_unit(name: str) -> str:
        source, object_file = "set.c" if name in sets else f"{name}.c", str(folder / f"{name}.o")
        flags = [*FLAGS, *sets.get(name, []), *extra]
        run([*compiler, *flags, "-c", str(SOURCES / source), "-o", object_file])
        return object_file

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_unit, names or (*COMMON, *sets)))


def find_compiler(
    language: str = "C", variable: str = "CC", names: tuple[str, ...] = ("cc", "gcc", "clang")
) -> list[str]:
    """Return the command in CC, or the system's C compiler, or the same for another language. It is
    not the compiler that built Python, and does not use that compiler's flags."""
    compiler = (
        shlex.split(os.environ.get(variable, ""))
        or [name for name in names if shutil.which(name)][:1]
    )
    if not compiler:
        listed = f"{', '.join(names[:-1])} or {names[-1]}"
        raise CompilerError(
            f"no {language} compiler ({listed}): install one, or name it in {variable}"
        )
    return compiler


def link(objects: Iterable[str], library: Path, extra: tuple[str, ...] = ()) -> None:
    """Link object files to a library. Raises the errors of `compile_units`."""
    run([*find_compiler(), "-shared", "-pthread", *extra, *objects, "-o", str(library)])


def run(command: list[str]) -> str:
    """Run a compiler, and return its output. Raises CompilerError with its errors."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CompilerError(f"{command[0]}: {error}") from error
    if done.returncode:
        raise CompilerError(f"{shlex.join(command)}: exit status {done.returncode}\n{done.stderr}")
    return done.stdout
