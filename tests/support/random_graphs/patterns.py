"""Graphs around the patterns of ONNX Runtime's optimisers: what one looks for, with other axes, ranks,
operands and constants, results that others read too, and operands that only look alike.

A family is named after its optimiser. It adds nodes to a drawing; `fusions` judges the graphs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from random_graphs.drawing import Drawing, Tensor, round_to_half

Family = Callable[[Drawing], None]
_AXES_AS_INPUT = {"ReduceMean": 18, "ReduceSum": 13, "ReduceMax": 18, "ReduceSumSquare": 18}
_FLOATS = ("float32",) * 6 + ("float64",)
ACTIVATIONS = (
    "Relu LeakyRelu Sigmoid Tanh HardSigmoid Softplus Softsign Elu ThresholdedRelu".split()
)


def make(d: Drawing, value: npt.ArrayLike, kind: str = "float32", role: str = "") -> str:
    """Return a tensor with a value: most often an initializer, else a result, or an input."""
    array = np.asarray(value).astype(kind)
    how = role or d.choice(["constant"] * 18 + ["computed", "given"])
    if how == "given" and len(d.inputs) < d.max_inputs:
        name = f"{d.prefix}x{len(d.inputs)}"
        d.inputs.append(name)
        d.tensors[name] = Tensor(array, round_to_half(array))
        return name
    name = d.constant(array)
    return d.add("Identity", name) if how == "computed" else name


def source(d: Drawing, low: int = 1, high: int = 4, kind: str = "") -> str:
    """Return a new input of `low` to `high` axes, with coinciding sizes, or a result of one."""
    chosen = kind or d.choice(_FLOATS)
    shape = d.shape(d.integer(low, high))
    name = make(d, d.numbers(shape, chosen), chosen, "given")
    return d.add("Neg", name) if d.chance(0.2) else name


def swap(d: Drawing, op_type: str, one: str, other: str, chance: float = 0.5) -> str:
    """Add an operator of two operands, in one of both orders."""
    return d.add(op_type, *((other, one) if d.chance(chance) else (one, other)))


def square(d: Drawing, x: str) -> str:
    """Add a square, in one of its spellings, or another power."""
    kind = d[x].kind
    if d.chance(0.1):
        return d.add("Mul", x, x)
    exponent = d.choice([2] * 12 + [3, 1, 4])
    return d.add("Pow", x, make(d, np.full(d.choice([(), (), (1,), (1, 1)]), exponent), kind))


def reduce(
    d: Drawing, op_type: str, x: str, axes: Sequence[int] | None, keepdims: int | None
) -> str:
    """Add a reduction, with axes as its opset takes them."""
    if axes is None or d.opset < _AXES_AS_INPUT[op_type]:
        return d.add(op_type, x, axes=axes, keepdims=keepdims)
    return d.add(op_type, x, make(d, axes, "int64", "constant"), keepdims=keepdims)


def last_axes(d: Drawing, x: str) -> list[int]:
    """Return axes of a norm: most often the last one, or the last ones, else any."""
    rank = d[x].value.ndim
    if d.chance(0.9):
        count = d.integer(1, rank) if d.chance(0.15) else 1
        axes = list(range(rank - count, rank))
        return [axis - rank for axis in axes] if d.chance(0.5) else axes
    return [int(axis) for axis in d.rng.permutation(rank)[: d.integer(1, rank)]]


def weight(d: Drawing, x: str, count: int = 1) -> npt.NDArray[np.float64]:
    """Return a scale of the last axes, or of another shape that broadcasts, which may widen x."""
    shape = d[x].shape
    chosen = d.choice(
        [shape[-count:]] * 18
        + [(), (1,), shape, (1, *shape), (d.dimension(), *shape), shape[-2:], shape[:1], (1,) * 5]
        + [(*shape[:-1], 1), (d.dimension(), *(1 for _ in shape))]
    )
    values: npt.NDArray[np.float64] = np.asarray(d.numbers(chosen), np.float64)
    return values


def normalise(d: Drawing, x: str, *, centres: bool = True) -> str:
    """Add a norm that is written as operators, and return its result."""
    kind, axes = d[x].kind, last_axes(d, x)
    keepdims = d.choice([1] * 5 + [0, 0, None])
    reduced = d.choice(["ReduceMean"] * 24 + ["ReduceMax"])
    centred = x
    if centres:
        mean = reduce(d, reduced, x, axes, keepdims)
        centred = swap(d, "Sub", x, mean, 0.1)
        if d.chance(0.15):
            centred = d.add("Cast", centred, to=11 if kind == "float64" else 1)
    others = axes if d.chance(0.95) else last_axes(d, x)
    again = swap(d, "Sub", x, mean, 0.1) if centres and d.chance(0.15) else centred
    variance = reduce(d, "ReduceMean", square(d, again), others, keepdims)
    epsilon = d.choice([1e-5, 1e-3, 0.5, 0.0, -0.01])
    safe = swap(d, "Add", variance, make(d, np.full(d.choice([(), (), (1,)]), epsilon), kind))
    root = d.add("Sqrt", safe) if d.chance(0.93) else d.add("Pow", safe, make(d, 0.5, kind))
    if d.chance(0.93):
        normal = swap(d, "Div", centred if d.chance(0.95) else x, root, 0.05)
    else:
        normal = swap(d, "Mul", centred, d.add("Reciprocal", root))
    if d.chance(0.1):
        normal = d.add("Cast", normal, to=11 if kind == "float64" else 1)
    scaled = swap(d, "Mul", normal, make(d, weight(d, x, len(axes)), kind))
    if d.chance(0.7 if centres else 0.1):
        scaled = swap(d, "Add", scaled, make(d, weight(d, x, len(axes)), kind))
    return scaled


def layer_norm(d: Drawing) -> None:
    """LayerNormFusion: mean, difference, variance, root, quotient, scale, and a bias."""
    normalise(d, source(d))


def simplified_layer_norm(d: Drawing) -> None:
    """SimplifiedLayerNormFusion: a norm without a mean and bias."""
    normalise(d, source(d), centres=False)


def skip_norm(d: Drawing) -> None:
    """SkipLayerNormFusion: a norm of one or two sums."""
    d.output_chance = 0.03
    x = source(d, 3, 3, "float32") if d.chance(0.6) else source(d, 1, 4)
    kind, rank = d[x].kind, d[x].value.ndim
    total = x
    if d.chance(0.3) and rank > 1:
        total = d.add("MatMul", x, make(d, d.numbers((d[x].shape[-1],) * 2), kind, "constant"))
        total = swap(d, "Add", total, make(d, d.numbers(d[x].shape[-1:]), kind, "constant"))
    for _ in range(d.choice([1, 1, 1, 2])):
        same = d.numbers(d[x].shape) if d.chance(0.85) else weight(d, x)
        total = swap(d, "Add", total, make(d, same, kind, d.choice(["given", "constant"])))
    if d.chance(0.5) and d.has("LayerNormalization") and kind == "float32":
        axis = d.choice([-1] * 6 + [d.axis(rank)])
        shape = d[total].shape[axis if axis >= 0 else len(d[total].shape) + axis :]
        scales = [make(d, d.numbers(shape), kind) for _ in range(d.integer(1, 2))]
        result = d.add("LayerNormalization", total, *scales, axis=axis, epsilon=1e-3)
    else:
        result = normalise(d, total)
    if d.chance(0.3):
        swap(d, "Add", result, total)


def biased_norm(d: Drawing) -> None:
    """BiasSkipLayerNormFusion: a norm of a product, a bias and a residual. A product with a matrix
    for each row of the batch becomes no Gemm with the bias."""
    d.opset, d.output_chance = d.choice([17, 18, 20, 21]), 0.02
    batch, steps, inner, size = d.size, d.dimension(), d.dimension(), d.choice([2, 4])
    x = make(d, d.numbers((batch, steps, inner)), role="given")
    columns = d.choice([size, size, size, 1])
    product = d.add("MatMul", x, make(d, d.numbers((batch, inner, columns)), role="constant"))
    if d.chance(0.1):
        product = d.add("Cast", product, to=1)
    shape = d.choice([(size,)] * 8 + [(1,), (1, 1, size), (batch, 1, size)])
    total = swap(d, "Add", product, make(d, d.numbers(shape), role="constant"), 0.8)
    for _ in range(d.choice([1, 1, 1, 2])):
        total = swap(d, "Add", total, make(d, d.numbers((batch, steps, size)), role="given"))
    weights = [make(d, d.numbers((d[total].shape[-1],))) for _ in range(d.integer(1, 2))]
    normal = d.add("LayerNormalization", total, *weights, axis=-1, epsilon=1e-3)
    if d.chance(0.3):
        swap(d, "Add", normal, d.choice([total, product]))


def gelu(d: Drawing) -> None:
    """GeluFusion and BiasGeluFusion: x / sqrt(2), erf, + 1, * x, * 0.5, behind a bias or not."""
    d.output_chance = 0.03
    x = source(d)
    kind = d[x].kind
    if d.chance(0.5):
        x = swap(d, "Add", x, make(d, weight(d, x), kind))
    factor = d.choice([math.sqrt(2)] * 6 + [1.4142, -math.sqrt(2), 2.0])
    shape = d.choice([(), (), (1,), (1, 1, 1, 1, 1)])
    if d.chance(0.6):
        inner = swap(d, "Div", x, make(d, np.full(shape, factor), kind), 0.05)
    else:
        inner = swap(d, "Mul", x, make(d, np.full(shape, 1 / factor), kind))
    outer = d.add("Erf", inner)
    outer = swap(d, "Add", outer, make(d, np.full(shape, d.choice([1.0] * 7 + [0.5])), kind))
    other = x if d.chance(0.9) else source(d, kind=kind)
    half = make(d, np.full(shape, d.choice([0.5] * 7 + [0.25])), kind)
    how = d.integer(0, 2)
    if how == 0:
        swap(d, "Mul", swap(d, "Mul", outer, other), half)
    elif how == 1:
        swap(d, "Mul", swap(d, "Mul", other, half), outer)
    else:
        swap(d, "Mul", other, swap(d, "Mul", outer, half))


def fast_gelu(d: Drawing) -> None:
    """FastGeluFusion: the gelu by a tanh, in both spellings, behind a bias or not."""
    d.output_chance = 0.02
    x = source(d)
    kind = d[x].kind
    if d.chance(0.5):
        x = swap(d, "Add", x, make(d, weight(d, x), kind))
    shape = d.choice([(), (), (1,), (1, 1, 1, 1, 1)])

    def number(value: float, other: float) -> str:
        return make(d, np.full(shape, value if d.chance(0.93) else other), kind)

    if d.chance(0.5):
        inner = swap(d, "Mul", x, number(0.044715, 0.0447))
        inner = swap(d, "Mul", inner, x)
        inner = swap(d, "Add", inner, number(1.0, 2.0))
        scaled = swap(d, "Mul", x, number(0.7978845608, 0.8))
        inner = swap(d, "Mul", inner, scaled)
    else:
        cube = d.add("Pow", x, number(3.0, 2.0))
        inner = swap(d, "Add", swap(d, "Mul", cube, number(0.044715, 0.0447)), x)
        inner = swap(d, "Mul", inner, number(0.7978845608, 0.8))
    outer = swap(d, "Add", d.add("Tanh", inner), number(1.0, 0.5))
    other = x if d.chance(0.9) else source(d, kind=kind)
    if d.chance(0.5):
        result = swap(d, "Mul", swap(d, "Mul", other, number(0.5, 0.25)), outer)
    else:
        result = swap(d, "Mul", other, swap(d, "Mul", outer, number(0.5, 0.25)))
    if d.chance(0.7):  # ONNX Runtime leaves a gelu whose result is an output
        d.add("Neg", result)


def quick_gelu(d: Drawing) -> None:
    """QuickGeluFusion: x sigmoid(factor x)."""
    x = source(d)
    kind = d[x].kind
    shape = d.choice([(), (), (1,), (1, 1, 1, 1, 1), d[x].shape[-1:]])
    inner = x
    if d.chance(0.8):
        factor = np.full(shape, d.choice([1.702, 1.0, -2.0, 0.0]))
        inner = swap(d, "Mul", x, make(d, factor, kind))
    gate = d.add("Sigmoid", inner)
    swap(d, "Mul", gate, x if d.chance(0.9) else source(d, kind=kind))


def swiglu(d: Drawing) -> None:
    """What QuickGeluFusion leaves: x sigmoid(x) y, of products or not."""
    x = source(d, 2, 3, "float32")
    gates = [make(d, d.numbers((d[x].shape[-1], 4)), role="constant") for _ in range(2)]
    gate, up = (d.add("MatMul", x, each) for each in gates) if d.chance(0.6) else (x, source(d))
    silu = swap(d, "Mul", gate, d.add("Sigmoid", gate if d.chance(0.9) else up))
    result = swap(d, "Mul", silu, up)
    if d.chance(0.5) and d[result].shape[-1] == 4:
        d.add("MatMul", result, make(d, d.numbers((4, 3)), role="constant"))


def _matrices(d: Drawing, kind: str) -> tuple[str, str]:
    """Return two operands of a product of any ranks."""
    rows, inner, columns = d.dimension(), d.dimension(), d.dimension()
    left = d.choice([(rows, inner)] * 3 + [(inner,), (2, rows, inner), (1, 3, rows, inner)])
    right = d.choice([(inner, columns)] * 4 + [(inner,), (2, inner, columns), (3, inner, columns)])
    sides = [
        make(d, d.numbers(left, kind), kind, "given"),
        make(d, d.numbers(right, kind), kind, d.choice(["given", "constant"])),
    ]
    return sides[0], sides[1]


def matmul_add(d: Drawing) -> None:
    """MatMulAddFusion: a product and a bias of any shape become a Gemm."""
    left, right = _matrices(d, d.choice(_FLOATS))
    product = d.add("MatMul", left, right)
    kind = d[left].kind
    total = swap(d, "Add", product, make(d, weight(d, product), kind)) if d[product].shape else ""
    if total and d.chance(0.4):
        d.add(d.choice(ACTIVATIONS), total)


def matmul_transpose(d: Drawing) -> None:
    """MatmulTransposeFusion: a product of transposed operands, with casts between."""
    kind = d.choice(_FLOATS)
    rank = d.integer(2, 4)
    shape = d.shape(rank)
    x = make(d, d.numbers(shape, kind), kind, "given")
    order = list(range(rank))
    if d.chance(0.6):
        order[-2:] = order[:-3:-1]
    else:
        order = [int(axis) for axis in d.rng.permutation(rank)]
    turned = d.add("Transpose", x, perm=order)
    inner = d[turned].shape[-1 if d.chance(0.5) else -2]
    is_left = inner == d[turned].shape[-1]
    other_rank = d.choice([1, 2, rank])
    other_shape = [*d[turned].shape[:-2], inner, d.dimension()][-other_rank:]
    if not is_left:
        other_shape = [*other_shape[:-2], d.dimension(), inner][-other_rank:]
    if other_rank == 1:
        other_shape = [inner]
    other = make(d, d.numbers(other_shape, kind), kind, d.choice(["given", "constant"]))
    if d.chance(0.3) and other_rank > 1:
        ending = [*range(other_rank - 2), other_rank - 1, other_rank - 2]
        other = d.add("Transpose", d.add("Transpose", other, perm=ending), perm=ending)
    product = d.add("MatMul", *((turned, other) if is_left else (other, turned)))
    if d.chance(0.3):
        d.add("Mul", product, make(d, 0.5, kind))
    if d.chance(0.2):
        d.add("Relu" if kind == "float32" else "Neg", turned)


def matmul_scale(d: Drawing) -> None:
    """MatMulScaleFusion: factors and divisors of a product's operands and result."""
    kind = d.choice(_FLOATS)
    operands = list(_matrices(d, kind))

    def scale(name: str) -> str:
        value = d.choice([0.5, 2.0, -1.0, 0.0, 3.0, math.inf, math.nan, 1e-3])
        shape = d.choice([()] * 3 + [(1,), (1, 1), (1, 1, 1, 1, 1)])
        factor = make(d, np.full(shape, value), kind)
        if d.chance(0.6):
            return swap(d, "Mul", name, factor)
        return swap(d, "Div", name, factor, 0.1)

    for place in range(2):
        if d.chance(0.5):
            operands[place] = scale(operands[place])
    product = d.add("MatMul", *operands)
    if d.chance(0.6):
        scale(product)


