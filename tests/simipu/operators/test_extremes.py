"""Tests of operators that find an extreme: what they answer for a NaN is what numpy answers, wherever
the NaN is, and whatever the sizes. ONNX Runtime's own kernels lose it in some places."""

import itertools

import numpy as np
import pytest
from half_models import HALF_PARTIALS
from onnx import TensorProto, helper, numpy_helper
from simipu import GraphOptions, choose_accelerator
from simipu.engines.computed import Lowered, make_graph
from simipu.engines.program_graphs import lower_model
from simipu.numerics import KernelUse, lower

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 40)
"""Sizes around the widths of vectors."""
SPECIAL = np.float32([-np.inf, np.inf, np.finfo(np.float32).min, -0.0, 0.0, 1, -2, 3])
OLD_OPSET = 12
EXTREMES = {"Max": np.max, "Min": np.min}


def find_place(op_type, x, axis, *, last=False):
    """Return numpy's place of the extreme: that of the first or last NaN, if there is one."""
    find = np.argmax if op_type == "ArgMax" else np.argmin
    if not last:
        return np.expand_dims(find(x, axis), axis)
    return np.expand_dims(x.shape[axis] - 1 - find(np.flip(x, axis), axis), axis)


def slide(x, size, pads, dilations):
    """Return the extremes of the windows over the last two axes of a tensor of rank 4."""
    reach = [1 + (size - 1) * step for step in dilations]
    rows, columns = (x.shape[i + 2] + 2 * pads - reach[i] + 1 for i in range(2))
    result = np.empty((*x.shape[:2], rows, columns), x.dtype)
    for row, column in itertools.product(range(rows), range(columns)):
        places = [
            [start - pads + dilation * step for step in range(size)]
            for start, dilation in zip((row, column), dilations, strict=True)
        ]
        kept = [
            [place for place in axis if 0 <= place < length]
            for axis, length in zip(places, x.shape[2:], strict=True)
        ]
        window = x[:, :, kept[0]][:, :, :, kept[1]]
        result[:, :, row, column] = window.max((2, 3))
    return result


def mark(x):
    """Return 1 at the first largest value of each row."""
    return (np.arange(x.shape[-1]) == find_place("ArgMax", x, -1)).astype(x.dtype)


def reducing(op_type, shape, axes, opset, **attributes):
    extreme = EXTREMES[op_type.removeprefix("Reduce")]
    keepdims = bool(attributes.get("keepdims", 1))
    along = None if axes is None else tuple(axes)
    wanted = lambda x: extreme(x, along, keepdims=keepdims)  # noqa: E731
    if axes is None or opset < 18:
        given = {} if axes is None else {"axes": axes}
        return op_type, shape, opset, {}, {**given, **attributes}, wanted
    return op_type, shape, opset, {"axes": np.int64(axes)}, attributes, wanted


def iter_cases(size):
    """Yield operators with their shapes, constants, attributes and numpy's answer."""
    for op_type in ("ReduceMax", "ReduceMin"):
        yield reducing(op_type, (3, size), [1], 18, keepdims=0)
        yield reducing(op_type, (3, size), [-1], 13)
        yield reducing(op_type, (size, 3), [0], 11)
        yield reducing(op_type, (2, size, 3), [1], 8)
        yield reducing(op_type, (2, size, 3), [0, 2], 20)
        yield reducing(op_type, (size, 2), None, 7)
        yield reducing(op_type, (size, 2), None, 18, keepdims=0)
        node = (op_type, (2, size), 18, {}, {"noop_with_empty_axes": 1}, lambda x: x)
        yield node
    for op_type, last in itertools.product(("ArgMax", "ArgMin"), (0, 1)):
        for shape, axis in (((2, size), 1), ((size, 2), 0), ((2, size, 2), -2)):
            yield (
                op_type, shape, 13, {}, {"axis": axis, "select_last_index": last},
                lambda x, op_type=op_type, axis=axis, last=last: find_place(
                    op_type, x, axis, last=bool(last)
                ),
            )  # fmt: skip
        yield (
            op_type, (2, size), 8, {}, {"axis": 1, "keepdims": 0},
            lambda x, op_type=op_type: find_place(op_type, x, 1)[:, 0],
        )  # fmt: skip
    yield "Hardmax", (3, size), 13, {}, {}, mark
    yield (
        "Hardmax", (2, size, 2), 11, {}, {"axis": 1},
        lambda x: mark(x.reshape(len(x), -1)).reshape(x.shape),
    )  # fmt: skip
    yield "GlobalMaxPool", (2, 3, size), 13, {}, {}, lambda x: x.max(2, keepdims=True)
    for kernel, pads, dilation in ((2, 0, 1), (3, 1, 1), (2, 1, 2)):
        if size >= kernel:
            yield (
                "MaxPool", (1, 2, size + 1, 4), 12, {},
                {
                    "kernel_shape": [kernel] * 2, "pads": [pads] * 4,
                    "dilations": [dilation, 1], "strides": [1, 1],
                },
                lambda x, k=kernel, p=pads, d=dilation: slide(x, k, p, (d, 1)),
            )  # fmt: skip
    for reduction, ufunc in (("max", np.maximum), ("min", np.minimum)):
        base = np.float32([[0, 1], [5, -5], [-1, np.nan]])

        def scattered(x, ufunc=ufunc, base=base):
            result = base.copy()
            for column in range(x.shape[1]):
                ufunc.at(result, (range(3), column % 2), x[:, column])
            return result

        indices = np.arange(3 * size).reshape(3, size) * 0 + np.arange(size) % 2
        yield (
            "ScatterElements", (3, size), 18, {"indices": indices, "base": base},
            {"axis": 1, "reduction": reduction}, scattered,
        )  # fmt: skip


