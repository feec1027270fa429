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
import errno
import os
import platform
import re
import struct
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

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
_SET_FILTER, _QUERY_ACTION = 1, 2
"""Operations of seccomp(2)."""
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
"""Actions of seccomp(2); the lower half of _ERRNO is the error."""
_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""Instructions of classic BPF: load a word, compare it with a constant, return."""
_NUMBER_AT, _ARCH_AT, _FIRST_ARGUMENT_AT = 0, 4, 16
"""Offsets in bytes of fields of struct seccomp_data; for an argument, of its lower half on
little-endian machines."""
_X32_CALLS = 1 << 30
"""First number of x86-64's second set of system calls."""
_CLONE_THREAD = 0x00010000
_NEVER = -1


@dataclass(frozen=True, slots=True)
class _Machine:
    """An architecture: its identifier in the kernel, and the numbers of calls that have rules of
    their own."""

    audit_arch: int
    column: int
    seccomp: int
    clone: int
    tgkill: int
    prlimit: int


_MACHINES = {
    "x86_64": _Machine(0xC000003E, 0, seccomp=317, clone=56, tgkill=234, prlimit=302),
    "aarch64": _Machine(0xC00000B7, 1, seccomp=277, clone=220, tgkill=131, prlimit=261),
}
_CLONE3 = 435
_DENIED_CALLS = """
network:
  socket 41 198 | socketpair 53 199 | connect 42 203 | bind 49 200 | listen 50 201 | accept 43 202
  accept4 288 242
programs and processes:
  execve 59 221 | execveat 322 281 | fork 57 -1 | vfork 58 -1 | ptrace 101 117
  process_vm_readv 310 270 | process_vm_writev 311 271 | process_madvise 440 440
  process_mrelease 448 448 | kcmp 312 272 | kill 62 129 | tkill 200 130 | rt_sigqueueinfo 129 138
  rt_tgsigqueueinfo 297 240 | pidfd_open 434 434 | pidfd_send_signal 424 424 | pidfd_getfd 438 438
  setpriority 141 140 | ioprio_set 251 30 | sched_setparam 142 118 | sched_setscheduler 144 119
  sched_setattr 314 274 | migrate_pages 256 238 | move_pages 279 239
memory and queues shared by key:
  shmget 29 194 | shmat 30 196 | shmctl 31 195 | semget 64 190 | msgget 68 186 | mq_open 240 180
rights, owners and times of files, which Landlock does not know:
  chmod 90 -1 | fchmod 91 52 | fchmodat 268 53 | fchmodat2 452 452 | chown 92 -1 | lchown 94 -1
  fchown 93 55 | fchownat 260 54 | truncate 76 45 | utime 132 -1 | utimes 235 -1 | futimesat 261 -1
  utimensat 280 88 | setxattr 188 5 | lsetxattr 189 6 | fsetxattr 190 7 | setxattrat 463 463
  removexattr 197 14 | lremovexattr 198 15 | fremovexattr 199 16 | removexattrat 466 466
  open_by_handle_at 304 265 | name_to_handle_at 303 264
namespaces, mounts, the kernel itself:
  unshare 272 97 | setns 308 268 | mount 165 40 | umount2 166 39 | pivot_root 155 41
  chroot 161 51 | open_tree 428 428 | move_mount 429 429 | fsopen 430 430 | fsconfig 431 431
  fsmount 432 432 | fspick 433 433 | mount_setattr 442 442 | bpf 321 280 | perf_event_open 298 241
  userfaultfd 323 282 | io_uring_setup 425 425 | io_uring_enter 426 426
  io_uring_register 427 427 | keyctl 250 219 | add_key 248 217 | request_key 249 218
  init_module 175 105 | finit_module 313 273 | delete_module 176 106 | kexec_load 246 104
  kexec_file_load 320 294 | reboot 169 142 | swapon 167 224 | swapoff 168 225 | acct 163 89
  quotactl 179 60 | syslog 103 116 | personality 135 92 | modify_ldt 154 -1
"""
"""System calls that fail with EPERM, with their numbers on x86-64 and aarch64 (syscalls(2), the
kernel's tables); -1 if an architecture lacks one."""
_DENIED = {
    name: (int(x86_64), int(aarch64))
    for name, x86_64, aarch64 in re.findall(r"(\w+) (-?\d+) (-?\d+)", _DENIED_CALLS)
}


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
    if abi >= 1 or has_seccomp:
        zeros = [ctypes.c_ulong(0)] * 3
        _raise_errors(_LIBC.prctl(_SET_NO_NEW_PRIVILEGES, ctypes.c_ulong(1), *zeros), "prctl")
    if abi >= 1:
        _limit_files(abi, [*_find_python_paths(), *SYSTEM_PATHS, *folders])
    if has_seccomp:
        machine = _MACHINES[platform.machine()]
        program = b"".join(_make_filter(machine))
        instructions = ctypes.create_string_buffer(program, len(program))
        header = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
        _call(machine.seccomp, ctypes.c_uint(_SET_FILTER), ctypes.c_uint(0), header)


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
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        return False
    action = ctypes.c_uint32(_ERRNO)
    return int(_LIBC.syscall(machine.seccomp, _QUERY_ACTION, 0, ctypes.byref(action))) == 0


def _make_filter(machine: _Machine) -> Iterator[bytes]:
    """Yield the filter's instructions: a call that none of them refuses is allowed."""
    refuse = _instruct(_RETURN, _ERRNO | errno.EPERM)
    yield _instruct(_LOAD, _ARCH_AT)
    yield _instruct(_JUMP_EQUAL, machine.audit_arch, if_true=1)
    yield refuse
    yield _instruct(_LOAD, _NUMBER_AT)
    yield _instruct(_JUMP_AT_LEAST, _X32_CALLS, if_false=1)
    yield refuse
    for numbers in _DENIED.values():
        if numbers[machine.column] != _NEVER:
            yield _instruct(_JUMP_EQUAL, numbers[machine.column], if_false=1)
            yield refuse
    # glibc starts threads by clone3, whose flags no filter can read, and by clone if clone3 is
    # missing.
    yield _instruct(_JUMP_EQUAL, _CLONE3, if_false=1)
    yield _instruct(_RETURN, _ERRNO | errno.ENOSYS)
    yield from _allow_only(machine.clone, _JUMP_SET, _CLONE_THREAD)
    yield from _allow_only(machine.tgkill, _JUMP_EQUAL, os.getpid())
    yield from _allow_only(machine.prlimit, _JUMP_EQUAL, 0)
    yield _instruct(_RETURN, _ALLOW)


def _allow_only(number: int, comparison: int, value: int) -> Iterator[bytes]:
    """Yield instructions that refuse a call unless its first argument satisfies the comparison."""
    yield _instruct(_JUMP_EQUAL, number, if_false=4)
    yield _instruct(_LOAD, _FIRST_ARGUMENT_AT)
    yield _instruct(comparison, value, if_true=1)
    yield _instruct(_RETURN, _ERRNO | errno.EPERM)
    yield _instruct(_RETURN, _ALLOW)


def _instruct(code: int, constant: int, *, if_true: int = 0, if_false: int = 0) -> bytes:
    """Return a struct sock_filter; jumps count the instructions to skip."""
    return struct.pack("=HBBI", code, if_true, if_false, constant)


_LIBC = ctypes.CDLL(None, use_errno=True)


def _call(number: int, *arguments: object) -> int:
    return _raise_errors(_LIBC.syscall(number, *arguments), f"system call {number}")


def _raise_errors(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return int(result)
