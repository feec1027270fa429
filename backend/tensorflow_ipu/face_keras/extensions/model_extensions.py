"""Extensions of Keras models: model extensions."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(
    __name__,
    "tensorflow_ipu.keras_extensions.subclassed",
    "tensorflow_ipu.keras_extensions.assignments",
)
