"""Compilation of a segment's model by poprt, with the options of the IPU configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import onnx
import popart
from popart.session.compilation import make_compiler_options
from popart.session.program import DeviceProgram
from poprt.compile import Executable, compile_unreported
from simipu import CompileError, OutOfMemoryError

from tensorflow_ipu.errors import IpuError
from tensorflow_ipu.execution import counters

if TYPE_CHECKING:
    from tensorflow_ipu.execution import PlannedComputation


def compile_segment(
    planned: PlannedComputation, model: onnx.ModelProto, outputs: Sequence[str]
) -> DeviceProgram:
    """Compile a segment's model, and load it.

    Args:
        planned: The computation that it belongs to.
        model: The model, whose initializers are the weights.
        outputs: Names of its outputs.

    Returns:
        The loaded program.

    Raises:
        IpuError: If it cannot be compiled or loaded.
    """
    executable = compile_model(planned, model, outputs)
    program = DeviceProgram(executable, {})
    try:
        program.load(seed=0)
    except popart.poplar_runtime_error as error:
        raise IpuError(str(error)) from error
    return program


def compile_model(
    planned: PlannedComputation, model: onnx.ModelProto, outputs: Sequence[str]
) -> Executable:
    """Return the executable of a segment's model."""
    settings: Any = popart.SessionOptions()
    settings.constantWeights = planned.computation.freeze_variables
    device = popart.DeviceManager().createOfflineIPUDevice({"numIPUs": 1, "ipuVersion": "ipu2"})
    try:
        options = make_compiler_options(settings, device, 1, 1)
        executable = compile_unreported(model, list(outputs), options)
    except (CompileError, OutOfMemoryError, popart.popart_exception) as error:
        raise IpuError(f"cannot be compiled for the IPU: {error}") from error
    counters.compiled += 1
    return executable
