"""Tests of half precision and fp8 as the chip computes them, against an emulation in plain numpy
(tests/support/half_emulation.py)."""

import ml_dtypes
import numpy as np
import onnx
import pytest
from example_counts import examples
from half_models import (
    ALL,
    FLOAT_PARTIALS,
    HALF_PARTIALS,
    NAN_ON_OVERFLOW,
    emulate,
    half_model,
    halves,
    quarter_model,
    run,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import Tape, iter_bodies
from simipu import LoadError
from simipu.numerics import Numerics, lower
from simipu.numerics.quarter import F143, F152, NAN_CODE, decode, encode
from simipu.numerics.rounding import round_to_quarter, rounding_constants

ML_DTYPES = {F143: ml_dtypes.float8_e4m3fnuz, F152: ml_dtypes.float8_e5m2fnuz}


def half_chain(*operators: str) -> onnx.ModelProto:
    """Return the model x (op) w0 (op) w1 ... of 8 by 8."""
    names = ["x", *(f"t{i}" for i in range(len(operators)))]
    nodes = [
        helper.make_node(op, [names[i], f"w{i}"], [names[i + 1]]) for i, op in enumerate(operators)
    ]
    random = np.random.default_rng(1)
    weights = {
        f"w{i}": random.uniform(0.5, 2, (8, 8)).astype(np.float16) for i in range(len(operators))
    }
    return half_model(nodes, {"x": ["n", 8]}, names[-1], weights, ["n", 8])


def check(model: onnx.ModelProto, numerics: Numerics, *inputs: np.ndarray) -> None:
    """Check that results differ from the emulation by at most 1 ulp of half, except for one element
    in a thousand.

    Where sums are kept in half, a small result may have passed through larger sums: then it is an
    ulp of the usual result.
    """
    found = run(lower(model, numerics), *inputs)
    expected = emulate(model, numerics, *inputs)
    assert found.shape == expected.shape
    assert found.dtype == expected.dtype == np.float16
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))
    found, expected = (np.where(np.isfinite(x), x, np.float16(0)) for x in (found, expected))
    usual = np.abs(expected).mean(dtype=np.float32) if numerics.half_partials else 0
    ulp = np.spacing(np.minimum(np.maximum(np.abs(expected), np.float16(usual)), np.float16(65472)))
    assert np.mean(np.abs(found.astype(np.float32) - expected) > ulp) <= 0.001


@settings(max_examples=examples(25), deadline=None)
@given(st.integers(0, 2**31))
def test_elementwise_chains_equal_numpy_half_operator_by_operator(seed):
    x = halves((8, 8), seed)
    model = half_chain("Add", "Mul", "Sub", "Div")
    w = [numpy_helper.to_array(tensor) for tensor in model.graph.initializer]
    expected = ((x + w[0]) * w[1] - w[2]) / w[3]
    for numerics in ALL:
        np.testing.assert_array_equal(run(lower(model, numerics), x), expected)


@pytest.mark.parametrize("numerics", ALL)
@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 8), (8, 5)),
        ((3, 16), (16, 5)),
        ((3, 17), (17, 5)),
        ((4, 100), (100, 6)),
        ((2, 3, 64), (64, 5)),
        ((2, 3, 40), (2, 40, 7)),
        ((1, 3, 40), (4, 2, 40, 7)),
        ((5, 1, 3, 33), (2, 33, 4)),
        ((33,), (33, 4)),
    ],
)
def test_a_matmul_rounds_its_sums_as_the_partials_say(left, right, numerics):
    model = half_model(
        [helper.make_node("MatMul", ["a", "b"], ["y"])], {"a": left, "b": right}, "y", {}
    )
    if len(left) == 1:
        numerics = FLOAT_PARTIALS if numerics.half_partials else numerics
    check(model, numerics, halves(left, 1), halves(right, 2))


