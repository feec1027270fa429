"""Files of data sets and variables."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(__name__, "tensorflow_ipu.files.dataset_extractor")
