"""Experimental operators."""

from tensorflow_ipu.forwarding import forward_modules

__getattr__, __dir__ = forward_modules(
    __name__,
    {
        "popfloat_cast_to_gfloat": ".popfloat_cast_to_gfloat",
    },
)
