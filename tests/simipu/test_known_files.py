"""Tests of files that are recognised by their contents after an earlier load. Nothing that others
can write is trusted."""

import logging
import mmap
import os
from pathlib import Path

import pytest
from changed_options import OPTION_CHANGES, change_fields
from simipu import GraphOptions, known_files
from simipu.known_files import FileLoad, KnownFiles, LoadedFiles, LoadLimits
from simipu.processes.private_folder import find_cache_folder

LIMITS = LoadLimits(300, 1 << 30)
OPTIONS = GraphOptions(num_threads=1, ready_seconds=300, memory_bytes=1 << 30)
LOAD = FileLoad("model", OPTIONS)


@pytest.fixture
def known(tmp_path):
    return KnownFiles(tmp_path / "caches" / "loads")


def test_a_loaded_file_is_known_within_the_same_or_wider_limits(known):
    assert not known.is_known("a", LIMITS)
    known.remember("a", LIMITS)
    assert known.is_known("a", LIMITS)
    assert known.is_known("a", LoadLimits(301, 1 << 31))
    assert not known.is_known("a", LoadLimits(299, 1 << 30))
    assert not known.is_known("a", LoadLimits(300, 1 << 29))
    assert not known.is_known("b", LIMITS)
    known.remember("a", LoadLimits(10, 1 << 20))
    assert known.is_known("a", LoadLimits(299, 1 << 29))


def test_the_folder_is_the_users_alone(known):
    known.remember("a", LIMITS)
    assert known.folder.stat().st_mode & 0o777 == 0o700
    assert (known.folder / "a").stat().st_mode & 0o777 == 0o600
    assert os.listdir(known.folder) == ["a"]


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o755])
def test_a_folder_that_others_may_look_into_or_write_is_not_believed(known, mode, caplog):
    known.remember("a", LIMITS)
    known.folder.chmod(mode)
    with caplog.at_level(logging.WARNING, "simipu"):
        assert not known.is_known("a", LIMITS)
    assert f"mode 0700, found user {os.geteuid()}, mode {mode:04o}" in caplog.text
    known.remember("b", LIMITS)
    known.folder.chmod(0o700)
    assert known.is_known("a", LIMITS)
    assert not known.is_known("b", LIMITS)


def test_a_folder_of_another_user_is_not_believed(known, monkeypatch):
    known.remember("a", LIMITS)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert not known.is_known("a", LIMITS)


def test_links_are_not_followed(known, tmp_path):
    known.remember("a", LIMITS)
    os.symlink("a", known.folder / "b")
    os.symlink(known.folder, tmp_path / "link")
    assert not known.is_known("b", LIMITS)
    assert not KnownFiles(tmp_path / "link").is_known("a", LIMITS)


@pytest.mark.parametrize(
    "text", [b"", b"{}", b"[1]", b'{"seconds": "x", "memory_bytes": 1}', b"\xff" * 1000]
)
def test_a_damaged_entry_is_ignored(known, text):
    known.remember("a", LIMITS)
    (known.folder / "a").write_bytes(text)
    assert not known.is_known("a", LIMITS)


def test_the_older_half_goes_when_there_are_too_many(known, monkeypatch):
    monkeypatch.setattr(known_files, "MAX_ENTRIES", 4)
    for number, name in enumerate("abcd"):
        known.remember(name, LIMITS)
        os.utime(known.folder / name, (number, number))
    known.remember("e", LIMITS)
    assert sorted(os.listdir(known.folder)) == ["c", "d", "e"]


def test_without_a_folder_nothing_is_remembered(tmp_path):
    (tmp_path / "file").touch()
    known = KnownFiles(tmp_path / "file" / "loads")
    known.remember("a", LIMITS)
    assert not known.is_known("a", LIMITS)


