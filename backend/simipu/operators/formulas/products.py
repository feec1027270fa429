"""Costs of products: matmuls, convolutions and recurrent networks, which `plan` splits over the
tiles, and `narrow` those with groups of few channels (section 3)."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations

from onnx import helper
from onnxgraph import TensorSize

from simipu.chip.target import FLOAT_BYTES, HALF_BYTES, Target
from simipu.operators.formulas import vertices as v
from simipu.operators.formulas.code import (
    FIELD,
    NO_CODE,
    PRODUCT,
    SLIC_CODE,
    VMAC_CODE,
    Code,
    code_of,
)
from simipu.operators.formulas.elementwise import ADDED, quarter_cast_cycles
from simipu.operators.formulas.layout import BLOCK, WHOLE_ATOM_BYTES, Layout, operand_atom
from simipu.operators.formulas.narrow import MAX_CHANNELS, Narrow, plan_narrow
from simipu.operators.formulas.plan import Plan, Product, plan_product
from simipu.operators.formulas.work import Context, Layer, Work

MAX_RECEIVERS = 7
"""Maximum number of tiles that receive an operand without a copy; for more tiles it is first copied
into the plan's layout, once (Convolution.cpp, convolutionPreprocess; section 3.6)."""
FEW_CHANNELS, PACKED_ROWS = 16, (4, 2, 1)
"""Input channels of a block of halves, and the numbers of kernel rows that poplin packs. If there
are fewer channels, it packs the largest of these numbers that fits into a block (ConvPlan.cpp;
section 3.2)."""
FIELD_PARTS = 4
"""Assumed number of parts into which a field's height is split; each needs the kernel's rows beyond
its own. Poplin's planner chooses it for each convolution (section 3.1)."""
_GATES = 4
"""Passes over all gates of a recurrent step: activations, products and sums of them. Assumed
(section 7.1)."""
_GATE_HALF, _GATE_FLOAT = v.InnerLoop(5, 4), v.InnerLoop(5, 2)
_PARTS_OF_A_STEP = 2
"""Slices of a recurrent step: its input, which is sliced out, and its output, which is written
back."""


Formula = Callable[[Context], Work]


def matmul(context: Context) -> Work:
    """Return the cost of MatMul. Batch dimensions that both operands have are groups; those of only
    one are more rows, or columns.

    Weights already have the layout that the plan needs. Two activations both have to be brought
    into it, in small pieces if a Transpose has just fragmented their layout.
    """
    left, right = context.operands
    groups, rows, n = _matrices(left.shape, right.shape)
    widths = find_widths(context, left, right)
    work = _cast_and_planned(
        context, with_stored(context, Product(groups, rows, max(1, left.shape[-1]), n, *widths))
    )
    if not any(context.is_constant(i) for i in range(2)):
        is_token = min(rows, n) == 1
        work = replace(work, layer=Layer.ATTENTION_STEP if is_token else Layer.ATTENTION)
    return with_dynamic_operands(context, work)


