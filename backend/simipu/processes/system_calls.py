"""The system calls that a confined process may make, and the seccomp filter that allows only them.

The filter allows what Python, numpy, ONNX Runtime, OpenVINO and the C library need to read files,
to compute, to start threads, to wait, and to answer on the channel that is already open. It returns
an error for every other call, also for calls that later kernels add. A call whose effect depends
on a number (a process ID, a command, flags) is allowed for the listed numbers only. A filter cannot
read what a pointer refers to, such as a path: Landlock limits the files (`sandbox`).
"""

from __future__ import annotations

import errno
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_ALLOWED_CALLS = """
memory of the process:
  brk 12 214 | mprotect 10 226 | munmap 11 215 | mremap 25 216 | madvise 28 233 | mincore 27 232
  msync 26 227 | mlock 149 228 | mlock2 325 284 | munlock 150 229 | mlockall 151 230
  munlockall 152 231 | mbind 237 235 | get_mempolicy 239 236 | set_mempolicy 238 237
  set_mempolicy_home_node 450 450 | pkey_mprotect 329 288 | pkey_alloc 330 289 | pkey_free 331 290
  map_shadow_stack 453 453 | mseal 462 462 | arch_prctl 158 -1
open files and pipes, none of which is written at a position or cut:
  read 0 63 | readv 19 65 | pread64 17 67 | preadv 295 69 | preadv2 327 286 | write 1 64
  writev 20 66 | lseek 8 62 | close 3 57 | close_range 436 436 | fstat 5 80 | fstatfs 138 44
  fadvise64 221 223 | readahead 187 213 | getdents 78 -1 | getdents64 217 61 | dup 32 23
  dup2 33 -1 | dup3 292 24 | pipe 22 -1 | pipe2 293 59 | eventfd 284 -1 | eventfd2 290 19
  poll 7 -1 | ppoll 271 73 | select 23 -1 | pselect6 270 72 | epoll_create 213 -1
  epoll_create1 291 20 | epoll_ctl 233 21 | epoll_wait 232 -1 | epoll_pwait 281 22
  epoll_pwait2 441 441 | signalfd 282 -1 | signalfd4 289 74 | timerfd_create 283 85
  timerfd_settime 286 86 | timerfd_gettime 287 87
the channel, which is connected:
  sendto 44 206 | sendmsg 46 211 | recvfrom 45 207 | recvmsg 47 212 | getsockopt 55 209
  getsockname 51 204 | getpeername 52 205
paths, of which Landlock limits those that can be read; the rest tells whether a path exists:
  stat 4 -1 | lstat 6 -1 | newfstatat 262 79 | statx 332 291 | statfs 137 43 | access 21 -1
  faccessat 269 48 | faccessat2 439 439 | readlink 89 -1 | readlinkat 267 78 | getcwd 79 17
  chdir 80 49 | fchdir 81 50 | umask 95 166
threads of the process:
  futex 202 98 | futex_waitv 449 449 | futex_wake 454 454 | futex_wait 455 455
  futex_requeue 456 456 | set_robust_list 273 99 | set_tid_address 218 96 | rseq 334 293
  membarrier 324 283 | sched_yield 24 124 | getcpu 309 168 | exit 60 93 | exit_group 231 94
  wait4 61 260 | waitid 247 95 | restart_syscall 219 128
  sched_get_priority_max 146 125 | sched_get_priority_min 147 126
  sched_getaffinity 204 123
signals to the process, and time:
  rt_sigaction 13 134 | rt_sigprocmask 14 135 | rt_sigreturn 15 139 | rt_sigpending 127 136
  rt_sigtimedwait 128 137 | rt_sigsuspend 130 133 | sigaltstack 131 132 | pause 34 -1 | alarm 37 -1
  getitimer 36 102 | setitimer 38 103 | timer_create 222 107 | timer_settime 223 110
  timer_gettime 224 108 | timer_getoverrun 225 109 | timer_delete 226 111 | nanosleep 35 101
  clock_nanosleep 230 115 | clock_gettime 228 113 | clock_getres 229 114 | time 201 -1
  gettimeofday 96 169 | times 100 153
facts:
  getpid 39 172 | getppid 110 173 | gettid 186 178 | getpgrp 111 -1 | getuid 102 174
  geteuid 107 175 | getgid 104 176 | getegid 108 177 | getresuid 118 148 | getresgid 120 150
  getgroups 115 158 | uname 63 160 | sysinfo 99 179 | getrusage 98 165 | getrandom 318 278
  getrlimit 97 163 | setrlimit 160 164
"""
"""Calls that are allowed with any arguments, with their numbers on x86-64 and aarch64 (syscalls(2),
the kernel's tables); -1 if an architecture lacks one. glibc needs `sched_getaffinity` of each
thread; the answer for another process changes nothing there."""
_CHECKED_CALLS = """
  openat 257 56 | open 2 -1 | clone 56 220 | mmap 9 222 | fcntl 72 25 | ioctl 16 29 | prctl 157 167
  kill 62 129 | tgkill 234 131 | prlimit64 302 261 | sched_setaffinity 203 122
  sched_getparam 143 121 | sched_getscheduler 145 120 | getpriority 140 141
  get_robust_list 274 100 | getpgid 121 155 | getsid 124 156
"""
"""Calls that are allowed with the arguments in `_list_checks` only."""


