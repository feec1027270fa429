"""The calibration run: at compile time a model in half is computed and compared with itself in
float, to measure the effect of half precision.

`reading` has the user's samples, `inputs` the input data, `ranges` their size, `sides` the two
models, `run` the nodes whose results overflow half, `comparison` the errors of the outputs,
`divergence` the first nodes where half and float differ, `causes` why, `mending` the search for
what to keep in float, and `statistics` the error measures. Nothing here changes the compiled model.
"""

from poprt.calibration.comparison import LIMIT, Comparison
from poprt.calibration.inputs import iter_made_up
from poprt.calibration.reading import find_input_streams, read_calibration_data
from poprt.calibration.run import OWN_DATA, Findings, Overflow, calibrate, has_types
from poprt.calibration.sides import READY_SECONDS, Side

__all__ = [
    "LIMIT",
    "OWN_DATA",
    "READY_SECONDS",
    "Comparison",
    "Findings",
    "Overflow",
    "Side",
    "calibrate",
    "find_input_streams",
    "has_types",
    "iter_made_up",
    "read_calibration_data",
]
