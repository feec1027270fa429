"""Expansions of TensorFlow's operators, by family."""

from tensorflow_ipu.conversion.expansions import (
    convolutions,
    elementwise,
    gradients,
    linear_algebra,
    lists,
    random_numbers,
    reductions,
    shapes,
    special_functions,
)

__all__ = [
    "convolutions",
    "elementwise",
    "gradients",
    "linear_algebra",
    "lists",
    "random_numbers",
    "reductions",
    "shapes",
    "special_functions",
]
