"""The examples of single operators in ONNX's backend test-suite, for tests that want a few of each.

Collecting them as onnx does takes 17 seconds. Nearly all of it goes into the expected outputs of
three pools over 32 x 32 x 32 values, which onnx computes window by window in Python, and into the
source text of the examples for onnx's documentation.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
from onnx.backend.test.case import base
from onnx.backend.test.case.node import collect_testcases

LARGE, SMALL = (1, 3, 32, 32, 32), (1, 3, 6, 6, 6)
"""Shape of the random inputs of those three pools, and the shape that they get instead."""


def load_examples() -> Sequence[Any]:
    """Return onnx's test cases of kind "node", the three large volumes made smaller."""
    draw = np.random.randn

    def draw_small(*shape: int) -> Any:
        return draw(*(SMALL if shape == LARGE else shape))

    with (
        warnings.catch_warnings(),
        patch.object(base, "process_snippet", lambda *_: ("", "")),
        patch.object(np.random, "randn", draw_small),
    ):
        warnings.simplefilter("ignore")
        return list(collect_testcases(""))
