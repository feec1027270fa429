"""Compiler, its options and what it returns, under the real tool's names."""

from poprt.compile.compiler import Compiler
from poprt.compile.executable import Executable
from poprt.options import CompilerOptions

__all__ = ["Compiler", "CompilerOptions", "Executable"]
