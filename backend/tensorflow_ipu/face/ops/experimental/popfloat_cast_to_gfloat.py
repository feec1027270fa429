"""Casts to small floating point formats."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(__name__, "tensorflow_ipu.operators.popfloat_cast_to_gfloat")
