"""ONNX to PopEF: frontend, converter, passes, compiler, and the `poprt` command.

Import name, API and options are those of the real PopRT. The compilation target is the simulated
IPU of `simipu`. `__all__` lists the tool's names; names imported `as` themselves are for the rooms
above.
"""

import os

# Must be set before ONNX Runtime is imported: see simipu/__init__.py.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

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
from poprt.backends import Backend
from poprt.compile.compiler import Compiler
from poprt.compile.converter import Converter
from poprt.options import PRECISIONS as PRECISIONS
from poprt.options import CompilerOptions
from poprt.passes import Pass, PassManager, get_pass, get_registered_passes
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
