"""Recurrent layers where the branch for TensorFlow 1 has them."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(__name__, "tensorflow_ipu.addons.session_layers")
