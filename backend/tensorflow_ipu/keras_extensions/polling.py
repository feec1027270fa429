"""Threads that call callbacks for each step while an execution runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import tensorflow as tf

_FIRST_WAIT_S: Final = 0.001
_WAITS_IN_A_STEP: Final = 1.9
"""A step is polled about twice while it runs."""


class PollingThread(threading.Thread):
    """Take steps' results from an outfeed as they come, and call callbacks.

    Args:
        outfeed: The outfeed.
        num_steps: Number of steps until the thread ends.
        replication_factor: Number of replicas; with several, results have a dimension for them.
        batch_begin_fn: Called with the number of a step before its results are passed on.
        batch_end_fn: Called with that number and the results.
        unpack_step_results: Whether a result is the first item of a list.
    """

    def __init__(
        self,
        outfeed: Any,
        num_steps: int,
        replication_factor: int,
        batch_begin_fn: Callable[[int], None],
        batch_end_fn: Callable[[int, Any], None],
        unpack_step_results: bool = False,
    ) -> None:
        super().__init__(daemon=True)
        self._cancelled = threading.Event()
        self._result: Any = None
        self._error: Exception | None = None
        self._outfeed = outfeed
        self._num_steps = num_steps
        self._replication_factor = replication_factor
        self._batch_begin_fn = batch_begin_fn
        self._batch_end_fn = batch_end_fn
        self._unpack_step_results = unpack_step_results
        self._wait_s = _FIRST_WAIT_S
        self._last_time_s: float | None = None

    def cancel(self) -> None:
        """End the thread, after an execution failed."""
        self._cancelled.set()
        self.join()

    def cancelled(self) -> bool:
        """Return whether the thread was told to end."""
        return self._cancelled.is_set()

    def get_result(self) -> Any:
        """Return the results of the last step. Raise what a callback raised."""
        if self._error is not None:
            raise self._error
        return self._result

    def run(self) -> None:
        """Poll until all steps are done."""
        try:
            self._poll()
        except Exception as error:  # noqa: BLE001 - get_result raises it in the caller's thread
            self._error = error

    def _poll(self) -> None:
        step = 0
        while step < self._num_steps and not self.cancelled():
            results = self._outfeed.dequeue()
            num_results = _count_results(results)
            for index in range(num_results):
                self._pass_on(step + index, _take(results, index))
            if num_results:
                self._keep(results)
            step += num_results
            self._wait(num_results)

    def _pass_on(self, step: int, all_replicas: Any) -> None:
        for data in self._split_replicas(all_replicas):
            self._batch_begin_fn(step)
            self._batch_end_fn(step, data[0] if self._unpack_step_results else data)

    def _keep(self, results: Any) -> None:
        last = _take(results, -1)
        for data in self._split_replicas(last):
            self._result = data[0] if self._unpack_step_results else data

    def _split_replicas(self, data: Any) -> Iterator[Any]:
        if self._replication_factor == 1:
            yield data
            return
        for replica in range(self._replication_factor):
            yield _take(data, replica)

    def _wait(self, num_results: int) -> None:
        if not num_results:
            time.sleep(self._wait_s)
            return
        now_s = time.monotonic()
        if self._last_time_s is not None:
            step_s = (now_s - self._last_time_s) / num_results
            self._wait_s = min(step_s / _WAITS_IN_A_STEP, _FIRST_WAIT_S)
        self._last_time_s = now_s


class PollingThreadPredict(PollingThread):
    """A polling thread that keeps the results of all steps."""

    def _keep(self, results: Any) -> None:
        merged = merge_into_batch_dimension(results, self._replication_factor)
        self._result = [*(self._result or ()), merged]


def merge_into_batch_dimension(tensors: Any, local_replication_factor: int) -> Any:
    """Return results of several steps, and of several replicas, as those of one batch.

    Args:
        tensors: Structure of tensors of shape [steps, rows, ...], or [steps, replicas, rows, ...].
        local_replication_factor: Number of replicas.

    Returns:
        The structure, of tensors of shape [steps * replicas * rows, ...].
    """
    leading = 2 if local_replication_factor == 1 else 3
    return tf.nest.map_structure(
        lambda tensor: (
            tf.reshape(tensor, [-1, *tensor.shape[leading:]])
            if 0 not in tensor.shape
            else tf.zeros(_merge_shape(tensor.shape, leading), tensor.dtype)
        ),
        tensors,
    )


def _merge_shape(shape: Any, leading: int) -> list[int]:
    rows = 1
    for size in shape[:leading]:
        rows *= size
    return [rows, *shape[leading:]]


def _take(structure: Any, index: int) -> Any:
    return tf.nest.map_structure(lambda tensor: tensor[index], structure)


def _count_results(results: Any) -> int:
    flat = tf.nest.flatten(results)
    return int(tf.shape(flat[0])[0]) if flat else 0
