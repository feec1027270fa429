"""Whatever is proven of a random graph is true: sizes like the batch's are everywhere, and operators move
rows about."""

import math

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from oracles import unoptimised_session
from simipu.rows import NotIndependent
from simipu.rows.proof import _prove

BATCH = 3
F = TensorProto.FLOAT


class Builder:
    """A chain of nodes with the shape that the last one makes."""

    def __init__(self, shape):
        self.shape = shape
        self.name = "x"
        self.nodes = []
        self.weights = []

    def weight(self, value):
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, operator, shape, *inputs, outputs=1, **attributes):
        names = [f"t{len(self.nodes)}", *(f"t{len(self.nodes)}_{i}" for i in range(1, outputs))]
        self.nodes.append(helper.make_node(operator, [self.name, *inputs], names, **attributes))
        self.name, self.shape = names[0], tuple(shape)


@st.composite
def graphs(draw):
    """A model of one input x [BATCH, ...] and one output."""
    sizes = st.sampled_from([1, 2, 3, 4])
    graph = Builder((BATCH, *draw(st.lists(sizes, min_size=1, max_size=2))))
    shape = graph.shape
    for _ in range(draw(st.integers(1, 6))):
        draw(st.sampled_from(STEPS))(draw, graph)
        if math.prod(graph.shape) > 3000:
            break
    inputs = [helper.make_tensor_value_info("x", F, shape)]
    outputs = [helper.make_tensor_value_info(graph.name, F, graph.shape)]
    made = helper.make_graph(graph.nodes, "random", inputs, outputs, graph.weights)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), graph.name


def axis_of(draw, graph):
    return draw(st.integers(0, len(graph.shape) - 1))


def numbers(draw, shape):
    return np.random.default_rng(draw(st.integers(0, 9))).standard_normal(shape).astype(np.float32)


def tanh(draw, graph):
    graph.add("Tanh", graph.shape)


def add_constant(draw, graph):
    shape = [size if draw(st.booleans()) else 1 for size in graph.shape]
    value = numbers(draw, shape)
    if draw(st.booleans()):  # the same all along an axis, as exporters write initial states
        axis = axis_of(draw, graph)
        value = np.repeat(value.take([0], axis), shape[axis], axis)
    graph.add("Add", graph.shape, graph.weight(value))


def transpose(draw, graph):
    order = draw(st.permutations(range(len(graph.shape))))
    graph.add("Transpose", [graph.shape[axis] for axis in order], perm=order)


