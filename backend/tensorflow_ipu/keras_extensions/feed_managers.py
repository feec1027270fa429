"""Feeds of a model's executions, kept so that a computation is traced and compiled once."""

from __future__ import annotations

from typing import Any

from tensorflow.python.eager import context


class InfeedManager:
    """Infeeds of a model, one for each kind of execution: runs with other data restart it."""

    def __init__(self) -> None:
        self._infeeds: dict[Any, Any] = {}

    def get_infeed(self, mode: Any, dataset: Any, infeed_kwargs: dict[str, Any]) -> Any:
        """Return an iterator of the IPU over a data set.

        Args:
            mode: Kind of execution.
            dataset: The data set.
            infeed_kwargs: Options of the queue.
        """
        from tensorflow_ipu.feeds import ipu_infeed_queue

        infeed = self._infeeds.get(mode)
        if infeed is not None and infeed.element_spec == dataset.element_spec:
            infeed.restart(dataset)
        else:
            self._infeeds[mode] = ipu_infeed_queue.IPUIterator(dataset, **infeed_kwargs)
        return self._infeeds[mode]

    def reset(self) -> None:
        """Forget all infeeds."""
        self._infeeds.clear()


class OutfeedManager:
    """Outfeeds of a model: one for each kind of execution."""

    def __init__(self) -> None:
        self._outfeeds: dict[Any, Any] = {}

    def get_outfeed(self, mode: Any, outfeed_kwargs: dict[str, Any]) -> Any:
        """Return the outfeed of a kind of execution, which is made at its first use.

        Args:
            mode: Kind of execution.
            outfeed_kwargs: Options of the queue.
        """
        from tensorflow_ipu.feeds import ipu_outfeed_queue

        if mode not in self._outfeeds:
            self._outfeeds[mode] = ipu_outfeed_queue.IPUOutfeedQueue(**outfeed_kwargs)
        return self._outfeeds[mode]

    def clear(self, mode: Any) -> None:
        """Drop what a kind of execution has left in its outfeed, which can then be used again."""
        if mode in self._outfeeds:
            with context.eager_mode():
                self._outfeeds[mode].deleter  # noqa: B018 - reading it empties the queue

    def reset(self) -> None:
        """Delete all outfeeds."""
        for mode in list(self._outfeeds):
            self.clear(mode)
        self._outfeeds.clear()
