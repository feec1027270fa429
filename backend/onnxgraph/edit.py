"""Changing graphs in place. Protobuf lists cannot be assigned: only here are they emptied and filled
again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import onnx
from onnx import helper

from onnxgraph.nodes import find_inputs, iter_bodies, iter_nodes, iter_reads, used_names

_Message = TypeVar("_Message", onnx.ModelProto, onnx.GraphProto)
_APART_IR_VERSION = 4
"""The oldest format whose initializers need not be inputs."""


def replace_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Make `nodes`, in their order, the nodes of the graph. They may be those that it has now."""
    # What is emptied takes its nodes with it, also those that are to stay, so that these are copied before.
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)


def forget_values(graph: onnx.GraphProto) -> None:
    """Forget what the graph says of the tensors on the way from its inputs to its outputs."""
    del graph.value_info[:]


def replace_inputs(graph: onnx.GraphProto, inputs: Iterable[onnx.ValueInfoProto]) -> None:
    """Make these the inputs of the graph; they may be among those that it has now."""
    _replace(graph.input, inputs)


def replace_outputs(graph: onnx.GraphProto, outputs: Iterable[onnx.ValueInfoProto]) -> None:
    """Make these the outputs of the graph; they may be among those that it has now."""
    _replace(graph.output, outputs)


def _replace(field: Any, values: Iterable[onnx.ValueInfoProto]) -> None:
    kept = list(values)
    del field[:]
    field.extend(kept)


def keep_outputs(graph: onnx.GraphProto, names: Collection[str]) -> None:
    """Keep those outputs, in the order of `names`; KeyError for one that the graph lacks."""
    known = {value.name: value for value in graph.output}
    replace_outputs(graph, [known[name] for name in names])


def drop_unread_nodes(graph: onnx.GraphProto) -> None:
    """Drop the nodes of a sorted main graph that none of its outputs needs."""
    needed = {value.name for value in graph.output}
    kept: list[onnx.NodeProto] = []
    for node in reversed(graph.node):
        if not needed.isdisjoint(node.output):
            kept.append(node)
            needed.update(iter_reads(node))
    if len(kept) < len(graph.node):
        replace_nodes(graph, reversed(kept))


def keep_opsets(model: onnx.ModelProto, domains: Collection[str]) -> None:
    """Forget the opsets of other domains."""
    kept = [entry for entry in model.opset_import if entry.domain in domains]
    del model.opset_import[:]
    model.opset_import.extend(kept)


def name_nodes(graph: onnx.GraphProto) -> None:
    """Name the unnamed nodes by what they make: reports and errors speak of nodes by name."""
    for node in iter_nodes(graph):
        if not node.name:
            node.name = next((output for output in node.output if output), node.op_type)


def rename(graph: onnx.GraphProto, renames: Mapping[str, str]) -> None:
    """Give tensors other names wherever nodes, bodies' too, and outputs of bodies read and make them.

    Inputs, outputs and initializers of `graph` itself keep theirs: whoever renames those says so. A body's
    own inputs and initializers hide what is outside under their names.
    """
    if not renames:
        return
    for node in graph.node:
        node.input[:] = [renames.get(name, name) for name in node.input]
        node.output[:] = [renames.get(name, name) for name in node.output]
        for body in iter_bodies(node):
            hidden = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
            seen = {old: new for old, new in renames.items() if old not in hidden}
            rename(body, seen)
            for value in body.output:
                value.name = seen.get(value.name, value.name)


def set_shape(value: onnx.ValueInfoProto, shape: Iterable[int]) -> None:
    """Give a value that static shape."""
    dims = value.type.tensor_type.shape.dim
    del dims[:]
    for size in shape:
        dims.add(dim_value=size)


def set_attribute(node: onnx.NodeProto, name: str, value: Any) -> None:
    """Give an attribute of a node that value, whether it is there or not."""
    made = helper.make_attribute(name, value)
    found = next((each for each in node.attribute if each.name == name), None)
    if found is None:
        node.attribute.append(made)
    else:
        found.CopyFrom(made)


