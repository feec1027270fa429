"""Keras for the IPU."""

from tensorflow_ipu.forwarding import forward
from tensorflow_ipu.keras_extensions import import_hook

__getattr__, __dir__ = forward(__name__, "tensorflow_ipu.keras_extensions.keras_ipu")
import_hook.watch()
