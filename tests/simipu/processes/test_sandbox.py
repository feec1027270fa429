"""Tests of what a confined process can and cannot do: real attempts on a real kernel."""

import ctypes
import errno
import json
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from functools import partial

import pytest
from simipu.processes import sandbox, system_calls
from waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.skipif(
    bool(sandbox.find_missing()), reason=f"this system lacks {', '.join(sandbox.find_missing())}"
)

ALLOW = 0x7FFF0000
REFUSED = {
    "read a file": "open('/etc/passwd').read()",
    "read a file by another way": "open('/proc/self/root/etc/passwd').read()",
    "list a folder": "os.listdir('/')",
    "list a folder beside a given one": "os.listdir(READABLE + '/../other')",
    "read the memory of the parent": "open(f'/proc/{os.getppid()}/mem', 'rb')",
    "write a file": "open(READABLE + '/../other/file', 'w')",
    "write a file that can be read": "open(READABLE + '/file', 'a')",
    "truncate a file that can be read": "os.truncate(READABLE + '/file', 0)",
    "make a file": "open(READABLE + '/new', 'w')",
    "make a folder": "os.mkdir(READABLE + '/folder')",
    "remove a file": "os.remove(READABLE + '/removed')",
    "rename a file": "os.rename(READABLE + '/renamed', READABLE + '/other')",
    "link a file": "os.symlink('/etc/passwd', READABLE + '/link')",
    "change a file's rights": "os.chmod(READABLE + '/file', 0o777)",
    "change a file's times": "os.utime(READABLE + '/file')",
    "change an attribute": "os.setxattr(READABLE + '/file', 'user.x', b'')",
    "open a TCP socket": "socket.socket()",
    "open a UDP socket": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "open a unix socket": "socket.socket(socket.AF_UNIX)",
    "open a netlink socket": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
    "start a program": "subprocess.run(['/bin/true'])",
    "start a program by posix_spawn": "os.posix_spawn('/bin/true', ['true'], {})",
    "fork": "os.fork() or os._exit(0)",
    "end the parent": "os.kill(os.getppid(), 0)",
    "end a process group": "os.killpg(0, 0)",
    "become a program": "os.execv('/bin/true', ['true'])",
    "limit the parent": "resource.prlimit(os.getppid(), resource.RLIMIT_CORE)",
    "hold the parent": "os.pidfd_open(os.getppid())",
    "pin the parent": "os.sched_setaffinity(os.getppid(), os.sched_getaffinity(0))",
    "slow the parent": "os.setpriority(os.PRIO_PROCESS, os.getppid(), 0)",
    "schedule the parent": "os.sched_setscheduler(os.getppid(), os.SCHED_OTHER, os.sched_param(0))",
    "signal a thread of the parent": "call('tgkill', os.getppid(), os.getppid(), 0)",
    "have the kernel signal the parent": "fcntl.fcntl(LOG, fcntl.F_SETOWN, os.getppid())",
    "choose that signal": "fcntl.fcntl(LOG, fcntl.F_SETSIG, signal.SIGKILL)",
    "trace the parent": "call('ptrace', 0x4206, os.getppid(), 0, 0)",
    "list the parent's descriptors": "os.listdir(f'/proc/{os.getppid()}/fd')",
    "follow a descriptor of the parent": "os.readlink(f'/proc/{os.getppid()}/fd/0')",
    "read the parent's environment": "open(f'/proc/{os.getppid()}/environ')",
    "change a queue by its ID": "call('msgctl', QUEUE, 2, bytes(256))",
    "write to a queue by its ID": "call('msgsnd', QUEUE, struct.pack('ll', 1, 1), "
    "ctypes.c_size_t(8), 0)",
    "read a queue by its ID": "call('msgrcv', QUEUE, bytes(64), ctypes.c_size_t(8), "
    "ctypes.c_long(0), 0)",
    "remove a queue by its ID": "call('msgctl', QUEUE, 0, 0)",
    "take a semaphore by its ID": "call('semop', SEMAPHORE, struct.pack('Hhh', 0, 1, 0), "
    "ctypes.c_size_t(1))",
    "remove a semaphore by its ID": "call('semctl', SEMAPHORE, 0, 0)",
    "attach shared memory by its ID": "call('shmat', MEMORY, None, 0)",
    "remove shared memory by its ID": "call('shmctl', MEMORY, 0, 0)",
    "open a POSIX queue": "call('mq_open', b'/simipu-sandbox', os.O_RDWR | os.O_CREAT, 0o600, None)",
    "remove a POSIX queue": "call('mq_unlink', b'/simipu-sandbox')",
    "open shared memory by its name": "open('/dev/shm/' + SHARED, 'r+b')",
    "read shared memory by its name": "open('/dev/shm/' + SHARED, 'rb')",
    "remove shared memory by its name": "os.remove('/dev/shm/' + SHARED)",
    "make memory that no limit counts": "mmap.mmap(-1, 4096)",
    "make memory that grows uncounted": "mmap.mmap(-1, 4096, flags=0x122)",
    "make a file without a name": "os.memfd_create('memory')",
    "cut an open file": "os.ftruncate(LOG, 0)",
    "overwrite an open file": "os.pwrite(LOG, b'x', 0)",
    "change the flags of an open file": "os.set_blocking(LOG, False)",
    "lock a file": "fcntl.flock(LOG, fcntl.LOCK_EX)",
    "lock a file for a reader": "fcntl.lockf(open(READABLE + '/file'), fcntl.LOCK_SH)",
    "watch files": "call('inotify_init1', 0)",
    "outlive the parent": "call('prctl', 1, 0, 0, 0, 0)",
    "type into the terminal": "fcntl.ioctl(LOG, termios.TIOCSTI, b'x')",
    "set the host name": "socket.sethostname(socket.gethostname())",
    "raise its own limits": "resource.setrlimit(resource.RLIMIT_CORE, (1, 1))",
    "start calls that no filter sees": "call('syscall', 425, 1, bytes(120))",
}
NEEDS_RIGHTS = {
    "become a program",
    "change an attribute",
    "read the memory of the parent",
    "trace the parent",
    "type into the terminal",
    "set the host name",
    "raise its own limits",
    "start calls that no filter sees",
}
"""Attempts that fail on some systems also where nothing is confined, or that end the attempts."""
ALLOWED = {
    "read a file of a given folder": "assert open(READABLE + '/file').read() == 'text'",
    "import and compute": "import numpy; assert (numpy.ones((64, 64)) @ numpy.ones((64, "
    "64))).sum() == 64**3",
    "start threads": "[t.start() or t.join() for t in [threading.Thread(target=int) for _ in "
    "range(4)]]",
    "use an open pipe": "os.write(1, b'\\n')",
    "take random numbers": "os.urandom(8); open('/dev/urandom', 'rb').read(1)",
    "signal itself": "signal.signal(signal.SIGUSR1, signal.SIG_IGN); "
    "signal.raise_signal(signal.SIGUSR1)",
    "look at its own limits": "resource.getrlimit(resource.RLIMIT_DATA)",
    "lower its own limits": "resource.setrlimit(resource.RLIMIT_DATA, (1 << 36, 1 << 36))",
    "choose its own cores": "os.sched_setaffinity(0, os.sched_getaffinity(0))",
    "look at the cores of a thread": "os.sched_getaffinity(threading.get_native_id())",
    "name a thread": "call('prctl', 15, b'name', 0, 0, 0)",
    "map a file": "mmap.mmap(os.open(READABLE + '/file', os.O_RDONLY), 4, prot=mmap.PROT_READ)",
    "map memory of its own": "mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)",
    "open a pipe and wait for it": "select.select([os.pipe()[0]], [], [], 0)",
    "wait for many": "select.epoll().register(os.pipe()[0])",
    "set a timer": "signal.setitimer(signal.ITIMER_REAL, 1000)",
    "sleep": "time.sleep(0.001)",
    "list a given folder": "assert 'file' in os.listdir(READABLE)",
    "copy a descriptor": "os.close(os.dup(1))",
    "print where its threads are": "faulthandler.dump_traceback()",
    "look at the machine": "os.uname(); os.getloadavg; os.cpu_count(); "
    "resource.getrusage(resource.RUSAGE_SELF)",
}
ATTEMPTS = """
import ctypes, errno, faulthandler, fcntl, json, mmap, os, resource, select, signal, socket, struct
import subprocess, sys, termios, threading, time
from simipu.processes.sandbox import confine
READABLE, SHARED = sys.argv[1:3]
QUEUE, SEMAPHORE, MEMORY = map(int, sys.argv[3:])
LOG = os.open(READABLE + "/log", os.O_RDWR | os.O_CREAT)
LIBC = ctypes.CDLL(None, use_errno=True)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
def call(name, *arguments):
    if getattr(LIBC, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)
confine([READABLE])
found = {}
for name, text in json.load(sys.stdin).items():
    try:
        exec(text)
        found[name] = 0
    except OSError as error:
        found[name] = error.errno
    except ValueError:  # setrlimit
        found[name] = errno.EPERM
print(json.dumps(found))
"""
_PRIVATE = 0
"""Value of IPC_PRIVATE: a new queue, semaphore or memory without a key."""


