"""Public names of `poprt.performance`, which the package imports when one of them is first used."""

from typing import TYPE_CHECKING

from poprt.performance.kinds import TRANSFORMERS as TRANSFORMERS
from poprt.performance.kinds import kind_of as kind_of
from poprt.performance.model_profile import Profile as Profile
from poprt.performance.model_profile import make_profile as make_profile
from poprt.performance.precisions import describe_arithmetic as describe_arithmetic
from poprt.performance.precisions import find_precision as find_precision
from poprt.performance.table import add_row as add_row
from poprt.performance.table import describe_error as describe_error
from poprt.performance.table import describe_macs as describe_macs
from poprt.performance.table import describe_seconds as describe_seconds
from poprt.performance.table import describe_subject as describe_subject
from poprt.performance.table import describe_sum as describe_sum
from poprt.performance.table import describe_warnings as describe_warnings
from poprt.performance.table import list_alive as list_alive
from poprt.performance.table import make_table as make_table
from poprt.performance.table import print_profile as print_profile
from poprt.performance.table import print_tile_mapping as print_tile_mapping
from poprt.performance.tiles import Tiles as Tiles
from poprt.performance.tiles import tiles_of as tiles_of

if not TYPE_CHECKING:
    __all__ = [name for name in dir() if not name.startswith("_") and name != "TYPE_CHECKING"]
