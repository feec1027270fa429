"""Tests of locks: one process uses a folder at a time. Files of a killed process are removed, and
files in use stay."""

from __future__ import annotations

import errno
import fcntl
import threading

import pytest
from poprt.triton.model_folder import lock_folder, make_scratch_folder


def take(folder):
    with lock_folder(folder) as held:
        return held


def test_a_folder_is_held_by_one(tmp_path):
    with lock_folder(tmp_path) as held:
        assert held
        with pytest.raises(BlockingIOError):
            take(tmp_path)
    assert take(tmp_path)


def test_a_waiting_process_gets_the_folder_when_it_is_released(tmp_path):
    order = []

    def wait():
        with lock_folder(tmp_path, wait=True) as held:
            order.append(held)

    waiting = threading.Thread(target=wait)
    with lock_folder(tmp_path):
        waiting.start()
        waiting.join(0.1)
        order.append("first")
    waiting.join()
    assert order == ["first", True]


def test_scratch_folders_in_use_stay_and_others_go(tmp_path):
    (tmp_path / ".work-killed").mkdir()
    (tmp_path / ".work-killed" / "file").touch()
    (tmp_path / ".work-file").touch()
    (tmp_path / "mine").mkdir()
    with (
        make_scratch_folder(tmp_path, ".work-") as first,
        make_scratch_folder(tmp_path, ".work-") as second,
    ):
        assert first.is_dir()
        assert second.is_dir()
        assert not (tmp_path / ".work-killed").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".work-file", "mine"]


def test_without_locks_everyone_is_let_in_and_nothing_is_removed(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    (tmp_path / ".work-other").mkdir()
    with lock_folder(tmp_path), make_scratch_folder(tmp_path, ".work-") as folder:
        assert not take(tmp_path)
        assert {path.name for path in tmp_path.iterdir()} == {".work-other", folder.name}
