"""Expressions of vertices."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(__name__, "tensorflow_ipu.operators.vertex_edsl")
