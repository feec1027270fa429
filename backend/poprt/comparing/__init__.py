"""Comparison of runs: a model is computed on the same inputs in several ways, and the results are
compared. Nothing here changes a model.

The inputs are the user's (`reading`) or made up (`inputs`, of the sizes that `ranges` finds). A way
is a `Side`: a graph with its rounding. `outputs` measures how far results differ; `statistics` has
further measures; `rows` compares a row in its batch with the same row elsewhere.

Who compares: the calibration run, a model in half with itself in float (`calibration`, with the
first nodes where they differ in `divergence`, why in `causes`, and what to keep in float in
`mending`); the passes check_with_fake_data and layer_precision_compare; the dry run of a compiled
executable; the check of an exported model; quantization.
"""

from poprt.comparing.calibration import OWN_DATA, Findings, Overflow, calibrate
from poprt.comparing.inputs import MIN_ROWS, iter_made_up
from poprt.comparing.outputs import LIMIT, Comparison, measure_difference
from poprt.comparing.reading import make_up, read_calibration_data
from poprt.comparing.sides import READY_SECONDS, Side

__all__ = [
    "LIMIT",
    "MIN_ROWS",
    "OWN_DATA",
    "READY_SECONDS",
    "Comparison",
    "Findings",
    "Overflow",
    "Side",
    "calibrate",
    "iter_made_up",
    "make_up",
    "measure_difference",
    "read_calibration_data",
]
