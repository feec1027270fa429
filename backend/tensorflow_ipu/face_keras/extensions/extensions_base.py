"""Extensions of Keras models: extensions base."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(
    __name__,
    "tensorflow_ipu.keras_ipu.extensions.extensions_base",
    "tensorflow_ipu.keras_ipu.extensions",
)