def matmul_norm(d: Drawing) -> None:
    """MatMul_BatchNormalization_Fusion: a norm of a product, with moves between."""
    rows, inner, columns = (d.dimension() for _ in range(3))
    x = make(d, d.numbers((rows, inner)), role="given")
    product = d.add("MatMul", x, make(d, d.numbers((inner, columns)), role="constant"))
    if d.chance(0.2):
        product = d.add("Reshape", product, d.longs([rows, columns]))
    if d.chance(0.3):
        product = d.add("Transpose", product, perm=[1, 0])
    channels = d[product].shape[1]
    values = [np.abs(d.numbers((channels,))) + 0.5 for _ in range(4)]
    constants = [make(d, value) for value in values]
    d.add("BatchNormalization", product, *constants, epsilon=d.choice([None, 0.125]))


def gemm(d: Drawing) -> None:
    """GemmSumFusion, GemmTransposeFusion, GemmActivationFusion: what stands around a Gemm."""
    kind = d.choice(_FLOATS)
    rows, inner, columns = (d.dimension() for _ in range(3))
    turns = [int(d.chance(0.4)) for _ in range(2)]
    shapes = [(rows, inner), (inner, columns)]
    operands = []
    for shape, turned in zip(shapes, turns, strict=True):
        stored = shape[::-1] if turned else shape
        role = d.choice(["given", "constant"])
        if d.chance(0.4):
            name = make(d, d.numbers(stored[::-1], kind), kind, role)
            name = d.add("Transpose", name, perm=d.choice([[1, 0], [1, 0], None]))
        else:
            name = make(d, d.numbers(stored, kind), kind, role)
        operands.append(name)
    bias = d.choice([(), (1,), (columns,), (1, columns), (rows, 1), (rows, columns)])
    if d.chance(0.5) or d.opset < 11:
        operands.append(make(d, d.numbers(bias, kind), kind))
    factors = {"alpha": d.choice([None, 0.5, 2.0]), "beta": d.choice([None, 0.5, 0.0])}
    result = d.add("Gemm", *operands, transA=turns[0], transB=turns[1], **factors)
    if d.chance(0.4):
        result = swap(d, "Sum" if d.chance(0.6) else "Add", result,
                      make(d, d.numbers(d.choice([bias, (rows, columns), (3, rows, columns)]), kind), kind))  # fmt: skip
    if d.chance(0.4):
        result = d.add("Transpose", result)
    if d.chance(0.4):
        d.add(d.choice(ACTIVATIONS), result)


