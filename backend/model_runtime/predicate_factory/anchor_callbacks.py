"""Predicates that choose which anchors of a model are connected to the user's callbacks: they
return a policy for each anchor."""

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


_ACCEPT, _REJECT = AnchorCallbackPolicy.BIND_USER_CB, AnchorCallbackPolicy.BIND_EMPTY_CB


def predProgramFlowMain(
    program_flow: popef.ProgramFlow,
    accept: AnchorCallbackPolicy = _ACCEPT,
    reject: AnchorCallbackPolicy = _REJECT,
) -> AnchorCallbackPredicate:
    """Return a predicate that accepts the anchors of the main programs."""
    mains = set(program_flow.main())
    return lambda anchor: accept if mains.intersection(anchor.programs()) else reject


def predProgramNotAssigned(
    accept: AnchorCallbackPolicy = _ACCEPT, reject: AnchorCallbackPolicy = _REJECT
) -> AnchorCallbackPredicate:
    """Return a predicate that accepts the anchors that name no program, as in older files."""
    return lambda anchor: reject if anchor.programs() else accept


def orBind(
    accept: AnchorCallbackPolicy,
    reject: AnchorCallbackPolicy,
    first: AnchorCallbackPredicate,
    second: AnchorCallbackPredicate,
) -> AnchorCallbackPredicate:
    """Return a predicate that accepts an anchor if one of the two answers with `accept`."""
    return lambda anchor: accept if accept in (first(anchor), second(anchor)) else reject
