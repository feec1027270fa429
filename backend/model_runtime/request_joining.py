"""Requests that share a run: which waiting requests do, how their rows are joined and the outputs
split, and the outcome of each request after a failure.
"""

from __future__ import annotations

import operator
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

import numpy as np
from simipu import RunCancelledError, RunError

from model_runtime.errors import StoppedError
from model_runtime.session import Session
from popef._tools.arrays import Array

MIN_BYTES = 256 << 10
"""Minimum size of each request's inputs. To copy less takes about as long as to begin a run."""
SAMPLE_CALLS = 64
"""Number of calls of which two, one after the other, also measure the way that is not chosen: the
first one finds its code and memory outside the processor's caches."""
MIN_JOINED = 2
"""Minimum number of requests of a joined run."""
NUM_TIMES = 4
"""Number of times that are kept of each way. The shortest counts, because a single one may be long
when the machine is busy."""
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

    @property
    def memory(self) -> Rows | None:
        """Memory for the outputs by anchor, which may be used (Session.run)."""


class JoinChoice:
    """Choice of how the CPU computes the large requests of one run: joined, or one after the other.

    To join requests copies their rows into the run and out of it. To compute them apart repeats
    what a run takes for any number of rows, such as reading the weights. Both are measured. For the
    modelled chip, and in all statistics, it is one run all the same. One thread uses a choice.
    """

    def __init__(self) -> None:
        self._apart, self._joined = deque[float](maxlen=NUM_TIMES), deque[float](maxlen=NUM_TIMES)
        self._num_calls = 0

    def applies(self, requests: Sequence[Request]) -> bool:
        """Return whether there is a choice: all requests are large."""
        is_large = count_bytes(requests[0]) >= MIN_BYTES  # usually the answer
        return is_large and all(count_bytes(request) >= MIN_BYTES for request in requests)

    def count_apart(self, num_requests: int) -> int:
        """Return how many requests of a call, of at least two, are computed apart, the first ones;
        the others are joined. To measure both ways it is one or two, if others can be joined."""
        self._num_calls += 1
        apart, joined = self._apart, self._joined
        is_faster = bool(apart and joined) and min(apart) <= min(joined)
        if apart and joined and self._num_calls % SAMPLE_CALLS > 1:
            return num_requests if is_faster else 0
        if num_requests > MIN_JOINED:
            return min(2, num_requests - MIN_JOINED)
        return 0 if apart and (is_faster or not joined) else num_requests

    def record(self, requests: Sequence[Request], ns: int) -> None:
        """Record how long it took to compute these requests, joined if there are several."""
        times = self._joined if len(requests) > 1 else self._apart
        times.append(ns / sum(map(count_bytes, requests)))


def count_bytes(request: Request) -> int:
    """Return the size of a request's inputs."""
    return sum(map(_get_bytes, request.inputs.values()))


_get_bytes = operator.attrgetter("nbytes")


def take_next_run(
    waiting: deque[Waiting], max_rows: int, count_rows: Callable[[Waiting], int], rows: int = 0
) -> list[Waiting]:
    """Take the oldest requests from `waiting` until their rows fill a run.

    Args:
        waiting: the waiting requests, the oldest first.
        max_rows: number of rows of a run. No request is split, so the last may exceed it.
        count_rows: function that returns the rows of a request.
        rows: number of rows that are in the run already.

    Returns:
        The requests.
    """
    run = []
    while waiting and rows < max_rows:
        run.append(waiting.popleft())
        rows += count_rows(run[-1])
    return run


def compute_joined(
    session: Session,
    requests: Sequence[Request],
    ready_ns: int | None = None,
    choice: JoinChoice | None = None,
) -> Iterable[Outcome]:
    """Run requests with their rows joined into as few runs as possible.

    Args:
        session: the session that runs them.
        requests: the requests, at least one.
        ready_ns: see Session.run.
        choice: decides how the CPU computes the rows of a run; None means joined.

    Returns:
        The outcome of each request. Every error is the outcome of a request.
    """
    if session.runs_alone or not requests[0].inputs:
        return [_compute_one(session, request, ready_ns) for request in requests]
    try:
        if len(requests) == 1:
            return (session.run(requests[0].inputs, ready_ns, requests[0].memory),)
        if _share_no_run(session, requests):
            return [_compute_one(session, request, ready_ns) for request in requests]
        if choice is not None and choice.applies(requests):
            rows = sum(map(_count_rows, requests))
            if session.may_divide(rows):
                return _compute_parts(session, requests, choice)
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


def _compute_parts(
    session: Session, requests: Sequence[Request], choice: JoinChoice
) -> list[Outcome]:
    """Compute the rows of a run in the parts that `choice` decides on."""
    outcomes: list[Outcome] = []
    num_apart = choice.count_apart(len(requests))
    parts = [[request] for request in requests[:num_apart]]
    if num_apart < len(requests):
        parts.append([*requests[num_apart:]])
    started_ns, rows = time.perf_counter_ns(), 0
    for part in parts:
        begun_ns = time.perf_counter_ns()
        inputs = part[0].inputs if len(part) == 1 else _join_rows(part)
        memory = part[0].memory if len(part) == 1 else None
        try:
            outputs = session.run(inputs, None, memory, counts=False)
        except Exception as error:  # noqa: BLE001  as above
            # A run that was ended, or lost its device, is over for all of its requests.
            is_over = not is_retried_alone(error, len(requests))
            failed = requests[len(outcomes) :] if is_over else part
            outcomes += compute_after_failure(session, failed, error)
            if is_over:
                break
            continue
        # With the copies into the requests' memory, which a run of one request writes to.
        outcomes += _split_rows(outputs, part) if len(part) > 1 else [outputs]
        choice.record(part, time.perf_counter_ns() - begun_ns)
        rows += sum(map(_count_rows, part))
    if rows:
        session.count_run(started_ns, rows)
    return outcomes


def _share_no_run(session: Session, requests: Sequence[Request]) -> bool:
    """Return whether each request fills whole runs, so that there is nothing to join."""
    max_rows = session.rows_per_run
    is_whole = not _count_rows(requests[0]) % max_rows  # usually the answer
    return is_whole and not any(_count_rows(request) % max_rows for request in requests)


def _count_rows(request: Request) -> int:
    return len(next(iter(request.inputs.values())))


def _compute_one(session: Session, request: Request, ready_ns: int | None) -> Outcome:
    try:
        return session.run(request.inputs, ready_ns, request.memory)
    except Exception as error:  # noqa: BLE001  as above
        return error


def _join_rows(requests: Sequence[Request]) -> Rows:
    """Join the rows of several requests, one after the other."""
    return {
        anchor: np.concatenate([request.inputs[anchor] for request in requests])
        for anchor in requests[0].inputs
    }


def _split_rows(outputs: Rows, requests: Sequence[Request]) -> Iterator[Outcome]:
    """Yield the rows of each request, in its memory if it has any, else without a copy."""
    start = 0
    for request in requests:
        end, memory, rows = start + _count_rows(request), request.memory, dict[str, Array]()
        for anchor, array in outputs.items():
            if memory is None:
                rows[anchor] = array[start:end]
            else:
                rows[anchor] = memory[anchor]
                rows[anchor][...] = array[start:end]
        yield rows
        start = end