@dataclass(frozen=True, slots=True)
class Machine:
    """An architecture: its identifier in the kernel, its column in the tables of calls, and the
    numbers of calls that `sandbox` makes."""

    audit_arch: int
    column: int
    seccomp: int
    capset: int


MACHINES = {
    "x86_64": Machine(0xC000003E, 0, seccomp=317, capset=126),
    "aarch64": Machine(0xC00000B7, 1, seccomp=277, capset=91),
}

ALLOW, FAIL = 0x7FFF0000, 0x00050000
"""Actions of seccomp(2); the lower half of FAIL is the error."""
_LOAD, _MASK, _RETURN = 0x20, 0x54, 0x06
"""Instructions of classic BPF: load a word, keep some of its bits, return."""
_JUMP_EQUAL, _JUMP_AT_LEAST = 0x15, 0x35
"""Instructions that compare the word with a constant."""
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT, _ARGUMENT_BYTES = 0, 4, 16, 8
"""Offsets in bytes of fields of struct seccomp_data. The lower half of an argument is its first
word on little-endian machines; the kernel ignores the upper halves of the checked arguments."""
X32_CALLS = 1 << 30
"""First number of x86-64's second set of system calls."""
FIRST_NEW_CALL = 424
"""First call of Linux 5.1, from which on all architectures use the same numbers. Libraries use
another call in place of a newer one if the error is ENOSYS, not EPERM: glibc starts threads by
clone, whose flags a filter can read, if clone3 is missing."""
_ALL_BITS = 0xFFFFFFFF
_OPEN_TO_WRITE = 0o3 | 0o100 | 0o1000
"""Bits of open(2) that write or make a file: O_WRONLY, O_RDWR, O_CREAT, O_TRUNC."""
_NEW_THREAD = 0x00010000 | 0x00000800 | 0x00000100
"""Bits of clone(2): CLONE_THREAD, CLONE_SIGHAND, CLONE_VM."""
_NEW_PROCESS = 0x7E020080 | 0x00001000 | 0x0000E000
"""Bits of clone(2) that make namespaces (CLONE_NEW*) or concern other processes: CLONE_PIDFD,
CLONE_PTRACE, CLONE_VFORK, CLONE_PARENT."""
_SHARED, _PRIVATE, _ANONYMOUS = 0x01, 0x02, 0x20
"""Bits of mmap(2). Memory that is shared and anonymous does not count towards RLIMIT_DATA."""
_HARMLESS_MAPPINGS = 0x10 | 0x800 | 0x1000 | 0x4000 | 0x8000 | 0x20000 | 0x100000
"""Further bits of mmap(2) that libraries use: MAP_FIXED, MAP_DENYWRITE, MAP_EXECUTABLE,
MAP_NORESERVE, MAP_POPULATE, MAP_STACK, MAP_FIXED_NOREPLACE. Memory with MAP_GROWSDOWN does not
count towards RLIMIT_DATA, nor do large pages (MAP_HUGETLB) that are only read."""
_FILE_COMMANDS = (0, 1, 2, 3, 1030, 1032)
"""Commands of fcntl(2): F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_DUPFD_CLOEXEC, F_GETPIPE_SZ. F_SETFL
would change the standard error of the parent, F_SETOWN and F_SETSIG send it signals."""
_DEVICE_REQUESTS = (0x5401, 0x5413, 0x541B, 0x5450, 0x5451)
"""Requests of ioctl(2): TCGETS, TIOCGWINSZ, FIONREAD, FIONCLEX, FIOCLEX. TIOCSTI would type into
the server's terminal."""
_PROCESS_OPTIONS = (
    *(2, 3, 15, 16, 21, 23, 27, 29, 30, 34, 38, 39, 41, 42),
    *(50, 51, 52, 54, 55, 56, 60, 61, 63, 64, 65, 66, 0x53564D41, 0x41555856),
)
"""Options of prctl(2): names of threads and of memory, timer slack, transparent huge pages, vectors
and pointer keys of aarch64, and those that read. None changes who may trace the process or when the
kernel kills it."""


