"""Errors about a limit of the system name the limit, its value and what to do."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
from waiting import PATIENCE_SECONDS

from popef._tools import shortages
from popef._tools.shortages import describe_last_line, name_limit

LIMITS = {
    resource.RLIMIT_AS: 200 << 20,
    resource.RLIMIT_NOFILE: 64,
    resource.RLIMIT_FSIZE: 3 << 10,
}


@pytest.fixture(params=[True, False])
def is_limited(request, monkeypatch):
    infinite = resource.RLIM_INFINITY
    monkeypatch.setattr(
        shortages.resource,
        "getrlimit",
        lambda number: (LIMITS[number] if request.param else infinite, infinite),
    )
    return request.param


@pytest.mark.parametrize(
    ("text", "limited", "unlimited"),
    [
        (
            "terminate called after throwing an instance of 'std::bad_alloc'",
            "the limit of addresses is 200 MiB: raise it (ulimit -v)",
            "the system has no more memory: add some, raise the limit (memory.max), or do less",
        ),
        (
            "RuntimeError: can't start new thread",
            "no more threads and processes may start: raise the limit (pids.max of the control "
            "group, ulimit -u, or that of addresses, 200 MiB (ulimit -v))",
            "no more threads and processes may start: raise the limit (pids.max of the control "
            "group, ulimit -u)",
        ),
        (
            "[warn] Error from accept() call: Too many open files",
            "the limit is 64 files: raise it (ulimit -n)",
            "no more files may be opened",
        ),
        ("x: File too large", "the limit is 3 KiB: raise it (ulimit -f)", ""),
        ("no such file", "", ""),
    ],
)
def test_the_limit_is_named_with_its_value(is_limited, text, limited, unlimited):
    assert name_limit(text) == (limited if is_limited else unlimited)


def test_a_page_of_text_is_its_last_line():
    assert describe_last_line(ImportError("a\n\nb\n")) == "ImportError: b"
    assert describe_last_line(MemoryError()) == "MemoryError"


@pytest.mark.parametrize("command", ["popef_dump", "popef"])
@pytest.mark.parametrize("limit_mib", [40, 60, 100])
def test_a_command_without_memory_to_import_reports_it_in_one_line(command, limit_mib):
    program = (
        f"import resource; from popef._tools.start import {command}; import sys\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({limit_mib << 20},) * 2)\n"
        f"sys.argv = ['{command}', '--help']; sys.exit({command}())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    if ended.returncode == 0:
        return
    (line,) = ended.stderr.splitlines()
    limit = f"the limit of addresses is {limit_mib} MiB: raise it (ulimit -v)"
    assert limit in line or line.startswith("OpenBLAS error: Memory")  # it ends the process itself
