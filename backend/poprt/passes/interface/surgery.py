"""Passes that change a model's own data: the version of its format, its inputs and outputs, the
names and the order of its nodes, and where its constants are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx
from onnx import AttributeProto, TensorProto
from onnxgraph import (
    FLOAT_TYPES,
    GraphEditor,
    GraphError,
    attribute,
    constant_of,
    drop_weight_inputs,
    find_users,
    fresh_name,
    infer_shapes,
    iter_bodies,
    iter_defined,
    iter_graphs,
    iter_nodes,
    keep_outputs,
    list_outputs_once,
    make_identity,
    name_nodes,
    rename,
    replace_nodes,
    set_attribute,
    sort_nodes,
    spell_domains,
)
from simipu import CompileError

from popef._tools.text import did_you_mean
from poprt.rewrite.base import Pass, Stage, register
from poprt.rewrite.rules import GraphRule
from poprt.rewrite.weights import MAXIMUM_IR_VERSION

MINIMUM_IR_VERSION = 8
"""Minimum IR version of converted models. ONNX IR 4 made initializers independent of inputs, and
every pass here relies on that. Every supported ONNX Runtime reads 8."""


@register("spell_domains", stage=Stage.ADMISSION, default=True, is_ours=True)
class SpellDomains(Pass):
    """Spell the domain of the standard's operators "" in nodes and imports, where a model spells it
    "ai.onnx"."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Spell the domain. Raise CompileError for two versions under the two spellings."""
        try:
            spell_domains(model)
        except GraphError as error:
            raise CompileError(str(error)) from error
        return model


@register("list_outputs_once", stage=Stage.INTERFACE, default=True, is_ours=True)
class ListOutputsOnce(Pass):
    """Keep an output that a model lists several times once: callers tell outputs apart by their
    names. In bodies an Identity makes what is listed again."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Remove or make the repeated outputs."""
        list_outputs_once(model.graph)
        return model


@register("limit_ir_version", stage=Stage.INTERFACE, default=True, is_ours=True)
class LimitIrVersion(Pass):
    """Lower the model's IR version to one that all later tools can read."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Clamp the version to the range from MINIMUM_IR_VERSION to MAXIMUM_IR_VERSION."""
        model.ir_version = min(max(model.ir_version, MINIMUM_IR_VERSION), MAXIMUM_IR_VERSION)
        return model


def check_known(option: str, given: Iterable[str], known: Collection[str], what: str) -> None:
    """Raise CompileError for a name, given by an option, that the model lacks. `what` says what the
    known names are."""
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise CompileError(
            f"{option} names {unknown[0]!r}; the model's {what} are "
            f"{', '.join(known) or 'none'}{did_you_mean(unknown[0], known)}"
        )


@register(
    "remove_outputs", stage=Stage.INTERFACE, option="remove_outputs", takes="outputs=remove_outputs"
)
class RemoveOutputs(Pass):
    """Drop outputs; what only they need goes when constants are folded."""

    def __init__(self, outputs: Collection[str] = ()) -> None:
        self._outputs = frozenset(outputs)

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Remove the outputs. Raise CompileError for an output that the model lacks, and if none is
        left."""
        names = [value.name for value in model.graph.output]
        check_known("remove_outputs", self._outputs, names, "outputs")
        remaining = [name for name in names if name not in self._outputs]
        if not remaining:
            raise CompileError(
                "remove_outputs leaves no output; keep at least one of " + ", ".join(names)
            )
        keep_outputs(model.graph, remaining)
        return model


@register("keep_outputs", stage=Stage.INTERFACE, is_ours=True, takes="outputs")
class KeepOutputs(Pass):
    """Keep those outputs, in the order given; None: all."""

    def __init__(self, outputs: Collection[str] | None = None) -> None:
        self._outputs = outputs

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Keep the outputs. Raise CompileError for an output that the model lacks."""
        if self._outputs is not None:
            names = [value.name for value in model.graph.output]
            unknown = sorted(set(self._outputs) - set(names))
            if unknown:
                raise CompileError(
                    f"output {unknown[0]!r} is not one of the model's outputs: {', '.join(names)}"
                )
            keep_outputs(model.graph, self._outputs)
        return model