@dataclass(frozen=True, slots=True)
class _Check:
    """A test of a call's argument: its bits in `mask` must be one of `values`."""

    argument: int
    values: tuple[int, ...]
    mask: int = _ALL_BITS


def _read_calls(text: str) -> dict[str, tuple[int, int]]:
    return {
        name: (int(x86_64), int(aarch64))
        for name, x86_64, aarch64 in re.findall(r"(\w+) (\d+) (-?\d+)", text)
    }


ALLOWED, CHECKED = _read_calls(_ALLOWED_CALLS), _read_calls(_CHECKED_CALLS)
"""Numbers of the calls that are allowed with any arguments, and with some."""


def make_filter(machine: Machine, pid: int) -> Iterator[bytes]:
    """Yield the instructions of the filter for the process `pid`."""
    fail = _instruct(_RETURN, FAIL | errno.EPERM)
    yield _instruct(_LOAD, _ARCH_AT)
    yield _instruct(_JUMP_EQUAL, machine.audit_arch, if_true=1)
    yield fail
    yield _instruct(_LOAD, _NUMBER_AT)
    for number in find_numbers(ALLOWED, machine):
        yield _instruct(_JUMP_EQUAL, number, if_false=1)
        yield _instruct(_RETURN, ALLOW)
    for name, checks in _list_checks(pid).items():
        for number in find_numbers({name: CHECKED[name]}, machine):
            block = [part for check in checks for part in _require(check)]
            yield _instruct(_JUMP_EQUAL, number, if_false=len(block) + 1)
            yield from block
            yield _instruct(_RETURN, ALLOW)
    yield _instruct(_JUMP_AT_LEAST, X32_CALLS, if_true=2)
    yield _instruct(_JUMP_AT_LEAST, FIRST_NEW_CALL, if_false=1)
    yield _instruct(_RETURN, FAIL | errno.ENOSYS)
    yield fail


def find_numbers(calls: dict[str, tuple[int, int]], machine: Machine) -> Iterable[int]:
    """Return the numbers of those calls that the machine has."""
    return [numbers[machine.column] for numbers in calls.values() if numbers[machine.column] >= 0]


def _list_checks(pid: int) -> dict[str, tuple[_Check, ...]]:
    own, own_or_thread = (_Check(0, (pid,)),), (_Check(0, (0, pid)),)
    new_thread = _Check(0, (_NEW_THREAD,), _NEW_THREAD | _NEW_PROCESS)
    kinds = (_SHARED, _PRIVATE, _PRIVATE | _ANONYMOUS)
    counted = _Check(3, kinds, _ALL_BITS & ~_HARMLESS_MAPPINGS)
    return {
        "openat": (_Check(2, (0,), _OPEN_TO_WRITE),),
        "open": (_Check(1, (0,), _OPEN_TO_WRITE),),
        "clone": (new_thread,),
        "mmap": (counted,),
        "fcntl": (_Check(1, _FILE_COMMANDS),),
        "ioctl": (_Check(1, _DEVICE_REQUESTS),),
        "prctl": (_Check(0, _PROCESS_OPTIONS),),
        "kill": own,
        "tgkill": own,
        "prlimit64": own_or_thread,
        "sched_setaffinity": own_or_thread,
        "sched_getparam": own_or_thread,
        "sched_getscheduler": own_or_thread,
        "getpriority": (_Check(0, (0,)), _Check(1, (0, pid))),
        "get_robust_list": own_or_thread,
        "getpgid": own_or_thread,
        "getsid": own_or_thread,
    }


def _require(check: _Check) -> Iterator[bytes]:
    """Yield instructions that fail unless the check holds."""
    yield _instruct(_LOAD, _ARGUMENTS_AT + _ARGUMENT_BYTES * check.argument)
    if check.mask != _ALL_BITS:
        yield _instruct(_MASK, check.mask)
    for index, value in enumerate(check.values):
        yield _instruct(_JUMP_EQUAL, value, if_true=len(check.values) - index)
    yield _instruct(_RETURN, FAIL | errno.EPERM)


def _instruct(code: int, constant: int, *, if_true: int = 0, if_false: int = 0) -> bytes:
    """Return a struct sock_filter; jumps count the instructions to skip."""
    return struct.pack("=HBBI", code, if_true, if_false, constant)
