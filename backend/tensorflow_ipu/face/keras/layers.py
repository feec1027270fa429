"""Keras layers under their name in TensorFlow 1; later ones are in ipu_tensorflow_addons."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(
    __name__,
    "tensorflow_ipu.addons.simple_layers",
    "tensorflow_ipu.addons.normalization",
    "tensorflow_ipu.addons.dense",
    "tensorflow_ipu.addons.recurrent_layers",
    "tensorflow_ipu.addons.ctc",
    "tensorflow_ipu.addons.effective_transformer",
)
