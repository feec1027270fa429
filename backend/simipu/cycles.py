"""A first estimate of what one run of a graph takes on the chip, in cycles. Modelled, never measured.

Per operator, after the project's IPU performance notes (section 4, the minimal model; its numbers come from graphcore/poplibs'
estimators and published C600 runs): matmuls and convolutions are planned by search over the splits of their dimensions,
everything else costs its elements spread over the tiles. Host transfers are left out. No values here, only shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import onnx
from onnx import TensorProto

from simipu.errors import CompileError
from simipu.target import Target

WORKERS = 6
FIXED_PLANNED_CYCLES = 2_000
"""Per planned matmul or convolution: zeroing, layout phases, syncs (fitted scalar of the notes, section 0)."""
BLOCK_CYCLES = {2: 200, 4: 170}
"""Fixed cycles of one AMP weight block, by the bytes of a partial (16 units for half partials, 8 for float)."""
NORM_CYCLES, SOFTMAX_CYCLES = 4_000, 2_000
"""Fixed cost of the several steps of a normalisation and of a softmax (assumed in the notes, section 4.10)."""

VIEWS = frozenset("Constant Dropout Flatten Identity Reshape Shape Squeeze Unsqueeze".split())
"""Operators that only rename memory."""

_CYCLES_PER_ELEMENT = {  # section 3.2: inner-loop cycles per half element and worker; float takes twice as many
    **dict.fromkeys("Add Sub Mul Neg Abs Relu Clip".split(), 0.75),
    **dict.fromkeys("Max Min LeakyRelu PRelu Exp Tanh".split(), 1.0),
    **dict.fromkeys("Sigmoid Log HardSigmoid".split(), 1.25),
    **dict.fromkeys("HardSwish Swish".split(), 1.5),
    "Div": 5.25,
    "Sqrt": 5.75,
    "Reciprocal": 3.75,
    "Erf": 13.0,
    "Gelu": 16.0,
    "Pow": 325.0,
    "Where": 5.0,
    **dict.fromkeys("Equal Less Greater LessOrEqual GreaterOrEqual And Or Not Cast".split(), 2.25),
}
_FALLBACK_CYCLES_PER_ELEMENT = 6.0
"""An operator without an entry: slower than the common ones, so that the estimate errs on the safe side."""
_MOVES = frozenset("Concat Slice Split Transpose Gather GatherElements GatherND Expand Tile Pad Resize Where".split())
_NORMS = frozenset("LayerNormalization GroupNormalization InstanceNormalization RMSNormalization LRN".split())
_SOFTMAXES = frozenset("Softmax LogSoftmax Hardmax".split())


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor's compiled shape and the bytes of one element."""

    shape: tuple[int, ...]
    bytes_per_element: int

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Product:
    """A matmul or convolution in the planner's terms: `groups` products of rows x k times k x n, over `taps` kernel
    positions; `input_size` elements come in (a convolution reads each more than once)."""

    groups: int
    rows: int
    k: int
    n: int
    taps: int
    bytes_per_element: int
    partial_bytes: int


def estimate_cycles(model: onnx.ModelProto, target: Target, *, half_partials: bool = True) -> int:
    """Modelled cycles of one run of `model` (every shape static) on `target`.

    `half_partials` is the compiler option partialsType: PopRT's default is half. Raises CompileError for a tensor whose
    shape is not known.
    """
    values = collect_values(model)
    return sum(_node_cycles(node, values, target, half_partials) for node in model.graph.node)


def collect_values(model: onnx.ModelProto) -> dict[str, Value]:
    """Shape and element size of every tensor of the main graph, by shape inference."""
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    values = {t.name: Value(tuple(t.dims), _bytes_per_element(t.data_type)) for t in graph.initializer}
    for info in (*graph.input, *graph.value_info, *graph.output):
        tensor = info.type.tensor_type
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in tensor.shape.dim):
            shape = tuple(dim.dim_value for dim in tensor.shape.dim)
            values.setdefault(info.name, Value(shape, _bytes_per_element(tensor.elem_type)))
    return values


def _bytes_per_element(data_type: int) -> int:
    if data_type in (TensorProto.UNDEFINED, TensorProto.STRING):
        return 4
    return min(4, onnx.helper.tensor_dtype_to_np_dtype(data_type).itemsize)


def _node_cycles(node: onnx.NodeProto, values: Mapping[str, Value], target: Target, half_partials: bool) -> int:
    if node.op_type in VIEWS:
        return 0
    missing = [name for name in (*node.input, *node.output) if name and name not in values]
    if missing:
        raise CompileError(
            f"node {node.name!r} ({node.op_type}): the shape of {missing[0]!r} is not known at compile time; "
            "the IPU runs static graphs only"
        )
    make_product = _PRODUCTS.get(node.op_type)
    if make_product is not None:
        return plan_product(make_product(node, values, half_partials), target)
    return _spread_cycles(node, values, target)


