"""Speed of data sets and infeed queues."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(__name__, "tensorflow_ipu.feeds.dataset_benchmark")
