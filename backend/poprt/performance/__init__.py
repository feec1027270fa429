"""Modelled time, memory and FLOPs of a compiled model; the tables of `poprt --show_profile`.

`poplar_triton.profile` opens models to profile them, and has sweeps, plots and traces.
"""

from typing import TYPE_CHECKING

from popef._tools.lazy import make_lazy

if TYPE_CHECKING:
    from poprt.performance.public import *  # noqa: F403
else:
    __getattr__, __dir__ = make_lazy(__name__)
