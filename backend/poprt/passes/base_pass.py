"""Base classes and registry of passes, under the real tool's names.

This name is the module `poprt.rewrite.base` itself: ByteMLPerf replaces
`poprt.passes.base_pass.get_all_named_subclasses`, and the search for passes has to see it.
"""

import sys

from poprt.rewrite import base
from poprt.rewrite.base import (
    ImmutablePass,
    Pass,
    PassInfo,
    Stage,
    find_pass,
    get_all_named_subclasses,
    get_pass,
    get_registered_passes,
    get_typed_registered_passes,
    override_register,
    register,
)

__all__ = [
    "ImmutablePass",
    "Pass",
    "PassInfo",
    "Stage",
    "find_pass",
    "get_all_named_subclasses",
    "get_pass",
    "get_registered_passes",
    "get_typed_registered_passes",
    "override_register",
    "register",
]

sys.modules[__name__] = base
