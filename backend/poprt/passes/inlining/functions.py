"""Functions of ONNX (FunctionProto): what a call of one computes, as nodes of the caller.

onnx has an inliner of its own. It names what it makes by numbers (`t__17`), so that no reader of a
profile finds the call, drops attributes that have defaults where it converts between opsets, and
has no limit. Here a call becomes nodes with its attributes first; then onnx converts them to the
model's opset.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby

import onnx
from onnx import AttributeProto, defs, helper
from onnxgraph import (
    CHIP_DOMAIN,
    STANDARD_DOMAINS,
    find_opset,
    iter_bodies,
    iter_graphs,
    iter_nodes,
    make_identity,
    rename,
    replace_nodes,
)
from simipu import CompileError
from simipu.operators import CHIP_OPERATORS

from poprt.passes.opsets.conversion import ConvertVersion, convert_by_onnx

Body = Callable[[onnx.NodeProto, int], Sequence[onnx.NodeProto]]
"""Function that returns the nodes for a node of the operator and the opset of its model. The nodes
read the node's inputs and make its outputs. The node's names are placeholders for those of the
model. Names between inputs and outputs are free."""
MAX_NESTED = 64
"""Maximum depth of bodies inside bodies. torch writes a function for each module, and some levels
of modules."""
MAX_NODES = 200_000
"""Maximum number of nodes that all bodies may make; a large language model has some 30,000."""
_MAX_TOLD = 4
"""Number of functions of a circle that a message names."""
_Key = tuple[str, str, str]
"""Domain, name and overload of a function."""


class Function:
    """An ONNX function as a body."""

    def __init__(self, function: onnx.FunctionProto) -> None:
        self._function = function
        self.opset = max(
            (opset.version for opset in function.opset_import if opset.domain in STANDARD_DOMAINS),
            default=0,
        )

    @property
    def title(self) -> str:
        """Name of the function in messages."""
        overload = f":{self._function.overload}" if self._function.overload else ""
        return f"{self._function.domain or 'ai.onnx'}.{self._function.name}{overload}"

    def iter_nodes(self) -> Iterator[onnx.NodeProto]:
        """Yield the nodes of the function and of their bodies."""
        return _iter_nodes(self._function.node)

    def expand(self, node: onnx.NodeProto, opset: int) -> list[onnx.NodeProto]:
        """Return the function's nodes with the names and attributes of `node`, in the opset of its
        model. Raises CompileError if they have no form in that opset."""
        function = self._function
        graph = onnx.GraphProto(name=function.name, node=function.node)
        attributes = {entry.name: entry for entry in (*function.attribute_proto, *node.attribute)}
        for inner in iter_graphs(graph):
            for entry in inner.node:
                _resolve(entry, attributes)
        graph = self._convert(graph, opset)
        missing = len(function.input) - len(node.input)
        if missing < 0 or len(node.output) > len(function.output):
            raise CompileError(
                f"it has {len(node.input)} inputs and {len(node.output)} outputs, its function has "
                f"{len(function.input)} and {len(function.output)}; export the model again"
            )
        names = dict(zip(function.input, [*node.input, *[""] * missing], strict=True))
        for inside, outside in zip(function.output, node.output, strict=False):
            if not outside:
                continue
            if inside in names:  # an input of the function, or an output that is listed twice
                graph.node.append(make_identity(inside, outside, ""))
            else:
                names[inside] = outside
        rename(graph, names)
        return list(graph.node)

    def means_same(self, opset: int) -> bool:
        """Return whether the function's operators are the same in its own opset and in `opset`."""
        return self.opset == opset or mean_same(self.iter_nodes(), self.opset, opset)

    def _convert(self, graph: onnx.GraphProto, opset: int) -> onnx.GraphProto:
        """Return the nodes of the function, its attributes filled in, in that opset."""
        if self.means_same(opset):
            return graph
        function = self._function
        if self.opset > opset:
            raise CompileError(
                f"its function is of opset {self.opset}, the model of opset {opset}, and its "
                "operators are not the same in both; write the function in the model's opset"
            )
        imports = [entry for entry in function.opset_import if entry.domain not in STANDARD_DOMAINS]
        imports.append(helper.make_opsetid("", self.opset))
        _convert_nodes(graph, imports, opset, f"function {self.title}")
        return graph


def _convert_nodes(
    graph: onnx.GraphProto, imports: Sequence[onnx.OperatorSetIdProto], opset: int, what: str
) -> None:
    """Convert the nodes of a graph, and of its bodies, to a newer opset in place.

    onnx's converter fails where a body reads what is around it, so it gets the nodes between those
    with bodies.
    """
    nodes: list[onnx.NodeProto] = []
    for has_bodies, group in groupby(graph.node, key=_has_bodies):
        part = onnx.GraphProto(name=graph.name, node=group)
        if not has_bodies:
            results = {name for node in part.node for name in node.output if name}
            read = {name for node in part.node for name in node.input if name}
            part.input.extend(onnx.ValueInfoProto(name=name) for name in sorted(read - results))
            part.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(results))
            model = helper.make_model(part, opset_imports=imports)
            part = convert_by_onnx(model, opset, what).graph
        for node in part.node:
            for body in iter_bodies(node):
                _convert_nodes(body, imports, opset, what)
        nodes += part.node
    replace_nodes(graph, nodes)


