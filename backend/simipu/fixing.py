"""Specialisation of a compiled executable: inputs that always have the same values become
constants, and rows may lie along another axis. The proof of row independence is then repeated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxgraph import ON_DEVICE, set_shape

from popef._tools.arrays import Array
from simipu.engines.program_graphs import read_static
from simipu.errors import LoadError
from simipu.executable import Constant, Program, ProgramKind, SimulatedExecutable
from simipu.rows import take_rows
from simipu.streams import Direction


def fix_inputs(
    executable: SimulatedExecutable, values: Mapping[str, Array], batch_axis: int | None = None
) -> SimulatedExecutable:
    """Return the executable with `values`, by stream handle, as constants of its main programs
    instead of inputs.

    With `batch_axis` its rows lie along that axis of all tensors that have it. Without, they lie
    along the first axis if all remaining tensors have the same size there, else along the same axes
    as before.

    Handles of no stream are ignored. Raises LoadError for values of another shape or type, and for
    damage.
    """
    streams = {
        stream.handle: stream for program in executable.programs for stream in program.streams
    }
    fixed = {streams[handle].tensor: value for handle, value in values.items() if handle in streams}
    for handle, value in values.items():
        stream = streams.get(handle)
        if stream is not None and (value.shape, value.dtype) != (stream.shape, stream.dtype):
            raise LoadError(
                f"input {stream.tensor!r}: expected {stream.dtype} of shape {stream.shape}, found "
                f"{value.dtype} of shape {value.shape}"
            )
    constants = [Constant.of(name, value) for name, value in fixed.items()]
    weights = {constant.name: constant.array() for constant in (*executable.constants, *constants)}
    programs = tuple(
        _fix(program, fixed, weights, batch_axis) if program.kind is ProgramKind.MAIN else program
        for program in executable.programs
    )
    return replace(executable, programs=programs, constants=(*executable.constants, *constants))


def _fix(
    program: Program,
    fixed: Mapping[str, Array],
    weights: Mapping[str, Array],
    batch_axis: int | None,
) -> Program:
    streams = tuple(
        stream
        for stream in program.streams
        if stream.tensor not in fixed or stream.direction is Direction.DEVICE_TO_HOST
    )
    if streams == program.streams and batch_axis is None:
        return program
    if not program.graph:
        raise LoadError(
            f"{program.title} is a fused model without a graph of its own: its inputs cannot be "
            "frozen, and its batch axis cannot be changed"
        )
    model = read_static(program)
    _hold(model.graph, fixed)
    shapes = {
        other.tensor: other.shape
        for other in streams
        if other.direction is Direction.DEVICE_TO_HOST
    }
    for value in model.graph.output:
        set_shape(value, shapes[value.name])
    is_fixed = batch_axis is not None
    if batch_axis is None and len({stream.shape[:1] for stream in streams}) == 1:
        batch_axis = 0
    if batch_axis is not None:
        streams = tuple(
            replace(other, batch_axis=batch_axis) if len(other.shape) > batch_axis else other
            for other in streams
        )
    axis = next((stream.batch_axis for stream in streams), 0)
    graph, shaped, dependence = take_rows(model, streams, axis, weights)
    if shaped != streams and not is_fixed:
        # A reader of the file that does not read its graph would expect the rows at another place.
        graph, shaped = model, streams
        dependence = f"its rows do not lie along axis {axis} of all tensors"
    return replace(
        program,
        graph=graph.SerializeToString(deterministic=True),
        streams=shaped,
        row_independent=not dependence,
        row_dependence=dependence,
    )


def _hold(graph: onnx.GraphProto, fixed: Mapping[str, Array]) -> None:
    """Turn inputs into weights that the executable holds."""
    for value in [value for value in graph.input if value.name in fixed]:
        graph.input.remove(value)
        stub = TensorProto(
            name=value.name,
            data_type=helper.np_dtype_to_tensor_dtype(np.dtype(fixed[value.name].dtype)),
            dims=fixed[value.name].shape,
            data_location=TensorProto.EXTERNAL,
        )
        stub.external_data.add(key="location", value=ON_DEVICE)
        graph.initializer.append(stub)