def test_the_folder_is_in_that_of_caches(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert find_cache_folder("loads") == Path("/caches/poplar-triton/loads")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert find_cache_folder("loads") == Path("/home/me/.cache/poplar-triton/loads")


def test_a_digest_is_of_contents_their_order_and_the_versions(tmp_path, monkeypatch):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"x" * (known_files._PIECE_BYTES + 1))
    two.write_bytes(b"")
    digests = [LoadedFiles.at(files).digest() for files in ([one], [one, two], [two, one], [two])]
    assert len(set(digests)) == 4
    again = tmp_path / "again"
    again.write_bytes(one.read_bytes())
    assert LoadedFiles.at([again]).digest() == digests[0]
    monkeypatch.setattr(known_files, "_VERSIONS", "another")
    assert LoadedFiles.at([one]).digest() != digests[0]


def test_files_are_known_where_they_are_and_elsewhere_until_they_change(known, tmp_path):
    file, copy = tmp_path / "file", tmp_path / "copy"
    file.write_bytes(b"one")
    copy.write_bytes(b"one")
    assert not known.have_loaded(LoadedFiles.at([file]), LOAD)
    known.remember_files(LoadedFiles.at([file]), LOAD)
    assert known.have_loaded(LoadedFiles.at([file]), LOAD)
    assert known.have_loaded(LoadedFiles.at([copy]), LOAD)
    copy.write_bytes(b"two")
    assert not known.have_loaded(LoadedFiles.at([copy]), LOAD)


def test_files_that_have_not_changed_are_not_read_again(known, tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_bytes(b"one")
    monkeypatch.setattr(known_files, "SETTLED_SECONDS", 0)
    known.remember(LoadedFiles.at([file]).digest(LOAD.describe()), LIMITS)
    assert known.have_loaded(LoadedFiles.at([file]), LOAD)
    monkeypatch.setattr(LoadedFiles, "digest", lambda files, load="": "not known")
    assert known.have_loaded(LoadedFiles.at([file]), LOAD)
    before = file.stat()
    file.write_bytes(b"two")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not known.have_loaded(LoadedFiles.at([file]), LOAD)


def test_a_file_that_changed_a_moment_ago_is_read_again(known, tmp_path):
    """A writable mapping changes a file again without a new time."""
    file = tmp_path / "file"
    file.write_bytes(b"one")
    files = LoadedFiles.at([file])
    known.remember_files(files, LOAD)
    with open(file, "r+b") as stream, mmap.mmap(stream.fileno(), 0) as mapping:
        mapping[:] = b"two"
        files = LoadedFiles.at([file])
        assert not known.have_loaded(files, LOAD)
        known.remember_files(files, LOAD)
        mapping[:] = b"six"
        assert not known.have_loaded(files, LOAD)


@pytest.mark.parametrize("step", ["have_loaded", "remember_files"])
def test_a_file_that_has_taken_the_place_of_the_loaded_one_is_not_digested(step, known, tmp_path):
    file, other = tmp_path / "file", tmp_path / "other"
    file.write_bytes(b"one")
    other.write_bytes(b"two")
    files = LoadedFiles.at([file])
    other.replace(file)
    with pytest.raises(OSError, match=r"file: the file was exchanged or written to while it was"):
        getattr(known, step)(files, LOAD)
    assert not known.have_loaded(LoadedFiles.at([file]), LOAD)


LIMITED = {"ready_seconds": 299.0, "memory_bytes": 1 << 29}
INDIFFERENT = {"num_threads", "limit_seconds", "caches"}


@pytest.mark.parametrize("name", OPTION_CHANGES)
def test_a_load_with_another_option_is_not_known(name, known, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"one")
    known.remember_files(LoadedFiles.at([file]), LOAD)
    changes = dict(change_fields(OPTIONS, {**OPTION_CHANGES, **LIMITED}))
    assert known.have_loaded(LoadedFiles.at([file]), FileLoad("model", changes[name])) == (
        name in INDIFFERENT
    )


def test_a_load_of_another_executable_of_the_same_files_is_not_known(known, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"one")
    known.remember_files(LoadedFiles.at([file]), LOAD)
    assert known.have_loaded(LoadedFiles.at([file]), LOAD)
    assert not known.have_loaded(LoadedFiles.at([file]), FileLoad("evil", OPTIONS))
