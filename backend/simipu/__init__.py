"""The simulated IPU: target, device, executable, engine, numerics and cycles.

Arithmetic is ONNX Runtime's; what the chip would have taken comes from `simipu.cycles`. Nothing here knows PopEF files,
requests or Triton.
"""

from simipu.device import Device
from simipu.engine import Engine
from simipu.errors import CompileError, LoadError, RunError, SimIpuError
from simipu.executable import Direction, Executable, Program, ProgramKind, Stream, package_hash
from simipu.target import TARGETS, Target

__all__ = [
    "TARGETS",
    "CompileError",
    "Device",
    "Direction",
    "Engine",
    "Executable",
    "LoadError",
    "Program",
    "ProgramKind",
    "RunError",
    "SimIpuError",
    "Stream",
    "Target",
    "package_hash",
]
