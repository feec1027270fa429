"""Wrappers of operators, as TensorFlow generates them."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(
    __name__,
    "tensorflow_ipu.files.application_runtime",
    "tensorflow_ipu.operators.generated.gen_application_runtime",
)
