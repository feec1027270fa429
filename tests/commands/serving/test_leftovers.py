"""What a server has on the machine goes with it, or, when it was killed, with the start of the next."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from commands.serving import leftovers
from commands.serving.leftovers import Belongings


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """Its /dev/shm and its folder for temporary files."""
    for name in ("shm", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", tmp_path / "shm")
    monkeypatch.setattr(leftovers.tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path


def find_files(machine):
    return sorted(
        str(file.relative_to(machine)) for name in ("shm", "tmp") for file in machine.glob(f"{name}/*")
    )


def make(machine):
    """What a server has, with a segment and a file."""
    made = Belongings()
    (machine / "shm" / f"{made.prefix}1").touch()
    (made.folder / "file").touch()
    return made


def test_what_is_given_up_is_gone(machine):
    (machine / "shm" / "another").touch()
    made = make(machine)
    assert len(find_files(machine)) == 4
    made.clear_memory()
    assert len(find_files(machine)) == 3, "the lock and the folder stay"
    made.give_up()
    assert find_files(machine) == ["shm/another"]


def test_what_nobody_holds_any_more_goes_when_the_next_one_starts(machine):
    killed = make(machine)
    os.close(killed.lock)
    for name in ("poplar_1_lock", "poplar_1_abc_lock", "poplar_x_abcdefgh_lock"):
        (machine / "shm" / name).touch()
    other = make(machine)
    assert not killed.folder.exists()
    files = find_files(machine)
    assert not [name for name in files if killed.prefix in name]
    assert len(files) == 3 + 3, "names that are none of ours stay"
    other.give_up()


def test_what_a_process_of_the_server_holds_stays(machine):
    """A supervisor was killed, its tritonserver serves on."""
    first = make(machine)
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(first.lock,)
    ) as server:
        os.close(first.lock)
        make(machine).give_up()
        assert (first.folder / "file").exists()
        server.communicate(b"\n")
    make(machine).give_up()
    assert find_files(machine) == []


def test_a_link_is_not_followed(machine, tmp_path):
    target = tmp_path / "mine"
    target.mkdir()
    (target / "file").touch()
    (machine / "shm" / "poplar_1_abcdefgh_lock").symlink_to(target / "file")
    (machine / "shm" / "poplar_2_abcdefgi_lock").touch()
    (machine / "tmp" / "poplar-triton-abcdefgi").symlink_to(target)
    make(machine).give_up()
    assert (target / "file").exists()
    assert find_files(machine) == ["shm/poplar_1_abcdefgh_lock", "tmp/poplar-triton-abcdefgi"]


def test_without_shared_memory_nothing_is_made(machine, monkeypatch):
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", machine / "none")
    with pytest.raises(FileNotFoundError):
        Belongings()
    assert find_files(machine) == []
