"""Messages of option_flag.proto."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(__name__, "tensorflow_ipu.messages.option_flag_pb2")
