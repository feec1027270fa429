"""Changes of graphs in place, and builders of small pieces: chains of nodes with their constants,
bodies, casts. Protobuf lists cannot be assigned, so this module empties and refills them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import onnx
from onnx import helper

from onnxgraph.nodes import (
    STANDARD_DOMAINS,
    GraphError,
    find_inputs,
    find_own_names,
    fresh_name,
    iter_bodies,
    iter_defined,
    iter_nodes,
    iter_reads,
    used_names,
)


def make_cast(source: str, result: str, to: int, **attributes: Any) -> onnx.NodeProto:
    """Return a Cast of one tensor to the element type `to`, named after its result."""
    return helper.make_node("Cast", [source], [result], name=f"{result}/cast", to=to, **attributes)


def make_identity(source: str, result: str, name: str) -> onnx.NodeProto:
    """Return an Identity that gives a tensor another name."""
    return helper.make_node("Identity", [source], [result], name=name)


_Message = TypeVar("_Message", onnx.ModelProto, onnx.GraphProto)
_APART_IR_VERSION = 4
"""Oldest IR version whose initializers need not be inputs."""


def replace_nodes(graph: onnx.GraphProto, nodes: Iterable[onnx.NodeProto]) -> None:
    """Set the nodes of the graph to `nodes`, in their order. They may include present nodes of the
    graph."""
    # Emptying the list invalidates its nodes, also those to keep, so copy them first.
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def forget_values(graph: onnx.GraphProto) -> None:
    """Remove the declared types and shapes of the tensors between the graph's inputs and
    outputs."""
    del graph.value_info[:]


def replace_inputs(graph: onnx.GraphProto, inputs: Iterable[onnx.ValueInfoProto]) -> None:
    """Set the inputs of the graph; they may include its present ones."""
    _replace(graph.input, inputs)


def replace_outputs(graph: onnx.GraphProto, outputs: Iterable[onnx.ValueInfoProto]) -> None:
    """Set the outputs of the graph; they may include its present ones."""
    _replace(graph.output, outputs)


def _replace(field: Any, values: Iterable[onnx.ValueInfoProto]) -> None:
    copies = list(values)
    del field[:]
    field.extend(copies)


def list_outputs_once(graph: onnx.GraphProto) -> None:
    """Keep an output that a main graph lists several times at its first place only: callers tell
    outputs apart by their names.

    Outputs of bodies are told apart by their places, so an Identity makes what a body lists again.
    """
    once = {value.name: value for value in reversed(graph.output)}
    if len(once) < len(graph.output):
        replace_outputs(graph, reversed(once.values()))
    bodies = [body for node in iter_nodes(graph) for body in iter_bodies(node)]
    if any(len({value.name for value in body.output}) < len(body.output) for body in bodies):
        defined = set(iter_defined(graph))
        for body in bodies:
            _repeat_outputs(body, defined)


def _repeat_outputs(body: onnx.GraphProto, taken: set[str]) -> None:
    seen: set[str] = set()
    for value in body.output:
        name = value.name
        if name in seen:
            value.name = fresh_name(f"{name}/again", taken)
            taken.add(value.name)
            body.node.append(make_identity(name, value.name, value.name))
        seen.add(name)


def keep_outputs(graph: onnx.GraphProto, names: Collection[str]) -> None:
    """Keep only the outputs `names`, in that order; raises KeyError for a name that is no
    output."""
    outputs = {value.name: value for value in graph.output}
    replace_outputs(graph, [outputs[name] for name in names])


def drop_unread_nodes(graph: onnx.GraphProto) -> None:
    """Drop the nodes of a sorted main graph that none of its outputs needs."""
    read = {value.name for value in graph.output}
    read_nodes: list[onnx.NodeProto] = []
    for node in reversed(graph.node):
        if not read.isdisjoint(node.output):
            read_nodes.append(node)
            read.update(iter_reads(node))
    if len(read_nodes) < len(graph.node):
        replace_nodes(graph, reversed(read_nodes))


def keep_opsets(model: onnx.ModelProto, domains: Collection[str]) -> None:
    """Remove the opsets of other domains."""
    imports = [entry for entry in model.opset_import if entry.domain in domains]
    del model.opset_import[:]
    model.opset_import.extend(imports)


def drop_opset(model: onnx.ModelProto, domain: str) -> None:
    """Remove the opset of a domain."""
    keep_opsets(model, {entry.domain for entry in model.opset_import} - {domain})


def spell_domains(model: onnx.ModelProto) -> None:
    """Spell the domain of the standard's operators "" everywhere, in functions too. "ai.onnx" means
    the same, but onnx does not know it in nodes.

    Raises GraphError for a model that imports two versions under the two spellings.
    """
    owners: list[onnx.ModelProto | onnx.FunctionProto] = [model, *model.functions]
    for owner in owners:
        imports = [opset for opset in owner.opset_import if opset.domain in STANDARD_DOMAINS]
        if not any(entry.domain for entry in imports):
            continue
        versions = sorted({entry.version for entry in imports})
        if len(versions) > 1:
            raise GraphError(
                f"expected one version of the operators of ai.onnx, found {versions[0]} and "
                f"{versions[-1]} under its two spellings '' and 'ai.onnx'; keep one import"
            )
        others = [opset for opset in owner.opset_import if opset.domain not in STANDARD_DOMAINS]
        del owner.opset_import[:]
        owner.opset_import.extend([helper.make_opsetid("", versions[0]), *others])
    for function in model.functions:
        function.domain = _spell(function.domain)
        for node in function.node:
            _spell_in(node)
    for node in model.graph.node:
        _spell_in(node)


def _spell_in(node: onnx.NodeProto) -> None:
    if node.domain:
        node.domain = _spell(node.domain)
    for body in iter_bodies(node):
        for inner in body.node:
            _spell_in(inner)


def _spell(domain: str) -> str:
    return "" if domain in STANDARD_DOMAINS else domain


def name_nodes(graph: onnx.GraphProto) -> None:
    """Name the unnamed nodes by their first output, because reports and errors refer to nodes by
    name."""
    for node in iter_nodes(graph):
        if not node.name:
            node.name = next((output for output in node.output if output), node.op_type)


def rename(graph: onnx.GraphProto, renames: Mapping[str, str]) -> None:
    """Rename tensors in the inputs and outputs of nodes, in their bodies, and in the outputs of
    bodies.

    Inputs, outputs and initializers of `graph` itself keep their names; the caller renames those. A
    body's own inputs and initializers hide outer tensors of the same names.
    """
    for node in graph.node if renames else ():
        rename_in_node(node, renames)


def rename_in_node(node: onnx.NodeProto, renames: Mapping[str, str]) -> None:
    """Rename tensors in the inputs and outputs of a node and in its bodies."""
    node.input[:] = [renames.get(name, name) for name in node.input]
    node.output[:] = [renames.get(name, name) for name in node.output]
    for body in iter_bodies(node):
        hidden = find_own_names(body)
        seen = {old: new for old, new in renames.items() if old not in hidden}
        rename(body, seen)
        for value in body.output:
            value.name = seen.get(value.name, value.name)


def set_shape(value: onnx.ValueInfoProto, shape: Iterable[int | str]) -> None:
    """Set the shape of a value; a text is the name of an unknown size."""
    dims = value.type.tensor_type.shape.dim
    del dims[:]
    for size in shape:
        if isinstance(size, str):
            dims.add(dim_param=size)
        else:
            dims.add(dim_value=size)


def set_attribute(node: onnx.NodeProto, name: str, value: Any) -> None:
    """Set an attribute of a node, present or not."""
    new = helper.make_attribute(name, value)
    old = next((entry for entry in node.attribute if entry.name == name), None)
    if old is None:
        node.attribute.append(new)
    else:
        old.CopyFrom(new)


def drop_attribute(node: onnx.NodeProto, name: str) -> None:
    """Remove an attribute of a node, if present."""
    for i in reversed(range(len(node.attribute))):
        if node.attribute[i].name == name:
            del node.attribute[i]


def drop_functions(model: onnx.ModelProto) -> None:
    """Drop the functions and the training steps of a model."""
    del model.functions[:], model.training_info[:]


def drop_weights(graph: onnx.GraphProto, kept: Collection[str]) -> None:
    """Drop all weights but those in `kept`, and duplicates; the data of the others are not
    moved."""
    last = {tensor.name: i for i, tensor in enumerate(graph.initializer)}
    _drop(graph, [t.name not in kept or last[t.name] != i for i, t in enumerate(graph.initializer)])


def drop_initializers(graph: onnx.GraphProto, names: Collection[str]) -> None:
    """Drop the weights of those names; the data of the others are not moved."""
    if names:
        _drop(graph, [tensor.name in names for tensor in graph.initializer])


def _drop(graph: onnx.GraphProto, is_dropped: Sequence[bool]) -> None:
    """Drop initializers by first sorting them to the end: dropping one by one would move all those
    behind each."""
    if any(is_dropped):
        flags = iter(is_dropped)
        graph.initializer.sort(key=lambda _tensor: next(flags))
        del graph.initializer[is_dropped.count(False) :]


def drop_weight_inputs(model: onnx.ModelProto) -> bool:
    """Remove initializers from the inputs of `model`, in place; return whether there were any.

    The IR version is raised to one that allows this; otherwise shape inference would ignore the
    initializers.
    """
    inputs = find_inputs(model.graph)
    if len(inputs) == len(model.graph.input):
        return False
    replace_inputs(model.graph, inputs)
    model.ir_version = max(model.ir_version, _APART_IR_VERSION)
    return True


def without_weights(
    model: onnx.ModelProto, names: Collection[str], *, as_inputs: bool = True
) -> onnx.ModelProto:
    """Return a copy with those weights replaced by inputs, or removed if not `as_inputs`.

    The weights themselves are not copied.
    """
    light = copy_without_weights(model)
    inputs = {value.name for value in light.graph.input}
    for tensor in model.graph.initializer:
        if tensor.name not in names:
            light.graph.initializer.append(tensor)
        elif as_inputs and tensor.name not in inputs:
            light.graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    return light


def copy_with_weights(
    model: onnx.ModelProto, replace: Callable[[onnx.TensorProto], onnx.TensorProto]
) -> onnx.ModelProto:
    """Return a copy with each weight replaced by the result of `replace`; no weight is copied
    otherwise."""
    light = copy_without_weights(model)
    for tensor in model.graph.initializer:
        light.graph.initializer.append(replace(tensor))
    return light


def change_without_weights(
    model: onnx.ModelProto,
    names: Collection[str],
    change: Callable[[onnx.ModelProto], onnx.ModelProto],
) -> None:
    """Set `model`, in place, to the result of `change`, which sees those weights as inputs.

    The weights are neither copied nor passed to the functions that `change` calls. Weights that are
    no longer read are dropped.
    """
    inputs = {value.name for value in model.graph.input}
    changed = change(without_weights(model, names))
    values = [
        value for value in changed.graph.input if value.name in inputs or value.name not in names
    ]
    replace_inputs(changed.graph, values)
    drop_weights(model.graph, set(names) & used_names(changed.graph))
    _clear(model, "graph")
    _clear(model.graph, "initializer")
    model.MergeFrom(changed)


def _clear(message: _Message, kept: str) -> None:
    for present, _ in message.ListFields():
        if present.name != kept:
            message.ClearField(present.name)


def copy_without(message: _Message, left_out: str) -> _Message:
    """Return a copy of all fields but one, which is not copied on the way."""
    copy = type(message)()
    for present, value in message.ListFields():
        if present.name == left_out:
            continue
        if hasattr(value, "extend"):
            getattr(copy, present.name).extend(value)
        elif present.message_type is not None:
            getattr(copy, present.name).CopyFrom(value)
        else:
            setattr(copy, present.name, value)
    return copy


def copy_without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of all but the initializers, which are not copied on the way."""
    light = copy_without(model, "graph")
    light.graph.CopyFrom(copy_without(model.graph, "initializer"))
    return light
