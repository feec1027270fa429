"""Read and write PopEF, the files in which compiled IPU models travel; FORMAT.md describes every
byte.

The names are those of the real `popef` package, so programs written for it run against this one:

    with popef.Reader() as reader:
        reader.parseFile("executable.popef")
        model = popef.ModelBuilder(reader).createModel()
        for anchor in model.metadata.anchors:
            print(anchor.name, anchor.type.name, anchor.tensorInfo.shape)

`anchor.name()` works as well as `anchor.name`.
"""

import os

from ._tools.lazy import make_lazy
from ._tools.version import __version__ as __version__

# The name is known to type checkers. Next to nothing is imported until a command handles
# interrupts, so that an early one shows no traceback; typing would take half of that time.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from .public import *  # noqa: F403
    from .public import __all__ as __all__
else:
    __getattr__, __dir__ = make_lazy(__name__)

if os.environ.get("POPEF_LOG_LEVEL"):
    from .log import configure as _configure_log

    _configure_log()
