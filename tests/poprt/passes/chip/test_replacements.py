"""Tests of operators rewritten as others, in all forms beyond the one of each that the harness for
passes covers."""

import numpy as np
import onnx
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnxgraph import iter_nodes
from onnxgraph.weights import read_array
from oracles import unoptimised_session
from poprt import Converter
from poprt.passes import get_pass
from poprt.passes.chip.workarounds import parse_equation
from sample_models import make_model

F, I32, I64, B = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL
RNG = np.random.default_rng(0)
TYPES = {
    np.dtype(np.float32): F,
    np.dtype(np.int32): I32,
    np.dtype(np.int64): I64,
    np.dtype(bool): B,
}


def model_of(op_type, fed, weights=None, opset=17, reads=None, **attributes):
    """Return a model of one node with fed arrays and weights. The shape of its result is not
    declared."""
    names = reads or [*fed, *(weights or {})]
    node = helper.make_node(op_type, names, ["y"], name="node", **attributes)
    model = make_model([node], {}, {}, weights or {}, opset)
    for name, array in fed.items():
        model.graph.input.append(
            helper.make_tensor_value_info(name, TYPES[array.dtype], array.shape)
        )
    model.graph.output.append(onnx.ValueInfoProto(name="y"))
    return onnx.shape_inference.infer_shapes(model)


def run(model, fed):
    session = unoptimised_session(model)
    return session.run(None, dict(fed))[0]


def replace(name, model, **arguments):
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    changed = get_pass(name, **arguments)(copy)
    onnx.checker.check_model(changed, full_check=True)
    return changed


def operators(model):
    return [node.op_type for node in iter_nodes(model.graph)]


def assert_replaced(name, model, fed, gone, tolerance=1e-5):
    changed = replace(name, model)
    assert gone not in operators(changed)
    np.testing.assert_allclose(run(changed, fed), run(model, fed), rtol=tolerance, atol=tolerance)
    return changed


SMALL = st.sampled_from([np.int8, np.uint8, np.int16, np.int32])


@given(
    st.sampled_from(["Add", "Sub", "Mul", "Div", "Max", "Min", "Less", "Sum"]),
    SMALL,
    st.integers(0, 9),
)
@settings(deadline=None, max_examples=examples(60))
def test_whole_numbers_of_an_operator_that_takes_them_later_are_computed_all_the_same(
    op_type, dtype, seed
):
    random = np.random.default_rng(seed)
    info = np.iinfo(dtype)
    x, y = (
        random.integers(max(info.min, -5000), min(info.max, 5000), 6).astype(dtype) for _ in "xy"
    )
    y[y == 0] = 1
    fed = {"x": x, "y": y}
    inputs = {name: (helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), [6]) for name in fed}
    made = B if op_type == "Less" else inputs["x"][0]
    model = make_model(
        [helper.make_node(op_type, ["x", "y"], ["y_"])], inputs, {"y_": (made, [6])}, {}, 11
    )
    changed = get_pass("widen_integers")(model)
    functions = {
        "Sub": np.subtract,
        "Mul": np.multiply,
        "Max": np.maximum,
        "Min": np.minimum,
        "Less": np.less,
    }
    with np.errstate(all="ignore"):
        quotient = np.trunc(x.astype(float) / y).astype(dtype)
        expected = quotient if op_type == "Div" else functions.get(op_type, np.add)(x, y)
    if op_type == "Sum":  # of floats: results out of range are undefined
        expected, keep = (
            x.astype(int) + y,
            (info.min <= x.astype(int) + y) & (x.astype(int) + y <= info.max),
        )
        np.testing.assert_array_equal(run(changed, fed)[keep], expected[keep])
        return
    np.testing.assert_array_equal(run(changed, fed), expected)
    assert run(changed, fed).dtype == expected.dtype


@pytest.mark.parametrize("bounds", [["low", "high"], ["low"], ["", "high"]])
def test_a_clip_of_integers_that_pytorch_writes_at_opset_11_is_one_of_floats(bounds):
    fed = {"x": np.array([-5, 0, 3, 90], np.int64)}
    weights = {"low": np.int64(-2), "high": np.int64(7)}
    model = model_of("Clip", fed, weights, opset=11, reads=["x", *bounds])
    changed = get_pass("replace_clip_empty_inputs")(get_pass("widen_integers")(model))
    low, high = (weights[name] if name in bounds else None for name in ("low", "high"))
    assert run(changed, fed).dtype == np.int64
    np.testing.assert_array_equal(run(changed, fed), np.clip(fed["x"], low, high))


