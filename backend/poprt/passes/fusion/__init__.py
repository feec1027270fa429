"""Passes that merge nodes, from pairs of nodes to whole norms and attention layers."""

from poprt.passes.fusion import (
    attention,
    caches,
    consecutive,
    experts,
    gelus,
    into_constants,
    masks,
    merging,
    norms,
    padding,
)

__all__ = [
    "attention",
    "caches",
    "consecutive",
    "experts",
    "gelus",
    "into_constants",
    "masks",
    "merging",
    "norms",
    "padding",
]
