"""Requests into runs: one instance of a model computes for everybody who asks.

What waits while a run goes on joins the next one, where the configuration has Triton join requests
(dynamic_batching). A model that is done sooner than a thread is woken computes where the request is.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Mapping, Sequence

from triton_poplar.errors import RequestError
from triton_poplar.instance_state import ModelInstanceState
from triton_poplar.request import Array, Request

from commands.tfserving.errors import Code, ServingError

QUICK_SECONDS = 0.0005
"""A run that takes less is not worth the way to a thread and back, some 0.1 ms of two."""
_CODES = {"INVALID_ARG": Code.INVALID_ARGUMENT}
"""Of Triton's codes that are called otherwise."""


class Computer:
    """Runs an instance for requests of one event loop, one run at a time."""

    def __init__(self, instance: ModelInstanceState, *, joins: bool, may_be_quick: bool = True) -> None:
        self._instance = instance
        self._joins = joins
        self._may_be_quick = may_be_quick
        self._last_seconds = float("inf")
        self._under_way = 0
        self._waiting: queue.SimpleQueue[_Entry | None] = queue.SimpleQueue()
        self._rows_per_run = instance.session.rows_per_run * instance.session.runs_at_once
        self._loop = asyncio.get_running_loop()
        self._idle = asyncio.Event()
        self._idle.set()
        self._thread = threading.Thread(
            target=self._compute_waiting, name=f"compute {instance.name}", daemon=True
        )
        self._thread.start()

    async def compute(self, inputs: Mapping[str, Array], requested: Sequence[str]) -> dict[str, Array]:
        """The outputs by friendly name. ServingError for what the model says. Who cancels this gives up the
        request, which is not computed unless its run has begun."""
        request = Request(self._instance.model_state, inputs, requested)
        if self._is_quick(request):
            self._execute([request])
        else:
            await self._hand_over(request)
        try:
            return request.outputs()
        except RequestError as error:
            code = _CODES.get(error.code) or Code[error.code]
            raise ServingError(code, str(error)) from error

    async def close(self) -> None:
        """Give the instance up once all requests have their answer."""
        await self._idle.wait()
        self._waiting.put(None)
        await asyncio.to_thread(self._thread.join)
        await asyncio.to_thread(self._instance.close)

    def _is_quick(self, request: Request) -> bool:
        return (
            self._may_be_quick
            and not self._under_way
            and self._last_seconds < QUICK_SECONDS
            and request.batch_size <= self._rows_per_run
        )

    async def _hand_over(self, request: Request) -> None:
        entry = _Entry(request, self._loop.create_future())
        self._under_way += 1
        self._idle.clear()
        self._waiting.put(entry)
        # When it is cancelled, so is the future: the thread sees it, and the count goes down all the same.
        await entry.done

    def _execute(self, requests: Sequence[Request]) -> None:
        start = time.perf_counter()
        self._instance.execute(requests)
        self._last_seconds = time.perf_counter() - start

    def _compute_waiting(self) -> None:
        """What the thread does, until the model is given up."""
        while (entry := self._waiting.get()) is not None:
            entries = self._gather(entry)
            wanted = [each for each in entries if not each.done.cancelled()]
            error: Exception | None = None
            try:
                if wanted:
                    self._execute([each.request for each in wanted])
            except Exception as caught:  # noqa: BLE001  a defect of ours: every request still gets its answer
                error = caught
            self._loop.call_soon_threadsafe(self._finish, entries, error)

    def _gather(self, first: _Entry) -> list[_Entry]:
        """The requests that are run together: as many as wait, until a run is full."""
        entries, rows = [first], first.request.batch_size
        while self._joins and rows < self._rows_per_run:
            try:
                entry = self._waiting.get_nowait()
            except queue.Empty:
                break
            if entry is None:
                self._waiting.put(None)
                break
            entries.append(entry)
            rows += entry.request.batch_size
        return entries

    def _finish(self, entries: Sequence[_Entry], error: Exception | None) -> None:
        self._under_way -= len(entries)
        if not self._under_way:
            self._idle.set()
        for entry in entries:
            if entry.done.done():
                continue
            if error is None:
                entry.done.set_result(None)
            else:
                entry.done.set_exception(error)


class _Entry:
    """A request that waits for the thread."""

    __slots__ = ("done", "request")

    def __init__(self, request: Request, done: asyncio.Future[None]) -> None:
        self.request = request
        self.done = done
