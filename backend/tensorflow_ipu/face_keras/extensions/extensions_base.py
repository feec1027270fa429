"""Extensions of Keras models: extensions base."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(
    __name__,
    "tensorflow_ipu.keras_extensions.base",
    "tensorflow_ipu.keras_extensions.execution",
    "tensorflow_ipu.keras_extensions.metric_reduction",
    "tensorflow_ipu.keras_extensions.options",
)
