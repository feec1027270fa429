"""The `poprt` command; `python -m poprt.cli` runs it, too.

Other commands that compile models use its options, and run under its limits of time and memory.
"""

from poprt.cli.command import main
from poprt.cli.entry import (
    FLAG,
    NUMBER,
    Form,
    Option,
    Use,
    read_chip,
    read_compiler_fields,
    read_converter_arguments,
    read_shape,
)
from poprt.cli.option_table import OPTIONS, iter_profile_options
from poprt.cli.supervision import LIMITS, finish, make_timeout, naming_memory, supervised

__all__ = [
    "FLAG",
    "LIMITS",
    "NUMBER",
    "OPTIONS",
    "Form",
    "Option",
    "Use",
    "finish",
    "iter_profile_options",
    "main",
    "make_timeout",
    "naming_memory",
    "read_chip",
    "read_compiler_fields",
    "read_converter_arguments",
    "read_shape",
    "supervised",
]
