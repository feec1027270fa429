"""Predicates that choose which anchors of a model are connected to the user's callbacks.

A predicate returns a policy for each anchor.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum

import popef


class AnchorCallbackPolicy(IntEnum):
    """Target of the connection of an anchor's stream."""

    BIND_USER_CB = 0
    """Connect to the user's handler or queue."""
    BIND_EMPTY_CB = 1
    """Connect to nothing: an input is zeros, an output is dropped."""
    SKIP_CB = 2
    """Leave the stream as it is."""


AnchorCallbackPredicate = Callable[[popef.Anchor], AnchorCallbackPolicy]
