"""Keras for the IPU under its name in TensorFlow 1; later it is `keras.ipu`."""

from tensorflow_ipu.forwarding import forward_modules

__getattr__, __dir__ = forward_modules(__name__, {"layers": ".layers"})
