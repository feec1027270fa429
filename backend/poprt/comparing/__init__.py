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

from typing import TYPE_CHECKING

from popef._tools.lazy import make_lazy

if TYPE_CHECKING:
    from poprt.comparing.public import *  # noqa: F403
else:
    __getattr__, __dir__ = make_lazy(__name__)
