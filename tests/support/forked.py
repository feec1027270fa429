"""Answers of a forked child, within a time limit."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any

from waiting import PATIENCE_SECONDS


def ask_fork(question: Callable[[], Any]) -> Any:
    """Return the result of `question` in a fork of this process; AssertionError if it raises, dies
    or does not end."""
    ours, theirs = multiprocessing.Pipe()
    pid = os.fork()
    if not pid:
        try:
            theirs.send((True, question()))
        except BaseException:  # noqa: BLE001  whatever it is, the parent says it
            theirs.send((False, traceback.format_exc()))
        finally:
            os._exit(0)
    theirs.close()  # so that the end of a fork that dies is the end of the pipe
    try:
        assert ours.poll(PATIENCE_SECONDS), (
            f"the fork has not answered within {PATIENCE_SECONDS:g} s"
        )
        is_answer, answer = ours.recv()
    except EOFError:
        raise AssertionError("the fork died before it answered") from None
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert is_answer, answer
    return answer
