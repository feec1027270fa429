"""Messages of pipeline_config.proto."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(__name__, "tensorflow_ipu.messages.pipeline_config_pb2")