def _has_bodies(node: onnx.NodeProto) -> bool:
    return any(True for _ in iter_bodies(node))


def _resolve(node: onnx.NodeProto, given: Mapping[str, AttributeProto]) -> None:
    """Replace references to attributes by their values. References without a value are removed."""
    attributes = []
    for entry in node.attribute:
        value = given.get(entry.ref_attr_name) if entry.ref_attr_name else entry
        if value is not None:
            own = copy.deepcopy(value)
            own.name = entry.name
            attributes.append(own)
    del node.attribute[:]
    node.attribute.extend(attributes)


class ModelFunctions:
    """Functions of a model, of which those that its graph calls are inlined.

    Operators of the standard and of the chip, and those that `registered` has by domain and name,
    hide functions of the same name, as they do for ONNX Runtime.
    """

    def __init__(
        self, model: onnx.ModelProto, registered: Collection[tuple[str, str]] = ()
    ) -> None:
        """Raise CompileError for functions that call themselves or are too large once inlined."""
        self._registered, self._opset = registered, find_opset(model, 1)
        self._by_key: dict[_Key, Function] = {}
        for function in model.functions:
            self._by_key[function.domain, function.name, function.overload] = Function(function)
        self._sizes: dict[_Key, tuple[int, int]] = {}
        if self._by_key:
            total, _ = self._measure(iter_nodes(model.graph), [])
            if total > MAX_NODES:
                largest = max(self._sizes, key=lambda key: self._sizes[key][0])
                raise CompileError(
                    f"the functions of the model make {total} nodes once they are inlined, the "
                    f"largest, {self._by_key[largest].title}, {self._sizes[largest][0]}; expected "
                    f"at most {MAX_NODES}: export the model without functions that multiply"
                )

    def find(self, node: onnx.NodeProto) -> Function | None:
        """Return the function that a node calls."""
        if not self._by_key:
            return None
        function = self._by_key.get(_key(node))
        if function is None or (node.domain, node.op_type) in self._registered:
            return None
        if node.domain == CHIP_DOMAIN:
            return function if node.op_type not in CHIP_OPERATORS else None
        is_standard = node.domain in STANDARD_DOMAINS and defs.has(node.op_type, self._opset)
        return function if not is_standard else None

    def raise_opset(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Return the model in the opset of the newest function that it calls, if that function
        means something else in the model's own."""
        called = [self._by_key[key] for key in self._sizes]
        opset = self._opset
        newest = max(
            (function.opset for function in called if not function.means_same(opset)), default=0
        )
        if newest <= opset:
            return model
        del model.functions[:]
        if mean_same(iter_nodes(model.graph), opset, newest):
            others = [
                function
                for function in model.opset_import
                if function.domain not in STANDARD_DOMAINS
            ]
            del model.opset_import[:]
            model.opset_import.extend([*others, helper.make_opsetid("", newest)])
        else:
            model = ConvertVersion(newest).run(model)
        self._opset = newest
        return model

    def _measure(self, nodes: Iterable[onnx.NodeProto], path: list[_Key]) -> tuple[int, int]:
        """Return how many nodes calls make of `nodes`, and how deep they nest."""
        total, depth = 0, 0
        for node in nodes:
            function = self.find(node)
            size, levels = self._measure_call(_key(node), function, path) if function else (1, 0)
            total, depth = total + size, max(depth, levels)
        return total, depth

    def _measure_call(self, key: _Key, function: Function, path: list[_Key]) -> tuple[int, int]:
        if key in path:
            circle = [self._by_key[step].title for step in (*path[path.index(key) :], key)]
            titles = (
                circle
                if len(circle) <= _MAX_TOLD
                else [*circle[: _MAX_TOLD - 1], "...", circle[-1]]
            )
            raise CompileError(
                f"function {function.title} calls itself ({' -> '.join(titles)}), so that it "
                "cannot be inlined; expected functions without recursion"
            )
        if key not in self._sizes:
            if len(path) < MAX_NESTED:
                size, depth = self._measure(function.iter_nodes(), [*path, key])
                self._sizes[key] = size, depth + 1
            if len(path) >= MAX_NESTED or self._sizes[key][1] + len(path) > MAX_NESTED:
                raise CompileError(
                    f"function {function.title}: the functions of the model call each other more "
                    f"than {MAX_NESTED} deep; export the model with fewer levels"
                )
        return self._sizes[key]


def _key(node: onnx.NodeProto) -> _Key:
    return node.domain, node.op_type, node.overload


def _iter_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for body in iter_bodies(node):
            yield from iter_nodes(body)


def mean_same(nodes: Iterable[onnx.NodeProto], one: int, other: int) -> bool:
    """Return whether each standard operator of the nodes is the same in two opsets."""
    op_types = {node.op_type for node in nodes if node.domain in STANDARD_DOMAINS}
    return all(_find_version(op_type, one) == _find_version(op_type, other) for op_type in op_types)


def _find_version(op_type: str, opset: int) -> int:
    try:
        return int(defs.get_schema(op_type, opset).since_version)
    except defs.SchemaError:
        return 0
