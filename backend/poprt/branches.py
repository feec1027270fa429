"""If nodes: those whose condition is known give way to the branch taken, and of the others a branch that is
invalid is named.

ONNX Runtime would do the first while it folds, but it looks at both branches before that, and refuses a model
in which the one that is never taken does not fit the given shapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import attribute, graph_values, infer_shapes, iter_bodies, used_names
from onnxgraph.weights import LARGE, has_data
from simipu import CompileError
from simipu.graph import ORT_ERRORS

from poprt.origins import OF_SHAPES, describe_inputs, find_inputs

_RANDOM = frozenset(
    "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split()
)
"""Operators whose results are not known although all that they take is."""
BRANCHES = {True: "then_branch", False: "else_branch"}


def take_known_branches(model: onnx.ModelProto) -> None:
    """Put, in place, the nodes of the branch taken where an If with a known condition is, in bodies too.

    Known is what constants and static shapes decide. Names stay unique.
    """
    while _has_if(model.graph):
        values = graph_values(infer_shapes(model).graph)
        known = _Known(model, {name: value.shape for name, value in values.items()})
        defined = Counter(_iter_defined(model.graph))
        if not _take_in_graph(model.graph, known, defined):
            return


def _has_if(graph: onnx.GraphProto) -> bool:
    return any(node.op_type == "If" or any(map(_has_if, iter_bodies(node))) for node in graph.node)


def _iter_defined(graph: onnx.GraphProto) -> Iterator[str]:
    """Names of everything that a graph and its bodies make or are given."""
    yield from (value.name for value in graph.input)
    yield from (tensor.name for tensor in graph.initializer)
    for node in graph.node:
        yield from node.output
        for body in iter_bodies(node):
            yield from _iter_defined(body)


def _take_in_graph(graph: onnx.GraphProto, known: _Known, defined: Counter[str]) -> bool:
    """Whether there was an If to take a branch of; branches are looked into on the next turn, when they are
    outside."""
    known.add_graph(graph)
    nodes: list[onnx.NodeProto] = []
    taken = False
    for node in graph.node:
        condition = known.value(node.input[0]) if node.op_type == "If" else None
        if condition is None:
            for body in iter_bodies(node):
                taken |= _take_in_graph(body, known, defined)
            nodes.append(node)
            continue
        branch = attribute(node, BRANCHES[bool(condition.item())])
        _make_unique(branch, node.output[0], defined)
        graph.initializer.extend(branch.initializer)
        nodes += branch.node
        nodes += [
            helper.make_node("Identity", [inner.name], [outer], name=f"{outer}/branch")
            for inner, outer in zip(branch.output, node.output, strict=True)
            if outer
        ]
        taken = True
    if taken:
        kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(kept)
    return taken


def _make_unique(branch: onnx.GraphProto, prefix: str, defined: Counter[str]) -> None:
    """Rename, in place, what the branch makes under a name that is used elsewhere: both branches may use the
    same."""
    made = [tensor.name for tensor in branch.initializer] + [
        name for node in branch.node for name in node.output
    ]
    renames = {}
    for name in made:
        if name and defined[name] > 1:
            renames[name] = f"{prefix}/{name}"
            while defined[renames[name]]:
                renames[name] += "_"
            defined[renames[name]] += 1
    for tensor in branch.initializer:
        tensor.name = renames.get(tensor.name, tensor.name)
    if renames:
        _rename(branch, renames)


def _rename(graph: onnx.GraphProto, renames: Mapping[str, str]) -> None:
    for node in graph.node:
        node.input[:] = [renames.get(name, name) for name in node.input]
        node.output[:] = [renames.get(name, name) for name in node.output]
        for body in iter_bodies(node):
            _rename(body, renames)
    for value in graph.output:
        value.name = renames.get(value.name, value.name)


@dataclass(slots=True)
class _Known:
    """What can be said of a model's tensors before anything is computed."""

    model: onnx.ModelProto
    shapes: Mapping[str, tuple[int, ...]]
    constants: dict[str, TensorProto] = field(default_factory=dict)
    makers: dict[str, tuple[int, onnx.NodeProto]] = field(default_factory=dict)
    """Nodes with their place in the order of computation."""

    def add_graph(self, graph: onnx.GraphProto) -> None:
        self.constants.update((tensor.name, tensor) for tensor in graph.initializer)
        for node in graph.node:
            self.makers.update((name, (len(self.makers), node)) for name in node.output)

    def value(self, name: str) -> npt.NDArray[Any] | None:
        """The value of a condition, None where it depends on more than constants and shapes."""
        nodes: dict[int, onnx.NodeProto] = {}
        constants: dict[str, TensorProto] = {}
        waiting, sized = [name], set()
        while waiting:
            needed = waiting.pop()
            place, node = self.makers.get(needed, (-1, None))
            if needed in self.constants and has_data(self.constants[needed]):
                constants[needed] = self.constants[needed]
            elif node is None or node.op_type in _RANDOM or any(iter_bodies(node)):
                return None
            elif place not in nodes:
                nodes[place] = node
                if node.op_type in OF_SHAPES and node.input[0] in self.shapes:
                    sized.add(node.input[0])
                else:
                    waiting += filter(None, node.input)
        ordered = [nodes[place] for place in sorted(nodes)]
        return self._compute(name, ordered, list(constants.values()), sized)

    def _compute(
        self, name: str, nodes: list[onnx.NodeProto], constants: list[TensorProto], sized: set[str]
    ) -> npt.NDArray[Any] | None:
        inputs = [
            helper.make_tensor_value_info(each, TensorProto.FLOAT, self.shapes[each])
            for each in sorted(sized)
        ]
        output = helper.make_tensor_value_info(name, TensorProto.BOOL, None)
        graph = helper.make_graph(nodes, "condition", inputs, [output], constants)
        model = onnx.ModelProto(
            ir_version=self.model.ir_version, opset_import=self.model.opset_import, graph=graph
        )
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL  # it can crash
        options.log_severity_level = 4
        try:
            session = onnxruntime.InferenceSession(
                model.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            fed = {value.name: np.zeros(self.shapes[value.name], np.float32) for value in inputs}
            (found,) = session.run(None, fed)
        except ORT_ERRORS:
            return None  # whoever compiles the whole says why
        return found if found.size == 1 else None


Judge = Callable[[onnx.ModelProto], str | None]
"""Says why a model is invalid, None where it is not."""


def explain_branches(model: onnx.ModelProto, judge: Judge) -> str | None:
    """What is to be said of the first branch, the innermost if several, that is invalid at the given shapes:
    None without one.

    `judge` sees each branch as a model of its own.
    """
    found = _find_invalid(model, model.graph, {}, {}, judge)
    if found is None:
        return None
    node, branch, reason = found
    inputs = find_inputs(model.graph, node.input[0])
    name = node.name or f"(making {node.output[0]})"
    text = (
        f"node {name!r} (If): its {branch} is invalid at the given input shapes: {reason}. "
        f"Its condition depends on {describe_inputs(inputs)}"
    )
    if not inputs:
        return f"{text}; export the model without that branch"
    return f"{text}: {advise_to_fix(inputs)}, so that only the branch taken is compiled"


def advise_to_fix(inputs: list[str]) -> str:
    """What to do about inputs that must be known at compile time."""
    options = " ".join(f"{name}=VALUE" for name in inputs)
    return (
        f"fix {'it' if len(inputs) == 1 else 'them'} to a value with poprt --fix_input {options} "
        "(of Converter: fix_inputs)"
    )


def _find_invalid(
    model: onnx.ModelProto,
    graph: onnx.GraphProto,
    types: dict[str, onnx.ValueInfoProto],
    constants: dict[str, TensorProto],
    judge: Judge,
) -> tuple[onnx.NodeProto, str, str] | None:
    """`graph` is the main one or a body; `types` and `constants` are those of the graphs around it, by
    name."""
    own = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, graph=graph)
    inferred = infer_shapes(own).graph
    types = {
        **types,
        **{value.name: value for value in (*inferred.input, *inferred.value_info, *inferred.output)},
    }
    constants = {**constants, **_small_constants(graph)}
    for node in graph.node:
        for name, body in _iter_bodies(node):
            inner = _as_model(model, body, types, constants)
            found = _find_invalid(model, inner.graph, types, constants, judge)
            if found is not None:
                return found
            reason = judge(inner) if node.op_type == "If" else None
            if reason is not None:
                return node, name.replace("_", " "), reason
    return None


