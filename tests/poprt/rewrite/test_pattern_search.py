"""Tests of the patterns in which passes describe formulas."""

import pytest
from onnx import TensorProto, parser
from onnxgraph import GraphEditor, NameScope, infer_shapes
from poprt.rewrite.patterns import AnyOf, Once, Op, Through, Times, Var

X, Y = Var("x"), Var("y")


def parse(body, outputs="float[2] r"):
    return parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]>\n'
        f"g (float[2] x, float[2] y) => ({outputs}) <float two = {{2}}, float half = {{0.5}}> "
        f"{{ {body} }}"
    )


def find(pattern, body, result="r", **options):
    model = parse(body, **options)
    view = GraphEditor(NameScope.of(model), model.graph, infer_shapes(model).graph)
    view.index()
    return pattern.find(result, view)


@pytest.mark.parametrize("body", ["a = Neg(x) r = Add(a, y)", "a = Neg(x) r = Add(y, a)"])
def test_operands_of_a_commutative_operator_match_in_both_orders(body):
    found = find(Op("Neg", X) + Y, body)
    assert (found["x"], found["y"]) == ("x", "y")


def test_operands_of_other_operators_match_in_order():
    assert find(Op("Neg", X) - Y, "a = Neg(x) r = Sub(y, a)") is None


def test_a_name_stands_for_one_tensor():
    assert find(X * X, "r = Mul(x, x)")
    assert find(X * X, "r = Mul(x, y)") is None
    sides = Op("Neg", X).named("side")
    assert find(sides * sides, "a = Neg(x) r = Mul(a, a)")["side"] == "a"


def test_a_number_is_a_constant_of_that_value():
    assert find(X * 2.0, "r = Mul(two, x)")
    assert find(X * 3.0, "r = Mul(two, x)") is None


def test_a_variable_may_have_a_condition():
    number = Var("n", lambda view, name: view.number(name) is not None)
    assert find(X + number, "r = Add(two, x)")["n"] == "two"
    assert find(X + number, "r = Add(y, x)") is None


def test_attributes_are_compared_and_none_means_missing():
    cast = Op("Cast", X, to=TensorProto.BOOL)
    assert find(cast, "r = Cast<to = 9>(x)", outputs="bool[2] r")
    assert find(cast, "r = Cast<to = 7>(x)", outputs="int64[2] r") is None
    assert find(Op("Elu", X, alpha=None), "r = Elu(x)")
    assert find(Op("Elu", X, alpha=None), "r = Elu<alpha = 2.0>(x)") is None


def test_a_cast_to_the_own_type_counts_as_no_node():
    assert find(Op("Neg", X) + X, "a = Neg(x) b = Cast<to = 1>(a) r = Add(b, x)")
    assert find(X * X, "a = Cast<to = 1>(x) r = Mul(a, x)")


def test_once_refuses_tensors_that_are_read_elsewhere():
    pattern = Op("Abs", Once(Op("Neg", X)))
    assert find(pattern, "a = Neg(x) r = Abs(a)")
    assert find(pattern, "a = Neg(x) r = Abs(a) s = Exp(a)") is None
    assert find(pattern, "a = Neg(x) r = Abs(a)", outputs="float[2] r, float[2] a") is None


def test_any_of_takes_the_first_pattern_that_matches():
    pattern = Op("Neg", AnyOf(Op("Abs", X), X))
    assert find(pattern, "a = Abs(x) r = Neg(a)")["x"] == "x"
    assert find(pattern, "a = Exp(x) r = Neg(a)")["x"] == "a"


def test_views_are_skipped():
    pattern = Op("Neg", Through(("Identity",), Op("Abs", X)))
    assert find(pattern, "a = Abs(x) b = Identity(a) c = Identity(b) r = Neg(c)")


@pytest.mark.parametrize(
    "body",
    [
        "a = Mul(x, half) r = Mul(a, y)",
        "a = Mul(y, x) r = Div(a, two)",
        "a = Div(y, two) r = Mul(x, a)",
    ],
)
def test_a_product_matches_in_any_order(body):
    assert find(Times(0.5, X, Op("Neg", Y) | Y), body)


def test_a_power_is_a_product():
    assert find(
        Times(2.0, X, X, X), "a = Constant<value_float = 3.0>() b = Pow(x, a) r = Mul(b, two)"
    )
    assert (
        find(Times(2.0, X, X), "a = Constant<value_float = 3.0>() b = Pow(x, a) r = Mul(b, two)")
        is None
    )


def test_a_factor_that_is_read_once_is_in_products_that_are_read_once():
    pattern = Times(0.5, Once(Op("Neg", Y)), X)
    body = "a = Neg(y) b = Mul(a, half) r = Mul(b, x)"
    assert find(pattern, body)
    assert find(pattern, f"{body} s = Abs(b)") is None
    assert find(pattern, "a = Neg(y) b = Mul(x, half) r = Mul(b, a) s = Abs(b)")


def test_a_search_in_long_products_ends():
    """Every factor of a product is read twice, so there are 2^200 ways to take it apart."""
    steps = ["a0 = Mul(x, x)", *(f"a{i + 1} = Mul(a{i}, a{i})" for i in range(200))]
    assert (
        find(Times(3.0, X, X, X, X), " ".join(steps), result="a200", outputs="float[2] a200")
        is None
    )
