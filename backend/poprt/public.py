"""Public names of `poprt`, which the package imports when one of them is first used. Some of them
are modules."""

from popef._tools.version import __version__ as __version__
from poprt import (
    backend,
    backends,
    compiler,
    converter,
    frontend,
    optimizer,
    passes,
    profile,
    quantizer,
    runtime,
    utils,
)
from poprt._names import PRECISIONS as PRECISIONS
from poprt.backends import Backend as Backend
from poprt.compile.compiler import Compiler as Compiler
from poprt.compile.converter import Converter as Converter
from poprt.options import CompilerOptions as CompilerOptions
from poprt.passes import Pass as Pass
from poprt.passes import PassManager as PassManager
from poprt.passes import get_pass as get_pass
from poprt.passes import get_registered_passes as get_registered_passes
from poprt.pipeline import STEPS as STEPS

__all__ = [
    "Backend",
    "Compiler",
    "CompilerOptions",
    "Converter",
    "Pass",
    "PassManager",
    "__version__",
    "backend",
    "backends",
    "compiler",
    "converter",
    "frontend",
    "get_pass",
    "get_registered_passes",
    "optimizer",
    "passes",
    "profile",
    "quantizer",
    "runtime",
    "utils",
]
