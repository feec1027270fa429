"""Limits of the system that are too small for a server are named before it starts."""

from __future__ import annotations

import resource
import tempfile
from dataclasses import replace
from types import SimpleNamespace

import pytest
from poplar_triton import limits
from poplar_triton.errors import ServerError
from poplar_triton.limits import (
    TRITON,
    examine_limits,
    examine_temporary_folder,
    examine_threads,
    raise_file_limit,
    require_limits,
)

MIB = 1 << 20
INFINITE = resource.RLIM_INFINITY


@pytest.fixture
def system(monkeypatch, tmp_path):
    """Simulate a system without limits; tests set some."""
    values = {"free": 1 << 30}
    monkeypatch.setattr(
        limits.resource, "getrlimit", lambda number: (values.get(number, INFINITE), INFINITE)
    )
    monkeypatch.setattr(
        limits.os, "statvfs", lambda _: SimpleNamespace(f_bavail=values["free"], f_frsize=1)
    )
    monkeypatch.setattr(limits, "PROC", tmp_path)
    return values


def test_without_limits_nothing_is_reported(system):
    assert not [check for check in examine_limits() if check[-1]]
    require_limits()


@pytest.mark.parametrize(
    ("number", "too_small", "message"),
    [
        (
            resource.RLIMIT_AS,
            2047 * MIB,
            "address space: 2047 MiB: a server requires at least 2048 MiB; raise the limit "
            "(ulimit -v)",
        ),
        (
            resource.RLIMIT_FSIZE,
            63 * MIB,
            "file size: 63 MiB: a server requires at least 64 MiB; raise the limit (ulimit -f)",
        ),
    ],
)
def test_a_limit_that_is_too_small_is_named_with_what_was_found_and_needed(
    system, number, too_small, message
):
    system[number] = too_small
    with pytest.raises(ServerError) as caught:
        require_limits()
    assert str(caught.value) == message
    system[number] = too_small + MIB
    require_limits()


def test_require_limits_raises_the_limit_of_open_files(monkeypatch):
    values, raised = {resource.RLIMIT_NOFILE: (1024, 4096)}, {}
    monkeypatch.setattr(
        limits.resource, "getrlimit", lambda number: values.get(number, (INFINITE, INFINITE))
    )
    monkeypatch.setattr(limits.resource, "setrlimit", raised.__setitem__)
    require_limits()
    assert raised == {resource.RLIMIT_NOFILE: (4096, 4096)}


def test_the_hard_limit_of_open_files_counts_because_the_soft_one_is_raised(monkeypatch):
    values = [64, 1000]
    monkeypatch.setattr(limits.resource, "getrlimit", lambda _: tuple(values))
    monkeypatch.setattr(
        limits.resource, "setrlimit", lambda _, raised: values.__setitem__(slice(None), raised)
    )
    assert limits.examine_files(256) == ("open files", "1000", "")
    assert raise_file_limit() == 1000
    assert values == [1000, 1000]
    assert limits.examine_files(1001)[2].startswith("a server requires at least 1001; raise")


def make_group(proc, groups, current, most):
    (proc / "self").mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/here\n")
    (groups / "here").mkdir(parents=True)
    (groups / "here" / "pids.current").write_text(f"{current}\n")
    (groups / "here" / "pids.max").write_text(f"{most}\n")


@pytest.mark.parametrize(
    ("most", "found", "is_enough"),
    [
        ("max", "unlimited", True),
        (200, "150 more may start", True),
        (60, "10 more may start", False),
    ],
)
def test_threads_that_the_control_group_allows_are_counted(
    system, tmp_path, most, found, is_enough
):
    proc, groups = tmp_path / "proc", tmp_path / "groups"
    make_group(proc, groups, 50, most)
    _, text, remedy = examine_threads(128, proc, groups)
    assert text == found
    assert (remedy == "") is is_enough


def test_the_threads_of_a_user_who_is_not_root_are_counted(system, tmp_path, monkeypatch):
    for pid, number in ((5, 3), (6, 4)):
        for thread in range(number):
            (tmp_path / str(pid) / "task" / str(thread)).mkdir(parents=True)
    system[resource.RLIMIT_NPROC] = 20
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(limits.os, "geteuid", lambda: owner or 1)
    expected = "13 more may start" if owner else "20 more may start"
    assert examine_threads(1, tmp_path, tmp_path)[1:] == (expected, "")
    monkeypatch.setattr(limits.os, "geteuid", lambda: 0)
    assert examine_threads(1, tmp_path, tmp_path)[1] == "unlimited"


def test_a_temporary_folder_that_is_full_or_missing_is_named(system, monkeypatch):
    system["free"] = MIB
    assert examine_temporary_folder(16)[1:] == (
        f"{tempfile.gettempdir()}, 1 MiB free",
        "a server requires at least 16 MiB; set TMPDIR to a folder with free space that this user "
        "may write to",
    )

    def fail():
        raise FileNotFoundError(2, "No usable temporary directory found in ['/none']")

    monkeypatch.setattr(limits.tempfile, "gettempdir", fail)
    subject, found, remedy = examine_temporary_folder(16)
    assert (subject, found) == (
        "temporary folder",
        "No usable temporary directory found in ['/none']",
    )
    assert remedy.startswith("set TMPDIR")
    require_limits(replace(TRITON, temporary_mib=0))
