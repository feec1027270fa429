"""A hook of sessions that logs values of a compiled computation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.platform import tf_logging
from tensorflow.python.training.basic_session_run_hooks import (
    NeverTriggerTimer,
    SecondOrStepTimer,
)

from tensorflow_ipu.feeds.ipu_outfeed_queue import IPUOutfeedMode, IPUOutfeedQueue


class IPULoggingTensorHook(tf.compat.v1.train.SessionRunHook):  # type: ignore[misc]
    """Hook that logs the values that a computation passes to `log`, through an outfeed.

    Args:
        every_n_iter: Number of runs between two lines.
        every_n_secs: Number of seconds between two lines; one of both, unless `at_end`.
        at_end: Whether to log at the end.
        formatter: Returns the line for the values by name.
        logging_mode: Whether all values since the last line are logged, or the last ones.

    Raises:
        ValueError: If both intervals are given, or nothing is.
    """

    LoggingMode = IPUOutfeedMode

    def __init__(
        self,
        every_n_iter: int | None = None,
        every_n_secs: float | None = None,
        at_end: bool = False,
        formatter: Callable[[Mapping[str, Any]], str] | None = None,
        logging_mode: IPUOutfeedMode = IPUOutfeedMode.LAST,
    ) -> None:
        if every_n_iter is not None and every_n_secs is not None:
            raise ValueError("Cannot provide both every_n_iter and every_n_secs")
        has_interval = every_n_iter is not None or every_n_secs is not None
        if not has_interval and not at_end:
            raise ValueError("Either every_n_iter, every_n_secs or at_end should be provided")
        self._timer = (
            SecondOrStepTimer(every_secs=every_n_secs, every_steps=every_n_iter)
            if has_interval
            else NeverTriggerTimer()
        )
        self._logs_at_end, self._formatter = at_end, formatter
        self._outfeed = IPUOutfeedQueue(outfeed_mode=logging_mode)
        self._dequeue: Any = None
        self._deleter: Any = None
        self._num_runs = 0

    def log(self, tensors: Any) -> Any:
        """Log tensors; called once, within the computation.

        Args:
            tensors: A dictionary of tensors by name, a list or tuple of tensors, or a tensor.

        Returns:
            The operation that passes them on.

        Raises:
            RuntimeError: If it was called before.
            TypeError: If something is no tensor.
        """
        if self._outfeed.enqueued:
            raise RuntimeError(
                "Cannot use this hook object's log function more than once. Either enqueue all "
                "tensors in a single log call using a list or dict, or create another hook."
            )
        if not isinstance(tensors, Mapping):
            tensors = tensors if isinstance(tensors, (list, tuple)) else [tensors]
            for tensor in tensors:
                if not tf.is_tensor(tensor):
                    raise TypeError(f"Expected `tf.Tensor`, got {type(tensor)}")
            tensors = {tensor.name: tensor for tensor in tensors}
        return self._outfeed.enqueue(tensors)

    def begin(self) -> None:
        """Prepare what is run later.

        Raises:
            RuntimeError: If `log` was not called.
        """
        if not self._outfeed.enqueued:
            raise RuntimeError(
                "This logging hook's outfeed was not enqueued. Did you forget to call the log "
                "function?"
            )
        with tf.device("cpu"):
            self._dequeue, self._deleter = self._outfeed.dequeue(), self._outfeed.deleter
        self._num_runs = 0

    def after_run(self, run_context: Any, run_values: Any) -> None:  # noqa: ARG002
        """Log the values if it is time.

        Args:
            run_context: Context of the run.
            run_values: Results of the run.
        """
        if self._timer.should_trigger_for_step(self._num_runs):
            self._write(run_context.session.run(self._dequeue))
        self._num_runs += 1

    def end(self, session: Any) -> None:
        """Log the last values if that was asked for.

        Args:
            session: The session.
        """
        if self._logs_at_end:
            self._write(session.run(self._dequeue))
        session.run(self._deleter)
        self._dequeue = self._deleter = None
        self._timer.reset()

    def _write(self, values: Mapping[str, Any]) -> None:
        seconds, _ = self._timer.update_last_triggered_step(self._num_runs)
        if self._formatter is not None:
            tf_logging.info(self._formatter(values))
            return
        text = ", ".join(f"{name} = {value}" for name, value in values.items())
        if seconds is None:
            tf_logging.info("%s", text)
        else:
            tf_logging.info("%s (%.3f sec)", text, seconds)