def attention(d: Drawing) -> None:
    """What the optimisers of attentions leave: a norm, three products and biases, heads, scores
    with a mask, and what joins the heads."""
    batch, steps, heads, size = d.dimension(), d.dimension(), d.choice([1, 2]), d.choice([2, 4])
    width = heads * size
    x = make(d, d.numbers((batch, steps, width)), role="given")
    if d.has("LayerNormalization"):
        scales = [make(d, d.numbers((width,)), role="constant") for _ in range(2)]
        normal = d.add("LayerNormalization", x, *scales, axis=-1)
    else:
        normal = normalise(d, x)
    sides = []
    for place in range(3):
        side = d.add("MatMul", normal, make(d, d.numbers((width, width)) / 4, role="constant"))
        side = swap(d, "Add", side, make(d, d.numbers((width,)), role="constant"))
        side = d.add("Reshape", side, d.longs([batch, steps, heads, size] if d.chance(0.5) else [0, 0, heads, size]))  # fmt: skip
        order = [0, 2, 3, 1] if place == 1 else [0, 2, 1, 3]
        sides.append(d.add("Transpose", side, perm=order))
    scores = d.add("MatMul", sides[0], sides[1])
    scores = d.add(d.choice(["Div", "Mul"]), scores, make(d, d.choice([size**0.5, 2.0, -1.0])))
    if d.chance(0.8):
        mask = make(d, d.numbers(d.choice([(batch, 1, 1, steps), (batch, 1, steps, steps), (1, 1, steps, steps)])), role="given")  # fmt: skip
        if d.chance(0.5):
            mask = d.add("Mul", d.add("Sub", make(d, 1.0, role="constant"), mask), make(d, -100.0, role="constant"))  # fmt: skip
        scores = d.add("Add", scores, mask)
    weights = d.add("Softmax", scores, axis=3)
    mixed = d.add("Transpose", d.add("MatMul", weights, sides[2]), perm=[0, 2, 1, 3])
    joined = d.add("Reshape", mixed, d.longs([batch, steps, width] if d.chance(0.5) else [0, 0, width]))  # fmt: skip
    out = d.add("MatMul", joined, make(d, d.numbers((width, width)) / 4, role="constant"))
    out = swap(d, "Add", out, make(d, d.numbers((width,)), role="constant"))
    out = swap(d, "Add", out, x if d.chance(0.3) else normal)


