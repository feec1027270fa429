"""Pass that changes the batch size of a model exported with a batch of 1.

Such a model has its batch in constants: targets of Reshape, states of a recurrent network, class
tokens. The pass follows the rows from the inputs through the graph. It replaces the 1 by a prime
that is a factor of no tensor's size in the model. The result is accepted only if the rows of that
graph are proven to be independent (`simipu.rows`). Then a row of any batch is computed as the model
computes its only row.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import TensorProto, defs, helper, numpy_helper
from onnxgraph import (
    STANDARD_DOMAINS,
    Shape,
    attribute,
    drop_weights,
    find_inputs,
    find_opset,
    forget_values,
    has_data,
    infer_shapes,
    iter_bodies,
    iter_defined,
    iter_reads,
    read_array,
    set_shape,
    take_name,
    used_names,
)
from simipu import CompileError
from simipu.operators import Family, operator_of
from simipu.rows import NotIndependent, Rows, take_rows

from popef._tools.arrays import Array
from poprt.frontend.frontends import make_streams
from poprt.passes.interface.surgery import MINIMUM_IR_VERSION
from poprt.rewrite.base import Pass, Stage, register
from poprt.rewrite.explanations import describe_node

_PRIMES = tuple(
    n for n in range(11, 1_000) if all(n % divisor for divisor in range(2, math.isqrt(n) + 1))
)
"""Candidate primes, the smallest first: constants are repeated as many times to infer shapes."""
_MAX_SHAPE = 256
"""Maximum number of elements of a constant on whose values shapes may depend."""
_MAX_TRIES = 16
"""Maximum number of choices of axes, for inputs with several axes of one element."""
_MAX_TILED = 1 << 28
"""Maximum number of elements of a constant that is repeated for every row."""
_RECURRENT = {4: 0, 5: 1, 6: 1}
"""Inputs of recurrent networks with lengths and states, each with its batch axis."""
_ERRORS = (
    onnx.checker.ValidationError,
    onnx.shape_inference.InferenceError,
    RuntimeError,
    ArithmeticError,
    LookupError,
    TypeError,
    ValueError,
)
"""Errors that onnx raises, and those of reading a node that does not match its operator."""
Make = Callable[[int], Array]


@register(
    "widen_batch",
    stage=Stage.FOLDING,
    option="batch_size",
    takes="batch_size batch_axis",
    is_ours=True,
    depend="const_input_shape",
)
class WidenBatch(Pass):
    """Give a static model whose inputs have a batch of 1 a batch of `batch_size`.

    The real tool leaves known dimensions alone, whatever they are.
    """

    def __init__(self, batch_size: int | None = None, batch_axis: int | None = None) -> None:
        self._batch_size, self._batch_axis = batch_size or 1, batch_axis or 0

    def run(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Change the batch size. Raise CompileError, with the node that fixes the batch, if rows
        cannot be proven independent."""
        if self._batch_size == 1 or not self._has_batch_of_one(model.graph):
            return model
        inferred = infer_shapes(model)
        values = {value.name: value for value in _iter_values(inferred.graph)}
        prime = _find_prime(inferred.graph)
        reason = ""
        for axes in itertools.islice(self._iter_axes(model.graph), _MAX_TRIES):
            try:
                widened = _Widening(model, values, prime, axes)
                _check(widened.apply(infer_shapes(model), prime))
            except NotIndependent as found:
                reason = reason or str(found)
                continue
            return widened.apply(model, self._batch_size)
        raise CompileError(
            f"batch_size {self._batch_size}: the model was exported with a batch of 1, and that "
            f"cannot be changed: {reason}. Export the model with a variable batch dimension, or "
            "compile it with a batch of 1"
        )

    def _has_batch_of_one(self, graph: onnx.GraphProto) -> bool:
        return any(_shape_of(value)[self._batch_axis :][:1] == (1,) for value in find_inputs(graph))

    def _iter_axes(self, graph: onnx.GraphProto) -> Iterator[dict[str, int]]:
        """Yield the possible batch axes of each input: the batch axis if that has one element, or
        else another axis of one element."""
        candidates = {}
        for value in find_inputs(graph):
            shape = _shape_of(value)
            places = [axis for axis, size in enumerate(shape) if size == 1]
            if not places:
                raise CompileError(
                    f"batch_size {self._batch_size}: input {value.name!r} of shape {list(shape)} "
                    "has no dimension of 1 for the batch; make it a constant with --fix_input, or "
                    "export the model with a variable batch dimension"
                )
            candidates[value.name] = sorted(places, key=lambda axis: axis != self._batch_axis)
        for chosen in itertools.product(*candidates.values()):
            yield dict(zip(candidates, chosen, strict=True))


