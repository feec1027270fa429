"""Requests that share runs: joining their rows, splitting their outputs, and the outcome of each
after a failure.

The queues decide which requests wait for each other, and for how long.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from simipu import RunCancelledError, RunError

from model_runtime.errors import StoppedError
from model_runtime.queues import Array
from model_runtime.session import Session

Rows = Mapping[str, Array]
"""Rows by anchor."""
Outcome = dict[str, Array] | Exception
"""Outputs of a request by anchor, or its error."""
STOPPED = "the session was stopped before the request was computed"


class Request(Protocol):
    """Part of a request that this module uses."""

    @property
    def inputs(self) -> Rows:
        """Inputs by anchor, rows first."""


def run_joined(
    session: Session, requests: Sequence[Request], ready_ns: int | None = None
) -> Iterable[Outcome]:
    """Run requests with their rows joined into as few runs as possible, and return the outcome of
    each.

    Every error is the outcome of a request. `ready_ns`: see Session.run.
    """
    if session.runs_alone or not requests[0].inputs:
        return [_run_one(session, request, ready_ns) for request in requests]
    try:
        if len(requests) == 1:
            return (session.run(requests[0].inputs, ready_ns),)
        outputs = session.run(_join(requests), ready_ns)
    except Exception as error:  # noqa: BLE001  whatever it is, every request gets its answer
        return run_apart(session, requests, error)
    return _part(outputs, requests)


def run_apart(session: Session, requests: Sequence[Request], error: Exception) -> Iterator[Outcome]:
    """Yield the outcome of each request that had rows in the run that failed with `error`.

    If values were rejected, each request is run again alone from its first row, so that only
    invalid requests fail. After the session is stopped nothing is run again.
    """
    again = isinstance(error, RunError) and len(requests) > 1
    # The time of the failed run is not held against the CPU: a chip would have taken it too.
    ready_ns = time.perf_counter_ns()
    for request in requests:
        yield _run_again(session, request, ready_ns) if again else error


def _run_again(session: Session, request: Request, ready_ns: int) -> Outcome:
    outcome = StoppedError(STOPPED) if session.is_stopped else _run_one(session, request, ready_ns)
    return StoppedError(STOPPED) if isinstance(outcome, RunCancelledError) else outcome


def _run_one(session: Session, request: Request, ready_ns: int | None) -> Outcome:
    try:
        return session.run(request.inputs, ready_ns)
    except Exception as error:  # noqa: BLE001  as above
        return error


def _join(requests: Sequence[Request]) -> Rows:
    """Join the rows of several requests, one after the other."""
    return {
        anchor: np.concatenate([request.inputs[anchor] for request in requests])
        for anchor in requests[0].inputs
    }


def _part(outputs: Rows, requests: Sequence[Request]) -> Iterator[Outcome]:
    start = 0
    for request in requests:
        end = start + len(next(iter(request.inputs.values())))
        yield {anchor: array[start:end] for anchor, array in outputs.items()}
        start = end
