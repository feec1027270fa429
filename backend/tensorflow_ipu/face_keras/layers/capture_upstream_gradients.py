"""Capture of gradients, which is not supported."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(__name__, "tensorflow_ipu.keras_extensions.gradient_layers")