def drop_attribute(node: onnx.NodeProto, name: str) -> None:
    """Take an attribute off a node that may have it."""
    for i in reversed(range(len(node.attribute))):
        if node.attribute[i].name == name:
            del node.attribute[i]


def drop_functions(model: onnx.ModelProto) -> None:
    """Drop the functions and the training steps that a model brings."""
    del model.functions[:], model.training_info[:]


def drop_weights(graph: onnx.GraphProto, kept: Collection[str]) -> None:
    """Drop all weights but those, and those twice there; gigabytes stay where they are."""
    last = {tensor.name: i for i, tensor in enumerate(graph.initializer)}
    _drop(graph, [t.name not in kept or last[t.name] != i for i, t in enumerate(graph.initializer)])


def drop_initializers(graph: onnx.GraphProto, names: Collection[str]) -> None:
    """Drop the weights of those names; gigabytes stay where they are."""
    if names:
        _drop(graph, [tensor.name in names for tensor in graph.initializer])


def _drop(graph: onnx.GraphProto, is_dropped: Sequence[bool]) -> None:
    """One by one each would move all that stand behind it: what is dropped goes to the end first."""
    if any(is_dropped):
        flags = iter(is_dropped)
        graph.initializer.sort(key=lambda _tensor: next(flags))
        del graph.initializer[is_dropped.count(False) :]


def drop_weight_inputs(model: onnx.ModelProto) -> bool:
    """Remove initializers from the inputs of `model`, in place; return whether there were any.

    The format becomes one that allows it, or shape inference would not look at the initializers.
    """
    kept = find_inputs(model.graph)
    if len(kept) == len(model.graph.input):
        return False
    replace_inputs(model.graph, kept)
    model.ir_version = max(model.ir_version, _APART_IR_VERSION)
    return True


def without_weights(
    model: onnx.ModelProto, names: Collection[str], *, as_inputs: bool = True
) -> onnx.ModelProto:
    """A copy that has inputs in the place of those weights, unless not `as_inputs`; they are not copied."""
    light = copy_without(model, "graph")
    light.graph.CopyFrom(copy_without(model.graph, "initializer"))
    known = {value.name for value in light.graph.input}
    for tensor in model.graph.initializer:
        if tensor.name not in names:
            light.graph.initializer.append(tensor)
        elif as_inputs and tensor.name not in known:
            light.graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    return light


def copy_with_weights(
    model: onnx.ModelProto, replace: Callable[[onnx.TensorProto], onnx.TensorProto]
) -> onnx.ModelProto:
    """A copy that has what `replace` makes of each weight in its place; no weight is copied besides."""
    light = copy_without(model, "graph")
    light.graph.CopyFrom(copy_without(model.graph, "initializer"))
    for tensor in model.graph.initializer:
        light.graph.initializer.append(replace(tensor))
    return light


def change_without_weights(
    model: onnx.ModelProto,
    names: Collection[str],
    change: Callable[[onnx.ModelProto], onnx.ModelProto],
) -> None:
    """Make `model`, in place, what `change` makes of it while those weights are away, as inputs.

    They are neither copied nor carried through whatever `change` hands the model to; those that nothing takes
    any longer go.
    """
    given = {value.name for value in model.graph.input}
    changed = change(without_weights(model, names))
    kept = [value for value in changed.graph.input if value.name in given or value.name not in names]
    replace_inputs(changed.graph, kept)
    drop_weights(model.graph, set(names) & used_names(changed.graph))
    _clear(model, "graph")
    _clear(model.graph, "initializer")
    model.MergeFrom(changed)


def _clear(message: _Message, kept: str) -> None:
    for field, _ in message.ListFields():
        if field.name != kept:
            message.ClearField(field.name)


def copy_without(message: _Message, left_out: str) -> _Message:
    """A copy of all but one field, which is not copied on the way."""
    copy = type(message)()
    for field, value in message.ListFields():
        if field.name == left_out:
            continue
        if hasattr(value, "extend"):
            getattr(copy, field.name).extend(value)
        elif field.message_type is not None:
            getattr(copy, field.name).CopyFrom(value)
        else:
            setattr(copy, field.name, value)
    return copy