@register("add_checkpoints", stage=Stage.INTERFACE, option="checkpoints", takes="checkpoints")
class AddCheckpoints(Pass):
    """Make inner tensors outputs, after those that there are."""

    def __init__(self, checkpoints: Collection[str] | str = ()) -> None:
        self._checkpoints = (
            checkpoints.split(",") if isinstance(checkpoints, str) else list(checkpoints)
        )

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Add the outputs. Raise CompileError for a tensor that no node of the main graph makes."""
        graph = model.graph
        there = {value.name for value in graph.output}
        checkpoints = [name for name in dict.fromkeys(self._checkpoints) if name not in there]
        if not checkpoints:
            return model
        results = {name for node in graph.node for name in node.output}
        unknown = next((name for name in checkpoints if not name or name not in results), None)
        if unknown is not None:
            raise CompileError(
                f"checkpoints names {unknown!r}, which no node of the model's main graph makes; "
                "name an output of a node that is not inside an If, Loop or Scan"
            )
        infos = {value.name: value for value in infer_shapes(model).graph.value_info}
        for name in checkpoints:
            if name not in infos:
                raise CompileError(
                    f"checkpoints names {name!r}, of which no type can be inferred; name a tensor "
                    "before or after it"
                )
            graph.output.add().CopyFrom(infos[name])
        return model


@register("remove_initializer_from_input", stage=Stage.INTERFACE, default=True)
class RemoveInitializerFromInput(Pass):
    """Remove initializers from the inputs: old formats list weights as both, and newer ones can, as
    defaults that a caller could replace. Nobody does on the chip."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Remove the inputs. The format is raised to one that allows weights without inputs."""
        if drop_weight_inputs(model):
            model.ir_version = max(model.ir_version, MINIMUM_IR_VERSION)
        return model


@register("remove_input_cast", stage=Stage.CUSTOM)
class RemoveInputCast(Pass):
    """An input of floats that are cast to whole numbers, to be indices of a Gather, becomes one of
    int32: half has no whole numbers beyond 2048 without gaps.

    Only where nothing else reads the input than Casts to int32 and int64, one of which makes
    indices.
    """

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Change the inputs. A Cast to int32 is removed; a Cast to int64 stays, with an int32
        input."""
        graph = model.graph
        users, outputs = find_users(graph), {value.name for value in graph.output}
        dropped: dict[str, str] = {}
        for value in graph.input:
            casts = users.get(value.name, [])
            if value.name in outputs or not _are_indices(value, casts, users):
                continue
            value.type.tensor_type.elem_type = TensorProto.INT32
            for cast in casts:
                if attribute(cast, "to") == TensorProto.INT32 and cast.output[0] not in outputs:
                    dropped[cast.output[0]] = value.name
        if dropped:
            replace_nodes(
                graph, [node for node in graph.node if not dropped.keys() & set(node.output)]
            )
            rename(graph, dropped)
        return model


_WHOLE = (TensorProto.INT32, TensorProto.INT64)


def _are_indices(
    value: onnx.ValueInfoProto,
    casts: Sequence[onnx.NodeProto],
    users: Mapping[str, Sequence[onnx.NodeProto]],
) -> bool:
    if value.type.tensor_type.elem_type not in FLOAT_TYPES or not all(
        node.op_type == "Cast" and attribute(node, "to") in _WHOLE for node in casts
    ):
        return False
    return any(
        user.op_type == "Gather" and user.input[1] == cast.output[0]
        for cast in casts
        for user in users.get(cast.output[0], ())
    )


@register("remove_empty_concat_inputs", stage=Stage.FOLDING, default=True)
class RemoveEmptyConcatInputs(GraphRule):
    """Drop the operands of a Concat that have nothing along its axis; a Concat of one operand
    becomes an Identity."""

    op_types = frozenset(("Concat",))

    def rewrite_at(self, node: onnx.NodeProto, view: GraphEditor) -> None:
        """Remove the empty operands. At least one operand stays, even if empty. Unknown shapes
        count as not empty."""
        axis = attribute(node, "axis", 1)  # the default of opset 1

        def is_empty(name: str) -> bool:
            shape = view.shape(name)
            return shape is not None and -len(shape) <= axis < len(shape) and shape[axis] == 0

        operands = [name for name in node.input if not is_empty(name)] or list(node.input[:1])
        if len(operands) < len(node.input):
            view.set_inputs(node, operands)
            if len(operands) == 1:
                node.op_type = "Identity"
                del node.attribute[:]


@register("unique_name_for_nodes", stage=Stage.FOLDING, default=True)
class UniqueNameForNodes(Pass):
    """Give every node, bodies' too, a name of its own: reports, errors and options speak of nodes
    by name.

    A node without one is named by what it makes. Of nodes of one name the first keeps it, and the
    others get a number behind it.
    """

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Rename the nodes. A name that only one node has does not change."""
        name_nodes(model.graph)
        uses = Counter(node.name for node in iter_nodes(model.graph))
        seen: set[str] = set()
        numbers: Counter[str] = Counter()
        for node in iter_nodes(model.graph):
            if node.name in seen:
                name = node.name
                while node.name in uses:
                    numbers[name] += 1
                    node.name = f"{name}_{numbers[name]}"
                uses[node.name] = 1
            seen.add(node.name)
        return model


