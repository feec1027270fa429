"""Confinement of a child process that computes a graph from an unknown source: Linux Landlock and
seccomp.

`confine` must be called before the process has a second thread, so before numpy is imported: both
rules apply to the calling thread and those that it starts. This module imports nothing that starts
a thread.

- **Files** (Landlock): only Python, the installed packages, system libraries and the folders that
  the caller names can be read. Nothing can be written, made, renamed or removed.
- **Network and other processes** (seccomp, and Landlock from ABI 6): no sockets, no programs, no
  child processes, no signals to and no memory of other processes, and no system call that mounts,
  loads or changes ownership or rights.

The channel to the parent is already open, and stays usable. Rules that the kernel does not support
are omitted; `find_missing` lists them.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import ClassVar

from simipu.processes.system_calls import FAIL, MACHINES, Machine, make_filter

MIN_NETWORK_ABI, MIN_SCOPE_ABI = 4, 6
"""Landlock versions that support TCP, and signals and abstract sockets."""
SYSTEM_PATHS = (
    "/lib /lib64 /usr/lib /usr/lib64 /usr/local/lib /usr/share/zoneinfo /etc/ld.so.cache "
    "/etc/localtime /etc/os-release /dev/null /dev/urandom /proc/self /proc/cpuinfo /proc/meminfo "
    "/sys/bus/pci /sys/devices /sys/fs/cgroup"
).split()
"""Paths that the dynamic loader, Python and ONNX Runtime read: libraries, time zones, the machine's
size and devices."""

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""System calls of Landlock, the same on every architecture (landlock(7))."""
_QUERY_VERSION, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_FILE_RIGHTS_BY_ABI = {1: 13, 2: 14, 3: 15, 5: 16}
"""Number of file rights of an ABI: 13 from execute to make_sym, then refer, truncate, ioctl_dev."""
_TCP_RIGHTS, _SCOPES = 0b11, 0b11
"""Rights to bind and connect; scopes of abstract unix sockets and signals."""

_SET_NO_NEW_PRIVILEGES = 38
"""Value of PR_SET_NO_NEW_PRIVS of prctl(2)."""
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Flags of the reopened outputs; a pipe without a reader would otherwise wait for one."""
_SET_FILTER, _QUERY_ACTION = 1, 2
"""Operations of seccomp(2)."""
_CAPABILITIES_VERSION = 0x20080522
"""Value of _LINUX_CAPABILITY_VERSION_3 of capset(2)."""
_KEPT_CAPABILITIES = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, by which root reads models of other users."""


class Confinement:
    """Whether this process confined itself (`confine`): it starts no other process."""

    is_active: ClassVar[bool] = False


def find_missing() -> list[str]:
    """Return the rules of `confine` that this kernel, or a container's own filter, does not
    support; usually none."""
    missing = []
    abi = _find_landlock_abi()
    if abi < 1:
        missing.append("Landlock (files)")
    elif abi < MIN_SCOPE_ABI:
        missing.append(f"Landlock ABI {MIN_SCOPE_ABI} (found {abi})")
    if not _has_seccomp():
        missing.append("seccomp (network and other processes)")
    return missing


def confine(folders: Iterable[str] = ()) -> None:
    """Confine this process permanently, as far as the kernel supports it; see `find_missing`.

    Args:
        folders: files and folders that can be read besides Python's and the system's.

    Raises:
        OSError: the kernel has Landlock or seccomp, and rejects the request.
        RuntimeError: the process has several threads, only one of which would be confined.
    """
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        raise RuntimeError(f"expected to confine a process of one thread, found {threads} threads")
    abi, has_seccomp = _find_landlock_abi(), _has_seccomp()
    _reopen_outputs()
    if abi >= 1 or has_seccomp:
        zeros = [ctypes.c_ulong(0)] * 3
        _raise_errors(_LIBC.prctl(_SET_NO_NEW_PRIVILEGES, ctypes.c_ulong(1), *zeros), "prctl")
    if abi >= 1:
        _limit_files(abi, [*_find_python_paths(), *SYSTEM_PATHS, *folders])
    if has_seccomp:
        machine = MACHINES[platform.machine()]
        _drop_capabilities(machine)
        program = b"".join(make_filter(machine, os.getpid()))
        instructions = ctypes.create_string_buffer(program, len(program))
        header = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
        _call(machine.seccomp, ctypes.c_uint(_SET_FILTER), ctypes.c_uint(0), header)
    Confinement.is_active = True