def _matrices(left: Sequence[int], right: Sequence[int]) -> tuple[int, int, int]:
    """Return groups, rows and columns of a matmul of operands of those shapes; a vector is one row
    or column."""
    # [8, 12, 64, 32] x [12, 32, 16]: 12 is in both, so 12 groups; 8 only in the left operand, so
    # 8 * 64 rows for each group. A dimension of one counts as missing: the smaller size of a pair.
    heads = zip(reversed(left[:-2]), reversed(right[:-2]), strict=False)
    groups = max(1, math.prod(min(pair) for pair in heads))
    columns = math.prod(right[:-2]) * (right[-1] if len(right) > 1 else 1)
    return groups, max(1, math.prod(left[:-1]) // groups), max(1, columns // groups)


def with_stored(context: Context, product: Product) -> Product:
    """Return the product with the weights as its columns, if one of the operands is constant,
    whichever it is."""
    if _has_weights_first(context):
        product = replace(product, rows=product.n, n=product.rows)
    return replace(product, stored=any(context.is_constant(i) for i in range(2)))


def _has_weights_first(context: Context) -> bool:
    """Return whether the first operand of a product is constant, and the second is not."""
    return [context.is_constant(i) for i in range(2)] == [True, False]


def with_dynamic_operands(context: Context, work: Work, axes: tuple[int, int] = (-1, -2)) -> Work:
    """Add the cost of bringing activations into the layout of a plan; weights already have it.

    Two activations are each brought there by a copy of their own. A single one is received in
    place, unless the elements to sum do not lie in whole blocks. `axes` are those of the sums.
    """
    sizes = [
        (value, operand_atom(value, context.layout(i), axes[i]), context.layout(i))
        for i, value in enumerate(context.operands)
        if context.layout(i) is not None and not context.is_constant(i)
    ]
    # Two activations, or one for more than MAX_RECEIVERS tiles, are always brought into the plan's
    # layout; else only what lies in pieces shorter than a whole atom (section 3.6).
    is_dynamic = not any(context.is_constant(i) for i in range(len(context.operands)))
    if not is_dynamic and work.broadcasts <= MAX_RECEIVERS:
        sizes = [pair for pair in sizes if pair[1] < WHOLE_ATOM_BYTES]
    copied, cycles = 0, 0.0
    for value, atom, layout in sizes:
        size = context.fullest(value.size, layout) * value.bytes_per_element
        copied += size
        cycles += size * v.REARRANGE_CYCLES_PER_BYTE[atom]
    code = NO_CODE.rearranging(copied)
    return work.plus(cycles, context.exchange_cycles(copied), steps=len(sizes), code=code)


def gemm(context: Context) -> Work:
    """Return the cost of Gemm. Transposed operands cost nothing: they are weights, or their makers
    lay them out that way."""
    left, right = context.operands
    rows, n = (max(1, size) for size in context.result.shape)
    # The left operand is [rows, k] or [k, rows]: in either case k is its size over the rows.
    product = Product(1, rows, max(1, left.size // rows), n, *find_widths(context, left, right))
    work = _cast_and_planned(context, with_stored(context, product))
    left_axis = -2 if context.attribute("transA", 0) else -1
    right_axis = -1 if context.attribute("transB", 0) else -2
    return _with_bias(context, with_dynamic_operands(context, work, (left_axis, right_axis)))


def convolution(context: Context) -> Work:
    """Return the cost of a convolution: that of the cheapest way to compute it. The rows of the
    product are the positions of the result or, for a transposed convolution, of its input."""
    source, weights = context.operands
    kernel = tuple(weights.shape[2:]) or (1,)
    field = source if context.node.op_type == "ConvTranspose" else context.result
    product = _convolution(context, source, weights, field)
    ways = [_cast_and_planned(context, variant) for variant in _iter_combined(product)]
    if product.groups > 1 and max(product.k, product.n) <= MAX_CHANNELS:
        ways += _iter_narrow(context, product, kernel)
    if context.node.op_type == "Conv":
        sizes = find_sizes(source.shape[2:], field.shape[2:], kernel)
        ways += [
            _cast_and_planned(context, variant)
            for variant in iter_expanded(
                product, source.shape[1] // product.groups, sizes, context.target
            )
        ]
    if _is_patched(context, kernel):
        ways.append(_patched(context, source, weights))
    step = context.calibration.step_cycles(context.target)

    # Ways that fit come first, by cycles; ways that do not, by memory.
    def objective(work: Work) -> tuple[bool, float]:
        cycles = work.compute + work.exchange + work.steps * step
        return not work.fits, cycles if work.fits else work.temporary_bytes

    # Packed and combined ways also multiply zeros.
    best = replace(
        min(ways, key=objective),
        macs=product.rows * weights.size,
        layer=_layer_of(product.groups, source, kernel),
    )
    return _with_bias(context, best)


_WIDE_KERNEL = 16
"""Positions from which a kernel that is as wide as its input is one over words: a vector of fewer
numbers is none."""


def _layer_of(groups: int, source: TensorSize, kernel: Sequence[int]) -> str:
    if groups > 1:
        return Layer.GROUPED_CONVOLUTION
    if math.prod(kernel) == 1:
        return Layer.CONVOLUTION
    if kernel[-1] >= _WIDE_KERNEL and len(kernel) > 1 and kernel[-1] == source.shape[-1]:
        return Layer.TEXT_CONVOLUTION
    over_time = sum(size > 1 for size in source.shape[2:]) == 1
    return Layer.CONVOLUTION_OVER_TIME if over_time else Layer.CONVOLUTION


def _iter_combined(product: Product) -> Iterator[Product]:
    """Yield the product and, if it has groups, with as many of them as fill a block of channels
    combined, and all of them: the weights between groups are zero (ConvPlan.cpp,
    getCombineConvGroupCandidates)."""
    yield product
    if product.groups > 1:
        factors = {FEW_CHANNELS // product.k} if product.k < FEW_CHANNELS else set()
        for factor in {*factors, product.groups}:
            yield replace(
                product,
                groups=math.ceil(product.groups / factor),
                k=product.k * factor,
                n=product.n * factor,
            )


Sizes = Sequence[tuple[int, int, int]]
"""Sizes of the source, of the result and of the kernel in each dimension of a field."""


def iter_expanded(
    product: Product, channels: int, sizes: Sizes, target: Target
) -> Iterator[Product]:
    """Yield a convolution of `channels` input channels with some of the kernel's dimensions
    expanded into them.

    Poplin's planner tries every subset of the dimensions (ConvPlan.cpp, getExpandDimsCandidates):
    a kernel of 3 x 300 over one channel is 300 channels and three positions, or 900 channels and
    one. The input is copied with as many channels, which the planner charges (section 3.6).
    """
    # An expanded dimension has the result's positions, one for each row of the product; others
    # have the source's. Poplin skips dimensions whose kernel exceeds the input.
    wide = [i for i, (size, _, taps) in enumerate(sizes) if 1 < taps <= size]
    for count in range(1, len(wide) + 1):
        for chosen in combinations(wide, count):
            axes = [axis for i, axis in enumerate(sizes) if i not in chosen]
            expanded = math.prod(sizes[i][2] for i in chosen)
            k = channels * expanded
            taps = math.prod(axis[2] for axis in axes)
            positions = product.rows * math.prod(axis[0] / max(1, axis[1]) for axis in axes)
            block = target.channel_block_bytes
            padded = math.ceil(k * product.element_bytes / block) * block
            yield replace(
                product,
                k=k,
                taps=taps,
                inputs_per_row=_halo(axes) if taps > 1 else 1.0,
                convolution=taps > 1,
                packed_bytes=math.ceil(product.groups * positions * padded),
                expanded=expanded,
            )


def _is_patched(context: Context, kernel: Sequence[int]) -> bool:
    """Return whether every input position is in one patch: the stride equals the kernel, and
    nothing is padded."""
    if context.node.op_type != "Conv" or math.prod(kernel) == 1:
        return False
    return (
        context.attribute("group", 1) == 1
        and tuple(context.attribute("strides", [])) == tuple(kernel)
        and not any(context.attribute("pads", []))
        and context.attribute("auto_pad", b"NOTSET") == b"NOTSET"
        and set(context.attribute("dilations", [1])) == {1}
    )


def _patched(context: Context, source: TensorSize, weights: TensorSize) -> Work:
    """Return the cost of a product of patches: poplin expands the kernel's positions into the input
    channels. Input from the host already lies that way; activations are rearranged, in parts of a
    patch's row that are as long as possible."""
    element, partial = find_widths(context, source, weights)
    k, n = math.prod(weights.shape[1:]), weights.shape[0]
    # A patch of channels x kernel is a row of the product, a filter one of its columns. Of a
    # patch, the elements of a kernel's row are neighbours in the source: that is the atom.
    rows = max(1, context.result.size // max(1, n))
    work = _cast_and_planned(
        context, Product(1, rows, k, n, element, partial, stored=context.is_constant(1))
    )
    if context.layout(0) is None:
        return work
    moved = context.bytes_per_tile(source)
    grain = math.gcd(weights.shape[-1] * source.bytes_per_element, WHOLE_ATOM_BYTES)
    atom = grain if grain in v.REARRANGE_CYCLES_PER_BYTE else HALF_BYTES
    cycles, code = moved * v.REARRANGE_CYCLES_PER_BYTE[atom], NO_CODE.rearranging(moved)
    return work.plus(cycles, context.exchange_cycles(moved), 1, moved, code)


def _convolution(
    context: Context, source: TensorSize, weights: TensorSize, field: TensorSize
) -> Product:
    groups = context.attribute("group", 1)
    kernel = tuple(weights.shape[2:]) or (1,)
    taps = math.prod(kernel)
    k, n = max(1, source.shape[1] // groups), max(1, context.result.shape[1] // groups)
    element, partial = find_widths(context, source, weights)
    sizes = find_sizes(source.shape[2:], field.shape[2:], kernel)
    product = Product(
        groups,
        max(1, field.size // max(1, field.shape[1])),
        k,
        n,
        element,
        partial,
        taps,
        field.shape[-1],
        1.0 if taps == 1 else _halo(sizes),
        # A kernel of one position is a product, with the same vertices.
        convolution=taps > 1,
        field=True,
    )
    if groups > 1 or k >= FEW_CHANNELS or kernel[0] == 1:
        return product
    # poplin packs kernel rows into the channels: 3 channels and a kernel of 7 x 7 become 4 * 3 = 12
    # channels and a kernel of ceil(7 / 4) x 7. Rows of the input are in several packed rows, so
    # that it is copied: a block of channels for each position (section 3.2). There are as many
    # packed rows as output rows, each as wide as the input.
    packed = min(next(rows for rows in PACKED_ROWS if rows <= FEW_CHANNELS // k), kernel[0])
    block = context.target.channel_block_bytes
    positions = product.rows * source.shape[-1] // field.shape[-1]
    return replace(
        product,
        k=k * packed,
        taps=math.ceil(kernel[0] / packed) * math.prod(kernel[1:]),
        packed_bytes=positions * math.ceil(k * packed * element / block) * block,
    )


def _halo(sizes: Sizes) -> float:
    """Return the input positions for each output position: strides, and the kernel rows beyond a
    tile's part."""
    # A field of height H in FIELD_PARTS parts: each part reads kernel - 1 rows that belong to its
    # neighbours, together FIELD_PARTS * (kernel - 1) / H of the field.
    positions = math.prod(size[0] for size in sizes) / max(1, math.prod(size[1] for size in sizes))
    height, _, rows = sizes[0]
    return positions * (1 + FIELD_PARTS * (rows - 1) / max(1, height))


def find_sizes(source: Sequence[int], field: Sequence[int], kernel: Sequence[int]) -> Sizes:
    """Return the sizes of each dimension of a convolution's field."""
    return list(zip(source, field, kernel, strict=False))


def _iter_narrow(context: Context, product: Product, kernel: Sequence[int]) -> Iterator[Work]:
    """Yield the cost of the SLIC or VMAC vertex, if one of them can compute the groups."""
    strides = [1, *context.attribute("strides", [1] * len(kernel))]
    dilations = context.attribute("dilations", [1])
    narrow = Narrow(
        product.groups,
        max(product.k, product.n),
        max(1, product.rows // product.width),
        product.width,
        math.prod(kernel[:-1]),
        kernel[-1],
        strides[-2],
        strides[-1],
        product.element_bytes,
        product.partial_bytes,
        depthwise=product.k == product.n == 1,
        is_dilated=max(dilations) > 1 or context.node.op_type != "Conv",
    )
    target = context.target
    plan = plan_narrow(narrow, target, context.calibration.planning)
    if plan is None:
        return
    even = max(1, context.result.size) / target.num_tiles
    yield Work(
        f"convolution {plan.kind}",
        compute=plan.compute,
        exchange=plan.exchange,
        steps=plan.steps,
        tiles=plan.tiles,
        layout=_blocks_of_channels(context, narrow, plan.result_elements / even, 1),
        temporary_bytes=plan.received_bytes,
        code=(SLIC_CODE if plan.kind == "SLIC" else VMAC_CODE).rearranging(plan.received_bytes),
        macs=product.macs,
        fits=plan.received_bytes <= context.plan_options.limit_bytes(target),
    )


def _cast_and_planned(context: Context, product: Product) -> Work:
    """Return the cost of the planned product. Activations that are wider than fp8 weights are cast
    first (PopRT puts a Cast before each)."""
    work = planned(context, product)
    wide = [
        value
        for value in context.inputs[:2]
        if value is not None and value.bytes_per_element > product.element_bytes
    ]
    if not product.is_quarter or not wide:
        return work
    # Each cast is a superstep of its own. Its result, of a byte an element, exists beside the
    # operand, unless that dies here: then the copy takes its place (section 8.1).
    work = work.plus(
        sum(quarter_cast_cycles(value, context) for value in wide),
        steps=len(wide),
        temporary_bytes=sum(context.per_tile(value.size) for value in wide),
        code=code_of("elementwise", "cast to fp8", len(wide)),
    )
    return replace(work, replaced_bytes=sum(map(context.bytes_per_tile, wide)))


def _plan(context: Context, product: Product) -> Plan:
    planning = context.calibration.planning
    return plan_product(product, context.target, context.plan_options, planning)


def planned(context: Context, product: Product) -> Work:
    """Return the cost of a product whose operands have the layout and type that its plan needs."""
    plan = _plan(context, product)
    is_exchanged = _is_exchanged(context, product)
    receivers = plan.receivers[::-1] if is_exchanged else plan.receivers
    # An operand for many tiles is first brought into the plan's layout, once.
    rearranged = sum(
        context.bytes_per_tile(value)
        for i, (value, tiles) in enumerate(zip(context.inputs[:2], receivers, strict=False))
        if value is not None and context.layout(i) is not None and tiles > MAX_RECEIVERS
    )
    identity = (_order_of(context), plan.result, plan.swapped != is_exchanged)
    imbalance = plan.result_elements * context.target.num_tiles / max(1, context.result.size)
    expanded = f"expanded {product.expanded}" if product.expanded > 1 else ""
    return Work(
        "convolution" if "Conv" in context.node.op_type else "matmul",
        compute=plan.compute,
        exchange=plan.exchange,
        steps=plan.steps,
        tiles=plan.tiles,
        temporary_bytes=_copied_bytes(plan, product, context) + rearranged,
        replaced_bytes=rearranged,
        code=_code(plan, product),
        macs=product.macs,
        plan=" ".join(filter(None, [expanded, plan.kind, plan.splits])),
        layout=replace(
            _blocks_of_channels(context, identity, imbalance, receivers[0]), spread=plan.result
        ),
        broadcasts=plan.receivers[0],
        receivers=plan.receivers,
        weights=plan.columns,
        fits=plan.fits,
        busy_workers=context.busy_workers(0 if plan.kind else plan.rows),
    )


def _is_exchanged(context: Context, product: Product) -> bool:
    """Return whether the rows of a product are those of the second operand (`with_stored`)."""
    return product.stored and not product.field and _has_weights_first(context)


def _order_of(context: Context) -> Hashable:
    """Return what decides, beside the plan, which element of the result has which index."""
    # A convolution's result is [images, channels, positions]. A matmul's groups, rows and columns
    # may be any dimensions: which ones, the other dimensions of the operands say, or the equation.
    if "Conv" in context.node.op_type:
        return "field"
    shapes = [value.shape[:-2] for value in context.inputs[:2] if value is not None]
    return (context.attribute("equation", b""), *shapes)


def _copied_bytes(plan: Plan, product: Product, context: Context) -> int:
    """Return the bytes of copies. Weights are already where they are read, and so are rows that a
    product left whole where the next one reads them, such as the scores of attention (section
    8.1)."""
    # Whole: pieces lie along the summed dimension, are multiples of a block of channels, and are
    # on as many tiles as the plan splits the sums over.
    place, axis = (1, -2) if _is_exchanged(context, product) else (0, -1)
    rows, value = context.layout(place), context.inputs[place]
    stored = product.stored or (product.field and context.is_constant(1))
    all_bytes = (
        rows is not None
        and value is not None
        and rows.axis == len(value.shape) + axis
        and rows.grain % BLOCK == 0
        and rows.row_parts == plan.k_parts
    )
    return plan.copied_bytes(stay=(all_bytes and not product.field, stored))


def _blocks_of_channels(
    context: Context, identity: Hashable, imbalance: float, row_parts: int
) -> Layout:
    """Return a layout of blocks of output channels, which are spread over `row_parts` tiles."""
    # [channels / 16][rows][16]: pieces of 16 along the channels, axis 1 of a convolution and the
    # last of a matmul. A shorter last piece limits what can be moved together (section 3.6).
    value = context.result
    rank = len(value.shape)
    axis = 1 if "Conv" in context.node.op_type and rank > 1 else max(0, rank - 1)
    length = max(1, value.shape[axis]) if value.shape else 1
    return Layout(
        identity,
        axis,
        min(BLOCK, length),
        math.gcd(BLOCK, length),
        max(1.0, imbalance),
        max(1, min(row_parts, math.ceil(length / BLOCK))),
    )


def _code(plan: Plan, product: Product) -> Code:
    """Return the code of its vertices, and of the exchange of what a tile receives."""
    return (FIELD if product.taps > 1 else PRODUCT).with_messages(plan.messages)


def _with_bias(context: Context, work: Work) -> Work:
    """Add the cost of a bias: a vector that is added afterwards, in a step of its own, as by Add.
    poplin::addBias is not part of the product's vertex."""
    bias = context.inputs[2] if context.has(2) else None
    if bias is None:
        return work
    # A convolution's bias [channels] has a value for each channel, axis 1 of the result.
    if "Conv" in context.node.op_type:
        bias = replace(bias, shape=(bias.size, *[1] * (len(context.result.shape) - 2)))
    node = helper.make_node("Add", [context.node.output[0], context.node.input[2]], ["biased"])
    inputs, layouts = [context.result, bias], [work.layout, None]
    added = ADDED(replace(context, node=node, inputs=inputs, layouts=layouts))
    code = code_of("elementwise", "bias", 1)
    work = replace(work, local_steps=work.local_steps + added.local_steps)
    return work.plus(added.compute, added.exchange, added.steps, code=code)


def recurrent(context: Context) -> Work:
    """Return the cost of LSTM, GRU and RNN: for each step of the sequence a product of input and
    state, and the gates; directions follow one another.

    A GRU has two products, because its candidate needs the gates' result. As in poplin's fully
    connected layers the weights are the field that streams past, and the batch is its output
    channels. A step's input is sliced out, its output written back.
    """
    source, weights = context.operands
    length, batch, width = source.shape
    directions, gate_rows, _ = weights.shape
    hidden = context.attribute("hidden_size", gate_rows // 4)
    # gate_rows = gates * hidden: LSTM 4, GRU 3, RNN 1. Input and state lie side by side, so that
    # one product of width + hidden channels replaces two. Of a GRU the update and reset gates are
    # the first product, the candidate the second.
    columns = (2 * hidden, hidden) if context.node.op_type == "GRU" else (gate_rows,)
    element, partial = find_widths(context, source, weights)
    products = [
        Product(1, n, width + hidden, batch, element, partial, convolution=True) for n in columns
    ]
    plans = [_plan(context, product) for product in products]
    gates = TensorSize((batch, gate_rows), source.bytes_per_element)
    loop = _GATE_HALF if source.bytes_per_element == HALF_BYTES else _GATE_FLOAT
    cycles = _GATES * context.pass_over(gates, loop) + sum(plan.compute for plan in plans)
    cycles += _PARTS_OF_A_STEP * context.target.workers_per_tile * v.SLICE_WORKER
    steps = length * directions
    widest = max(plans, key=lambda plan: plan.copied_bytes())
    return Work(
        "recurrent",
        compute=math.ceil(steps * cycles),
        exchange=steps * sum(plan.exchange for plan in plans),
        steps=steps * (sum(plan.steps for plan in plans) + _GATES),
        tiles=max(plan.tiles for plan in plans),
        temporary_bytes=widest.copied_bytes(),
        code=sum(map(_code, plans, products), code_of("elementwise", "gates", _GATES)),
        macs=steps * batch * (width + hidden) * gate_rows,
        plan=widest.splits,
    )


def find_widths(context: Context, left: TensorSize, right: TensorSize) -> tuple[int, int]:
    """Return the bytes of an element, the narrower operand's, and of a partial sum: quarters have
    half partials only."""
    element = min(FLOAT_BYTES, left.bytes_per_element, right.bytes_per_element)
    halves = element < HALF_BYTES or (element == HALF_BYTES and context.half_partials)
    return element, HALF_BYTES if halves else FLOAT_BYTES
