"""popart, popdist, poptorch and pva are distributions of the real packages' names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import popart
import popdist
import pva
import pytest

tomllib = pytest.importorskip("tomllib")  # from Python 3.11 on

ROOT = Path(__file__).parents[1]
NAMES = ("popart", "popdist", "poptorch", "pva")


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


@pytest.mark.parametrize("folder", [".", *(f"backend/{name}" for name in NAMES)])
def test_each_requires_exactly_the_others_of_its_own_release(folder):
    project = read_project(folder)["project"]
    extras = project.get("optional-dependencies", {}).values()
    required = [*project.get("dependencies", ()), *(each for extra in extras for each in extra)]
    found = [each for each in required if each.startswith(NAMES)]
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
    assert set(found["exclude"]) == {f"{name}*" for name in NAMES}
