"""Messages of poplar_feed_config.proto."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(__name__, "tensorflow_ipu.messages.poplar_feed_config_pb2")
