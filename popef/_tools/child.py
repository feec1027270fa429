"""Child processes: how this project starts, ends and waits for every process that runs its Python
code.

A child process never outlives its parent. One that works alone is killed by the kernel when its
parent dies (`die_with`). One that holds a socket of the parent ends when the socket closes
(`follow_parent`), because it may serve threads that come and go. `answering` adds requests and
answers.
"""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import Any, NoReturn

from .interrupts import INTERRUPTS
from .memory import limit_memory

LOST_WHILE_LOADING = "its process was lost while loading"
"""Words in the error of a model whose process was killed or stopped while it loaded. The model may
be sound, unlike one that is rejected."""
_DIE_WITH_PARENT = 1
"""Value of PR_SET_PDEATHSIG of prctl(2)."""
_PRCTL = ctypes.CDLL(None).prctl
"""Function prctl, loaded before any fork: the child of a process with threads must not load
libraries."""
_DIE_FIRST = (
    f"import ctypes, os, signal, sys; ctypes.CDLL(None).prctl({_DIE_WITH_PARENT}, signal.SIGKILL)\n"
    "if os.getppid() != int(sys.argv.pop()): sys.exit(1)  # it is dead already\n"
)
"""`die_with` as code that imports nothing of this project; the last argument is the parent's ID."""
NO_WORKING_FOLDER = "import sys; sys.path[:] = filter(None, sys.path)\n"
"""First line of a child's code: Python puts the working directory first on its path, where a user's
json.py would take the place of the standard library's. (The option -P for it is of Python 3.11.)"""
_END_SECONDS = 5.0
"""Maximum time for a program to end after an interrupt."""
_MAX_MILLISECONDS = 2**31 - 1
"""Maximum time that poll(2) waits: 24 days."""
_MIN_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.0005, 0.05
"""Pauses between two looks at a process that has no handle."""


class ChildProcess:
    """A child process, which its owner must `reap` or `end`. Threads may share it."""

    def __init__(self, pid: int, *, leads_group: bool = False) -> None:
        self.pid = pid
        self.usage: resource.struct_rusage | None = None
        """Resources that the process has used, once it is reaped."""
        self._leads_group = leads_group
        self._status: int | None = None
        # A finalizer may kill the process wherever the garbage collector runs.
        self._reaping = threading.RLock()

    @cached_property
    def handle(self) -> int:
        """File descriptor that becomes readable when the process has ended; closed by `reap`."""
        return os.pidfd_open(self.pid)

    def has_ended(self) -> bool:
        """Return whether the process has ended. One that is no child of this process counts as
        ended: after a fork it belongs to the parent."""
        if self._status is not None:
            return True
        try:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            with self._reaping:  # another thread may be about to set the status
                self._status = self._status or 0
            return True

    def wait(self, seconds: float) -> bool:
        """Return whether the process has ended, after waiting at most that long."""
        if "handle" in self.__dict__ and self._status is None:
            return wait_for((self.handle,), seconds)
        end, pause = time.monotonic() + seconds, _MIN_PAUSE_SECONDS
        while not self.has_ended():
            seconds_left = end - time.monotonic()
            if seconds_left <= 0:
                return False
            time.sleep(min(pause, seconds_left))
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)
        return True

    def reap(self) -> int:
        """Wait for the end and return the exit status; that of a signal is negative."""
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        with self._reaping:
            if self.has_ended() and self._status is None:
                _, status, self.usage = os.wait4(self.pid, 0)
                self._status = os.waitstatus_to_exitcode(status)
                if "handle" in self.__dict__:
                    os.close(self.handle)
            assert self._status is not None
            return self._status

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, or to its whole group if it leads one."""
        with self._reaping:
            self.has_ended()  # sets the status of a process that must not get a signal
            if self._status is None:
                with suppress(ProcessLookupError):
                    (os.killpg if self._leads_group else os.kill)(self.pid, number)

    def kill(self) -> None:
        """Kill the process, or its whole group if it leads one."""
        self.send_signal(signal.SIGKILL)

    def end(self, patience_seconds: float = 0) -> int:
        """Wait at most that long, kill the process, and return its exit status."""
        if patience_seconds:
            self.wait(patience_seconds)
        self.kill()
        return self.reap()


def start_python(code: str, *arguments: str, descriptors: Sequence[int] = ()) -> ChildProcess:
    """Start a process that runs Python code and inherits these descriptors. It must end by itself
    when its parent ends (`follow_parent`). Only the parent gets Ctrl-C."""
    command = _make_command(code, arguments)
    with _blocking((signal.SIGINT,)):  # the process inherits it, while it imports, too
        process = subprocess.Popen(command, pass_fds=descriptors, stdin=subprocess.DEVNULL)
    process.returncode = 0  # ChildProcess waits for it, so Popen must not
    return ChildProcess(process.pid)


def run_python(
    code: str, *arguments: str, seconds: float, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """Run Python code to its end in a process that dies with the calling thread.

    The options are those of subprocess.run. Raises subprocess.TimeoutExpired.
    """
    command = _make_command(_DIE_FIRST + code, (*arguments, str(os.getpid())))
    return subprocess.run(command, timeout=seconds, check=False, **options)


def run_program(
    command: Sequence[str], *, is_shown: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and return its status and output as text; output that is shown goes
    to the terminal instead. If this process is interrupted, the program gets the interrupt, too,
    and time to remove its temporary files."""
    pipe = None if is_shown else subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, errors="replace") as child:
        try:
            output, errors = child.communicate()
        except BaseException:
            child.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                child.communicate(timeout=_END_SECONDS)
            child.kill()
            raise
    return subprocess.CompletedProcess(command, child.returncode, output, errors)