def _find_python_paths() -> Iterator[str]:
    """Yield the paths of Python and the packages: everything that can still be imported."""
    yield from (sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix)
    yield from filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":"))
    # Skip "", the folder in which the process was started.
    yield from filter(None, sys.path)
    # Packages in editable installations come from folders that are not on the path.
    simipu, popef = (os.path.abspath(sys.modules[name].__path__[0]) for name in ("simipu", "popef"))
    yield from (os.path.dirname(simipu), popef)


def _find_landlock_abi() -> int:
    """Return the version of Landlock; 0 if it is not available."""
    size, flags = ctypes.c_size_t(0), ctypes.c_uint32(_QUERY_VERSION)
    return max(0, int(_LIBC.syscall(_CREATE_RULESET, None, size, flags)))


def _limit_files(abi: int, readable: Sequence[str]) -> None:
    num_rights = max(count for first, count in _FILE_RIGHTS_BY_ABI.items() if first <= abi)
    handled = (1 << num_rights) - 1
    fields = [handled]
    if abi >= MIN_NETWORK_ABI:
        fields.append(_TCP_RIGHTS)
    if abi >= MIN_SCOPE_ABI:
        fields.append(_SCOPES)
    rules = struct.pack(f"={len(fields)}Q", *fields)
    ruleset = _call(_CREATE_RULESET, rules, ctypes.c_size_t(len(rules)), ctypes.c_uint32(0))
    try:
        for path in dict.fromkeys(map(os.path.realpath, readable)):
            with suppress(FileNotFoundError, NotADirectoryError):
                _allow_reading(ruleset, path)
        _call(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)


def _allow_reading(ruleset: int, path: str) -> None:
    rights = _READ_FILE | (_READ_DIR if os.path.isdir(path) else 0)
    opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule, kind = struct.pack("=Qi", rights, opened), ctypes.c_int(_PATH_BENEATH)
        _call(_ADD_RULE, ctypes.c_int(ruleset), kind, rule, ctypes.c_uint32(0))
    finally:
        os.close(opened)


def _has_seccomp() -> bool:
    machine = MACHINES.get(platform.machine())
    if machine is None:
        return False
    action = ctypes.c_uint32(FAIL)
    return int(_LIBC.syscall(machine.seccomp, _QUERY_ACTION, 0, ctypes.byref(action))) == 0


def _drop_capabilities(machine: Machine) -> None:
    """Give up root's capabilities: it could raise limits or enter others' files by none of them."""
    with open("/proc/self/status") as file:
        permitted = int(file.read().partition("CapPrm:")[2].split()[0], 16) & _KEPT_CAPABILITIES
    header = struct.pack("=Ii", _CAPABILITIES_VERSION, 0)
    _call(machine.capset, header, struct.pack("=6I", permitted, permitted, 0, 0, 0, 0))


def _reopen_outputs() -> None:
    """Open standard output and error anew, to append only. Otherwise this process shares their
    flags, their position and, for a terminal, the right to read them with its parent."""
    for descriptor in (1, 2):
        # A socket cannot be opened, and a pipe of another user or without a reader is not.
        with suppress(OSError):
            opened = os.open(f"/proc/self/fd/{descriptor}", _APPEND)
            os.set_blocking(opened, True)
            os.dup2(opened, descriptor)
            os.close(opened)


_LIBC = ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: object) -> int:
    return _raise_errors(_LIBC.syscall(number, *arguments), f"system call {number}")


def _raise_errors(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return int(result)
