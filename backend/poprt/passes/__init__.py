"""Passes that rewrite or check a model.

A pass has the real tool's name where the real tool has the same pass. The folders are named by what
their passes do, and each file has one family of passes. `poprt.rewrite` defines what a pass is;
`poprt.pipeline` selects the passes that run and their order. The modules beside the folders have
the names that the real tool's scripts import.
"""

import pkgutil
from importlib import import_module

from poprt.passes.inlining.custom_operators import register_op_body, register_op_function
from poprt.passes.onnx_helper import get_dtype, get_shape
from poprt.passes.pattern_helper import Found, PatternMatcher
from poprt.passes.precision.comparison import layer_precision_compare
from poprt.passes.precision.floats import retype_floats
from poprt.passes.shape_inference import ShapeFunc, register_shape_func
from poprt.passes.shapes.inputs import check_names
from poprt.rewrite.base import (
    ImmutablePass,
    Pass,
    PassInfo,
    Stage,
    find_pass,
    get_pass,
    get_registered_passes,
    get_typed_registered_passes,
    override_register,
    register,
)
from poprt.rewrite.manager import PassManager

__all__ = [
    "Found",
    "ImmutablePass",
    "Pass",
    "PassInfo",
    "PassManager",
    "PatternMatcher",
    "ShapeFunc",
    "Stage",
    "check_names",
    "find_pass",
    "get_dtype",
    "get_pass",
    "get_registered_passes",
    "get_shape",
    "get_typed_registered_passes",
    "layer_precision_compare",
    "override_register",
    "register",
    "register_op_body",
    "register_op_function",
    "register_shape_func",
    "retype_floats",
]

for _found in pkgutil.walk_packages(__path__, f"{__name__}."):
    import_module(_found.name)  # passes register themselves
