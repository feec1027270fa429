"""Compilation of the kernels: by setup.py, which runs this file before anything is installed, and
by tests, with sanitizers.

The library does not depend on Python or its version.
"""

from __future__ import annotations

import os
import platform
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
SETS: dict[str, list[str]] = {"portable": []}
"""Compiler flags of each instruction set that machines of this kind may have."""
if platform.machine() == "x86_64":
    SETS |= {"avx2": AVX2, "avx512": AVX512}
UNITS: dict[str, tuple[str, list[str]]] = {
    **{name: (f"{name}.c", []) for name in ("registry", "operators", "calls", "nodes")},
    "dispatch": ("dispatch.c", []),
    **{name: ("set.c", flags) for name, flags in SETS.items()},
}
"""Compilation units, by the name of their object file: set.c once for each instruction set."""


class CompilerError(Exception):
    """There is no C compiler, or it reports an error."""


def compile_units(
    folder: Path, names: Iterable[str] = UNITS, extra: tuple[str, ...] = ()
) -> list[str]:
    """Compile units into `folder`, and return the paths of their object files. Raises CompilerError
    if there is no compiler or it reports an error."""
    compiler = find_compiler()
    folder.mkdir(parents=True, exist_ok=True)

    def compile_unit(name: str) -> str:
        source, flags = UNITS[name]
        made = str(folder / f"{name}.o")
        run([*compiler, *FLAGS, *flags, *extra, "-c", str(SOURCES / source), "-o", made])
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_unit, names))


def find_compiler(
    language: str = "C", variable: str = "CC", names: tuple[str, ...] = ("cc", "gcc", "clang")
) -> list[str]:
    """Return the command in CC, or the system's C compiler, or the same for another language. It is
    not the compiler that built Python, and does not use that compiler's flags."""
    found = (
        shlex.split(os.environ.get(variable, ""))
        or [name for name in names if shutil.which(name)][:1]
    )
    if not found:
        known = f"{', '.join(names[:-1])} or {names[-1]}"
        raise CompilerError(
            f"no {language} compiler ({known}): install one, or name it in {variable}"
        )
    return found


def link(objects: Iterable[str], library: Path, extra: tuple[str, ...] = ()) -> None:
    """Link object files to a library. Raises the errors of `compile_units`."""
    run([*find_compiler(), "-shared", "-pthread", *extra, *objects, "-o", str(library)])


def run(command: list[str]) -> None:
    """Run a compiler. Raises CompilerError with its output."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CompilerError(f"{command[0]}: {error}") from error
    if done.returncode:
        raise CompilerError(f"{shlex.join(command)}: exit status {done.returncode}\n{done.stderr}")
