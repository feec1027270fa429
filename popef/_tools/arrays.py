"""Type of the arrays that every room passes on."""

from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]
"""Array of any shape and element type."""
