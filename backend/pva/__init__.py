"""PopVision's analysis library, for profiles of the simulated IPU.

`poplar-triton profile MODEL --tiles profile.pop` writes a profile; `openReport` reads it. All
figures are modelled. A property that the cost model does not know raises a NotModelledError.

Example:
    >>> import pva
    >>> report = pva.openReport("profile.pop")  # doctest: +SKIP
    >>> sum(step.ipus[0].cycles for step in report.execution.steps)  # doctest: +SKIP
    114025
"""

from __future__ import annotations

from pva import pva_core as pva_core
from pva.compilation import IPU, CompilationReport, Target, Tile
from pva.errors import Error, NotModelledError
from pva.execution import ExecutionReport, ExecutionStep
from pva.programs import Program, ProgramVisitor
from pva.report import OperationAnalysis, Report, openReport, openTrace
from pva.report import __version__ as __version__

__all__ = [
    "IPU",
    "CompilationReport",
    "Error",
    "ExecutionReport",
    "ExecutionStep",
    "NotModelledError",
    "OperationAnalysis",
    "Program",
    "ProgramVisitor",
    "Report",
    "Target",
    "Tile",
    "openReport",
    "openTrace",
]
