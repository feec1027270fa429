"""Public names of `simipu`, which the package imports when one of them is first used."""

from simipu.computed import GraphOptions
from simipu.engine import Engine
from simipu.errors import (
    CompileError,
    CompileMemoryError,
    CompileTimeoutError,
    DeviceLostError,
    ForeignExecutableError,
    LoadError,
    LoadMemoryError,
    LoadTimeoutError,
    OutOfMemoryError,
    RunCancelledError,
    RunError,
    RunMemoryError,
    RunTimeoutError,
    SimIpuError,
)
from simipu.executable import (
    Constant,
    Device,
    Program,
    ProgramKind,
    SimulatedExecutable,
    package_hash,
)
from simipu.libraries import OperatorLibrary, register_library
from simipu.streams import Direction, Stream
from simipu.target import TARGETS, Target

__all__ = [
    "TARGETS",
    "CompileError",
    "CompileMemoryError",
    "CompileTimeoutError",
    "Constant",
    "Device",
    "DeviceLostError",
    "Direction",
    "Engine",
    "ForeignExecutableError",
    "GraphOptions",
    "LoadError",
    "LoadMemoryError",
    "LoadTimeoutError",
    "OperatorLibrary",
    "OutOfMemoryError",
    "Program",
    "ProgramKind",
    "RunCancelledError",
    "RunError",
    "RunMemoryError",
    "RunTimeoutError",
    "SimIpuError",
    "SimulatedExecutable",
    "Stream",
    "Target",
    "package_hash",
    "register_library",
]
