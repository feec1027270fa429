"""PopEF inside a TensorFlow SavedModel, like Graphcore's `ipu.serving`: the export, the operators
that run it, and the child process that they run it in.

TensorFlow is imported on first use, not on import of this package.
"""

from popef._tools.version import __version__ as __version__
from poplar_serving.errors import BuildError, ExportError, FrameError, LibraryError, ServingError
from poplar_serving.exporting import export
from poplar_serving.library import build, load, load_library

__all__ = [
    "BuildError",
    "ExportError",
    "FrameError",
    "LibraryError",
    "ServingError",
    "__version__",
    "build",
    "export",
    "load",
    "load_library",
]
