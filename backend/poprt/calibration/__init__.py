"""The calibration run: a model in half is computed at compile time, beside itself in float, to say what it is
worth.

`inputs` has what it is computed of, `overflow` the nodes whose results half cannot hold, `comparison` what
becomes of the outputs, and `parting` the first nodes where half and float part, with the option that mends
it. Nothing here changes what is compiled.
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
