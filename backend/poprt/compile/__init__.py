"""Compilation: the converter, which prepares a model, and the compiler, which makes an executable
of it."""

from poprt.compile.adoption import adopt_graph
from poprt.compile.prepared import cost_options

__all__ = ["adopt_graph", "cost_options"]