def encoder(d: Drawing) -> None:
    """AttentionFusion and EmbedLayerNormFusion: what is to become the attention of BERT, of a batch
    whose size is open, with a mask of any numbers."""
    d.opset, d.output_chance = d.choice([11, 12, 12, 14]), 0.002
    batch, steps, heads, size = d.size, d.integer(2, 3), d.choice([1, 2]), d.choice([1, 4])
    width = heads * size

    def constant(*shape: int) -> str:
        return make(d, d.numbers(shape) / 2, role="constant")

    x = _embed(d, batch, steps, width) if d.chance(0.5) else ""
    x = x or make(d, d.numbers((batch, steps, width)), role="given")
    normal = _norm_of_last(d, x)
    sides = []
    for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        side = d.add("MatMul", normal, constant(width, width))
        side = d.add("Reshape", d.add("Add", side, constant(width)), d.longs([0, 0, heads, size]))
        sides.append(d.add("Transpose", side, perm=order))
    scores = d.add("Div", d.add("MatMul", *sides[:2]), make(d, size**0.5, role="constant"))
    if d.chance(0.9):
        scores = swap(d, "Add", scores, _mask(d, batch, steps), 0.1)
    weights = d.add("Softmax", scores, axis=3)
    mixed = d.add("Transpose", d.add("MatMul", weights, sides[2]), perm=[0, 2, 1, 3])
    out = d.add("MatMul", d.add("Reshape", mixed, d.longs([0, 0, width])), constant(width, width))
    d.add("Add", d.add("Add", out, constant(width)), normal)


