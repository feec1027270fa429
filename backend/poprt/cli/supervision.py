"""Limits of time and memory for a command that reads untrusted models: it works in a child process,
which can be killed.

Half of the work is done by C++ code that cannot be interrupted, and that some models crash.
"""

from __future__ import annotations

import argparse
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from simipu.errors import CompileError, CompileMemoryError, CompileTimeoutError

from popef._tools.child import ChildProcess, fork_child
from popef._tools.memory import spare_memory_bytes

Command = Callable[[argparse.Namespace], int]

_END_SECONDS = 5.0
"""Maximum time in seconds for a child to end after an interrupt."""
_NEARLY = 0.5
"""Share of the memory limit: a process that fails after using more is assumed to have run out of
memory."""


def supervised(command: Command) -> Command:
    """Return `command` as a command that runs in a child process, within the limits of its options
    `time_limit` and `memory_limit`.

    It runs in this process if its options do not set `own_process`. Raises CompileTimeoutError,
    CompileMemoryError, and CompileError for a child that crashed.
    """

    def run(options: argparse.Namespace) -> int:
        if not getattr(options, "own_process", False):
            return command(options)
        most = options.memory_limit << 20 if options.memory_limit else spare_memory_bytes()

        def work() -> int:
            with naming_memory(most):
                return command(options)

        child = fork_child(lambda: options.guard(work), most)
        try:
            ended = child.wait(options.time_limit)
        except BaseException:
            child.send_signal(signal.SIGINT)
            child.end(_END_SECONDS)
            raise
        if not ended:
            child.end()
            raise make_timeout(options.time_limit)
        return finish(child, most)

    return run


def finish(child: ChildProcess, limit_bytes: int) -> int:
    """Return the exit status of a child process that has ended by itself.

    Raises CompileMemoryError or CompileError for one that crashed.
    """
    status = child.reap()
    if status >= 0:
        return status
    name = signal.Signals(-status).name
    assert child.usage is not None
    if _was_nearly_full(child.usage, limit_bytes):
        raise _out_of_memory(
            limit_bytes, f"onnx or ONNX Runtime crashed ({name}), most likely because "
        )
    raise CompileError(
        f"onnx or ONNX Runtime crashed ({name}): the model is damaged, or asks for what they "
        "cannot do"
    )


def make_timeout(limit_seconds: int) -> CompileTimeoutError:
    """Return the error of work that took longer than its limit."""
    return CompileTimeoutError(
        f"it took longer than its limit of {limit_seconds} s and was ended; --time_limit raises "
        "the limit"
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


def _was_nearly_full(usage: resource.struct_rusage, limit_bytes: int) -> bool:
    return usage.ru_maxrss << 10 > _NEARLY * limit_bytes


def _out_of_memory(limit_bytes: int, how: str = "") -> CompileMemoryError:
    return CompileMemoryError(
        f"{how}it needs more than its limit of {limit_bytes >> 20} MiB of memory; --memory_limit "
        "raises the limit"
    )
