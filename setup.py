"""The parts of the installation that pyproject.toml cannot express.

They are the exact version of popef that is needed, and the compilation of the kernels.

The kernels become a library that needs neither Python nor a certain version of it.
So one wheel fits all.
If they cannot be compiled, the installation goes on.
Then `simipu.kernels` says so, and ONNX Runtime computes alone.
"""

import os
import runpy
import shutil
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

VERSION = Path(__file__).with_name("popef").joinpath("VERSION").read_text(encoding="utf-8").strip()

KERNELS = Path("backend/simipu/kernels")
BUILD = runpy.run_path(str(KERNELS / "build.py"), run_name="build")


class BuildKernels(build_ext):
    """Build step that compiles the kernels in the place of a Python module."""

    def build_extension(self, ext: Extension) -> None:
        """Compile and link."""
        library = Path(self.get_ext_fullpath(ext.name))
        library.parent.mkdir(parents=True, exist_ok=True)
        compile_units, folder = BUILD["compile_units"], Path(self.build_temp)
        try:
            try:
                objects = compile_units(folder)
            except BUILD["CompilerError"] as error:
                # Warnings of another compiler are no reason to build no kernels.
                self.warn(str(error))
                objects = compile_units(folder, extra=("-Wno-error",))
            BUILD["link"](objects, library)
        except BUILD["CompilerError"] as error:
            raise CompileError(str(error)) from error

    def get_ext_filename(self, ext_name: str) -> str:
        """Return a file name without Python's tag, because nothing of Python is used."""
        return os.path.join(*ext_name.split(".")) + ".so"

    def copy_extensions_to_source(self) -> None:
        """Copy extensions to an editable installation's checkout, replacing the older ones.

        The file is there at every moment: another environment of the checkout may be running.
        """
        folder = Path(self.get_finalized_command("build_py").get_package_dir("simipu.kernels"))
        built = Path(self.build_lib, self.get_ext_filename(self.extensions[0].name))
        staged = folder / "libsimipu.so.new"
        shutil.copy2(built, staged)
        staged.replace(folder / "libsimipu.so")


class OneWheel(bdist_wheel):
    """Wheel of one platform, for every Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the wheel's tag, for any Python 3 and ABI."""
        return ("py3", "none", super().get_tag()[2])


REQUIRED = [
    f"popef=={VERSION}",
    # Major versions above the tested ones are excluded: earlier ones broke the binding of Triton's
    # stub (numpy 2) and older generated code (protobuf 5 and 6).
    "numpy>=1.23.5,<3",
    "protobuf>=6.33.5,<8",  # what tritonclient's messages are generated with, at least
    "onnx>=1.16",
    "onnxruntime>=1.18",
    "rich>=13",
    # MIT, 1 MiB: reads the files of --config_yaml.
    "pyyaml>=6",
    # Apache-2.0 and BSD-2-Clause, pure Python: writes the page of metrics of `poplar-triton serve`.
    "prometheus-client>=0.17",
    # MPL-2.0, 60 KiB, needs nothing: writes the shells' completion scripts out of argparse, as the
    # real poprt does with it.
    "shtab>=1.7",
    # BSD-3-Clause, 1 MiB: Triton's own message of a model configuration, which poprt writes. Its
    # extra [grpc] pins protobuf<7, although its messages work with 7; what the extra brings else is
    # named here.
    "tritonclient>=2.50",
    "grpcio>=1.81.1",  # Apache-2.0, 20 MiB; at least what tritonclient's stubs are generated with
    "packaging>=14.1",  # Apache-2.0 or BSD-2-Clause, 70 KiB
]

setup(
    install_requires=REQUIRED,
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": OneWheel},
    ext_modules=[
        Extension(
            "simipu.kernels.libsimipu",
            sources=sorted(str(path) for path in KERNELS.glob("*.c")),
            depends=sorted(str(path) for path in KERNELS.glob("*.h")),
            optional=True,
        )
    ],
)
