"""Queues between requests and the compiled batch: rows of several requests join, a large request spans several batches.

An input queue holds references to the callers' arrays, an output queue to the places where their rows go. Rows leave in the
order in which they came. The engine reads and writes under `QueueManager.lock`; whoever enqueues holds it over all queues
of a request, so that every queue sees the same rows in the same order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

import popef
from model_runtime.errors import ModelRuntimeError

Array = npt.NDArray[Any]
Callback = Callable[[], None]
Queue = TypeVar("Queue")


class TensorMemory:
    """An output whose memory the runtime owns: `array` has shape (rows, *row shape) once all rows are written.

    Where one run computes all rows of the request, it is a view of that run's result: nothing is copied.
    """

    __slots__ = ("array",)

    def __init__(self) -> None:
        self.array: Array | None = None


@dataclass(slots=True)
class _Input:
    data: Array
    taken: int
    callback: Callback | None


@dataclass(slots=True)
class _Output:
    place: Array | TensorMemory | None
    rows: int
    written: int
    callback: Callback | None


class InputQueue:
    """The rows waiting for one input anchor."""

    def __init__(self, anchor: popef.Anchor, row_shape: tuple[int, ...], lock: Lock) -> None:
        self._name = anchor.name()
        self._info = anchor.tensorInfo()
        self._row_shape = row_shape
        self._dtype = np.dtype(popef.popefTypeToNumpyDType(self._info.dataType()))
        self._lock = lock
        self._entries: deque[_Input] = deque()
        self._waiting = 0

    def tensorInfo(self) -> popef.TensorInfo:
        """Shape (of the compiled batch) and type of the anchor."""
        return self._info

    def readAvailable(self) -> int:
        """Rows enqueued and not yet read."""
        return self._waiting

    def enqueue(self, data: Array, callback: Callback | None = None) -> None:
        """Add the rows of `data`, shape (rows, *row shape), which must stay unchanged until they are read.

        `callback` is called when the first row is read. Raises ModelRuntimeError for another shape or type.
        """
        if data.shape[1:] != self._row_shape or data.dtype != self._dtype or not len(data):
            raise ModelRuntimeError(
                f"input {self._name!r}: expected {self._dtype.name} rows of shape {self._row_shape}, at least one; "
                f"found {data.dtype.name} of shape {data.shape}"
            )
        self._entries.append(_Input(data, 0, callback))
        self._waiting += len(data)

    def read(self, most: int) -> Array:
        """Take up to `most` rows: a view where one request has them, else a copy that joins several."""
        started: list[Callback] = []
        with self._lock:
            pieces = self._take(most, started)
        for callback in started:
            callback()
        if not pieces:
            raise ModelRuntimeError(f"input queue {self._name!r} is empty; enqueue rows before running the main program")
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _take(self, most: int, started: list[Callback]) -> list[Array]:
        pieces = []
        while most and self._entries:
            entry = self._entries[0]
            if not entry.taken and entry.callback is not None:
                started.append(entry.callback)
            rows = min(most, len(entry.data) - entry.taken)
            whole = rows == len(entry.data)
            pieces.append(entry.data if whole else entry.data[entry.taken : entry.taken + rows])
            entry.taken += rows
            if entry.taken == len(entry.data):
                self._entries.popleft()
            most -= rows
            self._waiting -= rows
        return pieces

    def disconnect(self) -> None:
        """Forget all waiting rows."""
        self._entries.clear()
        self._waiting = 0


class OutputQueue:
    """The places waiting for rows of one output anchor."""

    def __init__(self, anchor: popef.Anchor, lock: Lock) -> None:
        self._name = anchor.name()
        self._info = anchor.tensorInfo()
        self._lock = lock
        self._entries: deque[_Output] = deque()

    def tensorInfo(self) -> popef.TensorInfo:
        """Shape (of the compiled batch) and type of the anchor."""
        return self._info

    def enqueue(self, place: Array | TensorMemory | None, rows: int, callback: Callback | None = None) -> None:
        """Where the next `rows` rows go: the caller's array, memory that the runtime fills in, or None to drop them.

        `callback` is called once, after the last of them is written.
        """
        if isinstance(place, np.ndarray) and len(place) != rows:
            raise ModelRuntimeError(f"output {self._name!r}: the array has {len(place)} rows, the request {rows}")
        self._entries.append(_Output(place, rows, 0, callback))

    def write(self, values: Array) -> None:
        """Hand out computed rows to the places in order."""
        finished: list[Callback] = []
        with self._lock:
            start = 0
            while start < len(values):
                if not self._entries:
                    raise ModelRuntimeError(f"output queue {self._name!r} has no place for {len(values) - start} rows")
                entry = self._entries[0]
                rows = min(entry.rows - entry.written, len(values) - start)
                _store(entry, values if rows == len(values) else values[start : start + rows])
                start += rows
                if entry.written == entry.rows:
                    self._entries.popleft()
                    if entry.callback is not None:
                        finished.append(entry.callback)
        for callback in finished:
            callback()

    def disconnect(self) -> None:
        """Forget all waiting places."""
        self._entries.clear()


def _store(entry: _Output, values: Array) -> None:
    rows = len(values)
    place = entry.place
    if isinstance(place, TensorMemory):
        if rows == entry.rows:
            place.array = values
        else:
            if place.array is None:
                place.array = np.empty((entry.rows, *values.shape[1:]), values.dtype)
            place.array[entry.written : entry.written + rows] = values
    elif place is not None:
        place[entry.written : entry.written + rows] = values
    entry.written += rows


class QueueManager:
    """One queue per user anchor of a session, made by `Session.createQueueManager` only."""

    def __init__(self, inputs: Sequence[popef.Anchor], outputs: Sequence[popef.Anchor], batch_size: int) -> None:
        self.lock = Lock()
        skipped = 1 if batch_size else 0
        self._inputs = {
            anchor.name(): InputQueue(anchor, tuple(anchor.tensorInfo().shape()[skipped:]), self.lock) for anchor in inputs
        }
        self._outputs = {anchor.name(): OutputQueue(anchor, self.lock) for anchor in outputs}

    def inputQueue(self, name: str) -> InputQueue:
        """The queue of an input anchor."""
        return _find(self._inputs, name, "input")

    def outputQueue(self, name: str) -> OutputQueue:
        """The queue of an output anchor."""
        return _find(self._outputs, name, "output")

    def readAvailable(self) -> int:
        """Rows that every input queue has waiting."""
        return min((queue.readAvailable() for queue in self._inputs.values()), default=0)

    def disconnectAll(self) -> None:
        """Forget everything that waits: rows and places."""
        with self.lock:
            for waiting in self._inputs.values():
                waiting.disconnect()
            for places in self._outputs.values():
                places.disconnect()


def _find(queues: dict[str, Queue], name: str, kind: str) -> Queue:
    try:
        return queues[name]
    except KeyError:
        raise ModelRuntimeError(f"no {kind} anchor {name!r}; there are {', '.join(queues) or 'none'}") from None
