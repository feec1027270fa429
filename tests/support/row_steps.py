"""The steps by which random models about rows grow: see `row_models`.

A step takes existing tensors, and raises Unfit if it does not fit them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto
from row_models import FLOAT, RowModel, Shape, Unfit

STEPS: dict[str, Callable[[RowModel], object]] = {}


def step(function: Callable[[RowModel], object]) -> Callable[[RowModel], object]:
    """Have a function be one of the steps."""
    STEPS[function.__name__] = function
    return function


def broadcastable(model: RowModel, shape: Shape) -> list[int]:
    """Return a shape that is broadcast to that one: axes left out in front, others 1."""
    first = int(model.random.integers(len(shape) + 1))
    return [size if model.chance(0.7) else 1 for size in shape[first:]]


def find_axis(model: RowModel, name: str, *, negative: bool = True) -> int:
    rank = len(model.shapes[name])
    if not rank:
        raise Unfit
    axis = int(model.random.integers(rank))
    return axis - rank if negative and model.chance(0.3) else axis


@step
def unary(model: RowModel) -> object:
    kinds = [
        "Neg",
        "Tanh",
        "Relu",
        "Sigmoid",
        "Abs",
        "Identity",
        "Softplus",
        "Elu",
        "LeakyRelu",
        "Erf",
    ]
    return model.add(model.choose(kinds), model.pick())


@step
def with_constant(model: RowModel) -> object:
    name = model.pick()
    other = model.weight(*broadcastable(model, model.shapes[name]))
    pair = [name, other] if model.chance() else [other, name]
    return model.add(model.choose(["Add", "Sub", "Mul", "Max", "Min", "Sum", "Mean"]), *pair)


@step
def with_each_other(model: RowModel) -> object:
    return model.add(model.choose(["Add", "Mul", "Max"]), model.pick(), model.pick())


@step
def prelu(model: RowModel) -> object:
    name = model.pick()
    return model.add("PRelu", name, model.weight(*broadcastable(model, model.shapes[name])))


@step
def clip(model: RowModel) -> object:
    return model.add(
        "Clip", model.pick(), model.constant(np.float32(-0.5)), model.constant(np.float32(1))
    )


@step
def where(model: RowModel) -> object:
    name = model.pick()
    condition = model.constant(model.numbers(broadcastable(model, model.shapes[name])) > 0)
    other = model.weight(*broadcastable(model, model.shapes[name]))
    return model.add("Where", condition, name, model.pick() if model.chance(0.3) else other)


@step
def compare(model: RowModel) -> object:
    name = model.pick()
    other = model.weight(*broadcastable(model, model.shapes[name]))
    found = model.add("Less", name, other, kind=TensorProto.BOOL)
    return model.add("Where", found, name, other)


@step
def dropout(model: RowModel) -> object:
    if model.opset < 12:
        raise Unfit
    ratio, training = model.constant(np.float32(0.5)), model.constant(np.array(model.chance(0.3)))
    return model.add("Dropout", model.pick(), ratio, training)


@step
def matmul(model: RowModel) -> object:
    name = model.pick()
    shape = model.shapes[name]
    if not shape:
        raise Unfit
    before = broadcastable(model, shape[:-2])
    if model.chance(0.3):  # from the left
        if len(shape) < 2:
            return model.add("MatMul", model.weight(model.size(), shape[0]), name)
        left = [shape[-2]] if model.chance(0.3) else [*before, model.size(), shape[-2]]
        return model.add("MatMul", model.weight(*left), name)
    right = [shape[-1]] if model.chance(0.3) else [*before, shape[-1], model.size()]
    return model.add("MatMul", name, model.weight(*right))


@step
def matmul_of_two(model: RowModel) -> object:
    left, right = model.pick(), model.pick()
    rank = len(model.shapes[right])
    if rank > 1 and model.chance():
        order = [*range(rank - 2), rank - 1, rank - 2]
        right = model.add("Transpose", right, perm=order)
    return model.add("MatMul", left, right)


@step
def gemm(model: RowModel) -> object:
    name = model.pick(2)
    turned, turned_right = int(model.chance(0.3)), int(model.chance(0.3))
    rows, depth = model.shapes[name][::-1] if turned else model.shapes[name]
    columns = model.size()
    right = model.weight(*((columns, depth) if turned_right else (depth, columns)))
    bias = model.weight(*broadcastable(model, (rows, columns)))
    if model.chance(0.4):
        axis = find_axis(model, name, negative=False)
        bias = model.add("ReduceMax", name, keepdims=int(model.chance()), **_axes(model, [axis])[1])
    return model.add("Gemm", name, right, bias, transA=turned, transB=turned_right, alpha=0.5)


def _axes(model: RowModel, axes: Sequence[int]) -> tuple[list[str], dict[str, Any]]:
    """Return axes of a reduction as input or attribute, as ReduceMax has them."""
    if model.opset >= 18:
        return [model.whole(*axes)], {}
    return [], {"axes": list(axes)}


@step
def reduce(model: RowModel) -> object:
    name = model.pick()
    kinds = [
        "ReduceMean",
        "ReduceMax",
        "ReduceL1",
        "ReduceLogSumExp",
        "ReduceMin",
        "ReduceSumSquare",
    ]
    inputs, attributes = _axes(model, [find_axis(model, name)])
    return model.add(model.choose(kinds), name, *inputs, keepdims=int(model.chance()), **attributes)


@step
def softmax(model: RowModel) -> object:
    name = model.pick()
    axis = find_axis(model, name)
    return model.add(
        model.choose(["Softmax", "LogSoftmax", "Hardmax", "LpNormalization"]), name, axis=axis
    )


@step
def running_sum(model: RowModel) -> object:
    name = model.pick()
    axis = model.constant(np.array(find_axis(model, name), np.int64))
    return model.add(
        "CumSum", name, axis, exclusive=int(model.chance()), reverse=int(model.chance())
    )


@step
def top_k(model: RowModel) -> object:
    name = model.pick()
    axis = find_axis(model, name)
    count = int(model.random.integers(1, model.shapes[name][axis] + 1))
    return model.add("TopK", name, model.whole(count), axis=axis, outputs=1)


@step
def layer_norm(model: RowModel) -> object:
    name = model.pick()
    axis = find_axis(model, name, negative=False)
    shape = model.shapes[name]
    kinds = (["LayerNormalization"] if model.opset >= 17 else []) + (
        ["RMSNormalization"] if model.opset >= 23 else []
    )
    scale = list(shape[axis:]) if model.chance() else broadcastable(model, shape)
    return model.add(model.choose(kinds), name, model.weight(*scale), axis=axis)


@step
def channel_norm(model: RowModel) -> object:
    name = model.pick(3, 4)
    channels = model.shapes[name][1]
    scale, shift, mean = (model.weight(channels) for _ in range(3))
    if model.chance():
        return model.add("InstanceNormalization", name, scale, shift)
    variance = model.constant(np.abs(model.numbers([channels])) + 0.5)
    return model.add("BatchNormalization", name, scale, shift, mean, variance)


@step
def lrn(model: RowModel) -> object:
    return model.add("LRN", model.pick(3, 4), size=3)


@step
def mean_variance(model: RowModel) -> object:
    name = model.pick(3, 4)
    axes = [axis for axis in range(len(model.shapes[name])) if model.chance()]
    return model.add("MeanVarianceNormalization", name, axes=axes or [0])


@step
def convolution(model: RowModel) -> object:
    name = model.pick(3, 4)
    channels, *places = model.shapes[name][1:]
    group = model.choose(
        [each for each in (1, 2, 3, 4, 5, model.batch, channels) if channels % each == 0]
    )
    made = group * int(model.random.integers(1, 3))
    kernel = [1 if size < 3 else 3 for size in places]
    filters = model.weight(made, channels // group, *kernel)
    if model.chance():  # the same filters for all groups
        own = model.numbers([made // group, channels // group, *kernel])
        filters = model.constant(np.tile(own, (group, 1, *[1] * len(kernel))))
    inputs = [name, filters, *([model.weight(made)] if model.chance() else [])]
    if model.chance(0.2):
        weight = model.weight(channels, int(model.random.integers(1, 3)), *kernel)
        return model.add("ConvTranspose", name, weight, group=group)
    return model.add("Conv", *inputs, group=group, auto_pad="SAME_UPPER")


@step
def pool(model: RowModel) -> object:
    name = model.pick(3, 4)
    rank = len(model.shapes[name])
    kernel = [min(2, size) for size in model.shapes[name][2:]]
    if model.chance(0.3):
        return model.add(model.choose(["GlobalAveragePool", "GlobalMaxPool"]), name)
    kind = model.choose(["MaxPool", "AveragePool", "LpPool"])
    return model.add(kind, name, kernel_shape=kernel, strides=[1] * (rank - 2))


@step
def transpose(model: RowModel) -> object:
    name = model.pick(1, 2, 3, 4, 5)
    return model.add(
        "Transpose", name, perm=model.random.permutation(len(model.shapes[name])).tolist()
    )


@step
def reshape(model: RowModel) -> object:
    """Join neighbouring axes, take one apart, or lay all elements out anew."""
    name = model.pick()
    shape = list(model.shapes[name])
    if not shape:
        raise Unfit
    axis = int(model.random.integers(len(shape)))
    factors = [size for size in (2, 3, 4, 5, model.batch) if shape[axis] % size == 0]
    if factors and len(shape) < 5 and model.chance():
        factor = model.choose(factors)
        parts = [factor, shape[axis] // factor]
        shape[axis : axis + 1] = parts if model.chance() else parts[::-1]
    elif len(shape) > 1 and model.chance(0.8):
        axis = min(axis, len(shape) - 2)
        shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
    else:
        shape = [shape[place] for place in model.random.permutation(len(shape))]
    if model.chance(0.3):
        shape[int(model.random.integers(len(shape)))] = -1
    return model.add("Reshape", name, model.whole(*shape))


@step
def flatten(model: RowModel) -> object:
    name = model.pick()
    return model.add("Flatten", name, axis=find_axis(model, name))


@step
def unsqueeze(model: RowModel) -> object:
    name = model.pick(0, 1, 2, 3)
    axis = int(model.random.integers(len(model.shapes[name]) + 1))
    if model.opset < 13:
        return model.add("Unsqueeze", name, axes=[axis])
    return model.add("Unsqueeze", name, model.whole(axis))


@step
def squeeze(model: RowModel) -> object:
    return model.add("Squeeze", model.pick())


@step
def concat(model: RowModel) -> object:
    name = model.pick()
    axis = find_axis(model, name)
    other = model.pick() if model.chance() else model.weight(*model.shapes[name])
    return model.add("Concat", *([name, other] if model.chance() else [other, name]), axis=axis)


@step
def split(model: RowModel) -> object:
    name = model.pick()
    axis = find_axis(model, name)
    extra = {"num_outputs": 2} if model.opset >= 18 else {}
    if model.shapes[name][axis] % 2:
        raise Unfit
    return model.add("Split", name, axis=axis, outputs=2, **extra)


@step
def cut(model: RowModel) -> object:
    name = model.pick()
    axis = find_axis(model, name)
    size = model.shapes[name][axis]
    start = model.choose([0, 0, -size, -size - 1, 1, -1])
    end = model.choose([size, size + 1, 2**31, size - 1, -1])
    ranges = [model.whole(each) for each in (start, end, axis)]
    return model.add("Slice", name, *ranges, *([model.whole(2)] if model.chance(0.1) else []))


@step
def pick_along(model: RowModel) -> object:
    name = model.pick()
    axis = find_axis(model, name)
    shape = [model.size() for _ in range(int(model.random.integers(0, 3)))]
    indices = model.constant(model.random.integers(0, model.shapes[name][axis], shape))
    return model.add("Gather", name, indices, axis=axis)


@step
def pick_by_rows(model: RowModel) -> object:
    """Add a table with a lookup of the entries that rows name."""
    name = model.pick()
    found = model.add(
        "ArgMax", name, axis=find_axis(model, name), keepdims=0, kind=TensorProto.INT64
    )
    table = model.weight(8, *[model.size() for _ in range(int(model.random.integers(0, 3)))])
    return model.add("Gather", table, found)


@step
def pick_elements(model: RowModel) -> object:
    name = model.pick()
    axis = find_axis(model, name)
    shape = list(model.shapes[name])
    indices = model.random.integers(0, shape[axis], shape)
    along = int(model.random.integers(len(shape)))
    indices = np.repeat(indices.take([0], along), shape[along], along)
    if model.chance():
        return model.add("GatherElements", name, model.constant(indices), axis=axis)
    updates = model.weight(*shape)
    return model.add("ScatterElements", name, model.constant(indices), updates, axis=axis)


@step
def pick_points(model: RowModel) -> object:
    name = model.pick()
    shape = model.shapes[name]
    if not shape:
        raise Unfit
    depth = int(model.random.integers(1, len(shape) + 1))
    counts = [model.size() for _ in range(int(model.random.integers(1, 3)))]
    points = np.stack([model.random.integers(0, shape[i], counts) for i in range(depth)], -1)
    if model.chance(0.7):  # as exporters write x[arange(batch), ...]
        place, axis = int(model.random.integers(depth)), int(model.random.integers(len(counts)))
        if counts[axis] == shape[place]:
            order = [1] * len(counts)
            order[axis] = counts[axis]
            points[..., place] = np.arange(counts[axis]).reshape(order)
    if model.chance() and depth > 1:
        points[..., 1:] = points[:1, ..., 1:]
    if model.chance(0.7):
        return model.add("GatherND", name, model.constant(points))
    updates = model.weight(*counts, *shape[depth:])
    return model.add("ScatterND", name, model.constant(points), updates)


@step
def one_hot(model: RowModel) -> object:
    name = model.pick()
    found = model.add(
        "ArgMin", name, axis=find_axis(model, name), keepdims=int(model.chance()), kind=7
    )
    values = model.constant(np.array([0, 1], np.float32))
    return model.add(
        "OneHot", found, model.whole(model.size()), values, axis=-1 if model.chance() else 0
    )


@step
def expand(model: RowModel) -> object:
    name = model.pick(0, 1, 2, 3)
    shape = [model.size() if size == 1 else size for size in model.shapes[name]]
    front = [model.size()] if model.chance(0.3) else []
    return model.add("Expand", name, model.whole(*front, *shape))


@step
def tile(model: RowModel) -> object:
    name = model.pick()
    return model.add(
        "Tile", name, model.whole(*(1 + model.chance(0.2) for _ in model.shapes[name]))
    )


@step
def pad(model: RowModel) -> object:
    name = model.pick()
    pads = [int(model.chance(0.2)) for _ in range(2 * len(model.shapes[name]))]
    return model.add("Pad", name, model.whole(*pads), mode=model.choose(["constant", "edge"]))


@step
def trilu(model: RowModel) -> object:
    if model.opset < 14:
        raise Unfit
    diagonal = model.constant(np.array(model.random.integers(-6, 7), np.int64))
    return model.add("Trilu", model.pick(2, 3, 4), diagonal, upper=int(model.chance()))


@step
def blocks(model: RowModel) -> object:
    name = model.pick(4)
    if model.chance():
        return model.add("SpaceToDepth", name, blocksize=2)
    return model.add("DepthToSpace", name, blocksize=2, mode=model.choose(["DCR", "CRD"]))


@step
def resize(model: RowModel) -> object:
    name = model.pick(3, 4)
    scales = [2.0 if model.chance(0.3) else 1.0 for _ in model.shapes[name]]
    return model.add(
        "Resize", name, "", model.constant(np.array(scales, np.float32)), mode="nearest"
    )


@step
def einsum(model: RowModel) -> object:
    name = model.pick(1, 2, 3)
    letters = "abc"[: len(model.shapes[name])]
    shape = [size for size in model.shapes[name] if model.chance()]
    kept = [each for each, size in zip(letters, model.shapes[name], strict=True) if size in shape]
    others = "".join(model.random.permutation(list(letters)))
    sizes = dict(zip(letters, model.shapes[name], strict=True))
    other = name if model.chance(0.3) else model.weight(*(sizes[each] for each in others))
    taken = letters if other == name else others
    result = "".join(kept) or letters[0]
    return model.add("Einsum", name, other, equation=f"{letters},{taken}->{result}")


@step
def recurrent(model: RowModel) -> object:
    name = model.pick(3)
    kind, gates = model.choose([("LSTM", 4), ("GRU", 3), ("RNN", 1)])
    _, batch, width = model.shapes[name]
    hidden = model.size()
    weights = [model.weight(1, gates * hidden, size) for size in (width, hidden)]
    state = [model.weight(1, batch, hidden)] if model.chance() else []
    bias, lengths = "", ""
    return model.add(kind, name, *weights, bias, lengths, *state, hidden_size=hidden, outputs=2)


@step
def quantised_product(model: RowModel) -> object:
    name = model.pick(2, 3)
    shape = model.shapes[name]
    one, zero = model.constant(np.float32(0.1)), model.constant(np.uint8(3))
    codes = model.add("QuantizeLinear", name, one, zero, kind=TensorProto.UINT8)
    before = broadcastable(model, shape[:-2])
    right = model.constant(
        model.random.integers(0, 9, [*before, shape[-1], model.size()]).astype(np.uint8)
    )
    if model.chance():
        made = model.add("MatMulInteger", codes, right, zero, kind=TensorProto.INT32)
        return model.add("Cast", made, to=FLOAT)
    made = model.add(
        "QLinearMatMul", codes, one, zero, right, one, zero, one, zero, kind=TensorProto.UINT8
    )
    return model.add("DequantizeLinear", made, one, zero)


@step
def size_of_an_axis(model: RowModel) -> object:
    """Multiply by the size of an axis; that of the batch depends on the number of rows."""
    name = model.pick()
    sizes = model.add("Shape", name, kind=TensorProto.INT64)
    index = model.constant(np.array(find_axis(model, name), np.int64))
    one = model.add("Gather", sizes, index, kind=TensorProto.INT64)
    number = model.add("Cast", one, to=FLOAT)
    return model.add("Mul", name, number)


def make_row_model(seed: int) -> tuple[onnx.ModelProto, int, int]:
    """Return the model of a seed, its batch size, and the axis of the batch in its inputs."""
    random = np.random.default_rng(seed)
    model = RowModel(random, int(random.integers(2, 6)), int(random.choice([11, 13, 17, 18, 23])))
    axis = int(model.chance(0.2))
    for name in ("x", "z")[: 1 + model.chance(0.3)]:
        rank = int(random.integers(1 + axis, 5))
        sizes = [model.size() for _ in range(rank - 1)]
        model.inputs[name] = (*sizes[:axis], model.batch, *sizes[axis:])
    model.shapes.update(model.inputs)
    wanted = int(random.integers(1, 7))
    for _ in range(60):
        state = len(model.nodes), len(model.weights)
        step = model.choose(list(STEPS.values()))
        try:
            step(model)
        except Unfit:
            del model.nodes[state[0] :], model.weights[state[1] :]
            known = {
                *model.inputs,
                *itertools.chain.from_iterable(node.output for node in model.nodes),
            }
            model.shapes = {name: shape for name, shape in model.shapes.items() if name in known}
        wanted -= len(model.nodes) > state[0]
        if not wanted:
            break
    made = [name for name in model.shapes if name not in model.inputs] or ["x"]
    outputs = [made[-1]]
    if made == ["x"]:
        outputs = [model.add("Neg", "x")]
    elif model.chance(0.3):
        outputs = list(dict.fromkeys([made[-1], model.choose(made)]))
    return model.finish(outputs, axis, is_dynamic=model.chance()), model.batch, axis