def _iter_bodies(node: onnx.NodeProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """The bodies of a node with their names, then_branch first."""
    bodies = {each.name: each.g for each in node.attribute if each.type == onnx.AttributeProto.GRAPH}
    yield from sorted(bodies.items(), reverse=True)


def _small_constants(graph: onnx.GraphProto) -> dict[str, TensorProto]:
    """Values that shapes may depend on."""
    found = {
        tensor.name: tensor
        for tensor in graph.initializer
        if len(tensor.raw_data) < LARGE and has_data(tensor)
    }
    for node in graph.node:
        value = attribute(node, "value") if node.op_type == "Constant" else None
        if value is not None:
            found[node.output[0]] = numpy_helper.from_array(numpy_helper.to_array(value), node.output[0])
    return found


def _as_model(
    model: onnx.ModelProto,
    branch: onnx.GraphProto,
    types: Mapping[str, onnx.ValueInfoProto],
    constants: Mapping[str, TensorProto],
) -> onnx.ModelProto:
    """A body with what it takes from outside: small constants, and inputs of the types that are known."""
    captured = used_names(branch) - set(_iter_defined(branch))
    given = [constants[name] for name in sorted(captured) if name in constants]
    outer = [types[name] for name in sorted(captured) if name in types and name not in constants]
    inputs = [*branch.input, *outer]
    graph = helper.make_graph(
        branch.node, branch.name or "branch", inputs, branch.output, [*branch.initializer, *given]
    )
    return onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import, graph=graph)


def raise_for_branch(model: onnx.ModelProto, judge: Judge) -> None:
    """Raise CompileError where a branch of the model is invalid."""
    explanation = explain_branches(model, judge) if _has_if(model.graph) else None
    if explanation is not None:
        raise CompileError(explanation)