def _spread_cycles(node: onnx.NodeProto, values: Mapping[str, Value], target: Target) -> int:
    """Everything that is not planned: its elements spread evenly over the tiles and their workers."""
    result = max((values[name] for name in node.output if name), key=lambda value: value.size)
    source = max((values[name] for name in node.input if name), key=lambda value: value.size, default=result)
    step = target.internal_sync_cycles
    if node.op_type in _MOVES:
        moved = math.ceil(result.size * result.bytes_per_element / target.num_tiles)
        return step + 160 + moved // target.exchange_bytes_per_cycle + moved // 2
    width = source.bytes_per_element / 2
    if node.op_type in _SOFTMAXES:
        return SOFTMAX_CYCLES + 2 * step + _per_tile(source.size, 3.0 * width, target)
    if node.op_type in _NORMS:
        return NORM_CYCLES + 2 * step + _per_tile(source.size, 3.5 * width, target)
    if node.op_type.startswith(("Reduce", "Global", "Arg")):
        return 2_500 + step + _per_tile(source.size, 0.25 * width, target)
    if node.op_type.endswith("Pool"):
        taps = math.prod(_ints(node, "kernel_shape") or [1])
        return 600 + step + _per_tile(result.size * taps, 0.75 * width, target) + _exchange(source, target)
    cost = _CYCLES_PER_ELEMENT.get(node.op_type, _FALLBACK_CYCLES_PER_ELEMENT)
    return 191 + step + _per_tile(result.size, cost * width, target)


def _per_tile(size: int, cycles_per_element: float, target: Target) -> int:
    elements = math.ceil(size / target.num_tiles)
    return math.ceil(math.ceil(elements / WORKERS) * WORKERS * cycles_per_element)


def _exchange(value: Value, target: Target) -> int:
    return math.ceil(value.size * value.bytes_per_element / target.num_tiles / target.exchange_bytes_per_cycle)


@lru_cache(maxsize=4096)
def plan_product(product: Product, target: Target) -> int:
    """Cycles of the cheapest split of a product over the tiles: rows, k and n are split, groups come first."""
    tiles = max(1, target.num_tiles // product.groups)
    groups_per_tile = math.ceil(product.groups / target.num_tiles)
    best = min(
        _split_cycles(product, target, k_split, n_split, max(1, tiles // (k_split * n_split)))
        for k_split in _splits(product.k, 16, tiles)
        for n_split in _splits(product.n, 16, tiles // k_split)
    )
    return FIXED_PLANNED_CYCLES + groups_per_tile * best


def _splits(size: int, grain: int, most: int) -> list[int]:
    """The splits worth trying: powers of two and those that leave one grain, at most `most` parts."""
    limit = max(1, min(most, math.ceil(size / grain)))
    powers = {1 << bit for bit in range(limit.bit_length())}
    return sorted(split for split in powers | {limit} if split <= limit)


def _split_cycles(product: Product, target: Target, k_split: int, n_split: int, row_split: int) -> int:
    rows = math.ceil(product.rows / min(row_split, product.rows))
    k = math.ceil(product.k / k_split)
    n = math.ceil(product.n / n_split)
    element, partial = product.bytes_per_element, product.partial_bytes
    rate = target.exchange_bytes_per_cycle
    shared = 2 if n_split % 2 == 0 else 1
    exchange = rows * k * element * (1 - 1 / n_split) / shared / rate
    exchange += k * n * product.taps * element * (1 - 1 / row_split) / rate
    macs = {2: target.half_macs_half_partials, 4: target.half_macs_float_partials}[partial]
    k_grain = 16 if element == 2 else 8
    n_grain = max(1, (macs if element == 2 else target.float_macs * 2) // 4)
    row_cycles = 4 if element == 2 else 8
    blocks = math.ceil(k / k_grain) * math.ceil(n / n_grain) * product.taps
    compute = blocks * (row_cycles * math.ceil(rows / WORKERS) * WORKERS + BLOCK_CYCLES[partial])
    reduce = 0.0
    if k_split > 1:
        reduce = rows * n * partial / rate + 6 * (32 + math.ceil(rows * n / k_split / 24) * (3 * k_split + 8))
    return math.ceil(exchange + compute + reduce)


def _matmul(node: onnx.NodeProto, values: Mapping[str, Value], half_partials: bool) -> Product:
    left, right = (values[name] for name in node.input[:2])
    result = values[node.output[0]]
    k = left.shape[-1]
    groups = math.prod(right.shape[:-2])
    n = right.shape[-1] if len(right.shape) > 1 else 1
    return _product(left, half_partials, groups=groups, rows=max(1, result.size // (groups * n)), k=k, n=n)


def _gemm(node: onnx.NodeProto, values: Mapping[str, Value], half_partials: bool) -> Product:
    left, result = values[node.input[0]], values[node.output[0]]
    rows, n = result.shape
    return _product(left, half_partials, groups=1, rows=rows, k=left.size // rows, n=n)


def _conv(node: onnx.NodeProto, values: Mapping[str, Value], half_partials: bool) -> Product:
    source, weights, result = values[node.input[0]], values[node.input[1]], values[node.output[0]]
    groups = next((attribute.i for attribute in node.attribute if attribute.name == "group"), 1)
    transposed = node.op_type == "ConvTranspose"
    field = source if transposed else result
    rows = field.size // field.shape[1]
    channels_in, channels_out = source.shape[1] // groups, result.shape[1] // groups
    return _product(
        source, half_partials, groups=groups, rows=rows, k=channels_in, n=channels_out, taps=math.prod(weights.shape[2:])
    )


def _product(source: Value, half_partials: bool, *, groups: int, rows: int, k: int, n: int, taps: int = 1) -> Product:
    element = source.bytes_per_element
    partial = 2 if element == 2 and half_partials else 4
    return Product(max(1, groups), max(1, rows), max(1, k), max(1, n), taps, element, partial)


_PRODUCTS: dict[str, Callable[[onnx.NodeProto, Mapping[str, Value], bool], Product]] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _conv,
    "ConvTranspose": _conv,
}


def _ints(node: onnx.NodeProto, name: str) -> list[int]:
    return next((list(attribute.ints) for attribute in node.attribute if attribute.name == name), [])
