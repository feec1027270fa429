"""Messages of backend_config.proto."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(__name__, "tensorflow_ipu.messages.backend_config_pb2")
