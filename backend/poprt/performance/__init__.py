"""Modelled time, memory and FLOPs of a compiled model; the tables of `poprt --show_profile`.

`poplar_triton.profile` opens models to profile them, and has sweeps, plots and traces.
"""

from poprt.performance.kinds import TRANSFORMERS, kind_of
from poprt.performance.model_profile import (
    Profile,
    describe_arithmetic,
    find_precision,
    make_profile,
)
from poprt.performance.table import (
    add_row,
    describe_error,
    describe_macs,
    describe_seconds,
    describe_subject,
    describe_sum,
    describe_warnings,
    list_alive,
    make_table,
    print_profile,
    print_tile_mapping,
)
from poprt.performance.tiles import Tiles, tiles_of

__all__ = [
    "TRANSFORMERS",
    "Profile",
    "Tiles",
    "add_row",
    "describe_arithmetic",
    "describe_error",
    "describe_macs",
    "describe_seconds",
    "describe_subject",
    "describe_sum",
    "describe_warnings",
    "find_precision",
    "kind_of",
    "list_alive",
    "make_profile",
    "make_table",
    "print_profile",
    "print_tile_mapping",
    "tiles_of",
]
