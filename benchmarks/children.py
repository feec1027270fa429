"""Child processes with a time limit, and the resources they used."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LOOK_SECONDS = 0.02
_UTIME, _STIME, _CHILDREN_STIME = 11, 12, 14
RESIDENT = re.compile(r"VmRSS:\s+(\d+) kB")


@dataclass(frozen=True, slots=True)
class Child:
    """A process that ended: its status (None: killed for taking too long), its output, and its
    resources."""

    status: int | None
    output: str
    errors: str
    seconds: float
    peak_bytes: int


def run_child(
    command: Sequence[str], seconds: float, environment: Mapping[str, str] | None = None
) -> Child:
    """Run a command to its end, or for so long, with this process's environment or another one.

    The peak is that of the process and those that it started together, looked at every
    LOOK_SECONDS. ru_maxrss of wait4 is that of the largest one alone, and counts this process's own
    memory before the exec.
    """
    # Wide, so that no log line is broken in two.
    variables = {**(os.environ if environment is None else environment), "COLUMNS": "1000"}
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        start = time.monotonic()
        process = subprocess.Popen(
            command, stdout=output, stderr=errors, env=variables, start_new_session=True
        )
        peak = 0
        try:
            while process.poll() is None and time.monotonic() < start + seconds:
                peak = max(peak, read_resident_bytes(process.pid))
                time.sleep(LOOK_SECONDS)
            took, status = time.monotonic() - start, process.poll()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for file in (output, errors):
            file.seek(0)
        return Child(status, output.read(), errors.read(), took, peak)


def read_resident_bytes(process: int) -> int:
    """Return the resident memory of a process and its descendants; 0 for a process that is gone."""
    try:
        match = RESIDENT.search(Path(f"/proc/{process}/status").read_text())
        children = find_children(process)
    except OSError:
        return 0
    return (int(match[1]) * 1024 if match else 0) + sum(map(read_resident_bytes, children))


def read_cpu_seconds(process: int, *, with_ended: bool = False) -> float:
    """Return the processor time of a process and its descendants; those that are gone count 0, or
    are included as far as their parents have waited for them."""
    try:
        # Behind the name, which may hold anything: the state is field 3, utime and stime are 14 and
        # 15, and those of the children that were waited for 16 and 17.
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    ticks = sum(map(int, fields[_UTIME : _CHILDREN_STIME + 1 if with_ended else _STIME + 1]))
    children = (read_cpu_seconds(child, with_ended=with_ended) for child in find_children(process))
    return ticks / os.sysconf("SC_CLK_TCK") + sum(children)


def find_children(process: int) -> list[int]:
    """Return the process ids of a process's children."""
    pids: list[int] = []
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):  # a thread that is gone by now
            pids += map(int, task.read_text().split())
    return sorted(pids)
