"""Module in which pva of the SDK has its classes, for annotations such as
`pva.pva_core.ExecutionStep`."""

from __future__ import annotations

from pva.compilation import (
    IPU,
    CompilationReport,
    Ipu,
    LivenessStep,
    Target,
    Tile,
    TileMemory,
    Variable,
)
from pva.errors import Error, NotModelledError
from pva.execution import ExecutionReport, ExecutionStep, Run, StepOnIpu
from pva.programs import ComputeSet, Program, ProgramVisitor, Vertex
from pva.report import Report, openReport

__all__ = [
    "IPU",
    "CompilationReport",
    "ComputeSet",
    "Error",
    "ExecutionReport",
    "ExecutionStep",
    "Ipu",
    "LivenessStep",
    "NotModelledError",
    "Program",
    "ProgramVisitor",
    "Report",
    "Run",
    "StepOnIpu",
    "Target",
    "Tile",
    "TileMemory",
    "Variable",
    "Vertex",
    "openReport",
]
