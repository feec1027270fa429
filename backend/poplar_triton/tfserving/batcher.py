"""Joins requests into runs: one instance of a model computes for every calling thread.

The thread whose request comes first runs it, together with the requests that have queued meanwhile
if the configuration has Triton join requests (dynamic_batching). Then the next thread in the queue
takes over. A single request is computed in its own thread, without waking another one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext

from model_runtime import take_next_run
from triton_poplar.errors import RequestError
from triton_poplar.instance_state import ModelInstanceState
from triton_poplar.request import Request

from popef._tools.arrays import Array
from poplar_triton.tfserving.models import Call, Code, ServingError

QUICK_SECONDS = 0.0005
"""Duration of a run above which most of it needs no interpreter, so that other threads may work on
their calls."""
_CODES = {"INVALID_ARG": Code.INVALID_ARGUMENT}
"""Codes of Triton with another name in TensorFlow Serving."""


class RequestBatcher:
    """Computes the requests of many threads on one instance, one run at a time."""

    def __init__(self, instance: ModelInstanceState, *, joins: bool) -> None:
        self._instance = instance
        self._joins = joins
        self._rows_per_run = instance.session.rows_per_run * instance.session.runs_at_once
        self._state = threading.Condition()
        self._waiting: deque[_WaitingRequest] = deque()
        self._is_running = False
        self._is_closed = False
        self._is_quick = False
        """Whether the last run was quick."""

    def compute(
        self, inputs: Mapping[str, Array], requested: Sequence[str], call: Call
    ) -> dict[str, Array]:
        """Return the outputs by friendly name.

        Raises ServingError for errors of the model, for a request that is cancelled before its turn
        comes, and once the instance is closed.
        """
        entry = _WaitingRequest(Request(self._instance.model_state, inputs, requested), call)
        with self._state:
            if self._is_closed:
                raise ServingError(Code.UNAVAILABLE, "the model was unloaded; try again")
            leads = not self._is_running
            self._is_running = True
            if not leads:
                self._waiting.append(entry)
        # A quick run does not justify waking another thread.
        with nullcontext() if self._is_quick else call.waiting():
            if leads or entry.wait_for_turn():
                self._lead(entry)
        return entry.read_outputs()

    def close(self) -> None:
        """Close the instance after all requests have their answer."""
        with self._state:
            self._is_closed = True
            self._state.wait_for(lambda: not self._is_running)
        self._instance.close()

    def _lead(self, own: _WaitingRequest) -> None:
        """Run a request with those that share its run, and pass the lead on."""
        entries = [own, *self._take_joined(own.count_rows())]
        error: Exception | None = None
        try:
            requests = [entry.request for entry in entries if entry.is_wanted()]
            start = time.perf_counter()
            if requests:
                self._instance.execute(requests)
            self._is_quick = time.perf_counter() - start < QUICK_SECONDS
        except Exception as caught:  # noqa: BLE001  every request gets its answer
            error = caught
        finally:
            with self._state:
                following = self._waiting.popleft() if self._waiting else None
                if following is None:
                    self._is_running = False
                    self._state.notify_all()
            if following is not None:
                following.take_turn()
        for entry in entries:
            entry.finish(error)

    def _take_joined(self, rows: int) -> list[_WaitingRequest]:
        """Return the waiting requests that share the next run, which has `rows` rows already."""
        if not self._joins or not self._waiting:
            return []
        with self._state:
            return take_next_run(
                self._waiting, self._rows_per_run, _WaitingRequest.count_rows, rows
            )


class _WaitingRequest:
    """Request and the thread that waits with it."""

    __slots__ = ("_call", "_error", "_leads", "_wake", "request")

    def __init__(self, request: Request, call: Call) -> None:
        self.request = request
        self._call = call
        self._wake = threading.Lock()
        self._wake.acquire()
        self._leads = False
        self._error: Exception | None = None

    def count_rows(self) -> int:
        """Return the number of rows that the request takes of a run."""
        return self.request.batch_size

    def is_wanted(self) -> bool:
        """Return whether the request is to be run. A cancelled request fails."""
        if self._call.is_wanted():
            return True
        self._error = ServingError(
            Code.CANCELLED, "the request was cancelled before it was computed"
        )
        return False

    def wait_for_turn(self) -> bool:
        """Wait until the request has been run (returns False) or is to be run by this thread
        (returns True)."""
        self._wake.acquire()
        return self._leads

    def take_turn(self) -> None:
        """Make the request's thread run it."""
        self._leads = True
        self._wake.release()

    def finish(self, error: Exception | None) -> None:
        """Record that the request has been run, or was not run because of `error`."""
        self._error = self._error or error
        if not self._leads:
            self._wake.release()

    def read_outputs(self) -> dict[str, Array]:
        """Return the answer, or raise its error."""
        if self._error is not None:
            raise self._error
        try:
            return self.request.outputs()
        except RequestError as error:
            code = _CODES.get(error.code) or Code[error.code]
            raise ServingError(code, str(error)) from error
