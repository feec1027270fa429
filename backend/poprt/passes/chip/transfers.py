"""Passes for the transfers between host and chip: many small inputs become one, and tiles are set
aside for overlapped I/O."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper
from onnxgraph import (
    CHIP_DOMAIN,
    NameScope,
    Tape,
    element_bytes,
    find_inputs,
    graph_values,
    infer_shapes,
    replace_inputs,
    replace_nodes,
)
from simipu import TARGETS, CompileError

from poprt._names import sHostConcatRunnerConfig
from poprt.passes.chip.chip_operators import add_remap
from poprt.rewrite.base import Pass, Stage, register
from poprt.rewrite.rules import declare_chip

Group = Sequence[Any]
"""Element type, shape and, optionally, maximum number of inputs of a group."""
_CONVERTED: dict[int, int] = {
    TensorProto.FLOAT: TensorProto.FLOAT16,
    TensorProto.INT64: TensorProto.INT32,
}
"""New types of inputs whose types change in a conversion. A group has the types of the original
model."""
_NAMED_TYPES: dict[str, int] = {
    "fp32": TensorProto.FLOAT,
    "fp16": TensorProto.FLOAT16,
    **{name.lower(): number for name, number in TensorProto.DataType.items()},
}
"""Element types by their names on the command line and in ONNX."""
_RANK = 2


@register(
    "apply_host_concat_split",
    stage=Stage.CHIP,
    option="apply_hcsr",
    takes="merged_inputs=apply_hcsr",
)
class ApplyHostConcatSplit(Pass):
    """Merge inputs of the same type and shape, [512, 1] three times, into one, [3, 512]:
    HostConcatRunner puts it together. The node HCSR gives the old tensors back.

    merged_inputs: groups of an element type, a shape of two dimensions and, if there is one, the
    number of inputs to merge. remap: lay the old tensors out anew. What was merged is said in the
    model's metadata.
    """

    def __init__(
        self, merged_inputs: Collection[Group] | Group = (), remap: bool = False, **_further: Any
    ) -> None:
        self._groups = [_read_group(group) for group in merged_inputs or ()]
        self._remap = remap

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Merge the inputs of each group. Warn of groups for which the model has fewer than two
        inputs."""
        graph = model.graph
        names = NameScope.of(model)
        merged: dict[str, dict[str, Any]] = {}
        for group in self._groups:
            inputs = _find_inputs(graph, *group)
            if len(inputs) < 2:  # noqa: PLR2004 - one input needs no other
                self.logger.warning(
                    "apply_host_concat_split: the model has no inputs to merge of %s", group
                )
                continue
            name = names.take(f"host_concat_{len(merged)}")
            merged[name] = _merge(graph, name, inputs, names, remap=self._remap)
        if merged:
            _write_down(model, merged)
            declare_chip(model)
        return model


def _read_group(group: Group) -> tuple[int, tuple[int, ...], int | None]:
    """Return element type, shape and number of a group. Raise CompileError for an invalid group."""
    try:
        type_name, shape, *number = group
        data_type = _NAMED_TYPES[type_name] if isinstance(type_name, str) else int(type_name)
        sizes = tuple(int(size) for size in shape)
        numbers = [int(entry) for entry in number if entry]
        fits = len(sizes) == _RANK and len(number) <= 1 and min(*sizes, *numbers) > 0
    except (KeyError, TypeError, ValueError):
        fits = False
    if not fits:
        raise CompileError(
            "apply_host_concat_split: expected an element type of ONNX, a shape of two dimensions "
            f"and perhaps a number, such as (1, (512, 1), 50); found {group!r}"
        )
    return data_type, sizes, numbers[0] if numbers else None


def _find_inputs(
    graph: onnx.GraphProto, data_type: int, shape: tuple[int, ...], number: int | None
) -> list[onnx.ValueInfoProto]:
    """Return the first inputs of that shape, and of that type or of the type that it has after
    conversion."""
    inputs = find_inputs(graph)
    for element_type in (data_type, _CONVERTED.get(data_type)):
        values = [
            value
            for value in inputs
            if value.type.tensor_type.elem_type == element_type
            and tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim) == shape
        ]
        if values:
            return values[:number]
    return []