def order_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto] | None:
    """Call `onnxgraph.sort_nodes`. Raise CompileError for nodes in a cycle."""
    try:
        return sort_nodes(graph)
    except GraphError as error:
        raise CompileError(str(error)) from error


@register("sort_graph", stage=Stage.INTERFACE, default=True)
class SortGraph(Pass):
    """Bring the nodes of every graph, bodies' too, into an order in which each reads only what is
    there already; nodes that are in order stay so."""

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Sort the nodes. Raise CompileError for nodes in a cycle."""
        for graph in iter_graphs(model.graph):
            ordered = order_nodes(graph)
            if ordered is not None:
                replace_nodes(graph, ordered)
        return model


_NO_NUMBERS = (TensorProto.STRING, TensorProto.UNDEFINED)


def read_constant(node: onnx.NodeProto) -> TensorProto | None:
    """Return the numbers of a Constant. Return None for other nodes, and for a Constant that is no
    dense tensor of numbers."""
    tensor = constant_of(node)
    is_numbers = tensor is not None and tensor.data_type not in _NO_NUMBERS
    return tensor if is_numbers else None


def hold_as_tensor(node: onnx.NodeProto) -> None:
    """Move a Constant's numbers from any other attribute to `value`; other nodes stay."""
    constant = read_constant(node)
    if constant is not None and node.attribute[0].type != AttributeProto.TENSOR:
        del node.attribute[:]
        set_attribute(node, "value", constant)


@register("extract_constant_to_initializer", stage=Stage.FOLDING, default=True)
class ExtractConstantToInitializer(Pass):
    """Make an initializer of every Constant, in the graph that it stands in.

    Strings and sparse tensors stay, and what a graph gives as an output: that takes a node.
    """

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Extract the Constants. The tensors keep their names."""
        for graph in iter_graphs(model.graph):
            outputs = {value.name for value in graph.output}
            nodes = []
            for node in graph.node:
                constant = read_constant(node)
                if constant is None or node.output[0] in outputs:
                    nodes.append(node)
                    continue
                graph.initializer.add().CopyFrom(constant)
                graph.initializer[-1].name = node.output[0]
            if len(nodes) < len(graph.node):
                replace_nodes(graph, nodes)
        return model


@register("move_subgraph_initializer", stage=Stage.FOLDING, default=True)
class MoveSubgraphInitializer(Pass):
    """Put the initializers of bodies into the main graph, under names of their own.

    One that is an input of its body, and so a default, stays; of one that is an output the body
    gives a copy.
    """

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Move the initializers. Sibling bodies may use one name for two tensors."""
        defined = set(iter_defined(model.graph))
        moved: set[str] = set()
        self._move(model.graph, model.graph, defined, moved)
        return model

    def _move(
        self, main: onnx.GraphProto, graph: onnx.GraphProto, taken: set[str], moved: set[str]
    ) -> None:
        for node in graph.node:
            for body in iter_bodies(node):
                if body.initializer:
                    _move_out(main, body, taken, moved)
                self._move(main, body, taken, moved)


def _move_out(
    main: onnx.GraphProto, body: onnx.GraphProto, taken: set[str], moved: set[str]
) -> None:
    inputs = {value.name for value in body.input}
    outputs = {value.name for value in body.output}
    staying = [tensor for tensor in body.initializer if tensor.name in inputs]
    renames: dict[str, str] = {}
    identities: list[onnx.NodeProto] = []
    for tensor in body.initializer:
        if tensor.name in inputs:
            continue
        # The body's output keeps its name; its value gets another one.
        name = f"{tensor.name}/value" if tensor.name in outputs else tensor.name
        if name in moved or tensor.name in outputs:
            name = fresh_name(name, taken)
        moved.add(name)
        taken.add(name)
        main.initializer.add().CopyFrom(tensor)
        main.initializer[-1].name = name
        if tensor.name in outputs:
            identities.append(make_identity(name, tensor.name, f"{tensor.name}/given"))
        elif name != tensor.name:
            renames[tensor.name] = name
    del body.initializer[:]
    body.initializer.extend(staying)
    rename(body, renames)
    if identities:
        replace_nodes(body, [*identities, *body.node])