EQUATIONS = {
    "ij,jk->ik": ((2, 3), (3, 4)),
    "ij,kj->ki": ((2, 3), (4, 3)),
    "bij,bjk->bik": ((2, 3, 4), (2, 4, 5)),
    "bij, bjk -> bki": ((2, 3, 4), (2, 4, 5)),
    "bhqd,bhkd->bhqk": ((2, 3, 4, 5), (2, 3, 6, 5)),
    "bhqk,bkhd->bqhd": ((2, 3, 4, 6), (2, 6, 3, 5)),
    "ijk,kjl->il": ((2, 3, 4), (4, 3, 5)),
    "i,j->ij": ((2,), (3,)),
    "i,j->ji": ((2,), (3,)),
    "i,i->": ((3,), (3,)),
    "bi,bi->bi": ((2, 3), (2, 3)),
    "bi,bi->b": ((2, 3), (2, 3)),
    "bi,j->bj": ((2, 3), (4,)),
    "ij->ji": ((2, 3),),
    "ij->": ((2, 3),),
    "ij->ij": ((2, 3),),
    "ijk->ki": ((2, 3, 4),),
    "...ij,...jk->...ik": ((2, 3, 4), (2, 4, 5)),
    "...i->...": ((2, 3, 4),),
    "ij,jk": ((2, 3), (3, 4)),
    "ba": ((2, 3),),
    "ij,jk,kl->il": ((2, 3), (3, 4), (4, 5)),
    "bi,ij,bj->b": ((2, 3), (3, 4), (2, 4)),
    "bcxy,cdxy->bdxy": ((2, 3, 4, 4), (3, 5, 4, 4)),
    "nkctv,kvw->nctw": ((2, 3, 4, 5, 6), (3, 6, 6)),
    "b,b,b->b": ((3,), (3,), (3,)),
}


@pytest.mark.parametrize("equation", EQUATIONS)
@pytest.mark.parametrize("opset", [12, 17])
def test_an_equation_becomes_products_sums_and_transpositions(equation, opset):
    fed = {
        f"x{i}": RNG.normal(size=s).astype(np.float32) for i, s in enumerate(EQUATIONS[equation])
    }
    model = model_of("Einsum", fed, opset=opset, equation=equation)
    changed = replace("replace_einsum_with_matmul", model)
    assert "Einsum" not in operators(changed)
    np.testing.assert_allclose(
        run(changed, fed), np.einsum(equation, *fed.values()), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [("ii->i", [(3, 3)]), ("ij,jk->ik", [(2, 3), (1, 4)]), ("i...,...->i", [(2, 3), (1,)])],
)
def test_diagonals_and_broadcasts_keep_their_equation(equation, shapes):
    fed = {f"x{i}": RNG.normal(size=shape).astype(np.float32) for i, shape in enumerate(shapes)}
    model = model_of("Einsum", fed, equation=equation)
    assert operators(replace("replace_einsum_with_matmul", model)) == ["Einsum"]


@st.composite
def equations(draw):
    """Return an equation of two or three operands with few labels; the result has some of them."""
    sizes = {label: draw(st.integers(1, 3)) for label in "abcde"}
    term = st.lists(st.sampled_from("abcde"), min_size=1, max_size=4, unique=True)
    terms = draw(st.lists(term, min_size=2, max_size=3))
    used = sorted({label for each in terms for label in each})
    result = draw(st.lists(st.sampled_from(used), max_size=4, unique=True))
    equation = ",".join("".join(each) for each in terms) + "->" + "".join(result)
    return equation, [tuple(sizes[label] for label in each) for each in terms]


@settings(max_examples=examples(60), deadline=None)
@given(equations())
def test_any_equation_answers_the_same(drawn):
    equation, shapes = drawn
    fed = {f"x{i}": RNG.normal(size=shape).astype(np.float32) for i, shape in enumerate(shapes)}
    changed = replace("replace_einsum_with_matmul", model_of("Einsum", fed, equation=equation))
    assert "Einsum" not in operators(changed)
    np.testing.assert_allclose(
        run(changed, fed), np.einsum(equation, *fed.values()), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    "equation", ["", "->", "ij,->ij", "i.j->i", "ij->ik", "ij->ii", "a" * 10_000]
)
def test_an_equation_that_does_not_match_its_operands_is_not_replaced(equation):
    assert parse_equation(equation, [(2, 3)]) is None


@pytest.mark.parametrize(
    "flags", [{}, {"transA": 1}, {"transB": 1}, {"transA": 1, "transB": 1, "beta": 0.0}]
)
@pytest.mark.parametrize("bias", [None, np.ones(4, np.float32), np.ones((1, 1), np.float32)])
def test_gemm_turns_what_it_has_to(flags, bias):
    shape = (3, 2) if flags.get("transA") else (2, 3)
    fed = {"x": RNG.normal(size=shape).astype(np.float32)}
    weight = RNG.normal(size=(4, 3) if flags.get("transB") else (3, 4)).astype(np.float32)
    weights = {"w": weight} if bias is None else {"w": weight, "b": bias}
    changed = assert_replaced(
        "replace_gemm_with_matmul", model_of("Gemm", fed, weights, **flags), fed, "Gemm"
    )
    assert operators(changed).count("Transpose") == flags.get("transA", 0)


