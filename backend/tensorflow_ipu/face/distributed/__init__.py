"""Distribution by popdist, which is not supported."""

from tensorflow_ipu.forwarding import forward_modules

__getattr__, __dir__ = forward_modules(
    __name__,
    {
        "host_collective_ops": ".host_collective_ops",
        "popdist_strategy": ".popdist_strategy",
    },
)
