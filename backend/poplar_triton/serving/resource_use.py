"""Resources of the machine that a tritonserver holds, and whether the machine runs out of them
soon.

If a dead instance has had a request before its model was reloaded, Triton 2.51 keeps what belonged
to it: threads, segments of shared memory, and the instance's siblings. Only a restart of Triton
frees them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from popef._tools.control_groups import CONTROL_GROUPS, iter_groups, read_memory
from popef._tools.stalls import PROC
from poplar_triton.serving.server_resources import SHARED_MEMORY

MAX_SHARE = 0.85
"""Maximum share of a limit. The rest may be needed at the next load of a model."""
_THREADS = re.compile(r"^Threads:\s+(\d+)$", re.MULTILINE)
_MEMORY = re.compile(r"^RssAnon:\s+(\d+) kB$", re.MULTILINE)
OF_THREADS = "threads and processes of the control group"
_KIB, _MIB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """Resources of tritonserver and its stubs: threads of tritonserver, segments of shared memory,
    and bytes of memory that belong to no file and are not shared."""

    threads: int = 0
    segments: int = 0
    memory_bytes: int = 0


def measure_resource_use(
    servers: Iterable[int], stubs: Iterable[int], num_segments: int, proc: Path = PROC
) -> ResourceUse:
    """Return the resources that these processes hold; a process that has ended holds nothing."""
    threads, memory = 0, 0
    for pids, is_server in ((servers, True), (stubs, False)):
        for pid in pids:
            with suppress(OSError):
                text = (proc / str(pid) / "status").read_text(errors="replace")
                memory += sum(int(size) * _KIB for size in _MEMORY.findall(text))
                threads += sum(map(int, _THREADS.findall(text))) if is_server else 0
    return ResourceUse(threads, num_segments, memory)


def find_shortage(
    num_threads: int = 0,
    proc: Path = PROC,
    groups: Path = CONTROL_GROUPS,
    shared_memory: Path = SHARED_MEMORY,
) -> str:
    """Return which resource is nearly used up: threads or memory of the control group, or shared
    memory; "" for none. `num_threads` is how many threads the next reload may take."""
    uses = [*iter_group_uses(proc, groups), *_iter_memory_uses(shared_memory)]
    for what, amount, limit, unit in uses:
        num_needed = num_threads if what == OF_THREADS else 0
        if amount >= MAX_SHARE * limit or amount + num_needed > limit:
            more = f" and a reload needs up to {num_needed}" if num_needed else ""
            return f"{amount // unit} of {limit // unit} {what} are in use{more}"
    return ""


def iter_group_uses(proc: Path, groups: Path) -> Iterator[tuple[str, int, int, int]]:
    """Yield each resource that a control group limits: its name, how much of it is used, its limit,
    and the unit in which both are shown."""
    for folder, is_old in iter_groups(proc, groups):
        with suppress(OSError, ValueError):
            amount, limit = (
                int((folder / name).read_text()) for name in ("pids.current", "pids.max")
            )
            yield OF_THREADS, amount, limit, 1
        with suppress(OSError, ValueError, KeyError):
            yield "MiB of memory of the control group", *read_memory(folder, is_old=is_old), _MIB


def _iter_memory_uses(shared_memory: Path) -> Iterator[tuple[str, int, int, int]]:
    with suppress(OSError):
        status = os.statvfs(shared_memory)
        used_bytes = (status.f_blocks - status.f_bfree) * status.f_frsize
        yield f"MiB of {shared_memory}", used_bytes, status.f_blocks * status.f_frsize, _MIB


class LeakMeter:
    """Measures what heals have left in tritonserver: the resources that it holds some seconds after
    them, beyond those before."""

    SETTLE_SECONDS = 5.0
    """Time after a heal until the replaced instances have ended."""

    def __init__(self) -> None:
        self._calm: ResourceUse | None = None
        self._healed_at: float | None = None

    def scan(self, use: ResourceUse, now: float, *, is_healing: bool) -> ResourceUse | None:
        """Record the resources that are held now. Return what was left if it is known now."""
        if is_healing:
            self._healed_at = now
            return None
        if self._healed_at is not None and now < self._healed_at + self.SETTLE_SECONDS:
            return None
        before, was_healing = self._calm, self._healed_at is not None
        self._calm, self._healed_at = use, None
        if before is None or not was_healing:
            return None
        return ResourceUse(
            max(0, use.threads - before.threads),
            max(0, use.segments - before.segments),
            max(0, use.memory_bytes - before.memory_bytes),
        )