def _norm_of_last(d: Drawing, x: str) -> str:
    """Add a layer norm, written as operators."""
    mean = d.add("ReduceMean", x, axes=[-1])
    centred = d.add("Sub", x, mean)
    squares = d.add("Pow", centred, make(d, 2.0, role="constant"))
    variance = d.add("ReduceMean", squares, axes=[-1])
    root = d.add("Sqrt", d.add("Add", variance, make(d, 1e-3, role="constant")))
    scale, bias = (make(d, d.numbers(d[x].shape[-1:]), role="constant") for _ in range(2))
    return d.add("Add", d.add("Mul", d.add("Div", centred, root), scale), bias)


def _mask(d: Drawing, batch: int, steps: int) -> str:
    """Add a mask of the scores: 0 where there is 1 in a given one, else a large negative number."""
    kind = d.choice(["int64", "int64", "int32", "float32"])
    values = d.rng.integers(0, 2, (batch, steps)) if d.chance(0.5) else d.numbers((batch, steps))
    mask = make(d, values, kind, "given")
    for axis in (1, 2):
        if d.opset < 13:
            mask = d.add("Unsqueeze", mask, axes=[axis])
        else:
            mask = d.add("Unsqueeze", mask, d.longs([axis]))
    if kind != "float32" or d.chance(0.5):
        mask = d.add("Cast", mask, to=1)
    missing = d.add("Sub", make(d, 1.0, role="constant"), mask)
    return d.add("Mul", missing, make(d, d.choice([-10000.0, -1.0, -1000.0]), role="constant"))


