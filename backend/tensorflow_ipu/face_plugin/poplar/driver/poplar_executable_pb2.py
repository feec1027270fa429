"""Messages of poplar_executable.proto."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(__name__, "tensorflow_ipu.messages.poplar_executable_pb2")
