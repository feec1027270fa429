"""Limits of the system that are too small for a server. A server that meets one of them while it
starts hangs, or logs one line without end, and does not say which limit it was.

What a server needs was measured with one small model on a machine with two cores. Triton 2.51: 75
threads (45 more with each further model), 66 files and 1.6 GiB of addresses. `tfserving`: 30
threads, 17 files and 1.4 GiB.
"""

from __future__ import annotations

import os
import resource
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from popef._tools.control_groups import CONTROL_GROUPS
from popef._tools.stalls import PROC
from poplar_triton.errors import ServerError
from poplar_triton.serving.resource_use import OF_THREADS, iter_group_uses

MAX_FILES = 1 << 16
"""Sufficient limit of open files; some systems allow a thousand million."""
_MIB = 1 << 20
_UNLIMITED = "unlimited"

Check = tuple[str, str, str]
"""Subject of a check, what was found, and what to do; that is empty if the check passes."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a server needs to start: open files, threads and processes, and MiB of addresses, of a
    file and of temporary files."""

    files: int
    threads: int
    address_mib: int
    file_mib: int = 0
    temporary_mib: int = 0


TRITON = Needs(files=256, threads=128, address_mib=2048, file_mib=64, temporary_mib=16)
"""Needs of Triton. Its shared memory is a file for each instance, and its Python backend is copied
into the temporary folder."""
TFSERVING = Needs(files=64, threads=48, address_mib=2048)
"""Needs of a process of `tfserving`."""


def raise_file_limit() -> int:
    """Raise this process's limit of open files to the maximum, and return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft == resource.RLIM_INFINITY or soft >= allowed:
        return allowed
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


def examine_limits(needs: Needs = TRITON) -> list[Check]:
    """Check the limits of this process, which a server inherits."""
    soft_addresses, _ = resource.getrlimit(resource.RLIMIT_AS)
    soft_file, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return [
        examine_files(needs.files),
        examine_threads(needs.threads),
        _examine_size("address space", soft_addresses, needs.address_mib, "ulimit -v"),
        _examine_size("file size", soft_file, needs.file_mib, "ulimit -f"),
        examine_temporary_folder(needs.temporary_mib),
    ]


def require_limits(needs: Needs = TRITON) -> None:
    """Raise the limit of open files, which the server inherits, to the maximum. Raise ServerError
    with every remedy, if a limit is too small for a server."""
    raise_file_limit()
    faults = [": ".join(check) for check in examine_limits(needs) if check[-1]]
    if faults:
        raise ServerError("; ".join(faults))


def examine_files(least: int) -> Check:
    """Check the limit to which a server raises that of open files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY:
        return "open files", _UNLIMITED, ""
    remedy = (
        f"a server requires at least {least}; raise the limit (ulimit -Hn, LimitNOFILE of "
        "systemd, docker run --ulimit nofile)"
    )
    return "open files", str(hard), remedy if hard < least else ""


def examine_threads(least: int, proc: Path = PROC, groups: Path = CONTROL_GROUPS) -> Check:
    """Check how many threads and processes may still start, in the control group and of the
    user."""
    free = min(_iter_free_threads(proc, groups), default=None)
    remedy = (
        f"a server requires at least {least}; raise the limit (pids.max of the control group, "
        "ulimit -u, TasksMax of systemd, docker run --pids-limit), or end processes"
    )
    if free is None:
        return "threads and processes", _UNLIMITED, ""
    description = f"{max(0, free)} more may start"
    return "threads and processes", description, remedy if free < least else ""


def _iter_free_threads(proc: Path, groups: Path) -> Iterator[int]:
    for what, num_used, limit, _ in iter_group_uses(proc, groups):
        if what == OF_THREADS:
            yield limit - num_used
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and os.geteuid():  # root may start any number
        yield soft - _count_own_threads(proc)


def _count_own_threads(proc: Path) -> int:
    """Return the number of threads of this user's processes."""
    number = 0
    for folder in proc.glob("[0-9]*"):
        with suppress(OSError):
            if folder.stat().st_uid == os.geteuid():
                number += sum(1 for _ in (folder / "task").iterdir())
    return number


def _examine_size(subject: str, limit: int, least_mib: int, option: str) -> Check:
    if limit == resource.RLIM_INFINITY:
        return subject, _UNLIMITED, ""
    remedy = f"a server requires at least {least_mib} MiB; raise the limit ({option})"
    return subject, f"{limit / _MIB:.4g} MiB", remedy if limit < least_mib * _MIB else ""


def examine_temporary_folder(least_mib: int) -> Check:
    """Check that there is a folder for temporary files, with some free space."""
    subject = "temporary folder"
    advice = "set TMPDIR to a folder with free space that this user may write to"
    try:
        folder = tempfile.gettempdir()
        status = os.statvfs(folder)
    except OSError as error:
        return subject, error.strerror or str(error), advice if least_mib else ""
    free = status.f_bavail * status.f_frsize // _MIB
    remedy = f"a server requires at least {least_mib} MiB; {advice}"
    return subject, f"{folder}, {free} MiB free", remedy if free < least_mib else ""
