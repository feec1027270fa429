"""Published runs name their options in words of their own; here they are the arguments of
poprt.Converter."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

DATA = Path(__file__).with_name("data")
sys.path.insert(0, str(DATA))
published_models: Any = import_module("published_models")
"""Module that builds the networks as their exporters wrote them."""

_REMAP = "remap"
_FIRST = "pre_scale"
"""Name that all published scripts list first; records of runs keep no order."""
_SAME = ("disable_fast_norm",)
"""Called alike here and there."""


def converter_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of `poprt.compile.converter.Converter` of a published run,
    except `precision` and shapes.

    `custom_ops` are the passes that it has listed, or `remap` for Remap behind products; `fp32_ops`
    the operators that it left in float. `fuse_gelu` says whether GELUs were fused, in any form that
    the model has. Without it, those in the tanh form are fused, as by default. Options of the
    compiler are left out.
    """
    arguments: dict[str, Any] = {name: options[name] for name in _SAME if name in options}
    passes = [str(name).lower() for name in options.get("custom_ops", ())]
    listed = sorted((name for name in passes if name != _REMAP), key=lambda name: name != _FIRST)
    if listed:
        arguments["used_passes"] = listed
    if len(listed) < len(passes):
        arguments["enable_insert_remap"] = True
    if options.get("fp32_ops"):
        arguments["fp16_skip_op_types"] = list(options["fp32_ops"])
    fuses = options.get("fuse_gelu")
    if fuses:
        arguments["enable_erf_gelu"] = True
    elif fuses is not None:
        arguments["skip_passes"] = ["gelu_pattern"]
    return arguments
