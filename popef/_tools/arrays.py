"""Type of the arrays that every room passes on."""

from typing import Any

import numpy as np

Array = np.ndarray[tuple[Any, ...], np.dtype[Any]]
"""Array of any shape and element type: `numpy.typing.NDArray[Any]`, whose module takes 5 ms to
import."""