def test_a_weight_that_others_read_too_is_turned_by_a_node():
    weight = RNG.normal(size=(3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Gemm", ["x", "w"], ["a"], "gemm", transB=1),
        helper.make_node("MatMul", ["a", "w"], ["y"], "product"),
    ]
    model = make_model(nodes, {"x": (F, [2, 3])}, {"y": (F, [2, 3])}, {"w": weight})
    changed = replace("replace_gemm_with_matmul", model)
    assert operators(changed) == ["Transpose", "MatMul", "MatMul"]
    np.testing.assert_array_equal(read_array(changed.graph.initializer[0]), weight)


@pytest.mark.parametrize("exponent", [-4, -3, -2, -1, -0.5, 0.5, 1, 2, 3, 4])
def test_small_powers_are_products(exponent):
    fed = {"x": np.array([0.5, 1, 2.5], np.float32)}
    model = model_of("Pow", fed, {"p": np.float32(exponent)})
    changed = assert_replaced("replace_pow", model, fed, "Pow")
    assert len(operators(changed)) <= 3


@pytest.mark.parametrize("exponent", [0.0, 5.0, 2.5, np.inf, np.nan, [2.0, 3.0, 2.0], [[[2.0]]]])
def test_other_powers_stay(exponent):
    fed = {"x": np.array([0.5, 1, 2.5], np.float32)}
    model = model_of("Pow", fed, {"p": np.array(exponent, np.float32)})
    assert operators(replace("replace_pow", model)) == ["Pow"]


def test_powers_of_whole_numbers_are_products_only():
    fed = {"x": np.array([-3, 2, 5], np.int32)}
    square, root = (model_of("Pow", fed, {"p": np.float32(each)}) for each in (2, 0.5))
    np.testing.assert_array_equal(run(replace("replace_pow", square), fed), [9, 4, 25])
    assert operators(replace("replace_pow", root)) == ["Pow"]


@pytest.mark.parametrize("divisor", [2.0, -0.125, [4.0, 1.0, 0.5]])
def test_by_a_power_of_two_the_product_is_the_quotient(divisor):
    fed = {"x": RNG.normal(size=(5, 3)).astype(np.float32)}
    model = model_of("Div", fed, {"d": np.array(divisor, np.float32)})
    changed = replace("replace_div_with_mul", model)
    np.testing.assert_array_equal(run(changed, fed), run(model, fed))


@pytest.mark.parametrize("divisor", [0.0, np.inf, np.nan, 1e-8, 1e8, [1.0, 0.0, 1.0]])
def test_a_divisor_without_a_reciprocal_in_half_is_kept(divisor):
    fed = {"x": RNG.normal(size=(5, 3)).astype(np.float32)}
    model = model_of("Div", fed, {"d": np.array(divisor, np.float32)})
    assert operators(replace("replace_div_with_mul", model)) == ["Div"]


def test_whole_numbers_are_divided():
    model = model_of("Div", {"x": np.arange(6, dtype=np.int32)}, {"d": np.int32(2)})
    assert operators(replace("replace_div_with_mul", model)) == ["Div"]


@pytest.mark.parametrize(
    ("opset", "axes", "attributes"),
    [
        (11, None, {"axes": [1]}),
        (11, None, {"axes": [-1, 0], "keepdims": 0}),
        (13, None, {}),
        (18, [1, 2], {"keepdims": 0}),
        (18, None, {}),
    ],
)
def test_means_of_all_opsets_are_sums(opset, axes, attributes):
    fed = {"x": RNG.normal(size=(2, 3, 4)).astype(np.float32)}
    weights = None if axes is None else {"axes": np.array(axes)}
    model = model_of("ReduceMean", fed, weights, opset, **attributes)
    changed = assert_replaced("replace_half_reducemean", model, fed, "ReduceMean")
    assert operators(changed) == ["Mul", "ReduceSum"]


def test_a_mean_of_nothing_stays():
    fed = {"x": RNG.normal(size=(2, 3)).astype(np.float32)}
    model = model_of("ReduceMean", fed, opset=18, noop_with_empty_axes=1)
    assert operators(replace("replace_half_reducemean", model)) == ["ReduceMean"]


def test_means_in_half_do_not_overflow_on_the_way():
    """The sum of 2,048 times 60,000 exceeds the range of half; the mean does not."""
    node = helper.make_node("ReduceMean", ["x"], ["y"], "mean", axes=[1])
    model = make_model([node], {"x": (F, [1, 2048])}, {"y": (F, [1, 1])}, {})
    converted = Converter(precision="fp16").convert(model)
    assert "ReduceMean" not in operators(converted)
    found = run(converted, {"x": np.full((1, 2048), 60_000, np.float16)})
    np.testing.assert_allclose(found.astype(float), 60_000, rtol=2e-3)


@pytest.mark.parametrize("dtype", [np.float32, np.int32])
@pytest.mark.parametrize(
    "bounds", [["x"], ["x", ""], ["x", "", ""], ["x", "low", ""], ["x", "", "high"]]
)
def test_bounds_that_are_left_out_change_nothing(dtype, bounds):
    fed = {"x": np.array([-9, 0, 9], dtype)}
    weights = {name: dtype(value) for name, value in (("low", -5), ("high", 5)) if name in bounds}
    model = model_of("Clip", fed, weights, reads=bounds)
    changed = replace("replace_clip_empty_inputs", model)
    np.testing.assert_array_equal(run(changed, fed), run(model, fed))
    assert all(name for node in changed.graph.node for name in node.input)


@pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 3, 4, 5)])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, bool])
def test_the_only_element_that_is_not_zero_is_found(shape, dtype):
    model = model_of("NonZero", {"x": np.zeros(shape, dtype)})
    for place in (0, 5, int(np.prod(shape)) - 1):
        values = np.zeros(shape, dtype)
        values.ravel()[place] = 1
        fed = {"x": values}
        np.testing.assert_array_equal(run(replace("replace_nonzero", model), fed), run(model, fed))


