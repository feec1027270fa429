"""ONNX to PopEF: frontend, converter, passes, compiler, and the `poprt` command.

Import name, API and options are those of the real PopRT. The compilation target is the simulated
IPU of `simipu`. `__all__` lists the tool's names; PRECISIONS and STEPS are for the rooms above.
"""

import os
from typing import TYPE_CHECKING

from popef._tools.lazy import make_lazy
from popef._tools.version import __version__ as __version__

# Must be set before ONNX Runtime is imported: see simipu/__init__.py.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from poprt.public import *  # noqa: F403
    from poprt.public import PRECISIONS as PRECISIONS
    from poprt.public import STEPS as STEPS
    from poprt.public import __all__ as __all__
else:
    __getattr__, __dir__ = make_lazy(__name__)
