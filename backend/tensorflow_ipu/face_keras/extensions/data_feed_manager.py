"""Extensions of Keras models: data feed manager."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(__name__, "tensorflow_ipu.keras_extensions.feed_managers")
