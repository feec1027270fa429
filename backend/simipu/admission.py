"""What a graph of a stranger may be, looked at before anything infers, lowers or computes it.

Graphs come out of PopEF files, from `sim_graph_path` and from those who compile or profile a model. They may
refer to nothing outside themselves, and small ones may not ask for endless time or memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import onnx
from onnx import AttributeProto, TensorProto, helper

from simipu.errors import GraphError, GraphTooLargeError

MOST_DEPTH = 16
"""Of graphs inside nodes; a known model has 3."""
MOST_SHAPE_NUMBERS = 1 << 20
"""In what shape inference computes of shapes: onnx and ONNX Runtime keep each as an object. Known models have
some dozens."""
MOST_FOLDED_OPERATIONS = 1 << 34
"""That ONNX Runtime may do while it loads a graph, where nothing can end it: some seconds of one core."""
OPERATIONS_PER_CORE_SECOND = 10**11
"""Multiply-adds that no core does more of: AVX-512 with two units at 3 GHz."""
_CARRIERS = frozenset(
    (
        "Add Cast Ceil Concat Constant Div Floor Gather Identity Mod Mul Neg Range Shape Size Slice "
        "Squeeze Sub Unsqueeze"
    ).split()
)
"""Operators through which onnx follows the values of shapes."""
_PRODUCTS = frozenset("MatMul MatMulInteger QLinearMatMul".split())
_RECURRENT = frozenset("GRU LSTM RNN".split())
_POOLS = frozenset("AveragePool LpPool MaxPool".split())
Shapes = Mapping[str, tuple[int, ...]]


def check_graph(model: onnx.ModelProto, *, without_weights: bool = False) -> None:
    """Raise GraphError where `model` brings functions of its own, nests too deep, has a tensor whose data are
    not those of its shape, or refers to a file. If `without_weights`, initializers of the main graph may have
    their data elsewhere, or none."""
    if model.functions or model.training_info:
        raise GraphError(
            "the graph brings functions or training steps of its own; inline functions when exporting the "
            "model"
        )
    _check_names(model.graph)
    for tensor, is_weight in iter_tensors(model.graph):
        may_lack = without_weights and is_weight
        _check_type(tensor)
        if tensor.data_location != TensorProto.EXTERNAL:
            _check_data(tensor, may_lack)
        elif not may_lack:
            raise GraphError(
                f"tensor {tensor.name!r} refers to a file; a graph may refer to nothing outside itself"
            )
    numbers = _count_shape_numbers(model.graph, {})
    if numbers > MOST_SHAPE_NUMBERS:
        raise GraphTooLargeError(
            f"the graph computes a shape of {numbers:.2g} numbers, by a chain of Concat most likely; the "
            f"limit is {MOST_SHAPE_NUMBERS}"
        )


def _check_names(graph: onnx.GraphProto) -> None:
    """Protobuf gives what is no UTF-8 as bytes, which half of all code would trip over."""
    for inner, _ in _iter_graphs(graph):
        names = [value.name for value in (*inner.input, *inner.output, *inner.value_info)]
        names += (tensor.name for tensor in inner.initializer)
        for node in inner.node:
            names += (
                node.name,
                node.op_type,
                node.domain,
                *node.input,
                *node.output,
                *(each.name for each in node.attribute),
            )
        fault = next((name for name in names if not isinstance(name, str)), None)
        if fault is not None:
            raise GraphError(f"expected names in UTF-8, found {fault!r}")


def iter_tensors(graph: onnx.GraphProto, depth: int = 0) -> Iterator[tuple[TensorProto, bool]]:
    """Every tensor wherever one can stand, and whether it is an initializer of the main graph."""
    if depth > MOST_DEPTH:
        raise GraphError(f"graphs stand inside nodes more than {MOST_DEPTH} deep")
    yield from ((tensor, depth == 0) for tensor in graph.initializer)
    for sparse in graph.sparse_initializer:
        yield from ((tensor, False) for tensor in (sparse.values, sparse.indices))
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t, False
            yield from ((tensor, False) for tensor in attribute.tensors)
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from ((tensor, False) for tensor in (sparse.values, sparse.indices) if tensor.data_type)
            for inner in (attribute.g, *attribute.graphs):
                yield from iter_tensors(inner, depth + 1)


def _check_type(tensor: TensorProto) -> None:
    if tensor.data_type not in helper.get_all_tensor_dtypes() or min(tensor.dims, default=0) < 0:
        raise GraphError(
            f"tensor {tensor.name!r} has type {tensor.data_type} and shape {list(tensor.dims)}, which is none"
        )


def _check_data(tensor: TensorProto, may_lack: bool) -> None:
    if tensor.data_type == TensorProto.STRING:
        return
    elements = math.prod(tensor.dims)
    if tensor.HasField("raw_data"):
        fits = len(tensor.raw_data) == elements * element_bytes(tensor.data_type) or _is_packed(
            tensor.data_type
        )
    else:
        # Complex numbers take two values; types of few bits may share one.
        field = getattr(tensor, helper.tensor_dtype_to_field(tensor.data_type))
        fits = len(field) in (elements, 2 * elements) or (
            _is_packed(tensor.data_type) and len(field) <= elements
        )
        fits = fits or (may_lack and not field)
    if not fits:
        raise GraphError(
            f"tensor {tensor.name!r} has data of another size than its shape {list(tensor.dims)} says"
        )


def element_bytes(data_type: int) -> int:
    """Bytes of an element as files have it; older versions of onnx know some types as float only."""
    name = TensorProto.DataType.Name(data_type)
    narrow = 1 if name.startswith("FLOAT8") else 2 if name == "BFLOAT16" else 0
    return narrow or int(helper.tensor_dtype_to_np_dtype(data_type).itemsize)


def _is_packed(data_type: int) -> bool:
    return "INT4" in TensorProto.DataType.Name(data_type) or "FLOAT4" in TensorProto.DataType.Name(data_type)


def _count_shape_numbers(graph: onnx.GraphProto, outer: Mapping[str, int]) -> int:
    """The most numbers that a shape computed in `graph`, or inside its nodes, may have, if onnx followed all
    of them."""
    counts = dict(outer)
    counts.update(
        (tensor.name, math.prod(tensor.dims)) for tensor in graph.initializer if len(tensor.dims) <= 1
    )
    most = 0
    for node in graph.node:
        taken = [counts.get(name, 0) for name in node.input]
        count = 0
        if node.op_type == "Concat":
            count = sum(taken)
        elif node.op_type in ("Shape", "Size"):
            count = 1  # its rank, which files spell out
        elif node.op_type in _CARRIERS:
            count = max(
                (*taken, *(math.prod(each.t.dims) for each in node.attribute if len(each.t.dims) <= 1)),
                default=0,
            )
        counts.update(dict.fromkeys(node.output, count))
        most = max(most, count)
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                most = max(most, _count_shape_numbers(inner, counts) if inner.node else 0)
    return most


@dataclass(frozen=True, slots=True)
class Demand:
    """What a graph asks for, as far as its shapes are known before it is run."""

    tensor_bytes: int
    """Of its largest tensor."""
    tensor: str
    operations: int
    """Of its dearest operator."""
    node: str
    folded_operations: int | None
    """Of all that does not depend on its inputs; None where that cannot be said."""
    folded_bytes: int
    """Of the largest tensor that does not depend on its inputs."""
    folded: str

    def check(self, memory_bytes: int, seconds: float, cores: int) -> None:
        """Raise GraphTooLargeError where a tensor is larger than that, or an operator takes longer on any
        machine."""
        if self.tensor_bytes > memory_bytes:
            raise GraphTooLargeError(
                f"tensor {self.tensor!r} takes {self.tensor_bytes} bytes, more than the limit of "
                f"{memory_bytes} of memory"
            )
        if self.operations > seconds * cores * OPERATIONS_PER_CORE_SECOND:
            raise GraphTooLargeError(
                f"node {self.node!r} takes {self.operations} multiply-adds, more than {cores} cores can do "
                f"within the limit of {seconds:g} s"
            )


def measure(inferred: onnx.ModelProto) -> Demand:
    """The demand of a model whose shapes were inferred (`simipu.shapes.infer_shapes`)."""
    graph = inferred.graph
    sizes: dict[str, int] = {}
    dearest = (0, "")
    constants = {tensor.name for tensor in graph.initializer} - {value.name for value in graph.input}
    folded: int | None = 0
    made: list[str] = []
    for inner, is_main in _iter_graphs(graph):
        shapes, bytes_of = _find_shapes(inner)
        sizes.update(bytes_of)
        for node in inner.node:
            count = count_operations(node, shapes)
            dearest = max(dearest, (count or 0, node.name or node.op_type))
            if is_main and constants.issuperset(filter(None, node.input)) and not _has_graphs(node):
                constants.update(node.output)
                made += node.output
                folded = None if folded is None or count is None else folded + count
    largest = max(sizes, key=lambda name: sizes[name], default="")
    largest_made = max(made, key=lambda name: sizes.get(name, 0), default="")
    return Demand(sizes.get(largest, 0), largest, *dearest, folded, sizes.get(largest_made, 0), largest_made)


def _iter_graphs(graph: onnx.GraphProto, is_main: bool = True) -> Iterator[tuple[onnx.GraphProto, bool]]:
    yield graph, is_main
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                if inner.node:
                    yield from _iter_graphs(inner, False)


def _has_graphs(node: onnx.NodeProto) -> bool:
    return any(
        attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for attribute in node.attribute
    )


def _find_shapes(graph: onnx.GraphProto) -> tuple[dict[str, tuple[int, ...]], dict[str, int]]:
    """Known shapes of a graph's tensors, and their bytes; an axis of 0 counts as 1, for operators walk along
    the others."""
    shapes, sizes = {}, {}
    for tensor in graph.initializer:
        shapes[tensor.name] = tuple(tensor.dims)
    types = {tensor.name: tensor.data_type for tensor in graph.initializer}
    for info in (*graph.input, *graph.value_info, *graph.output):
        found = info.type.tensor_type
        if found.HasField("shape") and all(dim.HasField("dim_value") for dim in found.shape.dim):
            shapes[info.name] = tuple(dim.dim_value for dim in found.shape.dim)
            types[info.name] = found.elem_type
    for name, shape in shapes.items():
        data_type = types[name]
        known = data_type in helper.get_all_tensor_dtypes() and data_type != TensorProto.STRING
        sizes[name] = _count(shape) * (element_bytes(data_type) if known else 8)
    return shapes, sizes


def _count(shape: tuple[int, ...]) -> int:
    return math.prod(max(1, size) for size in shape)


def count_operations(node: onnx.NodeProto, shapes: Shapes) -> int | None:
    """Multiply-adds, or elements looked at, of one run of `node`, at least; None where a shape is not
    known."""
    taken, made = (
        [shapes.get(name) for name in node.input if name],
        [shapes.get(name) for name in node.output if name],
    )
    if None in made or None in taken:
        return None
    inputs, outputs = (
        [shape for shape in taken if shape is not None],
        [shape for shape in made if shape is not None],
    )
    elements = sum(map(_count, outputs))
    if len(inputs) > 1 and inputs[0] and inputs[1]:
        if node.op_type in _PRODUCTS:
            return elements * inputs[0][-1]
        if node.op_type == "Gemm":
            return elements * max(inputs[0])
        if node.op_type in ("Conv", "ConvInteger", "QLinearConv", "DeformConv"):
            return elements * _count(inputs[1][1:])
        if node.op_type == "ConvTranspose":
            return _count(inputs[0]) * _count(inputs[1][1:])
        if node.op_type in _RECURRENT:
            return _count(inputs[0][:2]) * sum(_count(shape) for shape in inputs[1:3])
        if node.op_type == "NonMaxSuppression":
            return _count(inputs[1]) * max(inputs[0])
    if node.op_type == "Einsum":
        return _count_einsum(node, inputs)
    if node.op_type in _POOLS and inputs:
        kernel = next((list(each.ints) for each in node.attribute if each.name == "kernel_shape"), [])
        sizes = inputs[0][len(inputs[0]) - len(kernel) :]
        return elements * _count(tuple(map(min, zip(kernel, sizes, strict=False))))
    return elements + sum(map(_count, inputs))


def _count_einsum(node: onnx.NodeProto, inputs: list[tuple[int, ...]]) -> int:
    """Of the widest way: all labels' sizes with each other."""
    equation = next(
        (each.s.decode("utf-8", "replace") for each in node.attribute if each.name == "equation"), ""
    )
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    for term, shape in zip(terms, inputs, strict=False):
        letters = term.replace("...", "")
        sizes.update(zip(letters, shape[len(shape) - len(letters) :], strict=False))
        sizes["..."] = max(sizes.get("...", 1), _count(shape[: len(shape) - len(letters)]))
    return _count(tuple(sizes.values()))
