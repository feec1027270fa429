"""popart, popdist, poptorch and pva are distributions of the real packages' names, and tensorflow-ipu
is one beside TensorFlow."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import popart
import popdist
import pva
import pytest

tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on

ROOT = Path(__file__).parents[1]
NAMES = ("popart", "popdist", "poptorch", "pva")
TENSORFLOW = ROOT / "backend" / "tensorflow_ipu"


def read_project(folder: str) -> dict[str, Any]:
    return tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(params=NAMES)
def settings(request) -> dict[str, Any]:
    return read_project(f"backend/{request.param}")


def test_their_version_is_that_of_the_packages(settings):
    version = settings["project"]["version"]
    assert version == popart.__version__ == popdist.__version__ == pva.__version__


def test_their_version_satisfies_scripts_that_ask_for_the_sdk_and_ends_with_ours():
    own = (ROOT / "popef" / "VERSION").read_text().strip()
    assert popart.__version__ == f"3.4.0+sim.{own}"


@pytest.mark.parametrize(
    "folder", [".", *(f"backend/{name}" for name in (*NAMES, "tensorflow_ipu"))]
)
def test_each_requires_exactly_the_others_of_its_own_release(folder):
    project = read_project(folder)["project"]
    extras = project.get("optional-dependencies", {}).values()
    required = [*project.get("dependencies", ()), *(each for extra in extras for each in extra)]
    found = [each for each in required if each.startswith((*NAMES, "tensorflow-ipu"))]
    own = (ROOT / "popef" / "VERSION").read_text().strip()
    assert all(each.endswith(f"=={popart.__version__}") for each in found)
    for each in required:
        if each.startswith("poplar-triton") and "[" not in each:
            assert each == f"poplar-triton=={own}"


def test_they_hold_each_of_their_folders(settings):
    name = settings["project"]["name"]
    sources = (ROOT / "backend" / name).rglob("*.py")
    folders = {path.parent.relative_to(ROOT / "backend") for path in sources}
    expected = {".".join(path.parts) for path in folders if path.parts[1:2] != ("build",)}
    assert set(settings["tool"]["setuptools"]["packages"]) == expected


def test_poplar_triton_has_none_of_their_packages():
    found = read_project(".")["tool"]["setuptools"]["packages"]["find"]
    assert set(found["exclude"]) == {f"{name}*" for name in (*NAMES, "tensorflow_ipu")}


def test_tensorflow_ipu_has_the_version_of_the_others():
    assert read_project("backend/tensorflow_ipu")["project"]["version"] == popart.__version__


def test_tensorflow_ipu_has_its_room_and_the_real_names_of_its_face():
    packages = runpy.run_path(str(TENSORFLOW / "setup.py"))["find_packages"]()
    assert {"tensorflow_ipu", "tensorflow.python.ipu", "tensorflow.python.ipu.ops"} < set(packages)
    assert {"tensorflow.compiler.plugin.poplar.driver", "keras.ipu.optimizers"} < set(packages)
    assert not {"tensorflow", "tensorflow.python", "tensorflow.compiler", "keras"} & set(packages)
    folders = {path.parent for path in TENSORFLOW.rglob("*.py")}
    assert len(packages) == len(folders - {TENSORFLOW / "build"})


@pytest.mark.parametrize("version", ["2.6.3+gc3.4.0", "1.15.5+gc3.4.0"])
def test_tensorflow_ipu_is_not_installed_beside_graphcores_tensorflow(version, monkeypatch):
    refuse = runpy.run_path(str(TENSORFLOW / "setup.py"))["refuse_real_sdk"]
    monkeypatch.setattr("importlib.metadata.version", lambda name: version)
    with pytest.raises(SystemExit, match=f"{re.escape(version)} is Graphcore's own"):
        refuse()
