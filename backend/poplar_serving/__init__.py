"""PopEF inside a TensorFlow SavedModel, as Graphcore's `ipu.serving` has it: the export, the operators that
run it, and the process that they run it in.

TensorFlow is imported when something of it is asked for, not by importing this.
"""

from poplar_serving.errors import BuildError, ExportError, FrameError, LibraryError, ServingError
from poplar_serving.exporting import export
from poplar_serving.library import build, load, load_library

__all__ = [
    "BuildError",
    "ExportError",
    "FrameError",
    "LibraryError",
    "ServingError",
    "build",
    "export",
    "load",
    "load_library",
]
