"""Data set cifar100."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(__name__, "keras.datasets.cifar100")
