"""Strategy of popdist, which is not supported."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(__name__, "tensorflow_ipu.training.distributed")
