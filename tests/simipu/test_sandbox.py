"""Tests of what a confined process can and cannot do: real attempts on a real kernel."""

import errno
import json
import os
import platform
import struct
import subprocess
import sys

import pytest
from simipu import sandbox

pytestmark = pytest.mark.skipif(
    bool(sandbox.find_missing()), reason=f"this system lacks {', '.join(sandbox.find_missing())}"
)

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
}
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
}
ATTEMPTS = """
import json, os, resource, signal, socket, subprocess, sys, threading
from simipu.sandbox import confine
READABLE = sys.argv[1]
confine([READABLE])
found = {}
for name, text in json.load(sys.stdin).items():
    try:
        exec(text)
        found[name] = 0
    except OSError as error:
        found[name] = error.errno
print(json.dumps(found))
"""


def make_attempts(folder, attempts, program=ATTEMPTS):
    """Return the error number of each attempt, 0 where it succeeded."""
    readable = folder / "readable"
    readable.mkdir()
    (folder / "other").mkdir()
    for name in ("file", "removed", "renamed"):
        (readable / name).write_text("text")
    done = run_python(program, readable, input=json.dumps(attempts))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def run_python(text, *arguments, **options):
    return subprocess.run(
        [sys.executable, "-c", text, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return make_attempts(tmp_path_factory.mktemp("confined"), REFUSED | ALLOWED)


@pytest.mark.parametrize("attempt", REFUSED)
def test_a_confined_process_cannot(attempt, found):
    # Landlock returns EXDEV for a rename or a link that would leave a folder.
    assert found[attempt] in (errno.EPERM, errno.EACCES, errno.EXDEV)


@pytest.mark.parametrize("attempt", ALLOWED)
def test_a_confined_process_can(attempt, found):
    assert found[attempt] == 0


def test_attempts_succeed_where_nothing_is_confined(tmp_path):
    """This shows that the attempts fail because of the confinement only."""
    ends_it, needs_rights = (
        "become a program",
        {"change an attribute", "read the memory of the parent"},
    )
    attempts = {
        name: text for name, text in REFUSED.items() if name not in {ends_it, *needs_rights}
    }
    found = make_attempts(tmp_path, attempts, ATTEMPTS.replace("confine([READABLE])", ""))
    assert found == dict.fromkeys(attempts, 0)


def test_a_process_with_several_threads_is_not_said_to_be_confined():
    text = (
        "import threading, simipu.sandbox as s; threading.Thread(target=threading.Event().wait, "
        "daemon=True).start(); s.confine()"
    )
    done = run_python(text)
    assert "expected to confine a process of one thread, found 2" in done.stderr


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_refuses_what_is_listed_and_other_architectures(machine):
    """Run by an interpreter of these few instructions, for both architectures."""
    made = sandbox._MACHINES[machine]
    program = [struct.unpack("=HBBI", part) for part in sandbox._make_filter(made)]

    def run(number, *, arch=made.audit_arch, argument=0):
        data = struct.pack("=IIQ6Q", number, arch, 0, argument, *[0] * 5)
        at, loaded = 0, 0
        while True:
            code, if_true, if_false, constant = program[at]
            at += 1
            if code == 0x06:
                return constant
            if code == 0x20:
                (loaded,) = struct.unpack_from("=I", data, constant)
            else:
                holds = {
                    0x15: loaded == constant,
                    0x35: loaded >= constant,
                    0x45: bool(loaded & constant),
                }
                at += if_true if holds[code] else if_false

    allow, refuse = 0x7FFF0000, 0x00050000 | errno.EPERM
    denied = {numbers[made.column] for numbers in sandbox._DENIED.values()} - {-1}
    assert {run(number) for number in denied} == {refuse}
    special = {made.clone, made.tgkill, made.prlimit, 435}
    assert {run(number) for number in set(range(480)) - denied - special} == {allow}
    assert run(made.clone, argument=0x3D0F00) == allow  # a thread, as glibc starts it
    assert run(made.clone, argument=0x01200011) == refuse  # a fork
    assert (run(made.tgkill, argument=os.getpid()), run(made.tgkill, argument=1)) == (allow, refuse)
    assert (run(made.prlimit), run(made.prlimit, argument=1)) == (allow, refuse)
    assert run(435) == 0x00050000 | errno.ENOSYS
    assert (run(0, arch=0x40000003), run(1 << 30)) == (refuse, refuse)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of x86-64")
def test_the_numbers_are_those_of_the_kernel_headers():
    header = "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"
    if not os.path.exists(header):
        pytest.skip("the kernel's headers are not installed")
    with open(header) as file:
        lines = [line.split() for line in file if line.startswith("#define __NR_")]
    known = {name.removeprefix("__NR_"): int(number) for _, name, number in lines}
    assert {name: known.get(name, numbers[0]) for name, numbers in sandbox._DENIED.items()} == {
        name: numbers[0] for name, numbers in sandbox._DENIED.items()
    }