def make_module_command(module: str) -> list[str]:
    """Return the command that runs a module as `python -m` does, but not from the working
    directory."""
    code = f"import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return _make_command(code, ())


def _make_command(code: str, arguments: Iterable[str]) -> list[str]:
    isolated = ["-I"] if sys.flags.isolated else []
    return [sys.executable, *isolated, "-c", f"{NO_WORKING_FOLDER}{code}", *arguments]


def fork_child(work: Callable[[], int], limit_bytes: int) -> ChildProcess:
    """Fork a process that does some work within a memory limit and exits with its result.

    It leads a process group, which gets its signals. Only the parent gets those of the terminal.
    It dies with the thread that forks it, so fork it in the main thread.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # both processes would write its buffered text
    parent = os.getpid()
    # Python drops the exception of an interrupt that arrives during a fork.
    with _blocking(INTERRUPTS) as mask:
        pid = os.fork()
        if not pid:
            _do(work, limit_bytes, parent, mask)
        # Both processes do this, so that it is done when either continues.
        with suppress(OSError):
            os.setpgid(pid, pid)
        child = ChildProcess(pid, leads_group=True)
        child.handle  # noqa: B018  opened here: its process exists
        return child


@contextmanager
def _blocking(numbers: Iterable[signal.Signals]) -> Iterator[set[int | signal.Signals]]:
    """Block signals of this thread within this context, and yield the mask before it. They arrive
    afterwards."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield mask
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _do(
    work: Callable[[], int], limit_bytes: int, parent: int, mask: set[int | signal.Signals]
) -> NoReturn:
    """Do the work in the forked process, and exit."""
    status = 1
    try:
        os.setpgid(0, 0)
        is_wanted = die_with(parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if is_wanted:
            limit_memory(limit_bytes)
            status = work()
        sys.stdout.flush()
    except SystemExit as error:
        status = int(error.code or 0)
    finally:
        # Skip C++'s exit handlers: they would wait for threads that a fork does not have.
        os._exit(status)


def wait_for(handles: Iterable[int], seconds: float) -> bool:
    """Return whether one of the descriptors, of any number, is readable or closed at its other end,
    after waiting at most that long."""
    waiting = select.poll()
    for handle in handles:
        waiting.register(handle, select.POLLIN)
    return bool(waiting.poll(min(seconds * 1000, _MAX_MILLISECONDS)))


def die_with(parent: int) -> bool:
    """Have the kernel kill this process when its parent dies, and return whether the parent is
    still alive.

    The process is also killed when only the *thread* that started it ends, so start it in the main
    thread.
    """
    _PRCTL(_DIE_WITH_PARENT, signal.SIGKILL)
    return os.getppid() == parent


def follow_parent(descriptor: int) -> None:
    """Start a thread that exits this process when the other end of a socket is closed, even in the
    middle of work."""
    threading.Thread(target=_follow, args=[descriptor], daemon=True).start()


def _follow(descriptor: int) -> None:
    pipe = select.poll()
    pipe.register(descriptor, select.POLLRDHUP)
    pipe.poll()
    os._exit(0)


def prepare(formatter: logging.Formatter) -> None:
    """Prepare this process as a child of a server: its parent handles Ctrl-C and shutdown, and
    stderr gets its log records."""
    for number in INTERRUPTS:
        signal.signal(number, signal.SIG_IGN)
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler])