def _embed(d: Drawing, batch: int, steps: int, width: int) -> str:
    """Add the sum of rows of tables: of words, of positions that are counted, and of segments."""
    words = make(d, d.rng.integers(0, 5, (batch, steps)), "int64", "given")
    tables = [make(d, d.numbers((rows, width)), role="constant") for rows in (5, 4, 2)]
    sizes = d.add("Shape", words)
    count = d.add("Gather", sizes, make(d, 1, "int64", "constant"), axis=0)
    numbers = d.add(
        "Range", make(d, 0, "int64", "constant"), count, make(d, 1, "int64", "constant")
    )
    if d.opset < 13:
        numbers = d.add("Unsqueeze", numbers, axes=[0])
    else:
        numbers = d.add("Unsqueeze", numbers, d.longs([0]))
    places = d.add("Expand", numbers, d.add("Shape", words))
    total = d.add("Gather", tables[0], words, axis=0)
    total = d.add("Add", total, d.add("Gather", tables[1], places, axis=0))
    if d.chance(0.8):
        segments = make(d, d.rng.integers(0, 2, (batch, steps)), "int64", "given")
        total = d.add("Add", total, d.add("Gather", tables[2], segments, axis=0))
    return total


def embedding(d: Drawing) -> None:
    """What EmbedLayerNormFusion leaves: a norm of the sum of rows of tables."""
    batch, steps, width = d.dimension(), d.integer(1, 4), d.choice([2, 4])
    kind = d.choice(["int64", "int32"])
    words = make(d, d.rng.integers(0, 5, (batch, steps)), kind, "given")
    segments = make(d, d.rng.integers(0, 2, (batch, steps)), kind, "given")
    tables = [make(d, d.numbers((rows, width)), role="constant") for rows in (5, steps + 1, 2)]
    positions = d.longs(np.arange(steps)[None] if d.chance(0.5) else np.tile(np.arange(steps), (batch, 1)))  # fmt: skip
    parts = [d.add("Gather", tables[0], words, axis=0), d.add("Gather", tables[1], positions, axis=0)]  # fmt: skip
    total = swap(d, "Add", parts[0], parts[1])
    if d.chance(0.8):
        total = swap(d, "Add", total, d.add("Gather", tables[2], segments, axis=0))
    if d.has("LayerNormalization"):
        scales = [make(d, d.numbers((width,)), role="constant") for _ in range(2)]
        d.add("LayerNormalization", total, *scales, axis=d.choice([-1, 2, 1]), epsilon=1e-3)
    else:
        normalise(d, total)


