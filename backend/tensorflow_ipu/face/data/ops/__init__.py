"""Data sets."""

from tensorflow_ipu.forwarding import forward_modules

__getattr__, __dir__ = forward_modules(
    __name__,
    {
        "dataset_ops": ".dataset_ops",
    },
)
