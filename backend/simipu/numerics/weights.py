"""Readers of weights, the widening of weights that no node reads in their narrow type, and the
storage of 8-bit weights as codes, for weights that no kernel reads directly. The computed graph
keeps them as codes and widens them whenever a product reads them.

ONNX Runtime's own Cast of 8-bit floats is not part of the opsets that models have, and takes three
times as long. So the graph looks up two codes at a time in a table of pairs of halves:

    codes (mapped)  -> Gather row 0 -> Cast to int32 -> Gather in a table -> Reshape -> Cast to
    float [1, n / 2] of 16 bits     ^                         [65536, 2] halves 0 * activation

ONNX Runtime would widen all weights before it computes anything, and keep them. So the index of the
row depends on the activation that the product also reads. The table is an input with a default:
results that depend on it cannot be computed once and kept. Gather reads a mapped initializer in
place.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import (
    Tape,
    attribute,
    drop_initializers,
    iter_bodies,
    iter_nodes,
    iter_reads,
    make_cast,
    replace_nodes,
)

from popef._tools.arrays import Array
from simipu.numerics.kernels import CodedWeight, takes_narrow
from simipu.numerics.options import Numerics
from simipu.numerics.quarter import QUARTERS, QuarterFormat, decode
from simipu.operators import operator_of


def iter_readers(graph: onnx.GraphProto) -> Iterator[tuple[str, int, onnx.NodeProto]]:
    """Yield the tensors that nodes of a graph read, with the input's index and the node; the index
    is -1 inside a body."""
    for node in graph.node:
        yield from ((name, place, node) for place, name in enumerate(node.input))
        for body in iter_bodies(node):
            yield from ((name, -1, inner) for name, _, inner in iter_readers(body))
            yield from ((value.name, -1, node) for value in body.output)


def find_codes(
    graph: onnx.GraphProto,
    quarters: Mapping[str, QuarterFormat],
    takes: Callable[[onnx.NodeProto, int], bool],
) -> dict[str, CodedWeight]:
    """Return the 8-bit weights of a graph that only its products read, by the name of the widened
    half. `takes` says whether a node accepts codes at an input."""
    stored = {tensor.name for tensor in graph.initializer if tensor.name in quarters}
    casts = [node for node in graph.node if node.op_type == "Cast" and node.input[0] in stored]
    outputs = {value.name for value in graph.output}
    wide = {node.output[0]: node for node in casts if node.output[0] not in outputs}
    lost = {node.input[0] for node in casts if node.output[0] not in wide}
    for name, place, node in iter_readers(graph):
        if name in wide and not takes(node, place):
            lost.add(wide.pop(name).input[0])
        if name in stored and node.op_type != "Cast":
            lost.add(name)
    return {
        name: CodedWeight(node.input[0], quarters[node.input[0]], attribute(node, "scale", 0))
        for name, node in wide.items()
        if node.input[0] not in lost
    }


def widen_tensors(graph: onnx.GraphProto, given: Container[str] = ()) -> None:
    """Widen the initializers of a graph to float, except `given` ones; see `widen_tensor`."""
    for tensor in graph.initializer:
        if tensor.name not in given:
            widen_tensor(tensor)


def widen_tensor(tensor: onnx.TensorProto) -> None:
    """Widen a half or an 8-bit tensor to float, in place; other tensors stay."""
    quarter = QUARTERS.get(tensor.data_type)
    if quarter is None and tensor.data_type != TensorProto.FLOAT16:
        return
    if tensor.data_location == TensorProto.EXTERNAL:
        # A weight without data: the caller feeds it as floats, see `lower`.
        tensor.data_type = TensorProto.FLOAT
        return
    if quarter is None:
        value = numpy_helper.to_array(tensor).astype(np.float32)
    else:
        value = decode(np.frombuffer(tensor.raw_data, np.uint8), quarter).reshape(tensor.dims)
    tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))


def settle_weights(
    graph: onnx.GraphProto, halves: Container[str], coded: Container[str], given: Container[str]
) -> None:
    """Keep `given` weights, and those that only kernels and Gather read, as halves or codes; widen
    the others."""
    stored = {t.name for t in graph.initializer if t.name in halves}
    for name, place, node in iter_readers(graph):
        if name in stored and not takes_narrow(node, place):
            stored.discard(name)
    for tensor in graph.initializer:
        if tensor.name in coded:
            tensor.data_type = TensorProto.UINT8
        elif tensor.name not in stored and tensor.name not in given:
            widen_tensor(tensor)
    nodes = []
    for node in graph.node:
        nodes.append(node)
        if node.op_type == "Gather" and node.input[0] in stored:
            wide, node.output[0] = node.output[0], f"{node.output[0]}/half"
            nodes.append(make_cast(node.output[0], wide, TensorProto.FLOAT))
    replace_nodes(graph, nodes)


MIN_BYTES = 1 << 16
"""Minimum size in bytes; smaller weights are widened when they are loaded."""
_CODES = 256


@cache
def _pairs(quarter: QuarterFormat) -> npt.NDArray[np.float16]:
    """Return the values of two adjacent codes, indexed by the little-endian number that they
    form."""
    #  15      8 7       0
    # +---------+---------+
    # |  second |  first  |    row of the table: [value of the first code, value of the second]
    # +---------+---------+
    values = decode(np.arange(_CODES, dtype=np.uint8), quarter).astype(np.float16)
    low, high = np.meshgrid(values, values)
    return np.stack([low.ravel(), high.ravel()], axis=1)


def multiplies_parts(model: onnx.ModelProto, numerics: Numerics | None) -> bool:
    """Return whether weights are multiplied in parts, as sums in half and 8-bit operands are. Then
    ONNX Runtime has nothing to repack for speed, and widening takes little time beside the
    product."""
    if numerics is None:
        return False
    casts = (node for node in iter_nodes(model.graph) if node.op_type == "Cast")
    return numerics.half_partials or any(attribute(cast, "to") in QUARTERS for cast in casts)


def keep_codes(
    given: onnx.GraphProto,
    graph: onnx.GraphProto,
    quarters: Mapping[str, QuarterFormat],
    weights: Mapping[str, Array],
) -> dict[str, Array]:
    """Change the lowered graph of `given`, in place, to widen 8-bit weights that are large and have
    an even number of codes. Return the arrays that it reads instead, by the name of the weight: the
    data of `weights` under other types. The graph calls them by `name_codes`."""
    large = {
        name: np.ascontiguousarray(weights[name]).view(np.uint8).reshape(-1)
        for name in quarters
        if name in weights and weights[name].nbytes >= MIN_BYTES and weights[name].nbytes % 2 == 0
    }
    if not large:
        return {}
    shapes = {
        initializer.name: list(initializer.dims)
        for initializer in graph.initializer
        if initializer.name in large
    }
    drop_initializers(graph, large.keys())
    for quarter in dict.fromkeys(quarters[name] for name in large):
        tensor = numpy_helper.from_array(_pairs(quarter), _table_name(quarter))
        graph.initializer.append(tensor)
        info = helper.make_tensor_value_info(tensor.name, TensorProto.FLOAT16, tensor.dims)
        graph.input.append(info)
    codes: dict[str, Array] = {}
    for name, values in large.items():
        codes[name] = values.view(np.dtype("<u2"))[None]
        stub = graph.initializer.add(name=name_codes(name), data_type=TensorProto.UINT16)
        stub.dims.extend([1, values.size // 2])
        stub.data_location = TensorProto.EXTERNAL
    activations = _find_activations(given, large)
    first = {name: node for node in reversed(graph.node) for name in iter_reads(node)}
    before: dict[int, list[str]] = {}
    for name in large:
        before.setdefault(id(first[name]), []).append(name)
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        for name in before.get(id(node), ()):
            table = _table_name(quarters[name])
            nodes += _widen(name, shapes[name], table, activations.get(name))
        nodes.append(node)
    replace_nodes(graph, nodes)
    return codes


def name_codes(weight: str) -> str:
    """Return the name of the codes of an 8-bit weight."""
    return f"{weight}/codes"


def _find_activations(graph: onnx.GraphProto, names: Collection[str]) -> dict[str, str]:
    """Return for each 8-bit weight the other operand of the first product in the main graph that
    reads the weight."""
    wide = {
        node.output[0]: node.input[0]
        for node in graph.node
        if node.op_type == "Cast" and node.input[0] in names
    }
    activations: dict[str, str] = {}
    for node in graph.node:
        if operator_of(node).is_product:
            for name, other in (node.input[:2], node.input[1::-1]):
                if name in wide:
                    activations.setdefault(wide[name], other)
    return activations


def _widen(
    name: str, shape: Sequence[int], table: str, activation: str | None
) -> list[onnx.NodeProto]:
    op = Tape(f"{name}/widened")
    zero = op.ints([0])
    if activation is not None:
        # 0 times an element of the activation, as an integer: 0, but known only when it is run.
        first = op.add("Slice", activation, zero, op.ints([1]), zero)
        first = op.add("Reshape", first, op.ints([-1]))
        first = op.add("Slice", first, zero, op.ints([1]))
        zero = op.add("Mul", op.add("Cast", first, to=TensorProto.INT64), zero)
    codes = op.add("Cast", op.add("Gather", name_codes(name), zero), to=TensorProto.INT32)
    halves = op.add("Reshape", op.add("Gather", table, codes), op.ints(shape))
    op.add_as(name, "Cast", halves, to=TensorProto.FLOAT)
    return op.nodes


def _table_name(quarter: QuarterFormat) -> str:
    return f"{quarter.name}/values"
