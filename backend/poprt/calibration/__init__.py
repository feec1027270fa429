"""The calibration run: at compile time a model in half is computed and compared with itself in
float, to measure the effect of half precision.

`inputs` has the input data, `overflow` the nodes whose results overflow half, and `comparison` the
errors of the outputs. `divergence` finds the first nodes where half and float differ, and the
option that fixes the difference. Nothing here changes the compiled model.
"""

from poprt.calibration.comparison import LIMIT, Comparison
from poprt.calibration.overflow import Overflow
from poprt.calibration.reading import read_calibration_data
from poprt.calibration.run import Findings, calibrate, has_types
from poprt.calibration.sides import READY_SECONDS, Side

__all__ = [
    "LIMIT",
    "READY_SECONDS",
    "Comparison",
    "Findings",
    "Overflow",
    "Side",
    "calibrate",
    "has_types",
    "read_calibration_data",
]
