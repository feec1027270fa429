"""Keras' data sets under an older name, which scripts for the IPU import and TensorFlow lost."""

from tensorflow_ipu.forwarding import forward_modules

_NAMES = "boston_housing cifar10 cifar100 fashion_mnist imdb mnist reuters"

__getattr__, __dir__ = forward_modules(__name__, {name: f".{name}" for name in _NAMES.split()})
