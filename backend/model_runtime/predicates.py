"""Which anchors of a model are connected to what a user gives: a predicate answers for each anchor with a
policy."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import popef


class AnchorCallbackPolicy(IntEnum):
    """What an anchor's stream is connected to."""

    BIND_USER_CB = 0
    """The user's handler or queue."""
    BIND_EMPTY_CB = 1
    """Nothing: an input is zeros, an output is dropped."""
    SKIP_CB = 2
    """Left as it is."""


AnchorCallbackPredicate = Callable[[popef.Anchor], AnchorCallbackPolicy]
