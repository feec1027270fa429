"""Expansions of TensorFlow's operators, by family."""

from tensorflow_ipu.conversion.expansions import (
    convolutions,
    elementwise,
    linear_algebra,
    random_numbers,
    reductions,
    shapes,
    special_functions,
)

__all__ = [
    "convolutions",
    "elementwise",
    "linear_algebra",
    "random_numbers",
    "reductions",
    "shapes",
    "special_functions",
]
