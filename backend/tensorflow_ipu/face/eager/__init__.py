"""Gradient tapes."""

from tensorflow_ipu.forwarding import forward_modules

__getattr__, __dir__ = forward_modules(
    __name__,
    {
        "backprop": ".backprop",
    },
)
