"""Optimizers, which can be constructed only: training is not supported."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(__name__, "tensorflow_ipu.keras_extensions.optimizers")