def _iter_values(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    yield from (*graph.input, *graph.value_info, *graph.output)


def _shape_of(value: onnx.ValueInfoProto) -> Shape:
    return tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)


def _find_prime(graph: onnx.GraphProto) -> int:
    """Return the first prime that is a factor of no size, or the largest known one if there is
    none."""
    sizes = {size for value in _iter_values(graph) for size in _shape_of(value) if size > 0}
    sizes.update(size for tensor in graph.initializer for size in tensor.dims if size > 0)
    return next((prime for prime in _PRIMES if all(size % prime for size in sizes)), _PRIMES[-1])


def _check(model: onnx.ModelProto) -> None:
    """Raise NotIndependent unless each row is computed without the others."""
    inferred = infer_shapes(model)
    for value in inferred.graph.output:
        if not _shape_of(value) or 0 in _shape_of(value):
            raise NotIndependent(f"output {value.name!r} has no known shape then")
    _, _, reason = take_rows(inferred, make_streams(inferred.graph))
    if reason:
        raise NotIndependent(reason)


def _infer_alone(
    node: onnx.NodeProto,
    types: Mapping[str, onnx.TypeProto],
    data: Mapping[str, TensorProto],
    opset: int,
) -> Mapping[str, onnx.TypeProto]:
    """Return the types of a node's results, by name, for inputs of those types and values."""
    imports = [helper.make_opsetid("", opset)]
    if "" not in node.input:
        return onnx.shape_inference.infer_node_outputs(
            defs.get_schema(node.op_type, opset),
            node,
            dict(types),
            dict(data),
            opset_imports=imports,
        )
    # For omitted inputs, infer_node_outputs of onnx 1.16 requires a type. A model with the one node
    # takes longer.
    inputs = [helper.make_value_info(name, value_type) for name, value_type in types.items()]
    results = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    graph = helper.make_graph([node], "alone", inputs, results)
    for name, tensor in data.items():
        graph.initializer.append(tensor)
        graph.initializer[-1].name = name
    model = helper.make_model(graph, opset_imports=imports, ir_version=MINIMUM_IR_VERSION)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    return {value.name: value.type for value in inferred.graph.output}


