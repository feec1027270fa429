"""Tests of the atomic replacement of files; a file that cannot be written is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE_SECONDS

import popef
from popef._tools.staging import Staging, remove_left_overs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in "abc":
        (tmp_path / name).write_text("old")
    return tmp_path


def read_all(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in folder.iterdir()}


def test_all_take_their_places_in_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced = []
    replace = os.replace
    monkeypatch.setattr(
        os, "replace", lambda old, new: (replaced.append(Path(new).name), replace(old, new))
    )
    with Staging() as staging:
        for name in "bda":
            staging.open(folder / name).write(name.encode())
        staging.remove(folder / "c")
        assert (folder / "a").read_text() == "old"
    assert read_all(folder) == {"a": "a", "b": "b", "d": "d"}
    assert replaced == ["b", "d", "a"]


def test_an_error_leaves_everything_as_it_was(folder: Path) -> None:
    def fail() -> None:
        with Staging() as staging:
            staging.open(folder / "a").write(b"new")
            staging.remove(folder / "b")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert read_all(folder) == dict.fromkeys("abc", "old")


def test_a_folder_in_the_way_is_found_before_anything_is_replaced(folder: Path) -> None:
    def replace() -> None:
        with Staging() as staging:
            staging.open(folder / "a").write(b"new")
            staging.open(folder / "z").write(b"new")

    (folder / "z").mkdir()
    with pytest.raises(
        IsADirectoryError, match=r"expected a file to replace, found a folder: '.*z'"
    ):
        replace()
    assert (folder / "a").read_text() == "old"
    assert sorted(path.name for path in folder.iterdir()) == ["a", "b", "c", "z"]


def test_a_link_stays_and_its_file_is_replaced(folder: Path) -> None:
    (folder / "link").symlink_to("a")
    with Staging() as staging:
        staging.open(folder / "link").write(b"new")
    assert (folder / "link").is_symlink()
    assert (folder / "a").read_text() == "new"


FULL = """
import resource, sys

import popef
from popef._tools.staging import Staging
target, content = sys.argv[1], bytes(1 << 20)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
try:
    {write}
except OSError as error:
    print(error)
"""
STAGED = """
    with Staging() as staging:
        staging.open(target + ".first").write(b"small")
        staging.open(target).write(content[:{size}])
"""
WRITTEN = """
    with popef.Writer(target) as writer, writer.createExecutable("e") as blob:
        blob.write(content[:{size}])
"""


@pytest.mark.parametrize("write", [STAGED, WRITTEN])
@pytest.mark.parametrize("size", [1 << 20, (1 << 16) + 1], ids=["at once", "at last"])
def test_a_full_disk_names_the_file_and_leaves_nothing(folder: Path, write: str, size: int) -> None:
    script = FULL.format(write=write.format(size=size).strip())
    done = subprocess.run(
        [sys.executable, "-c", script, folder / "a"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    assert done.stderr == ""
    assert done.stdout == f"[Errno 27] File too large: '{folder / 'a'}'\n"
    assert read_all(folder) == dict.fromkeys("abc", "old")


def test_a_folder_that_is_not_there_is_named_by_the_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere/model\.popef'"):
        popef.Writer(tmp_path / "nowhere" / "model.popef")


def test_left_overs_of_killed_writers_are_removed(folder: Path) -> None:
    names = {".a.17.0123abcd.tmp", ".b.17.0123abcd.tmp", ".a.tmp", ".a.17.0123abcd.tmp.keep"}
    for name in names:
        (folder / name).touch()
    remove_left_overs([folder / "a"])
    assert {path.name for path in folder.glob(".*")} == names - {".a.17.0123abcd.tmp"}
