"""Utilities: seeds, initialization, files of weights and data sets."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(
    __name__, "tensorflow_ipu.config.utils", "tensorflow_ipu.files.utils"
)
