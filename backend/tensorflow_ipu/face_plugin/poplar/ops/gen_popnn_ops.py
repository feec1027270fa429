"""Wrappers of operators, as TensorFlow generates them."""

from tensorflow_ipu.forwarding import forward

__getattr__, __dir__ = forward(
    __name__,
    "tensorflow_ipu.operators.generated.gen_popnn_ops",
    "tensorflow_ipu.operators.generated.recurrent_layers",
)
