"""Extensions of Keras models: register extensions."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(__name__, "tensorflow_ipu.keras_extensions.installation")
