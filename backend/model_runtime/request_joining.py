"""Requests that share runs: which requests share one, how their rows are joined and the outputs
split, and the outcome of each request after a failure.

This is the only place with these rules. Requests wait for each other in the queues (queues.py), in
TensorFlow Serving's batcher, or in the open run of a PackRunner; those decide for how long.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np
from simipu import RunCancelledError, RunError

from model_runtime.errors import StoppedError
from model_runtime.session import Session
from popef._tools.arrays import Array

Rows = Mapping[str, Array]
"""Rows by anchor."""
Outcome = dict[str, Array] | Exception
"""Outputs of a request by anchor, or its error."""
STOPPED = "the session was stopped before the request was computed"
Waiting = TypeVar("Waiting")


class Request(Protocol):
    """Part of a request that this module uses."""

    @property
    def inputs(self) -> Rows:
        """Inputs by anchor, rows first."""


def take_next_run(
    waiting: deque[Waiting], max_rows: int, count_rows: Callable[[Waiting], int], rows: int = 0
) -> list[Waiting]:
    """Take the oldest requests from `waiting` until their rows fill a run, and return them.

    No request is split, so the last may exceed `max_rows`. `rows` are in the run already.
    """
    taken = []
    while waiting and rows < max_rows:
        taken.append(waiting.popleft())
        rows += count_rows(taken[-1])
    return taken


def compute_joined(
    session: Session, requests: Sequence[Request], ready_ns: int | None = None
) -> Iterable[Outcome]:
    """Run requests with their rows joined into as few runs as possible, and return the outcome of
    each.

    Every error is the outcome of a request. `ready_ns`: see Session.run.
    """
    if session.runs_alone or not requests[0].inputs:
        return [_compute_one(session, request, ready_ns) for request in requests]
    try:
        if len(requests) == 1:
            return (session.run(requests[0].inputs, ready_ns),)
        outputs = session.run(_join_rows(requests), ready_ns)
    except Exception as error:  # noqa: BLE001  whatever it is, every request gets its answer
        return compute_after_failure(session, requests, error)
    return _split_rows(outputs, requests)


def is_retried_alone(error: BaseException | None, num_requests: int) -> bool:
    """Return whether each request of a failed run is run again, alone, so that only invalid
    requests fail.

    This is so if the run rejected values, which may be those of one of several requests.
    """
    return isinstance(error, RunError) and num_requests > 1


def compute_after_failure(
    session: Session, requests: Sequence[Request], error: Exception
) -> Iterator[Outcome]:
    """Yield the outcome of each request that had rows in the run that failed with `error`.

    A request that is retried alone is run from its first row. After the session is stopped nothing
    is run again.
    """
    again = is_retried_alone(error, len(requests))
    # The time of the failed run is not held against the CPU: a chip would have taken it too.
    ready_ns = time.perf_counter_ns()
    for request in requests:
        yield _compute_again(session, request, ready_ns) if again else error


def _compute_again(session: Session, request: Request, ready_ns: int) -> Outcome:
    outcome = (
        StoppedError(STOPPED) if session.is_stopped else _compute_one(session, request, ready_ns)
    )
    return StoppedError(STOPPED) if isinstance(outcome, RunCancelledError) else outcome


def _compute_one(session: Session, request: Request, ready_ns: int | None) -> Outcome:
    try:
        return session.run(request.inputs, ready_ns)
    except Exception as error:  # noqa: BLE001  as above
        return error


def _join_rows(requests: Sequence[Request]) -> Rows:
    """Join the rows of several requests, one after the other."""
    return {
        anchor: np.concatenate([request.inputs[anchor] for request in requests])
        for anchor in requests[0].inputs
    }


def _split_rows(outputs: Rows, requests: Sequence[Request]) -> Iterator[Outcome]:
    """Yield the rows of each request, without a copy."""
    start = 0
    for request in requests:
        end = start + len(next(iter(request.inputs.values())))
        yield {anchor: array[start:end] for anchor, array in outputs.items()}
        start = end