def reshape(draw, graph):
    """Neighbouring axes joined, or one taken apart."""
    shape = list(graph.shape)
    axis = axis_of(draw, graph)
    factors = [size for size in (2, 3) if shape[axis] % size == 0]
    if factors and draw(st.booleans()):
        factor = draw(st.sampled_from(factors))
        parts = [factor, shape[axis] // factor]
        shape[axis : axis + 1] = draw(st.permutations(parts))
    elif len(shape) > 1:
        axis = min(axis, len(shape) - 2)
        shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
    graph.add("Reshape", shape, graph.weight(np.array(shape)))


def matmul(draw, graph):
    if len(graph.shape) > 1:
        columns = draw(st.sampled_from([2, 3]))
        graph.add(
            "MatMul", [*graph.shape[:-1], columns], graph.weight(numbers(draw, (graph.shape[-1], columns)))
        )


def matmul_with_itself(draw, graph):
    if len(graph.shape) > 1:
        before, order = graph.name, [*range(len(graph.shape) - 2), len(graph.shape) - 1, len(graph.shape) - 2]
        shape = graph.shape
        graph.add("Transpose", [shape[axis] for axis in order], perm=order)
        graph.add("MatMul", [*shape[:-2], shape[-1], shape[-1]], before)


def reduce(draw, graph):
    axis, keep = axis_of(draw, graph), draw(st.booleans()) or len(graph.shape) == 1
    shape = [1 if i == axis else size for i, size in enumerate(graph.shape) if keep or i != axis]
    graph.add("ReduceMean", shape, axes=[axis], keepdims=int(keep))


def softmax(draw, graph):
    graph.add("Softmax", graph.shape, axis=axis_of(draw, graph))


def running_sum(draw, graph):
    graph.add("CumSum", graph.shape, graph.weight(np.array(axis_of(draw, graph))))


def concat(draw, graph):
    axis = axis_of(draw, graph)
    shape = [size * (1 + (i == axis)) for i, size in enumerate(graph.shape)]
    other = graph.name
    if draw(st.booleans()):
        value = numbers(draw, graph.shape)
        along = axis_of(draw, graph)
        other = graph.weight(np.repeat(value.take([0], along), graph.shape[along], along))
    graph.add("Concat", shape, other, axis=axis)


def cut(draw, graph):
    axis = axis_of(draw, graph)
    start = draw(st.integers(0, graph.shape[axis] - 1))
    end = draw(st.integers(start + 1, graph.shape[axis] + 2))
    shape = [min(end, size) - start if i == axis else size for i, size in enumerate(graph.shape)]
    graph.add("Slice", shape, *(graph.weight(np.array([value])) for value in (start, end, axis)))


def pick(draw, graph):
    axis = axis_of(draw, graph)
    indices = draw(st.lists(st.integers(0, graph.shape[axis] - 1), min_size=1, max_size=4))
    graph.add(
        "Gather",
        [len(indices) if i == axis else size for i, size in enumerate(graph.shape)],
        graph.weight(np.array(indices)),
        axis=axis,
    )


def pick_points(draw, graph):
    depth = draw(st.integers(1, len(graph.shape)))
    count = draw(st.sampled_from([1, 2, BATCH]))
    points = np.stack(
        [
            draw(st.lists(st.integers(0, graph.shape[i] - 1), min_size=count, max_size=count))
            for i in range(depth)
        ],
        -1,
    )
    if draw(st.booleans()) and graph.shape[0] == count:
        points[:, 0] = np.arange(count)
    if draw(st.booleans()):
        points[:, 1:] = points[:1, 1:]
    graph.add("GatherND", [count, *graph.shape[depth:]], graph.weight(points))


def unsqueeze(draw, graph):
    axis = draw(st.integers(0, len(graph.shape)))
    graph.add("Unsqueeze", [*graph.shape[:axis], 1, *graph.shape[axis:]], graph.weight(np.array([axis])))


def squeeze(draw, graph):
    shape = [size for size in graph.shape if size != 1]
    if shape:
        graph.add("Squeeze", shape)


def expand(draw, graph):
    shape = [draw(st.sampled_from([2, 3])) if size == 1 else size for size in graph.shape]
    graph.add("Expand", shape, graph.weight(np.array(shape)))


def tile(draw, graph):
    repeats = [draw(st.sampled_from([1, 1, 2])) for _ in graph.shape]
    graph.add(
        "Tile",
        [size * times for size, times in zip(graph.shape, repeats, strict=True)],
        graph.weight(np.array(repeats)),
    )


def pad(draw, graph):
    pads = [draw(st.sampled_from([0, 0, 1])) for _ in range(2 * len(graph.shape))]
    rank = len(graph.shape)
    graph.add(
        "Pad", [s + pads[i] + pads[i + rank] for i, s in enumerate(graph.shape)], graph.weight(np.array(pads))
    )


def einsum(draw, graph):
    letters = "abcdefgh"[: len(graph.shape)]
    kept = "".join(draw(st.permutations([each for each in letters if draw(st.booleans())] or [letters[0]])))
    sizes = dict(zip(letters, graph.shape, strict=True))
    graph.add("Einsum", [sizes[each] for each in kept], graph.name, equation=f"{letters},{letters}->{kept}")


def rows_of_lstm(draw, graph):
    if len(graph.shape) == 3:
        steps, batch, width = graph.shape
        weights = [graph.weight(numbers(draw, (1, 8, size)) / 2) for size in (width, 2)]
        state = numbers(draw, (1, batch, 2)) * draw(st.sampled_from([0, 1]))
        if draw(st.booleans()):
            state = np.repeat(state[:, :1], batch, axis=1)
        states = [graph.weight(state), graph.weight(state)]
        graph.add("LSTM", [steps, 1, batch, 2], *weights, "", "", *states, hidden_size=2)


STEPS = (
    tanh,
    add_constant,
    transpose,
    reshape,
    matmul,
    matmul_with_itself,
    reduce,
    softmax,
    running_sum,
    concat,
    cut,
    pick,
    pick_points,
    unsqueeze,
    squeeze,
    expand,
    tile,
    pad,
    einsum,
    rows_of_lstm,
)


def run(model, x):
    return unoptimised_session(model).run(None, {"x": x})[0]


@pytest.mark.server
@settings(max_examples=400, deadline=None)
@given(graphs(), st.integers(0, 2))
def test_rows_that_are_proven_to_be_independent_are(drawn, axis):
    model, output = drawn
    shape = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    axis = axis if axis < len(shape) and shape[axis] == BATCH else 0
    onnx.checker.check_model(model)
    try:
        rewritten, axes = _prove(model, BATCH, {"x": axis}, {})
    except NotIndependent:
        return
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    whole = run(model, x)
    for rows in ([0], [2], [1, 0], [0, 1, 2]):
        found = run(rewritten, x.take(rows, axis))
        np.testing.assert_allclose(found, whole.take(rows, axes[output]), rtol=1e-4, atol=1e-5)