@pytest.mark.parametrize("numerics", ALL)
@pytest.mark.parametrize(
    "attributes",
    [{}, {"transB": 1}, {"transA": 1, "alpha": 0.5}, {"beta": 2.0, "transA": 1, "transB": 1}],
)
@pytest.mark.parametrize("bias", [(), (6,), (4, 6)])
def test_a_gemm_rounds_its_sums_as_the_partials_say(attributes, bias, numerics):
    a = halves((50, 4) if attributes.get("transA") else (4, 50), 1)
    b = halves((6, 50) if attributes.get("transB") else (50, 6), 2)
    weights = {"b": b, **({"c": halves(bias, 3)} if bias else {})}
    model = half_model(
        [helper.make_node("Gemm", ["a", *weights], ["y"], **attributes)],
        {"a": a.shape},
        "y",
        weights,
    )
    check(model, numerics, a)


@pytest.mark.parametrize("numerics", ALL)
@pytest.mark.parametrize(
    ("field", "filters", "attributes"),
    [
        ((2, 3, 9, 9), (4, 3, 3, 3), {}),
        ((1, 40, 7, 6), (5, 40, 1, 1), {}),
        ((2, 40, 7, 6), (5, 40, 3, 2), {"pads": [1, 0, 2, 1]}),
        ((1, 32, 9, 9), (4, 32, 3, 3), {"strides": [2, 3], "pads": [1, 1, 1, 1]}),
        ((1, 20, 9, 9), (4, 20, 3, 3), {"dilations": [2, 2]}),
        ((2, 12, 5, 5), (12, 1, 3, 3), {"group": 12, "pads": [1, 1, 1, 1]}),
        ((2, 12, 12, 12), (12, 1, 5, 5), {"group": 12, "pads": [2, 2, 2, 2], "strides": [2, 2]}),
        ((2, 12, 9, 9), (24, 1, 3, 2), {"group": 12, "dilations": [2, 3]}),
        ((1, 12, 9, 9), (12, 4, 3, 6), {"group": 3}),
        ((1, 6, 30), (6, 2, 9), {"group": 3, "strides": [3]}),
        ((2, 40, 5, 5), (6, 20, 3, 3), {"group": 2}),
        ((2, 20, 16), (6, 20, 5), {"strides": [2]}),
        ((1, 18, 4, 5, 4), (3, 18, 2, 2, 2), {}),
        ((3, 8, 4, 4), (3, 8, 1, 1), {}),
        ((2, 3, 12, 11), (4, 3, 7, 7), {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
        ((2, 3, 12, 11), (4, 3, 5, 2), {"dilations": [2, 1]}),
        ((2, 7, 9, 9), (4, 7, 3, 3), {}),
        ((2, 5, 20), (4, 5, 6), {"strides": [3]}),
        ((2, 20, 90), (3, 20, 64), {"strides": [2], "dilations": [1], "pads": [1, 2]}),
        ((2, 16, 12, 12), (3, 16, 8, 7), {"strides": [2, 1], "pads": [3, 3, 3, 3]}),
        ((2, 3, 150), (4, 3, 67), {"dilations": [2]}),
        ((2, 40, 9, 9), (6, 20, 6, 6), {"group": 2}),
        ((2, 6, 200), (6, 1, 170), {"group": 6, "strides": [3], "pads": [2, 0]}),
        ((1, 6, 16, 16), (6, 2, 9, 14), {"group": 3, "pads": [4, 4, 4, 4]}),
        ((2, 20, 4, 4, 4), (3, 20, 4, 3, 3), {"pads": [1, 1, 1, 1, 1, 1]}),
    ],
)
def test_a_convolution_rounds_its_sums_as_the_partials_say(field, filters, attributes, numerics):
    weights = {"w": halves(filters, 2), "b": halves(filters[:1], 3)}
    model = half_model(
        [helper.make_node("Conv", ["x", "w", "b"], ["y"], **attributes)],
        {"x": ["n", *field[1:]]},
        "y",
        weights,
    )
    check(model, numerics, halves(field, 1))


@pytest.mark.parametrize("numerics", ALL)
@pytest.mark.parametrize(
    ("field", "filters", "attributes"),
    [
        ((2, 40, 5, 6), (40, 3, 3, 2), {}),
        ((1, 20, 6, 5), (20, 3, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        (
            (1, 16, 6, 5),
            (16, 8, 2, 2),
            {"strides": [2, 2], "dilations": [2, 1], "output_padding": [1, 0]},
        ),
        ((2, 12, 5, 5), (12, 1, 4, 4), {"group": 12, "strides": [2, 2], "pads": [1, 0, 2, 1]}),
        ((2, 40, 7), (40, 3, 5), {"group": 2, "strides": [3], "auto_pad": "SAME_UPPER"}),
        ((2, 18, 7), (18, 3, 4), {"strides": [3], "auto_pad": "SAME_LOWER"}),
        ((2, 18, 7), (18, 3, 4), {"strides": [2], "auto_pad": "VALID"}),
        ((1, 18, 4, 3), (18, 3, 3, 3), {"strides": [2, 2], "output_shape": [8, 6]}),
        ((1, 18, 3, 2, 4), (18, 2, 2, 3, 2), {"strides": [1, 2, 2], "auto_pad": "SAME_UPPER"}),
        ((1, 18, 9), (18, 2, 2), {"strides": [2], "pads": [5, 6]}),
    ],
)
def test_a_transposed_convolution_rounds_its_sums_as_the_partials_say(
    field, filters, attributes, numerics
):
    """With float partials the convolution is ONNX Runtime's own."""
    weights = {"w": halves(filters, 2), "b": halves(filters[1] * attributes.get("group", 1), 3)}
    node = helper.make_node("ConvTranspose", ["x", "w", "b"], ["y"], **attributes)
    check(half_model([node], {"x": ["n", *field[1:]]}, "y", weights), numerics, halves(field, 1))


@pytest.mark.parametrize("attributes", [{}, {"group": 64}, {"group": 4}])
def test_no_graph_grows_with_its_kernels(attributes):
    def count(size):
        filters = halves((64, 64 // attributes.get("group", 1), 1, size), 2)
        node = helper.make_node("Conv", ["x", "w"], ["y"], **attributes)
        model = half_model([node], {"x": ["n", 64, 1, 3000]}, "y", {"w": filters})
        return sum(_count_nodes(lower(model, HALF_PARTIALS).graph))

    assert count(200) == count(2000) < 80


def _count_nodes(graph):
    for node in graph.node:
        yield 1
        for subgraph in iter_bodies(node):
            yield from _count_nodes(subgraph)


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_a_convolution_pads_itself_as_onnx_says(mode):
    w = halves((4, 20, 3, 2), 2)
    node = helper.make_node("Conv", ["x", "w"], ["y"], auto_pad=mode, strides=[2, 1])
    model = half_model([node], {"x": ["n", 20, 8, 9]}, "y", {"w": w})
    x = halves((2, 20, 8, 9), 1)
    partials, exact = (
        run(lower(model, numerics), x).astype(float) for numerics in (HALF_PARTIALS, FLOAT_PARTIALS)
    )
    assert partials.shape == exact.shape
    np.testing.assert_allclose(partials, exact, atol=0.05)
    assert (partials != exact).any()


def test_half_partials_lose_what_float_partials_keep():
    """In half, 2048 + 1 is 2048, however often 1 is added."""
    k = 512
    model = half_model(
        [helper.make_node("MatMul", ["a", "b"], ["y"])],
        {"a": (1, k)},
        "y",
        {"b": np.ones((k, 1), np.float16)},
    )
    a = np.zeros((1, k), np.float16)
    a[0, 0], a[0, 16::16] = 2048, 1
    assert run(lower(model, HALF_PARTIALS), a)[0, 0] == 2048
    assert (
        run(lower(model, FLOAT_PARTIALS), a)[0, 0] == 2080
    )  # 2048 + 31, rounded to a multiple of 2


@pytest.mark.parametrize(
    ("numerics", "expected"),
    [(FLOAT_PARTIALS, 0), (HALF_PARTIALS, -4496), (NAN_ON_OVERFLOW, np.nan)],
)
def test_a_partial_sum_overflows_though_the_whole_sum_does_not(numerics, expected):
    a = np.ones((1, 32), np.float16)
    a[0, :7], a[0, 16:23] = 10_000, -10_000
    a[0, 7:16] = a[0, 23:] = 0
    model = half_model(
        [helper.make_node("MatMul", ["a", "b"], ["y"])],
        {"a": (1, 32)},
        "y",
        {"b": np.ones((32, 1), np.float16)},
    )
    np.testing.assert_array_equal(run(lower(model, numerics), a)[0, 0], np.float16(expected))


@pytest.mark.parametrize(
    ("numerics", "expected"), [(HALF_PARTIALS, 65504), (NAN_ON_OVERFLOW, np.nan)]
)
@pytest.mark.parametrize(
    ("operator", "x"), [("Mul", 1000), ("Exp", 12), ("Exp", 1000), ("Cast", 70000)]
)
def test_overflow_gives_the_largest_half_or_nan_as_the_engine_option_says(
    operator, x, numerics, expected
):
    if operator == "Cast":
        nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT16)]
        model = half_model(nodes, {}, "y", {})
        model.graph.input.append(helper.make_tensor_value_info("x", TensorProto.INT32, [4]))
        value = np.full(4, x, np.int32)
    else:
        inputs = ["x", "x"] if operator == "Mul" else ["x"]
        model = half_model([helper.make_node(operator, inputs, ["y"])], {"x": [4]}, "y", {})
        value = np.full(4, x, np.float16)
    np.testing.assert_array_equal(
        run(lower(model, numerics), value), np.full(4, expected, np.float16)
    )


def test_an_infinity_that_comes_in_is_no_overflow():
    model = half_model(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        {"x": [2]},
        "y",
        {"w": np.float16([1, -np.inf])},
    )
    x = np.float16([np.inf, 1])
    np.testing.assert_array_equal(
        run(lower(model, NAN_ON_OVERFLOW), x), np.float16([np.inf, -np.inf])
    )


def test_names_and_types_at_the_borders_stay():
    model = half_chain("Add")
    lowered = lower(model, HALF_PARTIALS)
    assert lowered.graph.input == model.graph.input
    assert lowered.graph.output == model.graph.output
    onnx.checker.check_model(lowered)


def test_a_model_without_halves_comes_back_as_it_is(linear):
    assert lower(linear, HALF_PARTIALS) is linear


@pytest.mark.parametrize("operator", ["Max", "Min"])
def test_operators_that_choose_among_values_are_not_rounded_again(operator):
    lowered = lower(half_chain(operator), HALF_PARTIALS)
    assert [node.op_type for node in lowered.graph.node] == ["Cast", operator, "Cast"]


def test_fast_keeps_float_between_operators():
    model = half_chain("MatMul", "Add", "Div")
    x = halves((8, 8), 5)
    w = [numpy_helper.to_array(tensor).astype(np.float32) for tensor in model.graph.initializer]
    lowered = lower(model, None)
    assert [node.op_type for node in lowered.graph.node] == ["Cast", "MatMul", "Add", "Div", "Cast"]
    np.testing.assert_array_equal(
        run(lowered, x), ((x.astype(np.float32) @ w[0] + w[1]) / w[2]).astype(np.float16)
    )


def test_a_graph_older_than_the_rounding_is_refused_by_name():
    model = half_chain("Add")
    model.opset_import[0].version = 9
    with pytest.raises(LoadError, match="opset 11 or later, found 9"):
        lower(model, HALF_PARTIALS)


OPERATORS = (
    "Relu",
    "Sigmoid",
    "Tanh",
    "Softmax",
    "Sqrt",
    "Exp",
    "MatMul",
    "Add",
    "Mul",
    "Transpose",
    "ReduceMean",
    "Gemm",
)


@settings(max_examples=examples(40), deadline=None)
@given(
    operators=st.lists(st.sampled_from(OPERATORS), min_size=1, max_size=6),
    numerics=st.sampled_from(ALL),
    seed=st.integers(0, 2**31),
)
def test_random_networks_agree_with_the_emulation_node_by_node(operators, numerics, seed):
    """Each node's inputs are those that the lowered graph itself computed, so that one ulp does not
    grow on the way."""
    random = np.random.default_rng(seed)
    x = halves((48, 48), seed)
    for operator in operators:
        weight = (random.standard_normal((48, 48)) / 4).astype(np.float16)
        attributes = {"axes": [-1]} if operator == "ReduceMean" else {}
        inputs = ["x", "w"] if operator in ("MatMul", "Gemm", "Add", "Mul") else ["x"]
        weights = {"w": weight} if "w" in inputs else {}
        model = half_model(
            [helper.make_node(operator, inputs, ["y"], **attributes)],
            {"x": list(x.shape)},
            "y",
            weights,
        )
        check(model, numerics, x)
        y = run(lower(model, numerics), x)
        x = y if y.shape == x.shape else np.broadcast_to(y, x.shape).copy()


@pytest.mark.parametrize("quarter", [F143, F152], ids=lambda quarter: quarter.name)
def test_every_code_has_the_value_that_ml_dtypes_gives_it(quarter):
    codes = np.arange(256, dtype=np.uint8)
    expected = codes.view(ML_DTYPES[quarter]).astype(np.float32)
    for scale in range(-20, 21):
        np.testing.assert_array_equal(decode(codes, quarter, scale), np.ldexp(expected, scale))
    assert np.flatnonzero(np.isnan(expected)) == [NAN_CODE]


@pytest.mark.parametrize("scale", [-5, 0, 3])
@pytest.mark.parametrize("quarter", [F143, F152], ids=lambda quarter: quarter.name)
def test_every_half_has_the_code_that_ml_dtypes_gives_it(quarter, scale):
    every_half = np.arange(65536, dtype=np.uint16).view(np.float16)
    with np.errstate(invalid="ignore"):
        scaled = np.ldexp(every_half.astype(np.float32), -scale)
        expected = scaled.astype(ML_DTYPES[quarter]).view(np.uint8)
        saturated = (
            np.clip(scaled, -quarter.largest, quarter.largest)
            .astype(ML_DTYPES[quarter])
            .view(np.uint8)
        )
    np.testing.assert_array_equal(
        encode(every_half, quarter, scale, nan_on_overflow=True), expected
    )
    np.testing.assert_array_equal(encode(every_half, quarter, scale), saturated)


@pytest.mark.parametrize("quarter", [F143, F152], ids=lambda quarter: quarter.name)
def test_every_code_comes_back_from_its_value(quarter):
    codes = np.arange(256, dtype=np.uint8)
    np.testing.assert_array_equal(encode(decode(codes, quarter, 2), quarter, 2), codes)


@pytest.mark.parametrize("nan_on_overflow", [False, True])
@pytest.mark.parametrize("scale", [-5, -1, 0, 4])
@pytest.mark.parametrize("quarter", [F143, F152], ids=lambda quarter: quarter.name)
def test_the_graph_rounds_every_half_as_the_codes_do(quarter, scale, nan_on_overflow):
    op = Tape("y")
    round_to_quarter(op, "x", quarter, scale, nan_on_overflow=nan_on_overflow, result="y")
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [65536]) for name in ("x", "y")
    ]
    graph = helper.make_graph(
        op.nodes,
        "q",
        values[:1],
        values[1:],
        rounding_constants(nan_on_overflow=nan_on_overflow),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    every_half = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    expected = decode(
        encode(every_half, quarter, scale, nan_on_overflow=nan_on_overflow), quarter, scale
    )
    np.testing.assert_array_equal(run(model, every_half), expected)


@pytest.mark.parametrize("numerics", ALL)
@pytest.mark.parametrize("quarter", [F143, F152], ids=lambda quarter: quarter.name)
def test_products_of_8_bits_keep_their_sums_in_half_every_32_channels(quarter, numerics):
    for node, shape, codes in (
        (
            helper.make_node("MatMul", ["a", "b"], ["y"]),
            (6, 80),
            encode(halves((80, 7), 1), quarter, -2),
        ),
        (
            helper.make_node("Conv", ["a", "b"], ["y"], pads=[1] * 4),
            (2, 40, 6, 5),
            encode(halves((3, 40, 3, 3), 1), quarter, -2),
        ),
    ):
        check(quarter_model(node, shape, codes, quarter), numerics, halves(shape, 2))


def test_fast_keeps_the_operands_of_8_bit_products_in_float():
    codes = encode(halves((80, 7), 1), F143, -2)
    x = halves((6, 80), 2)
    model = quarter_model(helper.make_node("MatMul", ["a", "b"], ["y"]), x.shape, codes)
    expected = x.astype(np.float32) @ decode(codes, F143, -2)
    np.testing.assert_allclose(run(lower(model, None), x), expected, rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("element", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_an_operator_that_onnx_runtime_lacks_is_computed_by_its_body(element: int) -> None:
    """The operator is IpuCopy, which placed graphs have between the IPUs; here it is in a branch as
    well."""
    made = helper.make_tensor_value_info("copied", element, [4])
    branch = helper.make_graph(
        [helper.make_node("IpuCopy", ["y"], ["copied"])], "branch", [], [made]
    )
    nodes = [
        helper.make_node("Neg", ["x"], ["y"]),
        helper.make_node("IpuCopy", ["y"], ["y@1"], name="copy"),
        helper.make_node("If", ["yes"], ["z"], then_branch=branch, else_branch=branch),
        helper.make_node("Add", ["y@1", "z"], ["sum"]),
    ]
    x, *others = (
        helper.make_tensor_value_info(name, element, [4]) for name in ("x", "sum", "y", "y@1", "z")
    )
    yes = numpy_helper.from_array(np.array(True), "yes")
    graph = helper.make_graph(nodes, "placed", [x], others[:1], [yes], value_info=others[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    values = np.arange(4).astype(helper.tensor_dtype_to_np_dtype(element))
    np.testing.assert_array_equal(run(lower(model, Numerics()), values), -2 * values)


@pytest.mark.parametrize(("reduction", "expected"), [("add", 0), ("none", -2047)])
def test_a_scatter_that_adds_is_rounded_and_one_that_only_moves_is_not(
    reduction: str, expected: int
) -> None:
    """In half, 2048 + 1 is 2048."""
    nodes = [
        helper.make_node("ScatterElements", ["x", "at", "one"], ["y"], reduction=reduction),
        helper.make_node("Sub", ["y", "most"], ["z"]),
    ]
    weights = {
        "at": np.array([0]),
        "one": np.ones(1, np.float16),
        "most": np.full(1, 2048, np.float16),
    }
    model = half_model(nodes, {"x": [1]}, "z", weights, [1])
    assert run(lower(model, Numerics()), np.full(1, 2048, np.float16)) == expected


def test_infinities_pass_through_what_only_moves_values() -> None:
    nodes = [
        helper.make_node("ReverseSequence", ["x", "lengths"], ["r"]),
        helper.make_node("Loop", ["twice", "", "r"], ["y"], body=turned()),
    ]
    weights = {"lengths": np.array([2, 2]), "twice": np.array(2)}
    x = np.array([[1, -np.inf], [np.inf, 2]], np.float16)
    found = run(lower(half_model(nodes, {"x": [2, 2]}, "y", weights, [2, 2]), Numerics()), x)
    np.testing.assert_array_equal(found, x[::-1])


def turned() -> onnx.GraphProto:
    """Return a body that transposes its loop-carried value."""
    types = {"i": TensorProto.INT64, "go": TensorProto.BOOL, "h": TensorProto.FLOAT16}
    inputs = [
        helper.make_tensor_value_info(n, t, [2, 2] if n == "h" else []) for n, t in types.items()
    ]
    outputs = [
        helper.make_tensor_value_info("on", TensorProto.BOOL, []),
        helper.make_tensor_value_info("t", TensorProto.FLOAT16, [2, 2]),
    ]
    nodes = [
        helper.make_node("Identity", ["go"], ["on"]),
        helper.make_node("Transpose", ["h"], ["t"]),
    ]
    return helper.make_graph(nodes, "body", inputs, outputs)
