"""Recurrent layers of TensorFlow 1."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(__name__, "tensorflow_ipu.addons.session_layers")
