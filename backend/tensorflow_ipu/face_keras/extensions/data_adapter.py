"""Extensions of Keras models: data adapter."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(
    __name__,
    "tensorflow_ipu.keras_ipu.extensions.data_adapter",
    "tensorflow_ipu.keras_ipu.extensions",
)
