"""Compilation: the converter, which prepares a model, and the compiler, which makes an executable
of it."""

from poprt.compile.adoption import adopt_graph
from poprt.compile.compiler import compile_unreported, profile_executable, summarize_executable
from poprt.compile.dry_run import dry_run as dry_run_executable
from poprt.compile.engine_options import find_report_folder, write_profiles
from poprt.compile.executable import LOAD_PROGRAM, MAIN_PROGRAM, Executable
from poprt.compile.steps import cost_options

__all__ = [
    "LOAD_PROGRAM",
    "MAIN_PROGRAM",
    "Executable",
    "adopt_graph",
    "compile_unreported",
    "cost_options",
    "dry_run_executable",
    "find_report_folder",
    "profile_executable",
    "summarize_executable",
    "write_profiles",
]