def make_case(case, kind=TensorProto.FLOAT):
    op_type, shape, opset, constants, attributes, wanted = case
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    constants = {
        name: value.astype(dtype) if value.dtype.kind == "f" else value
        for name, value in constants.items()
    }
    inputs = ["x", *constants]
    if op_type == "ScatterElements":
        inputs = ["base", "indices", "x"]
    answers = TensorProto.INT64 if op_type.startswith("Arg") else kind
    graph = helper.make_graph(
        [helper.make_node(op_type, inputs, ["y"], name="extreme", **attributes)],
        "extreme",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", answers, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return model, shape, wanted


def iter_values(rng, shape):
    """Yield values with a NaN in different places, with several, and with none beside infinities of
    both signs, whose sum is NaN."""
    size = int(np.prod(shape))
    plain = rng.integers(-9, 10, size).astype(np.float32)
    for place in {0, 1, 2, 5, size // 2, size - 2, size - 1} & set(range(size)):
        x = plain.copy()
        x[place] = np.nan
        yield x.reshape(shape)
    special = rng.choice(SPECIAL, size)
    yield special.reshape(shape)
    yield np.where(rng.random(size) < 0.3, np.nan, special).astype(np.float32).reshape(shape)
    yield np.full(shape, np.nan, np.float32)
    yield plain.reshape(shape)


def open_case(model):
    lowered, weights = lower_model(model, {}, None)
    graph = make_graph(Lowered(lowered.SerializeToString(), weights), GraphOptions(1), "extreme")
    return lambda x: graph.run(["y"], {"x": x})[0]


def check(case, size, open_model, kind=TensorProto.FLOAT):
    rng = np.random.default_rng(size)
    model, shape, wanted = make_case(case, kind)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    run = open_model(model)
    for x in iter_values(rng, shape):
        given = np.maximum(x, np.finfo(dtype).min).astype(dtype) if dtype == np.float16 else x
        given = given.astype(dtype)
        answer = run(given)
        np.testing.assert_array_equal(answer, wanted(given), f"{case[:5]} of {given.tolist()}")


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_an_extreme_of_values_with_nan_is_that_of_numpy_wherever_the_nan_is(size):
    for case in iter_cases(size):
        check(case, size, open_case)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 9, 17])
def test_an_extreme_of_doubles_with_nan_is_that_of_numpy(size):
    for case in iter_cases(size):
        # ONNX Runtime's kernels of older ones, and of these operators, are of float only.
        if case[2] >= OLD_OPSET and case[0] not in ("GlobalMaxPool", "Hardmax"):
            check(case, size, open_case, TensorProto.DOUBLE)


@pytest.mark.slow
@pytest.mark.parametrize("kernels", KernelUse)
@pytest.mark.parametrize("size", [2, 9, 17])
def test_an_extreme_of_halves_with_nan_is_that_of_numpy(size, kernels):
    def open_half(model):
        lowered = lower(model, HALF_PARTIALS, None, kernels)
        graph = make_graph(Lowered(lowered.SerializeToString(), {}), GraphOptions(1), "half")
        return lambda x: graph.run(["y"], {"x": x})[0]

    for case in iter_cases(size):
        if case[2] >= OLD_OPSET:
            check(case, size, open_half, TensorProto.FLOAT16)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 9, 17])
def test_openvino_keeps_a_nan_too(size):
    openvino_graph = pytest.importorskip("simipu.engines.openvino_graph", reason="no openvino")
    options = GraphOptions(1, accelerators=(choose_accelerator("openvino", {}),))

    def open_accelerated(model):
        lowered, _ = lower_model(model, {}, None)
        held = Lowered(lowered.SerializeToString(), {}, outputs=["y"])
        graph = openvino_graph.OpenVinoGraph(held, options, "graph")
        return lambda x: graph.run(["y"], {"x": x})[0]

    for case in iter_cases(size):
        # Before IsNaN it takes a NaN for a number; its Hardmax takes any of equal values.
        if case[2] >= OLD_OPSET and case[0] != "Hardmax":
            check(case, size, open_accelerated)
