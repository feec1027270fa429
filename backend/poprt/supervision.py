"""Limits of time and memory for a command that reads models of strangers: it works in a child process, which
can be ended.

Half of the work is done by C++ that cannot be interrupted, and that some models crash.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from simipu.errors import CompileError, CompileMemoryError, CompileTimeoutError
from simipu.memory import limit_memory, usable_memory_bytes

from popef.arguments import Parser, positive

Command = Callable[[argparse.Namespace], int]

_LIMIT_SECONDS = 3_600
_END_SECONDS = 5.0
"""For a child to end by itself when it is asked to."""
_NEARLY = 0.5
"""Of its limit: what a process has touched, if it failed for want of more."""
_DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of prctl(2)."""


def add_limits(parser: Parser) -> None:
    """Give `parser` the arguments that `supervised` reads."""
    time_help = "end the work when it takes longer (ours; default: %(default)s)"
    parser.add_argument(
        "--time_limit", type=positive, default=_LIMIT_SECONDS, metavar="SECONDS", help=time_help
    )
    memory_help = "memory that the work may take (ours; default: what the machine has)"
    parser.add_argument("--memory_limit", type=positive, metavar="MIB", help=memory_help)


def supervised(command: Command) -> Command:
    """`command` in a child process, within the limits that its options have; in this one where their
    `own_process` is not set.

    Raises CompileTimeoutError, CompileMemoryError, and CompileError for a child that crashed.
    """

    def run(options: argparse.Namespace) -> int:
        if not getattr(options, "own_process", False):
            return command(options)
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        most = options.memory_limit << 20 if options.memory_limit else usable_memory_bytes()
        child = os.fork()
        if child:
            return _wait(child, options.time_limit, most)
        os.setpgid(0, 0)  # with all that it starts: an interrupt reaches the parent alone, which passes it on
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
        limit_memory(most)
        try:
            status = options.guard(lambda: _run_here(command, options, most))
        except SystemExit as error:
            status = int(error.code or 0)
        sys.stdout.flush()
        # Not by way of what C++ does at exit: it would wait for threads that a fork does not have.
        os._exit(status)

    return run


def _run_here(command: Command, options: argparse.Namespace, limit_bytes: int) -> int:
    try:
        return command(options)
    except MemoryError as error:
        raise _out_of_memory(limit_bytes) from error
    except Exception as error:  # want of memory has many names, "cannot parse" among them
        if _was_nearly_full(resource.getrusage(resource.RUSAGE_SELF), limit_bytes):
            raise _out_of_memory(limit_bytes, f"{error}; most likely because ") from error
        raise


def _was_nearly_full(usage: resource.struct_rusage, limit_bytes: int) -> bool:
    return usage.ru_maxrss << 10 > _NEARLY * limit_bytes


def _wait(child: int, limit_seconds: int, limit_bytes: int) -> int:
    handle = os.pidfd_open(child)
    try:
        ended = bool(select.select([handle], [], [], limit_seconds)[0])
    except BaseException:
        _end(child, handle, signal.SIGINT)
        raise
    else:
        if not ended:
            _end(child, handle, signal.SIGKILL)
            raise CompileTimeoutError(
                f"it took longer than its limit of {limit_seconds} s and was ended; --time_limit raises the "
                "limit"
            )
    finally:
        os.close(handle)
    _, ended_by, usage = os.wait4(child, 0)
    status = os.waitstatus_to_exitcode(ended_by)
    if status < 0:
        name = signal.Signals(-status).name
        if _was_nearly_full(usage, limit_bytes):
            raise _out_of_memory(limit_bytes, f"onnx or ONNX Runtime crashed ({name}), most likely because ")
        raise CompileError(
            f"onnx or ONNX Runtime crashed ({name}): the model is damaged, or asks for what they cannot do"
        )
    return status


def _out_of_memory(limit_bytes: int, how: str = "") -> CompileMemoryError:
    return CompileMemoryError(
        f"{how}it needs more than its limit of {limit_bytes >> 20} MiB of memory; --memory_limit raises the "
        "limit"
    )


def _end(child: int, handle: int, first: signal.Signals) -> None:
    """End the child and all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(child, first)
        select.select([handle], [], [], _END_SECONDS)
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
