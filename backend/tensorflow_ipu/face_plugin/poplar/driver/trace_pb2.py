"""Messages of trace.proto."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(__name__, "tensorflow_ipu.messages.trace_pb2")
