"""What pyproject.toml cannot say: the popef that is needed is the one of the very same version, and how the
kernels are compiled.

They become a library that needs neither Python nor a certain version of it, so one wheel does for all. Where
nothing compiles them the installation goes on: `simipu.kernels` says so, and ONNX Runtime computes alone.
"""

import os
import platform
import shlex
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

VERSION = Path(__file__).with_name("popef").joinpath("VERSION").read_text(encoding="utf-8").strip()

KERNELS = Path("backend/simipu/kernels")
LIBRARY = "simipu.kernels.libsimipu"
FLAGS = [
    *("-std=c11", "-O3", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden", "-pthread"),
    # Every product and sum is rounded as it is written down.
    *("-ffp-contract=off", "-fno-math-errno"),
]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq"]
SETS = (
    {"portable": [], "avx2": AVX2, "avx512": AVX512} if platform.machine() == "x86_64" else {"portable": []}
)
UNITS = {
    "operators": ("operators.c", []),
    "dispatch": ("dispatch.c", []),
    **{name: ("set.c", flags) for name, flags in SETS.items()},
}
"""What is compiled, by the name of what it makes: set.c once for each set of instructions."""


def compile_units(folder: Path, extra: tuple[str, ...] = ()) -> list[str]:
    """The objects of all units, made in `folder`; CompileError where there is no compiler or it refuses."""
    compiler = find_compiler()
    folder.mkdir(parents=True, exist_ok=True)

    def compile_unit(name: str) -> str:
        source, flags = UNITS[name]
        made = str(folder / f"{name}.o")
        run([*compiler, *FLAGS, *flags, *extra, "-c", str(KERNELS / source), "-o", made])
        return made

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(compile_unit, UNITS))


def find_compiler() -> list[str]:
    """The command in CC, or the system's compiler. Not the one that Python was made with, nor its flags."""
    found = (
        shlex.split(os.environ.get("CC", ""))
        or [name for name in ("cc", "gcc", "clang") if shutil.which(name)][:1]
    )
    if not found:
        raise CompileError("no C compiler (cc, gcc or clang): install one, or name it in CC")
    return found


def run(command: list[str]) -> None:
    """Run a compiler; CompileError with what it says."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CompileError(f"{command[0]}: {error}") from error
    if done.returncode:
        raise CompileError(f"{shlex.join(command)}: exit status {done.returncode}\n{done.stderr}")


class BuildKernels(build_ext):
    """Compiles the kernels in the place of a module of Python's."""

    def build_extension(self, ext: Extension) -> None:
        """Compile and link."""
        library = Path(self.get_ext_fullpath(ext.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        objects = compile_units(Path(self.build_temp))
        run([*find_compiler(), "-shared", "-pthread", *objects, "-o", str(library)])

    def get_ext_filename(self, ext_name: str) -> str:
        """No tag of Python's: nothing of it is used."""
        return os.path.join(*ext_name.split(".")) + ".so"

    def copy_extensions_to_source(self) -> None:
        """To the checkout of an editable installation, in the place of what an older one left there."""
        Path(self.get_finalized_command("build_py").get_package_dir("simipu.kernels"), "libsimipu.so").unlink(
            missing_ok=True
        )
        super().copy_extensions_to_source()


class OneWheel(bdist_wheel):
    """A wheel of one platform, for every Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        """For any Python and ABI."""
        return ("py3", "none", super().get_tag()[2])


REQUIRED = [
    f"popef=={VERSION}",
    # Bounded above where a major version has broken this project: numpy 2 the binding of Triton's stub,
    # protobuf 5 and 6 what older generated code was allowed (tritonclient, which has most of it, says the
    # same).
    "numpy>=1.23.5,<3",
    "protobuf>=4.25.1,<7",
    "onnx>=1.16",
    "onnxruntime>=1.18",
    "rich>=13",
    # MIT, 1 MiB: reads the files of --config_yaml.
    "pyyaml>=6",
    # Apache-2.0 and BSD-2-Clause, pure Python: writes the page of metrics of `poplar-triton serve`.
    "prometheus-client>=0.17",
    # MPL-2.0, 60 KiB, needs nothing: writes the shells' completion scripts out of argparse, as the real
    # poprt does with it.
    "shtab>=1.7",
    # BSD-3-Clause, 1 MiB, with gRPC (Apache-2.0) 20 MiB: Triton's own message of a model configuration,
    # which poprt writes.
    "tritonclient[grpc]>=2.50",
]

# Tests take `compile_units` from here.
if __name__ == "__main__":
    setup(
        install_requires=REQUIRED,
        cmdclass={"build_ext": BuildKernels, "bdist_wheel": OneWheel},
        ext_modules=[
            Extension(
                LIBRARY,
                sources=sorted(str(path) for path in KERNELS.glob("*.c")),
                depends=sorted(str(path) for path in KERNELS.glob("*.h")),
                optional=True,
            )
        ],
    )
