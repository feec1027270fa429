"""Tests on random graphs of products and elementwise operators. Nodes that the kernels join or look
up are compared with the emulation, and with the same graph in ONNX Runtime's own nodes."""

import pytest
from half_models import (
    HALF_PARTIALS,
    NAN_ON_OVERFLOW,
    check_values,
    compute,
    emulate,
    every_witness,
    half_model,
    wild_halves,
)
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from simipu.kernels import find_kernels

# ONNX does not define which of two zeros is larger: a graph that divides does not select.
ARITHMETIC = (("Add", "Sub", "Mul", "Div"), ("Add", "Sub", "Mul", "Max", "Min", "Relu", "Clip"))
FUNCTIONS = ("Sigmoid", "Tanh", "HardSigmoid", "Gelu", "Erf", "Exp", "Sqrt", "Neg", "Softplus")
SEEDS = st.integers(0, 2**30).map(lambda half: 2 * half)


def parts_of(shape):
    """Return a strategy for shapes that broadcast to `shape`, including fewer axes and single
    numbers."""
    ones = st.lists(st.booleans(), min_size=len(shape), max_size=len(shape))
    return st.builds(
        lambda is_one, start: tuple(1 if one else n for n, one in zip(shape, is_one, strict=True))[
            start:
        ],
        ones,
        st.integers(0, len(shape)),
    )


@st.composite
def graphs(draw, functions):
    """Return an optional product, followed by operators on the existing tensors. All unread results
    become one output tensor."""
    start = draw(st.sampled_from(["none", "MatMul", "Gemm", "Conv"]))
    seed = draw(SEEDS)
    weights, nodes, arithmetic = {}, [], draw(st.sampled_from(ARITHMETIC))

    def weight(shape):
        name = f"w{len(weights)}"
        values_seed, num_special = seed + 2 + 2 * len(weights), draw(st.sampled_from([0, 0, 1]))
        weights[name] = wild_halves(shape, values_seed, num_special)
        return name

    if start == "Conv":
        channels, outputs, size = (draw(st.integers(1, n)) for n in (20, 9, 6))
        field, shape = (2, channels, size, size), (2, outputs, size, size)
        inputs = ["x", weight((outputs, channels, 3, 3)), weight((outputs,))]
        nodes.append(helper.make_node("Conv", inputs, ["t0"], pads=[1] * 4))
    elif start == "none":
        field = shape = draw(st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple))
    else:
        rows, depth, columns = (draw(st.integers(1, 40)) for _ in range(3))
        batch = draw(st.sampled_from([(), (3,), (2, 3)])) if start == "MatMul" else ()
        field, shape = (*batch, rows, depth), (*batch, rows, columns)
        bias = [weight((columns,))] if start == "Gemm" else []
        nodes.append(helper.make_node(start, ["x", weight((depth, columns)), *bias], ["t0"]))
    there = [nodes[-1].output[0] if nodes else "x"]
    taken = set()
    for i in range(draw(st.integers(1, 8))):
        source = draw(st.sampled_from(there[-3:]))
        operator = draw(st.sampled_from((*arithmetic, *functions)))
        if operator == "Clip":
            inputs = [source, weight(()), weight(())]
        elif operator == "Relu" or operator in functions:
            inputs = [source]
        else:
            other = (
                draw(st.sampled_from(there))
                if draw(st.booleans())
                else weight(draw(parts_of(shape)))
            )
            inputs = [source, other] if draw(st.booleans()) else [other, source]
        taken.update(inputs)
        there.append(f"u{i}")
        nodes.append(helper.make_node(operator, inputs, [there[-1]]))
    left = [name for name in there if name not in taken]
    flat = [f"{name}/flat" for name in left]
    nodes += [helper.make_node("Flatten", [name], [f"{name}/flat"], axis=0) for name in left]
    nodes.append(helper.make_node("Concat", flat, ["y"], axis=1))
    model = half_model(nodes, {"x": field}, "y", weights)
    model.opset_import[0].version = 20
    return model, wild_halves(field, seed, draw(st.sampled_from([0, 0, 3])))


@every_witness
@given(case=graphs(()), numerics=st.sampled_from([HALF_PARTIALS, NAN_ON_OVERFLOW]))
def test_fused_arithmetic_is_that_of_its_operators(witness, case, numerics):
    model, x = case
    check_values(compute(witness, model, numerics, x), emulate(model, numerics, x))


@every_witness
@pytest.mark.parametrize(
    "operand", [(3, 1, 1), (2, 1, 1, 1), (3, 4, 1), (2, 1, 4, 6), (2, 3, 1, 1)]
)
def test_an_operand_of_some_axes_of_the_batch_is_added_to_a_product(witness, operand):
    """A kernel addresses operands of the whole batch or of none of its axes."""
    weights = {"w": wild_halves((5, 6), 2), "b": wild_halves(operand, 4)}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["y"]),
    ]
    model, x = half_model(nodes, {"x": (2, 3, 4, 5)}, "y", weights), wild_halves((2, 3, 4, 5), 0)
    check_values(compute(witness, model, HALF_PARTIALS, x), emulate(model, HALF_PARTIALS, x))


@every_witness
@pytest.mark.parametrize("operand", [(6, 1), (1, 6), (2, 1, 6, 1), (2, 4, 1, 1)])
def test_an_operand_of_some_axes_of_a_field_is_added_to_a_convolution(witness, operand):
    weights = {"w": wild_halves((4, 3, 3, 3), 2), "b": wild_halves(operand, 4)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["product"], pads=[1] * 4),
        helper.make_node("Add", ["product", "b"], ["y"]),
    ]
    model, x = half_model(nodes, {"x": (2, 3, 6, 6)}, "y", weights), wild_halves((2, 3, 6, 6), 0)
    check_values(compute(witness, model, HALF_PARTIALS, x), emulate(model, HALF_PARTIALS, x))


@pytest.mark.slow
@pytest.mark.skipif(not find_kernels().are_there, reason="no kernels")
@pytest.mark.parametrize("witness", ["kernels", "kernels apart"])
@given(case=graphs(FUNCTIONS), numerics=st.sampled_from([HALF_PARTIALS, NAN_ON_OVERFLOW]))
def test_functions_that_are_looked_up_are_those_of_the_nodes(witness, case, numerics):
    model, x = case
    check_values(compute(witness, model, numerics, x), compute("nodes", model, numerics, x))
