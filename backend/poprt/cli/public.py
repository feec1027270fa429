"""Public names of `poprt.cli`, which the package imports when one of them is first used."""

from typing import TYPE_CHECKING

from poprt.cli.command import main as main
from poprt.cli.supervision import finish as finish
from poprt.cli.supervision import make_timeout as make_timeout
from poprt.cli.supervision import naming_memory as naming_memory
from poprt.cli.supervision import supervised as supervised
from poprt.option_entry import FLAG as FLAG
from poprt.option_entry import NUMBER as NUMBER
from poprt.option_entry import Form as Form
from poprt.option_entry import Option as Option
from poprt.option_entry import Use as Use
from poprt.option_entry import read_chip as read_chip
from poprt.option_entry import read_compiler_fields as read_compiler_fields
from poprt.option_entry import read_converter_arguments as read_converter_arguments
from poprt.option_entry import read_shape as read_shape
from poprt.option_table import LIMITS as LIMITS
from poprt.option_table import OPTIONS as OPTIONS
from poprt.option_table import iter_profile_options as iter_profile_options

if not TYPE_CHECKING:
    __all__ = [name for name in dir() if not name.startswith("_") and name != "TYPE_CHECKING"]