@pytest.mark.parametrize("op_type", ["Gather", "GatherElements"])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("is_constant", [True, False])
def test_indices_count_from_the_front_in_32_bits(op_type, dtype, is_constant):
    data = RNG.normal(size=(4, 5)).astype(np.float32)
    indices = np.array([[0, -1, 3], [-5, 2, -2]], dtype)
    fed = {"x": data} if is_constant else {"x": data, "i": indices}
    model = model_of(op_type, fed, {"i": indices} if is_constant else None, axis=1)
    changed = replace("indices_workaround", model)
    np.testing.assert_array_equal(run(changed, fed), run(model, fed))
    read = next(node for node in changed.graph.node if node.op_type == op_type).input[1]
    values = {tensor.name: read_array(tensor) for tensor in changed.graph.initializer}
    assert not is_constant or (values[read].dtype == np.int32 and (values[read] >= 0).all())


@pytest.mark.parametrize(
    ("op_type", "weights", "attributes"),
    [
        ("MatMul", {"w": np.arange(12, dtype=np.int32).reshape(3, 4)}, {}),
        ("Pow", {"p": np.int32(2)}, {}),
        ("ReduceL1", {"axes": np.array([1])}, {}),
        ("Relu", None, {}),
    ],
)
def test_whole_numbers_go_through_floats_and_come_back(op_type, weights, attributes):
    fed = {"x": np.array([[-3, 2, 5], [0, -1, 7]], np.int32)}
    model = model_of(op_type, fed, weights, 18, **attributes)
    changed = replace("float_ops_workaround", model)
    found = run(changed, fed)
    wide = {
        "MatMul": lambda x: x @ weights["w"],
        "Pow": np.square,
        "Relu": lambda x: np.maximum(x, 0),
    }
    wide["ReduceL1"] = lambda x: np.abs(x).sum(1, keepdims=True)
    np.testing.assert_array_equal(found, wide[op_type](fed["x"]))
    assert found.dtype == np.int32


def test_names_that_others_have_are_not_taken():
    """Other tensors here have the first names that a replacement would choose."""
    nodes = [
        helper.make_node("HardSwish", ["x"], ["y"], "swish"),
        helper.make_node("Neg", ["x"], ["y/hard_swish/0"], "other"),
        helper.make_node("Add", ["y", "y/hard_swish/0"], ["z"], "sum"),
    ]
    model = make_model(nodes, {"x": (F, [3])}, {"z": (F, [3])}, {})
    fed = {"x": np.array([-1, 0.5, 4], np.float32)}
    np.testing.assert_allclose(
        run(replace("replace_hardswish", model), fed), run(model, fed), rtol=1e-6
    )


def test_operators_of_other_domains_are_others():
    model = model_of("HardSwish", {"x": np.zeros(3, np.float32)})
    model.graph.node[0].domain = "mine"
    changed = get_pass("replace_hardswish")(model)
    assert operators(changed) == ["HardSwish"]
