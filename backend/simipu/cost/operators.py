"""What each ONNX operator costs: products are planned, everything else is its elements spread over the tiles.

The formulas are those of the project's IPU performance notes, section 3; `constants.py` has their numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import onnx
from onnxgraph import Value, attribute

from simipu.cost import constants as c
from simipu.cost.products import Plan, Product, Settings, plan_product
from simipu.errors import CompileError
from simipu.target import Target

VIEWS = frozenset(
    "Constant ConstantOfShape Dropout Flatten Identity Reshape Shape Size Squeeze Unsqueeze".split()
)
"""Operators that only rename memory, or are known at compile time."""


@dataclass(frozen=True, slots=True)
class Work:
    """What an operator takes of the tiles: cycles of the busiest one, supersteps, tiles at work, memory of a
    tile."""

    kind: str
    compute: int = 0
    exchange: int = 0
    steps: int = 0
    tiles: int = 0
    temporary_bytes: int = 0
    code_bytes: int = c.STEP_CODE_BYTES
    macs: int = 0
    plan: str = ""
    fallback: bool = False


@dataclass(frozen=True, slots=True)
class Context:
    """One node with what is known of its tensors, and what it is compiled for."""

    node: onnx.NodeProto
    inputs: Sequence[Value | None]
    outputs: Sequence[Value]
    target: Target
    settings: Settings
    half_partials: bool
    constants: frozenset[str]
    """Names of the tensors that are known at compile time, weights above all."""
    moved: frozenset[str]
    """Names of the tensors whose layout a Transpose has just changed."""
    fused_attention: bool = False

    @property
    def result(self) -> Value:
        """The largest output."""
        return max(self.outputs, key=lambda value: value.size)

    @property
    def source(self) -> Value:
        """The largest input, or the result where there is none."""
        return max(
            (value for value in self.inputs if value is not None),
            key=lambda value: value.size,
            default=self.result,
        )

    def attribute(self, name: str, default: Any) -> Any:
        """The value of an attribute of the node."""
        return attribute(self.node, name, default)

    def per_tile(self, size: int) -> int:
        """Elements of the busiest tile."""
        return math.ceil(size / self.target.num_tiles)

    def bytes_per_tile(self, value: Value) -> int:
        """Bytes of a tensor on the busiest tile."""
        return self.per_tile(value.size * value.bytes_per_element)

    def spread(
        self, kind: str, compute: float, exchange: float = 0, steps: int = 1, temporary: int = 0
    ) -> Work:
        """Work of which every tile that has an element takes its share."""
        tiles = min(self.target.num_tiles, max(1, self.result.size))
        return Work(kind, math.ceil(compute), math.ceil(exchange), steps, tiles, temporary)


def operator_work(context: Context) -> Work:
    """The work of a node; an operator without a formula gets a conservative one and is marked as `fallback`.

    Raises CompileError when a tensor of it has no shape.
    """
    op_type = context.node.op_type
    known = all(name in context.constants for name in context.node.input if name) and not _is_quarter_cast(
        context
    )
    if op_type in VIEWS or not context.outputs or known:
        return Work("view")
    formula = _FORMULAS.get(op_type)
    if formula is not None:
        return formula(context)
    compute = _pass(context.source, c.FALLBACK_CYCLES_PER_ELEMENT, 1, context) + _pass(
        context.result, c.FALLBACK_CYCLES_PER_ELEMENT, 1, context
    )
    exchange = (context.bytes_per_tile(context.source) + context.bytes_per_tile(context.result)) / _rate(
        context
    )
    return replace(context.spread("fallback", compute, exchange, steps=4), fallback=True)


def control_work(context: Context, runs: int) -> Work:
    """What an If, Loop or Scan takes itself: a decision each time, and copies of what goes in and comes
    out."""
    copied = sum(map(context.bytes_per_tile, (*filter(None, context.inputs), *context.outputs)))
    compute = runs * math.ceil(copied / c.COPY_BYTES_PER_CYCLE)
    return replace(context.spread("control flow", compute, steps=runs), temporary_bytes=copied)


def _rate(context: Context) -> int:
    return context.target.exchange_bytes_per_cycle


def _pass(value: Value, cycles: float, vector: float, context: Context, start: int = 17) -> float:
    """A supervisor vertex over the elements of a tile: `cycles` of a worker for each `vector` elements."""
    loops = math.ceil(context.per_tile(value.size) / c.WORKERS / vector)
    return c.ELEMENTWISE_START + c.WORKERS * (start + loops * cycles)


# Worker cycles for a vector of halves and of floats, and the vectors' lengths (notes, section 3.2).
_ELEMENTWISE: dict[str, tuple[float, int, float, int]] = {
    **dict.fromkeys("Add Sub Mul Sum Mean".split(), (3, 4, 3, 2)),
    **dict.fromkeys("Relu Neg Abs Clip Sign".split(), (3, 4, 3, 2)),
    **dict.fromkeys(
        "Max Min LeakyRelu PRelu Elu Selu Celu ThresholdedRelu Ceil Floor Round".split(), (4, 4, 3, 2)
    ),
    "Div": (21, 4, 10, 2),
    "Mod": (21, 4, 10, 2),
    "Exp": (4, 4, 6, 2),
    "Log": (6, 4, 14, 2),
    "Tanh": (3, 4, 11, 2),
    **dict.fromkeys("Sigmoid HardSigmoid".split(), (5, 4, 11, 2)),
    **dict.fromkeys("HardSwish Swish Mish Softplus Softsign".split(), (6, 4, 11, 2)),
    "Sqrt": (23, 4, 10, 2),
    "Reciprocal": (15, 4, 6, 2),
    "Erf": (13, 1, 41, 1),
    "Gelu": (8, 4, 10, 2),
    **dict.fromkeys("Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh".split(), (25, 1, 2300, 1)),
    "Pow": (
        45,
        1,
        45,
        1,
    ),  # fitted: BERT-base with and without the fused Gelu; PL's estimator says 325, an average
    "Where": (5, 1, 5, 1),
    **dict.fromkeys(
        "Equal Less Greater LessOrEqual GreaterOrEqual And Or Xor Not IsNaN IsInf BitShift".split(),
        (9, 4, 14, 4),
    ),
    **dict.fromkeys(
        "Cast CastLike QuantizeLinear DequantizeLinear DynamicQuantizeLinear".split(), (4, 4, 4, 4)
    ),
}
_BROADCAST: tuple[float, int, float, int] = (2, 4, 2, 2)
"""Adding or multiplying a vector or a scalar."""


def _elementwise(context: Context) -> Work:
    op_type = context.node.op_type
    half, half_vector, single, single_vector = _ELEMENTWISE[op_type]
    start = 17 if len(context.node.input) == 1 else 28
    broadcast = min(value.size for value in context.inputs if value) < context.result.size
    # PopRT multiplies by the inverse of a divisor that it knows (its pass replace_div_with_mul).
    if broadcast and (
        op_type in ("Add", "Sub", "Mul") or (op_type == "Div" and context.node.input[1] in context.constants)
    ):
        (half, half_vector, single, single_vector), start = _BROADCAST, c.BROADCAST_START
    wide = context.source.bytes_per_element > 2
    cycles, vector = (single, single_vector) if wide else (half, half_vector)
    if op_type == "Cast" and context.result.bytes_per_element == 1 and not wide:
        cycles, vector = c.FP8_CAST_CYCLES, 8
    passes = max(1, sum(value is not None for value in context.inputs) - 1)
    return context.spread("elementwise", passes * _pass(context.result, cycles, vector, context, start))


def _is_quarter_cast(context: Context) -> bool:
    """Whether it is a Cast from or to fp8, which alone has a scale. Not done at compile time: fp8 weights are
    to stay small."""
    return context.node.op_type == "Cast" and context.attribute("scale", None) is not None


def _cast(context: Context) -> Work:
    if _is_quarter_cast(context):
        return context.spread("elementwise", _pass(context.result, c.FP8_CAST_CYCLES, 8, context))
    return _elementwise(context)


def _softmax(context: Context) -> Work:
    width = context.source.bytes_per_element / 2
    elements = context.per_tile(context.source.size)
    temporary = 2 * context.bytes_per_tile(context.source)
    return context.spread(
        "softmax",
        c.SOFTMAX_CYCLES + elements * c.SOFTMAX_CYCLES_PER_HALF * width,
        steps=8,
        temporary=temporary,
    )


def _norm(context: Context) -> Work:
    width = context.source.bytes_per_element / 2
    elements = context.per_tile(context.source.size)
    temporary = 2 * context.bytes_per_tile(context.source)
    return context.spread(
        "norm", c.NORM_CYCLES + elements * c.NORM_CYCLES_PER_HALF * width, steps=6, temporary=temporary
    )


def _reduction(context: Context) -> Work:
    """One stage where every tile has results of its own to add up, else a second that adds up the tiles'
    partial results."""
    stages = 1 if context.result.size >= context.target.num_tiles else 2
    elements = context.per_tile(context.source.size)
    compute = stages * c.REDUCTION_CYCLES + elements * context.source.bytes_per_element / 8
    return context.spread("reduction", compute, steps=stages)


def _pool(context: Context) -> Work:
    taps = math.prod(context.attribute("kernel_shape", [1]))
    vectors = math.ceil(context.per_tile(context.result.size) / 4 / c.WORKERS)
    compute = (
        c.POOL_START
        + c.WORKERS * vectors * (5 + c.POOL_TAP_CYCLES * taps) * context.source.bytes_per_element / 2
    )
    return context.spread("pool", compute, context.bytes_per_tile(context.source) / _rate(context), steps=2)


def _move(context: Context) -> Work:
    """Data that only change their place: an exchange, and a copy on the tile in pieces that stay together."""
    moved = context.bytes_per_tile(context.result)
    atom = _atom(context)
    compute = c.REARRANGE_CYCLES + moved * c.REARRANGE_CYCLES_PER_BYTE[atom]
    work = context.spread("data movement", compute, moved / _rate(context), steps=1, temporary=moved)
    return replace(work, code_bytes=c.STEP_CODE_BYTES + _exchange_code_bytes(moved, atom))


def _exchange_code_bytes(moved: int, atom: int) -> int:
    """Of a tile, for sending and receiving what is moved in small pieces; 8 bytes that stay together mostly
    are whole rows."""
    return 2 * math.ceil(moved / c.MESSAGE_BYTES) * c.MESSAGE_CODE_BYTES if atom < 8 else 0


def _atom(context: Context) -> int:
    """Bytes that stay together: all of a row where the last dimension stays the last, else an element."""
    value = context.result
    if context.node.op_type != "Transpose":
        inner = (value.shape[-1] if value.shape else 1) * value.bytes_per_element
        return 8 if inner % 8 == 0 else 4 if inner % 4 == 0 else 2
    if context.fused_attention:
        return 8
    # Layouts of the chip keep blocks of channels together; without a fused attention even [0, 2, 1, 3] breaks
    # them (fitted on BERT-base with default options).
    return 4 if value.bytes_per_element > 2 else 2


def _gather(context: Context) -> Work:
    """Embedding lookup: the table is split over tiles, and copied so often that scanning the indices costs as
    much."""
    table, indices = context.inputs[0], context.inputs[1]
    if table is None or indices is None or context.node.input[1] in context.constants:
        return _move(context)
    tiles, rate = context.target.num_tiles, _rate(context)
    scan, broadcast = indices.size * c.GATHER_INDEX_CYCLES, table.bytes / tiles / rate
    copies = min(tiles, max(1, math.floor((scan / max(broadcast, 1)) ** 0.5)))
    row_bytes = context.result.bytes / max(1, indices.size)
    hits = math.ceil(indices.size / tiles)
    compute = c.WORKERS * 30 + scan / copies + hits * (c.GATHER_HIT_CYCLES + row_bytes / 4)
    exchange = (copies - 1) * broadcast + (
        context.bytes_per_tile(context.result) + indices.bytes / copies
    ) / rate
    return context.spread(
        "gather", compute, exchange, steps=3, temporary=math.ceil(copies * table.bytes / tiles)
    )


def _matmul(context: Context) -> Work:
    left, right = _two(context)
    groups = math.prod(right.shape[:-2])
    n = right.shape[-1] if len(right.shape) > 1 else 1
    rows = max(1, context.result.size // max(1, groups * n))
    work = _product(
        context,
        Product(max(1, groups), rows, max(1, left.shape[-1]), max(1, n), *_bytes(context, left, right)),
    )
    # Weights wait in the layout that the plan wants; of two activations both have to be brought into it.
    dynamic = [
        value
        for name, value in zip(context.node.input, (left, right), strict=False)
        if name not in context.constants
    ]
    if len(dynamic) < 2:
        return work
    atom = 2 if context.moved and not context.fused_attention else 8
    copied = sum(map(context.bytes_per_tile, dynamic))
    rearranged = math.ceil(copied * c.REARRANGE_CYCLES_PER_BYTE[atom])
    return replace(
        work,
        compute=work.compute + rearranged,
        temporary_bytes=work.temporary_bytes + copied,
        code_bytes=work.code_bytes + _exchange_code_bytes(copied, atom),
    )


def _gemm(context: Context) -> Work:
    left, right = _two(context)
    rows, n = context.result.shape
    product = Product(
        1, max(1, rows), max(1, left.size // max(1, rows)), max(1, n), *_bytes(context, left, right)
    )
    work = _product(context, product)
    return _with_bias(context, work)


def _conv(context: Context) -> Work:
    source, weights = _two(context)
    groups = context.attribute("group", 1)
    field = source if context.node.op_type == "ConvTranspose" else context.result
    rows = max(1, field.size // max(1, field.shape[1]))
    k, n = max(1, source.shape[1] // groups), max(1, context.result.shape[1] // groups)
    kernel = weights.shape[2:] or (1,)
    taps = math.prod(kernel)
    inputs_per_row, packed_bytes = 1.0 if taps == 1 else _halo(source, field, kernel), 0
    element, partial = _bytes(context, source, weights)
    if groups == 1 and k < 16 and kernel[0] > 1:
        # Few channels: 2 or 4 kernel rows are packed into the channels.
        packed = min(4 if 16 // k >= 4 else 2 if 16 // k >= 2 else 1, kernel[0])
        k, taps = k * packed, math.ceil(kernel[0] / packed) * math.prod(kernel[1:])
        positions = rows * source.shape[-1] // field.shape[-1]
        packed_bytes = positions * math.ceil(k * element / c.CHANNEL_BLOCK_BYTES) * c.CHANNEL_BLOCK_BYTES
    product = Product(
        groups, rows, k, n, element, partial, taps, field.shape[-1], inputs_per_row, True, packed_bytes
    )
    return _with_bias(
        context, _grouped(context, product, kernel) if groups > 1 and k <= 4 else _product(context, product)
    )


def _halo(source: Value, field: Value, kernel: Sequence[int]) -> float:
    positions = math.prod(source.shape[2:]) / max(1, math.prod(field.shape[2:]))
    return positions * (1 + 4 * (kernel[0] - 1) / max(1, source.shape[2]))


def _grouped(context: Context, product: Product, kernel: Sequence[int]) -> Work:
    """Groups of one to four channels: the fastest of the AMP units, which would be idle for the most part, of
    the SLIC vertex over blocks of 16 channels and, with one filter a channel, of the VMAC vertex (notes,
    section 3.1)."""
    narrow = _narrow_groups(context, product, kernel)
    wide = _product(context, product) if product.k > 1 else narrow
    return min(narrow, wide, key=lambda work: work.compute + work.exchange)


def _narrow_groups(context: Context, product: Product, kernel: Sequence[int]) -> Work:
    blocks = math.ceil(product.groups * max(product.k, product.n) / 16)
    tiles = max(1, context.target.num_tiles // blocks)
    rows = math.ceil(product.rows / min(tiles, product.rows))
    rounds = math.ceil(blocks / context.target.num_tiles)
    vmac = 2 * math.ceil(rows / c.WORKERS) * c.WORKERS * (25 + 3 * (math.prod(kernel) - 1))
    runs = math.ceil(rows / product.width / c.WORKERS)
    inner = max(1.0, product.inputs_per_row) ** 0.5
    worker = runs * (25 + inner * min(rows, product.width))
    sub_kernels = math.ceil(kernel[-1] / 4) * math.prod(kernel[:-1])
    passes = 1 if product.partial_bytes == 2 else 2
    slic = 150 + sub_kernels * passes * (50 + c.WORKERS * worker) + 8 * rows
    received = rounds * rows * product.inputs_per_row * 16 * product.element_bytes
    is_slic = slic <= vmac or product.k > 1
    compute = c.PLANNED_CYCLES + c.FIELD_CYCLES + rounds * (slic if is_slic else vmac)
    kind = "convolution SLIC" if is_slic else "convolution VMAC"
    macs = product.groups * product.rows * product.k * product.n * math.prod(kernel)
    used = min(context.target.num_tiles, blocks * tiles)
    exchange = math.ceil(received / _rate(context))
    return Work(kind, math.ceil(compute), exchange, 2, used, math.ceil(received), c.PRODUCT_CODE_BYTES, macs)


def _product(context: Context, product: Product) -> Work:
    """The planned product; activations that are wider than fp8 weights are cast first (PopRT puts a Cast
    before each)."""
    work = _planned(context, product)
    wide = [
        value
        for value in context.inputs[:2]
        if value is not None and value.bytes_per_element > product.element_bytes
    ]
    if product.element_bytes > 1 or not wide:
        return work
    cast = sum(_pass(value, c.FP8_CAST_CYCLES, 8, context) for value in wide)
    narrow = sum(context.per_tile(value.size) for value in wide)
    return replace(
        work,
        compute=work.compute + math.ceil(cast),
        steps=work.steps + len(wide),
        temporary_bytes=work.temporary_bytes + narrow,
        code_bytes=work.code_bytes + len(wide) * c.STEP_CODE_BYTES,
    )


def _planned(context: Context, product: Product) -> Work:
    plan = plan_product(product, context.target, context.settings)
    kind = "convolution" if "Conv" in context.node.op_type else "matmul"
    macs = product.groups * product.rows * product.k * product.n * product.taps
    memory = plan.copied_bytes, _product_code_bytes(plan)
    return Work(
        kind,
        plan.compute,
        plan.exchange,
        plan.steps,
        plan.tiles,
        *memory,
        macs,
        f"{plan.kind} {plan.splits}".strip(),
    )


def _product_code_bytes(plan: Plan) -> int:
    return c.PRODUCT_CODE_BYTES + 2 * plan.messages * c.MESSAGE_CODE_BYTES


def _with_bias(context: Context, work: Work) -> Work:
    """A bias is a vector that is added afterwards, in a step of its own."""
    if len(context.inputs) < 3 or context.inputs[2] is None:
        return work
    half, half_vector, single, single_vector = _BROADCAST
    cycles, vector = (single, single_vector) if context.result.bytes_per_element > 2 else (half, half_vector)
    bias = _pass(context.result, cycles, vector, context, 28)
    return replace(work, compute=work.compute + math.ceil(bias), steps=work.steps + 1)


def _recurrent(context: Context) -> Work:
    """LSTM, GRU and RNN: for each step of the sequence a product of input and state, and the gates;
    directions follow.

    A GRU has two products: its candidate needs the gates' result. As in poplin's fully connected layers the
    weights are the field that streams past, and the batch its output channels. A step's input is sliced out,
    its output written back.
    """
    source, weights = _two(context)
    length, batch, width = source.shape
    directions, gate_rows, _ = weights.shape
    hidden = context.attribute("hidden_size", gate_rows // 4)
    columns = (2 * hidden, hidden) if context.node.op_type == "GRU" else (gate_rows,)
    element, partial = _bytes(context, source, weights)
    products = [Product(1, n, width + hidden, batch, element, partial, convolution=True) for n in columns]
    plans = [plan_product(product, context.target, context.settings) for product in products]
    gates = Value((batch, gate_rows), source.bytes_per_element)
    cycles = 4 * _pass(gates, 5, 4 if source.bytes_per_element == 2 else 2, context)
    cycles += sum(plan.compute for plan in plans) + 2 * c.WORKERS * c.SERIAL_SLICE_CYCLES
    steps = length * directions
    widest = max(plans, key=lambda plan: plan.copied_bytes)
    return Work(
        "recurrent",
        math.ceil(steps * cycles),
        steps * sum(plan.exchange for plan in plans),
        steps * (sum(plan.steps for plan in plans) + 4),
        max(plan.tiles for plan in plans),
        widest.copied_bytes,
        sum(map(_product_code_bytes, plans)),
        steps * batch * (width + hidden) * gate_rows,
        widest.splits,
    )


def _two(context: Context) -> tuple[Value, Value]:
    first, second = context.inputs[0], context.inputs[1]
    if first is None or second is None:
        raise CompileError(
            f"node {context.node.name!r} ({context.node.op_type}): expected two inputs, found one; give both"
        )
    return first, second


def _bytes(context: Context, left: Value, right: Value) -> tuple[int, int]:
    """Bytes of an element, which is as narrow as the narrower operand, and of a partial sum."""
    element = min(4, left.bytes_per_element, right.bytes_per_element)
    return element, 2 if element == 1 or (element == 2 and context.half_partials) else 4


_FORMULAS: Mapping[str, Callable[[Context], Work]] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    "Cast": _cast,
    **dict.fromkeys("Softmax LogSoftmax Hardmax".split(), _softmax),
    **dict.fromkeys(
        "LayerNormalization GroupNormalization InstanceNormalization BatchNormalization RMSNormalization "
        "MeanVarianceNormalization LpNormalization LRN".split(),
        _norm,
    ),
    **dict.fromkeys(
        "ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum "
        "ReduceLogSumExp ReduceSumSquare "
        "ArgMax ArgMin GlobalAveragePool GlobalMaxPool GlobalLpPool CumSum".split(),
        _reduction,
    ),
    **dict.fromkeys("MaxPool AveragePool LpPool".split(), _pool),
    **dict.fromkeys(
        "Concat Slice Split Transpose Expand Tile Pad Resize Upsample DepthToSpace SpaceToDepth Trilu "
        "ReverseSequence Range "
        "OneHot EyeLike Compress".split(),
        _move,
    ),
    **dict.fromkeys("Gather GatherElements GatherND ScatterElements ScatterND Scatter".split(), _gather),
    "MatMul": _matmul,
    "Gemm": _gemm,
    **dict.fromkeys("Conv ConvTranspose".split(), _conv),
    **dict.fromkeys("LSTM GRU RNN".split(), _recurrent),
}
