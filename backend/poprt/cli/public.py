"""Public names of `poprt.cli`, which the package imports when one of them is first used."""

from typing import TYPE_CHECKING

from poprt.cli.command import main as main
from poprt.cli.entry import FLAG as FLAG
from poprt.cli.entry import NUMBER as NUMBER
from poprt.cli.entry import Form as Form
from poprt.cli.entry import Option as Option
from poprt.cli.entry import Use as Use
from poprt.cli.entry import read_chip as read_chip
from poprt.cli.entry import read_compiler_fields as read_compiler_fields
from poprt.cli.entry import read_converter_arguments as read_converter_arguments
from poprt.cli.entry import read_shape as read_shape
from poprt.cli.option_table import OPTIONS as OPTIONS
from poprt.cli.option_table import iter_profile_options as iter_profile_options
from poprt.cli.supervision import LIMITS as LIMITS
from poprt.cli.supervision import finish as finish
from poprt.cli.supervision import make_timeout as make_timeout
from poprt.cli.supervision import naming_memory as naming_memory
from poprt.cli.supervision import supervised as supervised

if not TYPE_CHECKING:
    __all__ = [name for name in dir() if not name.startswith("_") and name != "TYPE_CHECKING"]
