"""Fixes every input dimension: the IPU runs static graphs only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx
from onnxgraph import infer_shapes
from simipu import CompileError


def fix_input_shapes(
    model: onnx.ModelProto,
    input_shape: Mapping[str, Sequence[int]],
    batch_size: int | None = None,
    batch_axis: int | None = None,
) -> None:
    """Give each input of `model`, in place, the shape asked for and forget every other shape.

    `input_shape` may fix variable dimensions only. `batch_size` fixes the dimension `batch_axis` (default 0)
    of every input where it is still variable. Raises CompileError for an unknown input, a contradiction, or a
    dimension that stays variable.
    """
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    inputs = {value.name: value for value in graph.input if value.name not in weights}
    unknown = sorted(set(input_shape) - set(inputs))
    if unknown:
        raise CompileError(f"input_shape names {unknown[0]!r}; the model's inputs are {', '.join(inputs)}")
    for name, value in inputs.items():
        _fix(value, input_shape.get(name), batch_size, batch_axis or 0)
    kept = list(inputs.values())
    del graph.input[:]
    graph.input.extend(kept)
    _clear_shapes(graph)


def forget_declared_shapes(model: onnx.ModelProto) -> None:
    """Forget, in place, the shapes that a model declares of what it computes, but where nothing can be
    inferred: exporters and editors leave wrong ones behind."""
    declared = [*map(_copy, model.graph.value_info), *map(_copy, model.graph.output)]
    _clear_shapes(model.graph)
    inferred = infer_shapes(model).graph
    known = {
        value.name
        for value in (*inferred.value_info, *inferred.output)
        if value.type.tensor_type.HasField("shape")
    }
    outputs = {value.name: value for value in model.graph.output}
    for value in declared:
        if value.name in known:
            continue
        if value.name in outputs:
            outputs[value.name].CopyFrom(value)
        else:
            model.graph.value_info.append(value)


def _clear_shapes(graph: onnx.GraphProto) -> None:
    del graph.value_info[:]
    given = {value.name: value for value in graph.input}
    for value in graph.output:
        if value.name in given:
            value.type.CopyFrom(given[value.name].type)
        else:
            value.type.tensor_type.ClearField("shape")


def _copy(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    copy = onnx.ValueInfoProto()
    copy.CopyFrom(value)
    return copy


def _fix(
    value: onnx.ValueInfoProto, wanted: Sequence[int] | None, batch_size: int | None, batch_axis: int
) -> None:
    tensor = value.type.tensor_type
    found = describe_shape(value)
    if not tensor.HasField("shape"):
        if wanted is None:
            raise CompileError(
                f"input {value.name!r} has no shape; give it with --input_shape {value.name}=d0,d1,..."
            )
        for _ in wanted:
            tensor.shape.dim.add()
    dims = tensor.shape.dim
    if wanted is not None and len(wanted) != len(dims):
        raise CompileError(
            f"input {value.name!r} has shape {found}, input_shape gives it {len(wanted)} dimensions"
        )
    for axis, dim in enumerate(dims):
        known = dim.dim_value if dim.HasField("dim_value") and dim.dim_value > 0 else None
        asked = wanted[axis] if wanted is not None else None
        if axis == batch_axis and batch_size is not None:
            if asked not in (None, batch_size):
                raise CompileError(
                    f"input {value.name!r}: input_shape gives {asked} to axis {axis}, batch_size "
                    f"{batch_size}; drop one"
                )
            asked = batch_size
        if known is not None and asked not in (None, known):
            raise CompileError(
                f"input {value.name!r} has shape {found}: dimension {axis} is fixed at {known} and cannot "
                f"become {asked}; export the model with a variable dimension there"
            )
        size = known if known is not None else asked
        if size is None:
            raise CompileError(
                f"input {value.name!r} has shape {found}: dimension {axis} must be fixed at compile time; "
                f"use --input_shape {value.name}=... or --batch_size"
            )
        if size < 1:
            raise CompileError(f"input {value.name!r}: dimension {axis} must be at least 1, found {size}")
        dim.Clear()
        dim.dim_value = size


def describe_shape(value: onnx.ValueInfoProto) -> str:
    """The shape as the model states it: `[batch, 3, ?, 224]`."""
    dims = value.type.tensor_type.shape.dim
    return (
        "["
        + ", ".join(d.dim_param or (str(d.dim_value) if d.HasField("dim_value") else "?") for d in dims)
        + "]"
    )
