"""Limits of time and memory for a command that reads untrusted models: it works in a child process,
which can be killed.

Half of the work is done by C++ code that cannot be interrupted, and that some models crash.
"""

from __future__ import annotations

import argparse
import os
import resource
import select
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from simipu.errors import CompileError, CompileMemoryError, CompileTimeoutError
from simipu.memory import limit_memory, usable_memory_bytes
from simipu.parents import die_with

from popef._tools.arguments import Parser, positive

Command = Callable[[argparse.Namespace], int]

_LIMIT_SECONDS = 3_600
_END_SECONDS = 5.0
"""Maximum time in seconds for a child to end after an interrupt."""
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)
_MAX_MILLISECONDS = 2**31 - 1
"""Maximum time that poll(2) waits: 24 days."""
_NEARLY = 0.5
"""Share of the memory limit: a process that fails after using more is assumed to have run out of
memory."""


def add_limits(parser: Parser) -> None:
    """Give `parser` the arguments that `supervised` reads."""
    time_help = "end the work when it takes longer (ours; default: %(default)s)"
    parser.add_argument(
        "--time_limit", type=positive, default=_LIMIT_SECONDS, metavar="SECONDS", help=time_help
    )
    memory_help = "memory that the work may take (ours; default: what the machine has)"
    parser.add_argument("--memory_limit", type=positive, metavar="MIB", help=memory_help)


def supervised(command: Command) -> Command:
    """Return `command` as a command that runs in a child process, within the limits of its options.

    It runs in this process if its options do not set `own_process`. Raises CompileTimeoutError,
    CompileMemoryError, and CompileError for a child that crashed.
    """

    def run(options: argparse.Namespace) -> int:
        if not getattr(options, "own_process", False):
            return command(options)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        most = options.memory_limit << 20 if options.memory_limit else usable_memory_bytes()

        def work() -> int:
            with naming_memory(most):
                return command(options)

        child = Child(lambda: options.guard(work), most)
        try:
            ended = _wait(child.handle, options.time_limit)
        except BaseException:
            child.interrupt()
            child.end(_END_SECONDS)
            raise
        if not ended:
            child.end()
            raise make_timeout(options.time_limit)
        return child.finish()

    return run


class Child:
    """Child process that does some work within a memory limit.

    Callers must `finish` it, or `end` it with all processes that it has started. It dies with this
    process.
    """

    def __init__(self, work: Callable[[], int], limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # both processes would write its buffered text
        parent = os.getpid()
        # Python drops the exception of an interrupt that arrives during a fork.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPTS)
        try:
            self._pid = os.fork()
            if not self._pid:
                _work(work, limit_bytes, parent, mask)
            # Both processes do this, so that it is done when either continues. An interrupt reaches
            # only the parent, which passes it on.
            with suppress(OSError):
                os.setpgid(self._pid, self._pid)
            self.handle = os.pidfd_open(self._pid)
            """File descriptor that becomes readable when the child has ended."""
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def has_ended(self) -> bool:
        """Return whether the child has ended by itself."""
        return _wait(self.handle, 0)

    def finish(self) -> int:
        """Return the exit status of a child that has ended by itself.

        Raises CompileMemoryError or CompileError for a child that crashed.
        """
        os.close(self.handle)
        _, ended_by, usage = os.wait4(self._pid, 0)
        status = os.waitstatus_to_exitcode(ended_by)
        if status >= 0:
            return status
        name = signal.Signals(-status).name
        if _was_nearly_full(usage, self._limit_bytes):
            raise _out_of_memory(
                self._limit_bytes, f"onnx or ONNX Runtime crashed ({name}), most likely because "
            )
        raise CompileError(
            f"onnx or ONNX Runtime crashed ({name}): the model is damaged, or asks for what they cannot do"
        )

    def interrupt(self) -> None:
        """Interrupt the child and all its processes; the caller must call `end` afterwards."""
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGINT)

    def end(self, patience_seconds: float = 0) -> None:
        """Wait at most that long for the child, then kill it and all its processes."""
        _wait(self.handle, patience_seconds)
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self.handle)


def make_timeout(limit_seconds: int) -> CompileTimeoutError:
    """Return the error of work that took longer than its limit."""
    return CompileTimeoutError(
        f"it took longer than its limit of {limit_seconds} s and was ended; --time_limit raises the limit"
    )


@contextmanager
def naming_memory(limit_bytes: int) -> Iterator[None]:
    """Turn errors raised inside because of too little memory into CompileMemoryError."""
    try:
        yield
    except MemoryError as error:
        raise _out_of_memory(limit_bytes) from error
    except Exception as error:  # too little memory causes many errors, such as "cannot parse"
        if _was_nearly_full(resource.getrusage(resource.RUSAGE_SELF), limit_bytes):
            raise _out_of_memory(limit_bytes, f"{error}; most likely because ") from error
        raise


def _work(
    work: Callable[[], int], limit_bytes: int, parent: int, mask: set[int | signal.Signals]
) -> NoReturn:
    """Do the work in the child process, and exit."""
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


def _was_nearly_full(usage: resource.struct_rusage, limit_bytes: int) -> bool:
    return usage.ru_maxrss << 10 > _NEARLY * limit_bytes


def _wait(handle: int, seconds: float) -> bool:
    """Return whether a child has ended, after waiting at most that long.

    Its handle may have any number.
    """
    waiting = select.poll()
    waiting.register(handle, select.POLLIN)
    return bool(waiting.poll(min(seconds * 1000, _MAX_MILLISECONDS)))


def _out_of_memory(limit_bytes: int, how: str = "") -> CompileMemoryError:
    return CompileMemoryError(
        f"{how}it needs more than its limit of {limit_bytes >> 20} MiB of memory; --memory_limit raises the "
        "limit"
    )
