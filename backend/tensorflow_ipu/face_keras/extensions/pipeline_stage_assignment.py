"""Extensions of Keras models: pipeline stage assignment."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(
    __name__,
    "tensorflow_ipu.keras_extensions.stages",
    "tensorflow_ipu.keras_extensions.assignments",
)
