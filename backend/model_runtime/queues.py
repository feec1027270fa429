"""Queues between requests and the compiled batch: rows of several requests join, a large request
spans several batches.

An input queue holds references to the callers' arrays, an output queue to the buffers for their
rows. Rows leave in their order of arrival. The engine reads and writes under `QueueManager.lock`. A
caller that enqueues holds the lock over all queues of a request, so that every queue sees the same
rows in the same order.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import TIMEOUT_MAX, Condition
from typing import Any, TypeVar

import numpy as np
from simipu.processes.forks import FORKS

import popef
from model_runtime.errors import ModelRuntimeError, StoppedError
from model_runtime.shutdown import endless_wait
from popef._tools.arrays import Array

Callback = Callable[[], None]
Done = Callable[[Exception | None], None]
"""Function called once per request: with None after its outputs are written, otherwise with the
error."""
Queue = TypeVar("Queue")
_DISCONNECTED = "the session was stopped"


class OutputSlot:
    """Buffer for an output in memory of the runtime: `array` has shape (rows, *row shape) once all
    rows are written.

    If one run computes all rows of the request, it is a view of that run's result, without a copy.
    """

    __slots__ = ("array",)

    def __init__(self) -> None:
        self.array: Array | None = None


OutputBuffer = Array | OutputSlot | None
"""Buffer for an output's rows: the caller's array, memory of the runtime, or None to drop them."""


@dataclass(slots=True)
class _InputEntry:
    data: Array
    num_read: int
    callback: Callback | None


@dataclass(slots=True)
class _OutputEntry:
    buffer: OutputBuffer
    rows: int
    written: int
    callback: Callback | None


class InputQueue:
    """Queue of the rows waiting for one input anchor."""

    def __init__(
        self,
        anchor: popef.Anchor,
        row_shape: tuple[int, ...],
        enough_rows: int,
        lock: Condition,
        check_rows: Callable[[int], None],
        runs_alone: bool,
    ) -> None:
        self._name = anchor.name()
        self._info = anchor.tensorInfo()
        self._row_shape = row_shape
        self._dtype = np.dtype(popef.popefTypeToNumpyDType(self._info.dataType()))
        self._enough_rows = enough_rows
        self._lock = lock
        self._check_rows = check_rows
        self._runs_alone = runs_alone
        self._entries: deque[_InputEntry] = deque()
        self._disconnected = False
        self.enqueued_at_ns = 0
        """Arrival of the last rows, on the clock of time.perf_counter_ns."""
        self.rows_enqueued = 0
        """Total number of rows enqueued."""
        self.rows_read = 0
        """Total number of rows read or dropped."""

    def use_lock(self, lock: Condition) -> None:
        """Guard the rows with this lock from now on."""
        self._lock = lock

    def tensorInfo(self) -> popef.TensorInfo:
        """Return shape (of the compiled batch) and type of the anchor."""
        return self._info

    def readAvailable(self) -> int:
        """Return the number of rows enqueued and not yet read."""
        return self.rows_enqueued - self.rows_read

    def enqueue(self, data: Array, callback: Callback | None = None) -> None:
        """Add rows, which must stay unchanged until they are read.

        Args:
            data: array of shape (rows, *row shape).
            callback: function called when the first row is read; None means no call.

        Raises:
            ModelRuntimeError: for another shape or type, and for more rows than one batch if the
                rows depend on each other.
        """
        self.check(data)
        self.add(data, callback)

    def check(self, data: Array) -> None:
        """Check that `data` has at least one row of the anchor's shape and type.

        Raises:
            ModelRuntimeError: It has no row, or another shape or type.
        """
        if data.shape[1:] != self._row_shape or data.dtype != self._dtype or not len(data):
            raise ModelRuntimeError(
                f"input {self._name!r}: expected {self._dtype.name} rows of shape "
                f"{self._row_shape}, at least one; found {data.dtype.name} of shape {data.shape}"
            )
        self._check_rows(len(data))

    def add(self, data: Array, callback: Callback | None) -> None:
        """Enqueue rows that were checked."""
        with self._lock:
            waiting = self.readAvailable()
            self._entries.append(_InputEntry(data, 0, callback))
            self.rows_enqueued += len(data)
            self.enqueued_at_ns = time.perf_counter_ns()
            # Wake the waiting run for the first rows and for enough rows, not for every row.
            if not waiting or waiting + len(data) >= self._enough_rows:
                self._lock.notify()

    def read(self, max_rows: int) -> Array:
        """Take rows in order.

        Args:
            max_rows: maximum number of rows.

        Returns:
            An array of shape (rows, *row shape): a view if one request has them, otherwise a copy
            that joins several.

        Raises:
            ModelRuntimeError: if no rows wait.
            StoppedError: after the queue is disconnected.
        """
        started: list[Callback] = []
        with self._lock:
            if self._disconnected:
                raise StoppedError(_DISCONNECTED)
            pieces = self._take_rows(max_rows, started)
        for callback in started:
            callback()
        if not pieces:
            raise ModelRuntimeError(
                f"input queue {self._name!r} is empty; enqueue rows before running the main program"
            )
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _take_rows(self, max_rows: int, started: list[Callback]) -> list[Array]:
        pieces: list[Array] = []
        while max_rows and self._entries:
            entry = self._entries[0]
            if not entry.num_read and entry.callback is not None:
                started.append(entry.callback)
            rows = min(max_rows, len(entry.data) - entry.num_read)
            takes_all = rows == len(entry.data)
            pieces.append(
                entry.data if takes_all else entry.data[entry.num_read : entry.num_read + rows]
            )
            entry.num_read += rows
            if entry.num_read == len(entry.data):
                self._entries.popleft()
            max_rows -= rows
            self.rows_read += rows
            if self._runs_alone:
                break
        return pieces

    def withdraw(self, from_end: int) -> None:
        """Drop the unread rows of the enqueue that has `from_end` others after it."""
        entry = self._entries[-1 - from_end]
        assert not entry.num_read
        del self._entries[-1 - from_end]
        self.rows_enqueued -= len(entry.data)

    def clear(self) -> None:
        """Drop all waiting rows."""
        self._entries.clear()
        self.rows_read = self.rows_enqueued

    def disconnect(self) -> None:
        """Drop all waiting rows, and return no more rows."""
        self.clear()
        self._disconnected = True


class OutputQueue:
    """Queue of the buffers for rows of one output anchor."""

    def __init__(self, anchor: popef.Anchor, lock: Condition, *, starts_runs: bool = False) -> None:
        self._name = anchor.name()
        self._info = anchor.tensorInfo()
        self._lock = lock
        self._starts_runs = starts_runs
        self._entries: deque[_OutputEntry] = deque()
        self._disconnected = False

    def use_lock(self, lock: Condition) -> None:
        """Guard the buffers with this lock from now on."""
        self._lock = lock

    def tensorInfo(self) -> popef.TensorInfo:
        """Return shape (of the compiled batch) and type of the anchor."""
        return self._info

    def enqueue(self, buffer: OutputBuffer, rows: int, callback: Callback | None = None) -> None:
        """Set the buffer for the next rows.

        Args:
            buffer: the caller's array, memory of the runtime, or None to drop the rows.
            rows: number of rows.
            callback: function called once, after the last of them is written; None means no call.

        Raises:
            ModelRuntimeError: for an array of another length.
        """
        self.check(buffer, rows)
        self.add(buffer, rows, callback)

    def check(self, buffer: OutputBuffer, rows: int) -> None:
        """Raise ModelRuntimeError unless the buffer has room for exactly `rows` rows."""
        if isinstance(buffer, np.ndarray) and len(buffer) != rows:
            raise ModelRuntimeError(
                f"output {self._name!r}: expected an array of {rows} rows, found {len(buffer)}"
            )

    def add(self, buffer: OutputBuffer, rows: int, callback: Callback | None) -> None:
        """Enqueue a buffer that was checked."""
        with self._lock:
            self._entries.append(_OutputEntry(buffer, rows, 0, callback))
            if self._starts_runs:
                self._lock.notify()

    def writeAvailable(self) -> int:
        """Return the number of rows that have a buffer and are not yet written."""
        return sum(entry.rows - entry.written for entry in self._entries)

    def write(self, values: Array) -> None:
        """Write computed rows to the buffers in order.

        Args:
            values: array of shape (rows, *row shape).

        Raises:
            ModelRuntimeError: if there are not enough buffers.
            StoppedError: after the queue is disconnected.
        """
        finished: list[Callback] = []
        with self._lock:
            if self._disconnected:
                raise StoppedError(_DISCONNECTED)
            start = 0
            while start < len(values):
                if not self._entries:
                    raise ModelRuntimeError(
                        f"output queue {self._name!r} has no buffer for {len(values) - start} "
                        "rows; enqueue one before running the main program"
                    )
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

    def withdraw(self, from_end: int) -> None:
        """Drop the buffer of the enqueue that has `from_end` others after it."""
        del self._entries[-1 - from_end]

    def clear(self) -> None:
        """Drop all waiting buffers."""
        self._entries.clear()

    def disconnect(self) -> None:
        """Drop all waiting buffers, and accept no more rows."""
        self.clear()
        self._disconnected = True


def _store(entry: _OutputEntry, values: Array) -> None:
    buffer, rows = entry.buffer, len(values)
    if rows == entry.rows:
        store_rows(buffer, values)
    elif buffer is not None:
        if isinstance(buffer, OutputSlot):
            if buffer.array is None:
                buffer.array = np.empty((entry.rows, *values.shape[1:]), values.dtype)
            buffer = buffer.array
        buffer[entry.written : entry.written + rows] = values
    entry.written += rows


def store_rows(buffer: OutputBuffer, values: Array) -> None:
    """Store all rows of a request in their buffer, replacing what was there."""
    if isinstance(buffer, OutputSlot):
        buffer.array = values
    elif buffer is not None:
        buffer[:] = values


class InputRingBuffer:
    """View of an input for a timeout callback: the amount that the device could still read."""

    def __init__(self, queues: QueueManager) -> None:
        self._queues = queues

    def readAvailable(self) -> int:
        """Return the number of whole iterations of waiting rows: 0 while the device is short of
        input."""
        return self._queues.readAvailable() // self._queues.rows_per_iteration


TimeoutCallback = Callable[[InputRingBuffer], Any]


class QueueManager:
    """One queue per user anchor of a session; only `Session.createQueueManager` makes it.

    A run takes as many rows as wait, in whole iterations. Fewer rows than an iteration wait for
    more.

    Args:
        inputs: the input anchors and the shapes of their rows, by name.
        outputs: the output anchors.
        rows_per_run: maximum number of rows of a run.
        rows_per_iteration: number of rows of an iteration; None means as many as in a run.
        timeout_callback: function called when an incomplete iteration has waited for `timeout_ns`,
            which decides (`flushAll`); None means that everything is flushed.
        timeout_ns: how long an incomplete iteration waits for more rows after the last of them
            arrived; 0 means forever, None not at all.
        check_rows: function that raises ModelRuntimeError for a number of rows that one enqueue
            cannot have.
        runs_alone: whether each enqueue has a separate run.
        starts_runs: whether each row for which an output has a buffer is a run, as in a model
            without inputs.

    Example:
        >>> import numpy as np
        >>> import model_runtime
        >>> session = model_runtime.Session("model.popef")
        >>> session.runLoadPrograms()
        >>> queues, slot = session.createQueueManager(), model_runtime.OutputSlot()
        >>> queues.outputQueue("y").enqueue(slot, 2)
        >>> queues.inputQueue("x").enqueue(np.ones((2, 4), np.float32))
        >>> session.runMainPrograms(), slot.array.shape
        (2, (2, 4))
        >>> session.stop()
    """

    def __init__(
        self,
        inputs: Mapping[str, tuple[popef.Anchor, tuple[int, ...]]],
        outputs: Sequence[popef.Anchor],
        rows_per_run: int,
        *,
        rows_per_iteration: int | None = None,
        timeout_callback: TimeoutCallback | None = None,
        timeout_ns: int | None = None,
        check_rows: Callable[[int], None] = lambda _rows: None,
        runs_alone: bool = False,
        starts_runs: bool = False,
    ) -> None:
        self.lock = Condition()
        """Re-entrant lock of the queues; hold it while you enqueue the several tensors of a
        request."""
        self.rows_per_run = rows_per_run
        self.rows_per_iteration = rows_per_iteration or rows_per_run
        self._inputs = {
            name: InputQueue(
                anchor, row_shape, self.rows_per_iteration, self.lock, check_rows, runs_alone
            )
            for name, (anchor, row_shape) in inputs.items()
        }
        self._outputs = {
            anchor.name(): OutputQueue(anchor, self.lock, starts_runs=starts_runs)
            for anchor in outputs
        }
        self._queues: tuple[InputQueue | OutputQueue, ...] = (
            *self._inputs.values(),
            *self._outputs.values(),
        )
        self._starts_runs = starts_runs
        self._runs_alone = runs_alone
        self._timeout_callback = timeout_callback
        self.timeout_ns = timeout_ns
        """How long an incomplete iteration waits (see Args); a change counts from the next run."""
        self.is_idle = False
        """True while the thread of the runs waits for a first row."""
        self._flush_to = 0
        self._flushed_at_ns = 0
        self._disconnected = False
        FORKS.watch(self)

    def forget_parent(self) -> None:
        """Take a new lock in a fork, which no thread of the parent holds or waits for."""
        self.lock = Condition()
        for queue in self._queues:
            queue.use_lock(self.lock)

    def inputQueue(self, name: str) -> InputQueue:
        """Return the queue of an input anchor.

        Args:
            name: the anchor's name.

        Returns:
            The queue.

        Raises:
            ModelRuntimeError: if there is no such queue.
        """
        return _find(self._inputs, name, "input")

    def outputQueue(self, name: str) -> OutputQueue:
        """Return the queue of an output anchor.

        Args:
            name: the anchor's name.

        Returns:
            The queue.

        Raises:
            ModelRuntimeError: if there is no such queue.
        """
        return _find(self._outputs, name, "output")

    def readAvailable(self) -> int:
        """Return the number of rows that wait in every input queue."""
        return min([queue.readAvailable() for queue in self._inputs.values()], default=0)

    @property
    def rows_enqueued(self) -> int:
        """Total number of rows enqueued to every input."""
        return min([queue.rows_enqueued for queue in self._inputs.values()], default=0)

    @property
    def rows_read(self) -> int:
        """Total number of rows read or dropped from any input."""
        return max([queue.rows_read for queue in self._inputs.values()], default=0)

    def ready_ns(self) -> int:
        """Return the time since which the rows read last are ready: their last arrival or the last
        flush."""
        return max(
            [self._flushed_at_ns, *(queue.enqueued_at_ns for queue in self._inputs.values())]
        )

    @property
    def is_disconnected(self) -> bool:
        """True after `disconnectAll` ended the queues."""
        return self._disconnected

    def flushAll(self) -> None:
        """Run the waiting rows without waiting for more; the rest of the batch is dummy data."""
        with self.lock:
            self._flush(time.perf_counter_ns())
            self.lock.notify_all()

    def disconnectAll(self) -> None:
        """Drop all waiting rows and buffers, and end all waits for rows for good."""
        with self.lock:
            self._disconnected = True
            for queue in self._queues:
                queue.disconnect()
            self.lock.notify_all()

    def withdraw(self, from_end: int) -> None:
        """Drop an unread request; hold the lock.

        Args:
            from_end: how many requests came after it.
        """
        for queue in self._queues:
            queue.withdraw(from_end)

    def clear(self) -> None:
        """Drop everything that waits; hold the lock."""
        for queue in self._queues:
            queue.clear()

    def wait(self, free_at_ns: int | None = None) -> int:
        """Wait until a run may start.

        A run may start if the rows of a whole iteration wait, or if some rows wait and are flushed
        or join no others. An incomplete iteration waits for more rows from `free_at_ns` on.

        Args:
            free_at_ns: time when the device could have begun the iteration, on the clock of
                time.perf_counter_ns; None means now.

        Returns:
            The number of rows that the run may read, at least 1; 0 if the queues were disconnected.
        """
        with self.lock:
            looked_ns = time.perf_counter_ns() if free_at_ns is None else free_at_ns
            while not self._disconnected:
                if self._starts_runs:
                    if self._has_buffers():
                        return 1
                    with endless_wait:
                        self.lock.wait()
                    continue
                if not self._inputs:
                    return self.rows_per_run
                rows = self.readAvailable()
                if granted := self._grant(rows):
                    return granted
                if not rows or not self.timeout_ns:
                    self.is_idle = not rows
                    with endless_wait:
                        self.lock.wait()
                    self.is_idle = False
                    looked_ns = time.perf_counter_ns()
                    continue
                idle_since_ns = max(
                    looked_ns, *(queue.enqueued_at_ns for queue in self._inputs.values())
                )
                flush_at_ns = idle_since_ns + self.timeout_ns
                remaining_ns = flush_at_ns - time.perf_counter_ns()
                if remaining_ns > 0:
                    self.lock.wait(min(remaining_ns / 1e9, TIMEOUT_MAX))
                else:
                    self._time_out(flush_at_ns)
                    looked_ns = time.perf_counter_ns()
            return 0

    def _has_buffers(self) -> bool:
        """Return whether every output has a buffer for a row, which starts a run without inputs."""
        if not all(queue.writeAvailable() for queue in self._outputs.values()):
            return False
        self._flushed_at_ns = time.perf_counter_ns()
        return True

    def _grant(self, rows: int) -> int:
        """Return how many of the `rows` waiting rows a run may take now."""
        if rows >= self.rows_per_run:
            return self.rows_per_run
        if rows and (not self.waits_for_more(rows) or self._flush_to > self.rows_read):
            return rows
        return rows - rows % self.rows_per_iteration

    def waits_for_more(self, rows: int) -> bool:
        """Return whether so many rows, the only ones, wait for more rows before they are run.

        Args:
            rows: number of rows.

        Returns:
            False if they fill whole iterations, join no other rows, or iterations do not wait.
        """
        may_join = self._inputs and not self._runs_alone and self.timeout_ns is not None
        return bool(may_join and rows % self.rows_per_iteration)

    def _flush(self, at_ns: int) -> None:
        self._flush_to, self._flushed_at_ns = self.rows_enqueued, at_ns

    def _time_out(self, at_ns: int) -> None:
        if self._timeout_callback is None:
            self._flush(at_ns)
            return
        self.lock.release()
        try:
            self._timeout_callback(InputRingBuffer(self))
        finally:
            self.lock.acquire()


def _find(queues: dict[str, Queue], name: str, kind: str) -> Queue:
    try:
        return queues[name]
    except KeyError:
        raise ModelRuntimeError(
            f"{kind} anchor {name!r} is not known; expected one of {', '.join(queues) or 'none'}"
        ) from None
