"""Public names of `poprt.comparing`, which the package imports when one of them is first used."""

from typing import TYPE_CHECKING

from poprt.comparing.calibration import calibrate as calibrate
from poprt.comparing.findings import OWN_DATA as OWN_DATA
from poprt.comparing.findings import Findings as Findings
from poprt.comparing.findings import Overflow as Overflow
from poprt.comparing.inputs import MIN_ROWS as MIN_ROWS
from poprt.comparing.inputs import iter_made_up as iter_made_up
from poprt.comparing.outputs import LIMIT as LIMIT
from poprt.comparing.outputs import Comparison as Comparison
from poprt.comparing.outputs import measure_difference as measure_difference
from poprt.comparing.reading import make_up as make_up
from poprt.comparing.reading import read_calibration_data as read_calibration_data
from poprt.comparing.sides import READY_SECONDS as READY_SECONDS
from poprt.comparing.sides import Side as Side

if not TYPE_CHECKING:
    __all__ = [name for name in dir() if not name.startswith("_") and name != "TYPE_CHECKING"]
