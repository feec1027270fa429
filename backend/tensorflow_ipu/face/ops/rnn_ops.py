"""Recurrent layers under their name in TensorFlow 1; later ones are in ipu_tensorflow_addons."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(__name__, "tensorflow_ipu.addons.session_layers")
