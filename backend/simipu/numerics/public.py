"""Public names of `simipu.numerics`, which the package imports when one of them is first used."""

from typing import TYPE_CHECKING

from simipu.numerics.convolution import Convolution as Convolution
from simipu.numerics.half import HALVES as HALVES
from simipu.numerics.half import narrow_to_half as narrow_to_half
from simipu.numerics.lowering import OLDEST_OPSET as OLDEST_OPSET
from simipu.numerics.lowering import lower as lower
from simipu.numerics.optimisers import find_unsafe_optimisers as find_unsafe_optimisers
from simipu.numerics.options import KernelUse as KernelUse
from simipu.numerics.options import Numerics as Numerics
from simipu.numerics.quarter import FORMATS as FORMATS
from simipu.numerics.quarter import QUARTERS as QUARTERS
from simipu.numerics.quarter import QuarterFormat as QuarterFormat
from simipu.numerics.quarter import decode as decode
from simipu.numerics.quarter import encode as encode
from simipu.numerics.rounding import HALF_MAX as HALF_MAX
from simipu.numerics.rounding import unrounded_results as unrounded_results

if not TYPE_CHECKING:
    __all__ = [name for name in dir() if not name.startswith("_") and name != "TYPE_CHECKING"]