def _merge(
    graph: onnx.GraphProto,
    name: str,
    found: Sequence[onnx.ValueInfoProto],
    names: NameScope,
    *,
    remap: bool,
) -> dict[str, Any]:
    """Replace those inputs by one, and insert the node that splits it before all nodes. Return the
    entry that the host needs for it."""
    tensor = found[0].type.tensor_type
    shape = [dim.dim_value for dim in tensor.shape.dim]
    joint_shape = [len(found), math.prod(shape)]
    old = [value.name for value in found]
    data_type = tensor.elem_type
    op = Tape(f"{name}/split", names=names)
    sources = [names.take(f"{old_name}/before_remap") for old_name in old] if remap else old
    op.nodes.append(
        helper.make_node(
            "HCSR", [name], sources, name=f"{name}/HCSR", domain=CHIP_DOMAIN, shape=shape
        )
    )
    if remap:
        for source, result in zip(sources, old, strict=True):
            add_remap(op.nodes, source, result, names, after_matmul=False)
    joint = helper.make_tensor_value_info(name, data_type, joint_shape)
    inputs = _put_first(graph.input, set(old), joint)
    replace_inputs(graph, inputs)
    replace_nodes(graph, [*op.nodes, *graph.node])
    return {
        "tensor_name": name,
        "input_tensor_names": old,
        "shape": joint_shape,
        "data_size_bytes": math.prod(joint_shape) * element_bytes(data_type),
        "input_shape": shape,
    }


def _put_first(
    values: Iterable[onnx.ValueInfoProto], merged: set[str], joint: onnx.ValueInfoProto
) -> list[onnx.ValueInfoProto]:
    """Return the inputs with the joint one in the place of the first merged one."""
    remaining: list[onnx.ValueInfoProto] = []
    for value in values:
        if value.name not in merged:
            remaining.append(onnx.ValueInfoProto.FromString(value.SerializeToString()))
        elif not any(other is joint for other in remaining):
            remaining.append(joint)
    return remaining


def _write_down(model: onnx.ModelProto, merged: dict[str, dict[str, Any]]) -> None:
    """Add the merged inputs to the model's metadata, from where callers pass them to the
    compiler."""
    entry = next(
        (prop for prop in model.metadata_props if prop.key == sHostConcatRunnerConfig), None
    )
    existing = json.loads(entry.value) if entry is not None else {}
    entry = entry or model.metadata_props.add(key=sHostConcatRunnerConfig)
    entry.value = json.dumps({**existing, **merged})


IO_TILES = "poprt.num_io_tiles"
"""Key of a model's metadata: number of I/O tiles to compile it with."""
MIN_IO_TILES = 32
"""Minimum number of I/O tiles; PopART requires an even number of at least that many (its
irlowering.cpp)."""
_BYTES_PER_TILE = TARGETS["ipu2"].bytes_per_tile
_MAX_IO_TILES = TARGETS["ipu2"].tiles_per_ipu // 2
"""Maximum number of I/O tiles: half of the tiles, so that at least as many are left to compute."""


@register("overlap_io", stage=Stage.CHECKS)
class OverlapIo(Pass):
    """Write into the model's metadata how many I/O tiles it is to be compiled with, so that its
    transfers overlap with computing, where the compiler option num_io_tiles does not say it.

    As PopRT's guide has it: the bytes of all inputs and outputs over the memory of a tile, rounded
    up to a power of two; here at least 32. What the real pass of that name does is not public: this
    is ours.
    """

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Choose the number of I/O tiles. The model does not change if its inputs or outputs are
        not static, or too large for half of the tiles."""
        values = graph_values(infer_shapes(model).graph)
        names = [value.name for value in (*find_inputs(model.graph), *model.graph.output)]
        if not all(name in values for name in names):
            self.logger.warning(
                "overlap_io: the inputs and outputs are not static: no I/O tiles are chosen"
            )
            return model
        num_tiles = max(1, math.ceil(sum(values[name].bytes for name in names) / _BYTES_PER_TILE))
        tiles = max(MIN_IO_TILES, 1 << (num_tiles - 1).bit_length())
        if tiles > _MAX_IO_TILES:
            self.logger.warning(
                "overlap_io: inputs and outputs would need %d I/O tiles: none are chosen", tiles
            )
            return model
        properties = {entry.key: entry.value for entry in model.metadata_props}
        helper.set_model_props(model, {**properties, IO_TILES: str(tiles)})
        return model
