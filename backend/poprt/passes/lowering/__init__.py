"""Passes from the converted graph to the placed one, and the assignment of nodes to IPUs."""

from poprt.passes.lowering import placed, sharding

__all__ = ["placed", "sharding"]