def integers(d: Drawing) -> None:
    """MatMulIntegerToFloatFusion and DynamicQuantizeMatMulFusion: a product of small integers that
    is cast and scaled, with scales and biases of any shape."""
    rows, inner, columns = d.dimension(), d.dimension(), d.integer(1, 4)
    lead = d.choice([(), (), (2,)])
    if d.chance(0.7):
        x = make(d, d.numbers((*lead, rows, inner)), role="given")
        left, scale, zero = d.add_all("DynamicQuantizeLinear", [x], [True] * 3)
    else:
        kind = d.choice(["uint8", "uint8", "int8"])
        left = make(d, d.rng.integers(0, 100, (*lead, rows, inner)), kind, "given")
        scale = make(d, np.full(d.choice([(), (1,)]), 0.25))
        zero = make(d, 3, kind) if d.chance(0.7) else ""
    small = d.choice(["int8", "uint8"])
    right = make(
        d, d.rng.integers(0, 60, (inner, columns)), small, d.choice(["constant"] * 6 + ["given"])
    )
    zeros = [make(d, np.full(d.choice([(), (), (columns,)]), 2), small)] if d.chance(0.7) else []
    inputs = [left, right, *([zero, *zeros] if zero or zeros else [])]
    product = d.add("Cast", d.add("MatMulInteger", *inputs), to=1)
    of = d.choice(
        [()] * 4 + [(columns,)] * 2 + [(1,), (rows, 1), (1, columns), (2, 1, 1), (1,) * 5]
    )
    other = make(d, np.abs(d.numbers(of)) + 0.5)
    if d.chance(0.7):
        result = swap(d, "Mul", product, swap(d, "Mul", scale, other, 0.1), 0.1)
    else:
        result = swap(d, "Mul", product, other)
    if d.chance(0.6):
        swap(d, "Add", result, make(d, weight(d, result)))


FAMILIES: dict[str, Family] = {
    "layer norm": layer_norm,
    "simplified layer norm": simplified_layer_norm,
    "skip norm": skip_norm,
    "biased norm": biased_norm,
    "gelu": gelu,
    "fast gelu": fast_gelu,
    "quick gelu": quick_gelu,
    "swiglu": swiglu,
    "matmul add": matmul_add,
    "matmul transpose": matmul_transpose,
    "matmul scale": matmul_scale,
    "matmul norm": matmul_norm,
    "gemm": gemm,
    "attention": attention,
    "encoder": encoder,
    "embedding": embedding,
    "integers": integers,
}
