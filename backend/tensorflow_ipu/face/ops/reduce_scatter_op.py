"""Reductions scattered among replicas."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(__name__, "tensorflow_ipu.operators.reduce_scatter_op")
