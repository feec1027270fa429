"""The simulated IPU: target, device, executable, engine, and three traversals of a placed graph:
its values (`numerics`), its cost on the chip (`cost`), and the places of its rows (`rows`). All use
one table of operators (`operators`).

ONNX Runtime does the arithmetic. This package does not read PopEF files, and knows nothing of
requests or Triton. From popef it uses the rule for what a batch is, and the escaping of texts.
"""

import os
from typing import TYPE_CHECKING

from popef._tools.lazy import make_lazy
from popef._tools.version import __version__ as __version__

# From its import on, ONNX Runtime 1.32 for Linux sends telemetry and keeps a file of it in
# ~/.cache.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from simipu.public import *  # noqa: F403
else:
    __getattr__, __dir__ = make_lazy(__name__)
