"""Control groups of this process, of version 1 and 2, and their memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from .stalls import PROC

CONTROL_GROUPS = Path("/sys/fs/cgroup")
_CONTROLLERS = ("", "cpu", "memory", "pids")
"""Controllers whose limits are read; "" is the one tree of version 2."""
_MAX_DEPTH = 32
"""Maximum number of levels of nested control groups that are read."""
_FIELD = re.compile(r"^(\w+) (\d+)$", re.MULTILINE)


def iter_groups(proc: Path = PROC, groups: Path = CONTROL_GROUPS) -> Iterator[tuple[Path, bool]]:
    """Yield the folders of the control groups of this process, the inner before the outer, and
    whether they are of version 1. Version 1 has a tree for each kind of limit.

    A container may see the paths of its host, and only its own groups: a folder that is not there
    has no limits, and the outermost one is the container's own.
    """
    with suppress(OSError, ValueError):
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            parts = [part for part in path.split("/") if part not in ("", ".", "..")]
            inner = Path(*parts)
            for controller in controllers.split(","):
                if controller in _CONTROLLERS:
                    for group in [inner, *inner.parents][:_MAX_DEPTH]:
                        yield groups / controller / group, bool(controller)


def read_memory(folder: Path, *, is_old: bool) -> tuple[int, int]:
    """Return used bytes and the limit of a control group. Pages of files do not count as used,
    because the kernel reclaims them when it needs them.

    Raises:
        OSError: the group has no files of memory.
        ValueError: the group has no limit.
        KeyError: `memory.stat` lacks the numbers of pages of files.
    """
    current, limits, prefix = (
        ("memory.usage_in_bytes", ("memory.limit_in_bytes",), "total_")
        if is_old
        # Above memory.high the kernel delays all allocations.
        else ("memory.current", ("memory.max", "memory.high"), "")
    )
    num_bytes, max_bytes = int((folder / current).read_text()), read_limit(folder, limits)
    fields = dict(_FIELD.findall((folder / "memory.stat").read_text()))
    files = sum(int(fields[f"{prefix}{name}_file"]) for name in ("active", "inactive"))
    return num_bytes - files - int(fields.get("slab_reclaimable", 0)), max_bytes


def read_limit(folder: Path, names: tuple[str, ...]) -> int:
    """Return the smallest of the limits of a control group in files of these names. Raises
    ValueError if it has none: version 2 says "max"."""
    limits = []
    for name in names:
        with suppress(OSError, ValueError):
            limits.append(int((folder / name).read_text()))
    return min(limits)
