"""Find the packages, and refuse to be installed beside a real SDK's TensorFlow."""

import sys
from importlib import metadata
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

FOLDER = Path(__file__).resolve().parent
FACES = {
    "tensorflow.python.ipu": "face",
    "tensorflow.compiler.plugin": "face_plugin",
    "keras.ipu": "face_keras",
    "tensorflow.python.keras.datasets": "face_datasets",
    "ipu_tensorflow_addons": "face_addons",
}
"""Package under a real name to the folder that has it."""


def find_packages() -> list[str]:
    """Return the names of all packages: those of the room, and those of the face."""
    folders = [
        path.parent.relative_to(FOLDER)
        for path in sorted(FOLDER.rglob("__init__.py"))
        if path.relative_to(FOLDER).parts[0] != "build"
    ]
    names = {folder: name for name, folder in FACES.items()}
    return [
        ".".join([names.get(next(iter(folder.parts), ""), "tensorflow_ipu"), *parts])
        for folder in folders
        for parts in [
            folder.parts[1:] if folder.parts[:1] and folder.parts[0] in names else folder.parts
        ]
    ]


def refuse_real_sdk() -> None:
    """End the installation where a real SDK's TensorFlow is installed.

    An isolated build does not see it. Then Python's version keeps both apart: the real wheels need
    Python 3.6 or 3.8.
    """
    try:
        version = metadata.version("tensorflow")
    except metadata.PackageNotFoundError:
        return
    if "+gc" in version:
        sys.exit(
            f"tensorflow-ipu: tensorflow {version} is Graphcore's own, which has "
            "tensorflow.python.ipu: use another environment, with tensorflow-cpu 2.21 or later"
        )


class WithoutSetup(build_py):
    """Build step that leaves this file out, which lies in the folder of a package."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """Return package, name and path of the modules of a package."""
        modules = super().find_package_modules(package, package_dir)
        return [module for module in modules if module[:2] != ("tensorflow_ipu", "setup")]


if __name__ == "__main__":
    refuse_real_sdk()
    setup(
        packages=find_packages(),
        package_dir={"tensorflow_ipu": ".", **FACES},
        cmdclass={"build_py": WithoutSetup},
    )