@dataclass(slots=True)
class _Widening:
    """Changes that a batch of `prime` needs in a model, found node by node."""

    model: onnx.ModelProto
    known: Mapping[str, onnx.ValueInfoProto]
    """Types and shapes inferred for a batch of 1."""
    prime: int
    axes: Mapping[str, int]
    types: dict[str, onnx.TypeProto] = field(init=False)
    """Types of the tensors that carry rows."""
    rows: dict[str, Rows] = field(init=False)
    constants: dict[str, TensorProto] = field(init=False)
    opset: int = field(init=False)
    edits: list[tuple[int, int, Make]] = field(default_factory=list)
    """Place of a node, index of its input, and function that makes that input for a batch size."""
    replaced: dict[int, Array | onnx.TypeProto] = field(default_factory=dict)
    """Inputs of the current node for a batch of the prime, as values or as types only."""

    def __post_init__(self) -> None:
        graph = self.model.graph
        self.opset = find_opset(self.model, 1)
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.constants.update(
            (node.output[0], node.attribute[0].t)
            for node in graph.node
            if node.op_type == "Constant"
        )
        self.rows = {name: Rows(axis) for name, axis in self.axes.items()}
        self.types = {}
        for value in find_inputs(graph):
            shape = list(_shape_of(value))
            shape[self.axes[value.name]] = self.prime
            self.types[value.name] = helper.make_tensor_type_proto(
                value.type.tensor_type.elem_type, shape
            )
        for place, node in enumerate(graph.node):
            if any(name in self.rows for name in iter_reads(node)):
                try:
                    self._follow(place, node)
                except (NotIndependent, *_ERRORS) as reason:
                    text = " ".join(str(reason).split())
                    raise NotIndependent(f"node {describe_node(node)}: {text}") from None

    def apply(self, model: onnx.ModelProto, size: int) -> onnx.ModelProto:
        """Change `model`, which has the same nodes, in place to a batch of that size."""
        graph = model.graph
        defined = set(iter_defined(graph))
        replaced = {graph.node[place].input[index] for place, index, _ in self.edits}
        for place, index, make in self.edits:
            node = graph.node[place]
            name = take_name(f"{node.output[0]}/batch_{index}", defined)
            graph.initializer.append(numpy_helper.from_array(make(size), name))
            node.input[index] = name
        unused = replaced - used_names(graph)
        drop_weights(graph, {tensor.name for tensor in graph.initializer} - unused)
        for value in find_inputs(graph):
            shape = list(_shape_of(value))
            shape[self.axes[value.name]] = size
            set_shape(value, shape)
        for value in graph.output:
            value.type.tensor_type.ClearField("shape")
        forget_values(graph)
        return model

    def _follow(self, place: int, node: onnx.NodeProto) -> None:
        self.replaced = {}
        if any(True for _ in iter_bodies(node)):
            raise NotIndependent("rows are not followed into its bodies")
        if node.domain not in STANDARD_DOMAINS or not defs.has(node.op_type, self.opset):
            raise NotIndependent("rows are followed through operators of the standard only")
        for index in self._find_tiled(node):
            self._tile(place, node, *index)
        if node.op_type == "Reshape":
            self._reshape(place, node)
            return
        data_input = {"Slice": 2, "Resize": 3}.get(node.op_type)
        if data_input is not None:
            self._keep_all(place, node, data_input)
        self._infer(node)

    def _shape(self, name: str) -> Shape:
        """Return the shape of a tensor. If it has rows, the prime is in it."""
        if name in self.types:
            return tuple(dim.dim_value for dim in self.types[name].tensor_type.shape.dim)
        if name in self.constants:
            return tuple(self.constants[name].dims)
        return _shape_of(self.known[name]) if name in self.known else ()

    def _constant(self, name: str) -> Array | None:
        tensor = self.constants.get(name)
        return read_array(tensor) if tensor is not None and has_data(tensor) else None

    def _find_tiled(self, node: onnx.NodeProto) -> Iterator[tuple[int, int]]:
        """Yield the inputs that have no rows but need them, with the axis of the rows."""
        rows = next(self.rows[name] for name in node.input if name in self.rows)
        if node.op_type == "Concat" and attribute(node, "axis", 0) != rows.axis:
            axes = dict.fromkeys(range(len(node.input)), rows.axis)
        elif operator_of(node).family is Family.RECURRENT:
            axes = _RECURRENT
        else:
            axes = dict.fromkeys(operator_of(node).aligned, rows.axis)
        for index, axis in axes.items():
            name = node.input[index] if index < len(node.input) else ""
            if name and name not in self.rows and self._shape(name)[axis : axis + 1] == (1,):
                yield index, axis

    def _tile(self, place: int, node: onnx.NodeProto, index: int, axis: int) -> None:
        """Repeat a constant for each row."""
        name = node.input[index]
        value = self._constant(name)
        if value is None or value.size > _MAX_TILED:
            raise NotIndependent(
                f"constant {name!r} of shape {list(self._shape(name))} is of a batch of 1"
            )
        self.edits.append((place, index, lambda size: value.repeat(size, axis)))
        tiled = list(self._shape(name))
        tiled[axis] = self.prime
        self.replaced[index] = helper.make_tensor_type_proto(self.constants[name].data_type, tiled)

    def _reshape(self, place: int, node: onnx.NodeProto) -> None:
        """Put the batch into the constant target of a Reshape, by its result for a batch of 1."""
        name = node.input[0]
        if (
            name not in self.rows
            or self._constant(node.input[1]) is None
            or node.output[0] not in self.known
        ):
            raise NotIndependent("its target is not known")
        result = _shape_of(self.known[node.output[0]])
        shape, rows = self._shape(name), self.rows[name]
        before = math.prod(shape[: rows.axis]) * rows.before
        after = math.prod(shape[rows.axis + 1 :]) * rows.block
        alternatives = []
        for axis, size in enumerate(result):
            outer, inner = math.prod(result[:axis]), math.prod(result[axis + 1 :])
            divides = outer and inner and before % outer == after % inner == 0
            if divides and (before // outer) * (after // inner) == size:
                alternatives.append(Rows(axis, after // inner, before // outer))
        if not alternatives:
            raise NotIndependent(f"it makes {list(result)} of the whole batch")
        # Prefer rows that are an axis of their own, nearest to where they were; then rows within
        # the first axis.
        chosen = min(
            alternatives,
            key=lambda each: (
                (0, abs(each.axis - rows.axis)) if each.size(1) == 1 else (1, each.axis)
            ),
        )
        target = np.array(result, np.int64)

        def make(size: int) -> Array:
            widened = target.copy()
            widened[chosen.axis] *= size
            return widened

        self.edits.append((place, 1, make))
        element = self.types[name].tensor_type.elem_type
        self.types[node.output[0]] = helper.make_tensor_type_proto(
            element, make(self.prime).tolist()
        )
        self.rows[node.output[0]] = chosen

    def _keep_all(self, place: int, node: onnx.NodeProto, index: int) -> None:
        """Change ends of a Slice, or sizes of a Resize, in that input, that are 1 at the batch axis
        to the whole batch."""
        rows = self.rows.get(node.input[0])
        value = self._constant(node.input[index]) if index < len(node.input) else None
        if rows is None or value is None:
            return
        rank = len(self._shape(node.input[0]))
        is_slice = node.op_type == "Slice"
        listed = self._constant([*node.input, ""][3]) if is_slice else attribute(node, "axes")
        axes = [int(axis) % rank for axis in (listed if listed is not None else range(len(value)))]
        if rows.axis not in axes or (not is_slice and value[axes.index(rows.axis)] != 1):
            return
        at, source = axes.index(rows.axis), value
        starts = self._constant(node.input[1]) if is_slice else None
        if is_slice and (starts is None or starts[at] != 0 or value[at] < 1):
            return

        def make(size: int) -> Array:
            changed = source.copy()
            changed[at] = np.iinfo(source.dtype).max if is_slice else size
            return changed

        self.edits.append((place, index, make))
        self.replaced[index] = make(self.prime)

    def _infer(self, node: onnx.NodeProto) -> None:
        """Infer the shapes of a node's results with ONNX, from its inputs for a batch of the
        prime."""
        types, data = {}, {}
        own = copy.deepcopy(node)
        for index, name in enumerate(node.input):
            if not name:
                continue
            own.input[index] = f"{index}"
            replaced = self.replaced.get(index)
            if isinstance(replaced, np.ndarray):
                data[f"{index}"] = numpy_helper.from_array(replaced)
                types[f"{index}"] = helper.make_tensor_type_proto(
                    data[f"{index}"].data_type, replaced.shape
                )
                continue
            types[f"{index}"] = replaced or self._type(name)
            tensor = None if replaced else self.constants.get(name)
            if tensor is not None and math.prod(tensor.dims) <= _MAX_SHAPE and has_data(tensor):
                data[f"{index}"] = tensor
        inferred = _infer_alone(own, types, data, self.opset)
        for name in filter(None, node.output):
            value_type = inferred.get(name)
            if value_type is None or not all(
                d.HasField("dim_value") for d in value_type.tensor_type.shape.dim
            ):
                raise NotIndependent(f"the shape of its result {name!r} would not be known")
            self._note(node, name, value_type)

    def _type(self, name: str) -> onnx.TypeProto:
        if name in self.types:
            return self.types[name]
        if name in self.constants:
            tensor = self.constants[name]
            return helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
        return self.known[name].type

    def _note(self, node: onnx.NodeProto, name: str, found: onnx.TypeProto) -> None:
        """Record the axis of a result with the prime as its rows. They lie within the axis as
        before."""
        shape = [dim.dim_value for dim in found.tensor_type.shape.dim]
        axes = [axis for axis, size in enumerate(shape) if size and size % self.prime == 0]
        if not axes:
            return
        within = [self.rows[source] for source in node.input if source in self.rows]
        alike = (row for row in within if row.size(self.prime) == shape[axes[0]])
        place = next(alike, Rows(axes[0], shape[axes[0]] // self.prime))
        self.types[name], self.rows[name] = found, place.moved(axes[0])
