"""Properties of operators on the simulated IPU: one table, with one entry for each operator of the
ONNX standard and for those of the chip's own compiler.

`entry` defines the fields of an entry, `rules` the places of rows, `formulas` the cost on the
chip, `counts` the cost on the machine that computes. `entries` and `graphcore_domain` contain the
entries, `table` joins them. Nothing here walks a graph: `simipu.rows`, `simipu.cost` and
`simipu.numerics` do, and do not depend on each other.
"""

from typing import TYPE_CHECKING

from popef._tools.lazy import make_lazy

if TYPE_CHECKING:
    from simipu.operators.public import *  # noqa: F403
else:
    __getattr__, __dir__ = make_lazy(__name__)
