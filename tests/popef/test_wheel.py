"""Tests of popef's own wheel: its contents, its requirements, and its use in an environment with
numpy alone."""

from __future__ import annotations

import email
import importlib.util
import json
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow  # builds a wheel and an environment

SOURCE = Path(__file__).parents[2] / "popef"


def run(*command: str | Path, folder: Path) -> str:
    return subprocess.run(command, check=True, cwd=folder, stdout=subprocess.PIPE, text=True).stdout


def build_options() -> list[str]:
    """Return the options that use the environment's setuptools if possible; otherwise pip downloads
    one."""
    usable = (
        importlib.util.find_spec("setuptools") and int(version("setuptools").split(".")[0]) >= 77
    )
    return ["--no-build-isolation"] if usable else []


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from a copy, because a build leaves its folders beside the sources."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(
        SOURCE,
        folder / "popef",
        ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"),
    )
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        *build_options(),
        "-w",
        ".",
        "./popef",
        folder=folder,
    )
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the bin folder of an environment with pip, this environment's numpy and the wheel. pip
    found all requirements met."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder / "venv", with_pip=True)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (folder / "numpy_alone").mkdir()
    for path in Path(np.__file__).parents[1].glob("numpy[.-]*"):
        (folder / "numpy_alone" / path.name).symlink_to(path)
    (folder / "numpy_alone" / "numpy").symlink_to(Path(np.__file__).parent)
    (packages / "numpy.pth").write_text(str(folder / "numpy_alone"))
    programs = folder / "venv" / "bin"
    run(
        programs / "python",
        "-I",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        wheel,
        folder=folder,
    )
    return programs


def test_it_needs_numpy_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(path))
    needed = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert needed == ["numpy>=1.23.5"]
    assert sorted(metadata.get_all("Provides-Extra", [])) == ["completion", "fp8", "zstd"]
    assert "reconstruction" in metadata.get_payload()  # the README


def test_it_holds_every_module_its_types_the_format_and_the_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    sources = wheel.parent / "popef"
    modules = [path.relative_to(sources) for path in sources.rglob("*.py")]
    expected = {f"popef/{path}" for path in modules if path.parts[0] != "build"}
    expected |= {"popef/py.typed", "popef/FORMAT.md"}
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert any(name.endswith("/LICENSE") for name in names)


def test_its_readme_runs_where_only_numpy_is(installed: Path, tmp_path: Path) -> None:
    read, write = re.findall(r"```python\n(.*?)```", (SOURCE / "README.md").read_text(), re.DOTALL)
    found = run(
        installed / "python", "-I", "-c", f"{write}{read}print(popef.__file__)", folder=tmp_path
    ).splitlines()
    assert found[:2] == ["w (2, 3) F32", "[('w', 'INPUT')]"]
    assert Path(found[2]).is_relative_to(installed.parent)
    document = json.loads(run(installed / "popef_dump", "--json", "model.popef", folder=tmp_path))
    assert len(document["blobs"]) == 3


@pytest.mark.parametrize("command", ["popef", "popef_dump"])
def test_its_commands_start(installed: Path, tmp_path: Path, command: str) -> None:
    assert run(installed / command, "--help", folder=tmp_path).startswith(f"usage: {command}")


def test_pip_lists_only_numpy_beside_it(installed: Path, tmp_path: Path) -> None:
    listed = json.loads(
        run(installed / "python", "-I", "-m", "pip", "list", "--format=json", folder=tmp_path)
    )
    assert {package["name"] for package in listed} - {"pip", "setuptools"} == {"numpy", "popef"}
