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

# The name is known to type checkers. Nothing is imported until a command handles interrupts
# (`_tools.start`), so that an early one shows no traceback.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from ._tools.version import __version__ as __version__
    from .public import *  # noqa: F403
    from .public import __all__ as __all__
else:

    def __getattr__(name):
        if name == "__version__":
            from ._tools.version import __version__

            return __version__
        from ._tools.lazy import make_lazy

        return make_lazy(__name__)[0](name)

    def __dir__():
        from ._tools.lazy import make_lazy

        return make_lazy(__name__)[1]()


if os.environ.get("POPEF_LOG_LEVEL"):
    from .log import configure as _configure_log

    _configure_log()
