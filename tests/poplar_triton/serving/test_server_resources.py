"""Removal of what a server leaves on the machine.

A server removes it at its end; after a killed server, the next one removes it at its start.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from poplar_triton.serving import server_resources
from poplar_triton.serving.server_resources import ServerResources


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """Replace /dev/shm and the folder for temporary files, and return their parent."""
    for name in ("shm", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(server_resources, "SHARED_MEMORY", tmp_path / "shm")
    monkeypatch.setattr(server_resources.tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path


def find_files(machine):
    return sorted(
        str(file.relative_to(machine))
        for name in ("shm", "tmp")
        for file in machine.glob(f"{name}/*")
    )


def make(machine):
    """Return a server's belongings, which hold one segment and one file."""
    made = ServerResources()
    (machine / "shm" / f"{made.prefix}1").touch()
    (made.folder / "file").touch()
    return made


def test_released_segments_are_removed(machine):
    (machine / "shm" / "another").touch()
    made = make(machine)
    assert len(find_files(machine)) == 4
    made.clear_memory()
    assert len(find_files(machine)) == 3, "the lock and the folder stay"
    made.release()
    assert find_files(machine) == ["shm/another"]


def test_segments_of_ended_servers_are_removed_at_the_next_start(machine):
    killed = make(machine)
    os.close(killed.lock)
    for name in ("poplar_1_lock", "poplar_1_abc_lock", "poplar_x_abcdefgh_lock"):
        (machine / "shm" / name).touch()
    other = make(machine)
    assert not killed.folder.exists()
    files = find_files(machine)
    assert not [name for name in files if killed.prefix in name]
    assert len(files) == 3 + 3, "names that are none of ours stay"
    other.release()


def test_segments_of_a_living_server_are_kept(machine):
    """The tritonserver keeps serving after its supervisor was killed."""
    first = make(machine)
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, pass_fds=(first.lock,)
    ) as server:
        os.close(first.lock)
        make(machine).release()
        assert (first.folder / "file").exists()
        server.communicate(b"\n")
    make(machine).release()
    assert find_files(machine) == []


def plant(machine, suffix="abcdefgh"):
    """Create a lock that no process holds, and the folder and segment that belong to it."""
    lock = machine / "shm" / f"poplar_1_{suffix}_lock"
    lock.mkdir(mode=0o700)
    (lock / server_resources._LOCK_FILE).touch(mode=0o600)
    folder = machine / "tmp" / f"poplar-triton-{suffix}"
    folder.mkdir()
    (machine / "shm" / f"poplar_1_{suffix}_segment").touch()
    return lock, folder


def test_a_lock_without_a_holder_is_removed(machine):
    plant(machine)
    make(machine).release()
    assert find_files(machine) == []


def be_another_user(machine, lock, monkeypatch):
    """Run as a user other than the owner of the folder and the file."""
    another = os.geteuid() + 1
    monkeypatch.setattr(server_resources.os, "geteuid", lambda: another)


def open_folder(machine, lock, monkeypatch):
    """Give every user access to the lock's folder."""
    lock.chmod(0o777)


def open_file(machine, lock, monkeypatch):
    (lock / server_resources._LOCK_FILE).chmod(0o666)


def be_a_link(machine, lock, monkeypatch):
    """Replace the lock with a link to a folder with the correct permissions."""
    lock.rename(machine / "elsewhere")
    lock.symlink_to(machine / "elsewhere")


def hold_a_link(machine, lock, monkeypatch):
    (lock / server_resources._LOCK_FILE).rename(machine / "elsewhere")
    (lock / server_resources._LOCK_FILE).symlink_to(machine / "elsewhere")


def have_two_names(machine, lock, monkeypatch):
    (machine / "elsewhere").hardlink_to(lock / server_resources._LOCK_FILE)


def hold_a_fifo(machine, lock, monkeypatch):
    (lock / server_resources._LOCK_FILE).unlink()
    os.mkfifo(lock / server_resources._LOCK_FILE, 0o600)


def be_a_file(machine, lock, monkeypatch):
    """Replace the lock's folder by a file; whoever may write to /dev/shm can make such a lock."""
    shutil.rmtree(lock)
    lock.touch(mode=0o600)


@pytest.mark.parametrize(
    "planted",
    [
        be_another_user,
        open_folder,
        open_file,
        be_a_link,
        hold_a_link,
        have_two_names,
        hold_a_fifo,
        be_a_file,
    ],
)
def test_a_lock_that_another_user_can_have_made_takes_nothing_away(machine, monkeypatch, planted):
    """Such a lock could otherwise make the cleanup remove the folder of a running server."""
    lock, folder = plant(machine)
    planted(machine, lock, monkeypatch)
    before = find_files(machine)
    make(machine).release()
    assert folder.is_dir()
    assert find_files(machine) == before


def test_a_link_in_place_of_the_folder_is_not_followed(machine, tmp_path):
    target = tmp_path / "mine"
    target.mkdir()
    (target / "file").touch()
    _, folder = plant(machine)
    folder.rmdir()
    folder.symlink_to(target)
    make(machine).release()
    assert (target / "file").exists()
    assert find_files(machine) == ["tmp/poplar-triton-abcdefgh"]


def test_the_lock_is_private_to_the_user(machine):
    made = make(machine)
    (lock,) = (machine / "shm").glob("*_lock")
    assert [path.stat().st_mode & 0o777 for path in (lock, lock / server_resources._LOCK_FILE)] == [
        0o700,
        0o600,
    ]
    made.release()


def test_other_users_may_not_read_the_segments(machine):
    made = make(machine)
    segment, link = machine / "shm" / f"{made.prefix}1", machine / "shm" / f"{made.prefix}2"
    another, target = machine / "shm" / "poplar_2_abcdefgh_1", machine / "target"
    for path in (segment, another, target):
        path.touch()
        path.chmod(0o644)
    link.symlink_to(target)
    made.restrict_memory()
    modes = [path.stat().st_mode & 0o777 for path in (segment, another, target)]
    assert modes == [0o600, 0o644, 0o644]
    made.release()


def test_without_shared_memory_nothing_is_made(machine, monkeypatch):
    monkeypatch.setattr(server_resources, "SHARED_MEMORY", machine / "none")
    with pytest.raises(FileNotFoundError):
        ServerResources()
    assert find_files(machine) == []
