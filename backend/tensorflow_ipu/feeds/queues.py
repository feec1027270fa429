"""The host's ends of feeds: where infeeds take elements from, and where outfeeds keep them."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import tensorflow as tf

from popef._tools.arrays import Array

_numbers = itertools.count()


class Infeed:
    """Takes the elements of a data set, one by one."""

    def __init__(self) -> None:
        self.name: Final = f"infeed{next(_numbers)}"
        self._next: Callable[[], Sequence[Array]] | None = None
        _infeeds[self.name] = self

    def begin(self, function: Callable[[], Sequence[Array]]) -> None:
        """Begin the data set anew; `function` returns the arrays of the next element."""
        self._next = function

    def end(self) -> None:
        """Delete the iterator of the data set."""
        if self._next is None:
            raise tf.errors.NotFoundError(None, None, f"Infeed with id='{self.name}'")
        self._next = None

    def take(self) -> Sequence[Array]:
        """Return the arrays of the next element."""
        if self._next is None:
            raise tf.errors.FailedPreconditionError(
                None, None, f"Infeed with id='{self.name}' has not been initialized"
            )
        return self._next()


class Outfeed:
    """Keeps the elements that programs return until they are dequeued."""

    def __init__(self, keeps_all: bool) -> None:
        self.name: Final = f"outfeed{next(_numbers)}"
        self._keeps_all = keeps_all
        self._elements: list[Sequence[Array]] = []
        self._lock = threading.Lock()
        _outfeeds[self.name] = self

    def put(self, values: Sequence[Array]) -> None:
        """Keep an element."""
        with self._lock:
            if not self._keeps_all:
                self._elements.clear()
            self._elements.append([np.asarray(value) for value in values])

    def take_all(self) -> list[Sequence[Array]]:
        """Return the elements since the last call, and forget them."""
        with self._lock:
            elements, self._elements = self._elements, []
        return elements

    def last(self) -> Sequence[Array] | None:
        """Return the last element, which stays; None if there is none."""
        with self._lock:
            return self._elements[-1] if self._elements else None


_infeeds: weakref.WeakValueDictionary[str, Infeed] = weakref.WeakValueDictionary()
_outfeeds: weakref.WeakValueDictionary[str, Outfeed] = weakref.WeakValueDictionary()


def find_infeed(name: str) -> Infeed:
    """Return an infeed by its name in markers."""
    return _find(_infeeds, name)


def find_outfeed(name: str) -> Outfeed:
    """Return an outfeed by its name in markers."""
    return _find(_outfeeds, name)


def _find(feeds: Any, name: str) -> Any:
    feed = feeds.get(name)
    if feed is None:
        raise tf.errors.NotFoundError(None, None, f"feed '{name}' has been deleted")
    return feed
