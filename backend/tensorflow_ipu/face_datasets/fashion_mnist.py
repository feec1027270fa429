"""Data set fashion_mnist."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(__name__, "keras.datasets.fashion_mnist")