def make_attempts(folder, attempts, program=ATTEMPTS):
    """Return the error number of each attempt, 0 where it succeeded."""
    readable = folder / "readable"
    readable.mkdir()
    (folder / "other").mkdir()
    for name in ("file", "removed", "renamed"):
        (readable / name).write_text("text")
    with make_shared() as shared:
        done = run_python(program, readable, *shared, input=json.dumps(attempts))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def make_shared():
    """Yield the name of a file in shared memory, and the IDs of a queue, a semaphore and a memory
    of System V, which are of this process."""
    libc = ctypes.CDLL(None)
    queue = libc.msgget(_PRIVATE, 0o600)
    semaphore = libc.semget(_PRIVATE, 1, 0o600)
    memory = libc.shmget(_PRIVATE, ctypes.c_size_t(4096), 0o600)
    try:
        with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
            yield os.path.basename(file.name), queue, semaphore, memory
            open(file.name, "a").close()  # an attempt may have removed it
    finally:
        libc.msgctl(queue, 0, None)
        libc.semctl(semaphore, 0, 0)
        libc.shmctl(memory, 0, None)


def run_python(text, *arguments, **options):
    return subprocess.run(
        [sys.executable, "-c", text, *map(str, arguments)],
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return make_attempts(tmp_path_factory.mktemp("confined"), REFUSED | ALLOWED)


@pytest.mark.parametrize("attempt", REFUSED)
def test_a_confined_process_cannot(attempt, found):
    # Landlock returns EXDEV for a rename or a link that would leave a folder.
    # The filter returns ENOSYS for new calls.
    assert found[attempt] in (errno.EPERM, errno.EACCES, errno.EXDEV, errno.ENOSYS)


@pytest.mark.parametrize("attempt", ALLOWED)
def test_a_confined_process_can(attempt, found):
    assert found[attempt] == 0


def test_attempts_succeed_where_nothing_is_confined(tmp_path):
    """This shows that the attempts fail because of the confinement only."""
    attempts = {name: text for name, text in REFUSED.items() if name not in NEEDS_RIGHTS}
    found = make_attempts(tmp_path, attempts, ATTEMPTS.replace("confine([READABLE])", ""))
    assert found == dict.fromkeys(attempts, 0)


def test_a_process_with_several_threads_is_not_reported_as_confined():
    text = (
        "import threading, simipu.processes.sandbox as s; threading.Thread(target=threading.Event().wait, "
        "daemon=True).start(); s.confine()"
    )
    done = run_python(text)
    assert "expected to confine a process of one thread, found 2" in done.stderr


def test_a_confined_process_can_only_append_to_its_outputs(tmp_path):
    """It shares them with the server, whose log it must neither read nor overwrite."""
    log = tmp_path / "log"
    log.write_text("before\n")
    text = (
        "import os, simipu.processes.sandbox as s; s.confine(); os.lseek(2, 0, os.SEEK_SET); "
        "os.write(2, b'after\\n')\n"
        "try: os.read(2, 1)\nexcept OSError: print('refused')"
    )
    with open(log, "r+") as file:
        file.seek(0, os.SEEK_END)
        done = run_python(text, stderr=file)
    assert (log.read_text(), done.stdout) == ("before\nafter\n", "refused\n")


def test_a_confined_process_writes_to_an_output_that_cannot_be_opened():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        run_python(
            "import os, simipu.processes.sandbox as s; s.confine(); os.write(2, b'x')",
            stderr=theirs,
        )
        assert ours.recv(1) == b"x"


def test_root_keeps_no_capability_but_that_to_read_files():
    text = (
        "import simipu.processes.sandbox as s; s.confine(); print(open('/proc/self/status').read())"
    )
    status = dict(line.split(":", 1) for line in run_python(text).stdout.splitlines() if line)
    for kind in ("CapPrm", "CapEff", "CapInh", "CapAmb"):
        assert int(status[kind], 16) & ~0b110 == 0


def test_no_call_passes_that_is_not_listed():
    """Try all numbers of calls, with arguments that no call accepts, also those of the second set
    of x86-64 and those that no kernel has. Newer kernels let the calls 335 and 336 of x86-64 pass
    every filter; they end a process that is not being probed."""
    text = (
        "import ctypes, errno, json, os, platform, sys, simipu.processes.sandbox as s, "
        "simipu.processes.system_calls as c\n"
        "machine = c.MACHINES[platform.machine()]\n"
        "listed = {*c.find_numbers(c.ALLOWED, machine), *c.find_numbers(c.CHECKED, machine)}\n"
        "listed |= {335, 336}\n"
        "libc, passed = ctypes.CDLL(None, use_errno=True), []\n"
        "s.confine()\n"
        "for number in {*range(600), *range(c.X32_CALLS, c.X32_CALLS + 600)} - listed:\n"
        "    ctypes.set_errno(0)\n"
        "    libc.syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6)\n"
        "    if ctypes.get_errno() not in (errno.EPERM, errno.ENOSYS): passed.append(number)\n"
        "print(json.dumps(passed))"
    )
    done = run_python(text)
    assert json.loads(done.stdout) == [], done.stderr


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_allows_what_is_listed_and_nothing_else(machine):
    """Run by an interpreter of these few instructions, for both architectures."""
    run = partial(run_filter, system_calls.MACHINES[machine])
    column = system_calls.MACHINES[machine].column
    fail, missing = 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
    allowed = {numbers[column] for numbers in system_calls.ALLOWED.values()} - {-1}
    checked = {numbers[column] for numbers in system_calls.CHECKED.values()} - {-1}
    assert {run(number) for number in allowed} == {ALLOW}
    assert {run(number) for number in set(range(424)) - allowed - checked} == {fail}
    assert {run(number) for number in set(range(424, 1000)) - allowed} == {missing}
    assert {run(number + (1 << 30)) for number in (0, 59, 520, 600)} == {fail}
    assert run(min(allowed), arch=0x40000003) == fail


MY, PARENT = 4242, 4241
ARGUMENTS = {
    "clone": ([(0x3D0F00,)], [(0x01200011,), (0x00010000,), (0x403D0F00,), (0x3DAF00,)]),
    "openat": ([(0, 0, os.O_RDONLY | os.O_CLOEXEC)], [(0, 0, os.O_RDWR), (0, 0, os.O_CREAT)]),
    "mmap": (
        [(0, 9, 3, 0x22), (0, 9, 1, 0x1), (0, 9, 1, 0x20002), (0, 9, 3, 0x4032), (0, 9, 5, 0x812)],
        [(0, 9, 3, 0x21), (0, 9, 3, 0x122), (0, 9, 1, 0x40022), (0, 9, 1, 0x3), (0, 9, 3, 0x28)],
    ),
    "fcntl": ([(3, 1), (3, 1030)], [(3, 4), (3, 8), (3, 10), (3, 15), (3, 1026), (3, 1033)]),
    "ioctl": ([(3, 0x5401), (3, 0x5451)], [(3, 0x5412), (3, 0x5421), (3, 0x8901)]),
    "prctl": ([(15,), (0x53564D41,)], [(1,), (4,), (22,), (35,), (36,), (0x59616D61,)]),
    "kill": ([(MY,)], [(0,), (PARENT,), (-1 & 0xFFFFFFFF,), (-MY & 0xFFFFFFFF,)]),
    "tgkill": ([(MY, 5)], [(0,), (PARENT, 5)]),
    "prlimit64": ([(0, 7), (MY, 7)], [(PARENT, 7)]),
    "sched_setaffinity": ([(0,), (MY,)], [(PARENT,)]),
    "sched_getparam": ([(0,), (MY,)], [(PARENT,)]),
    "sched_getscheduler": ([(0,), (MY,)], [(PARENT,)]),
    "getpriority": ([(0, 0), (0, MY)], [(0, PARENT), (1, 0), (2, 0)]),
    "get_robust_list": ([(0,), (MY,)], [(PARENT,)]),
    "getpgid": ([(0,), (MY,)], [(PARENT,)]),
    "getsid": ([(0,), (MY,)], [(PARENT,)]),
    "open": ([(0, os.O_RDONLY)], [(0, os.O_WRONLY), (0, os.O_TRUNC), (0, os.O_CREAT)]),
}
"""For each call with rules: arguments that are allowed, and some that are refused."""


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("name", system_calls.CHECKED)
def test_the_filter_checks_arguments(name, machine):
    number = system_calls.CHECKED[name][system_calls.MACHINES[machine].column]
    if number < 0:
        pytest.skip(f"{machine} has no such call")
    run = partial(run_filter, system_calls.MACHINES[machine], number)
    allowed, refused = ARGUMENTS[name]
    assert {run(*arguments) for arguments in allowed} == {ALLOW}
    assert {run(*arguments) for arguments in refused} == {0x00050000 | errno.EPERM}


def run_filter(machine, number, *arguments, arch=None):
    """Return the action of the filter of process `MY` for a call."""
    program = [struct.unpack("=HBBI", part) for part in system_calls.make_filter(machine, MY)]
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, arch or machine.audit_arch, 0, *padded)
    at, loaded = 0, 0
    while True:
        code, if_true, if_false, constant = program[at]
        at += 1
        if code == 0x06:
            return constant
        if code == 0x20:
            (loaded,) = struct.unpack_from("=I", data, constant)
        elif code == 0x54:
            loaded &= constant
        else:
            holds = {0x15: loaded == constant, 0x35: loaded >= constant}[code]
            at += if_true if holds else if_false


@pytest.mark.parametrize(
    ("column", "header", "prefix"),
    [
        (0, "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "__NR_"),
        (1, "/usr/include/asm-generic/unistd.h", "__NR(?:3264)?_"),
    ],
)
def test_the_numbers_are_those_of_the_kernel_headers(column, header, prefix):
    if not os.path.exists(header):
        pytest.skip("the kernel's headers are not installed")
    with open(header) as file:
        known = dict(re.findall(rf"#define {prefix}(\w+)\s+(\d+)", file.read()))
    known["newfstatat"] = known.get("fstatat", known.get("newfstatat"))
    calls = {
        name: numbers[column]
        for name, numbers in (system_calls.ALLOWED | system_calls.CHECKED).items()
    }
    # Headers of an older kernel lack the newest calls.
    assert calls == {
        name: int(known.get(name, number if number > 440 else -1)) for name, number in calls.items()
    }
