"""Tests of the order of sums in half, to the bit: the emulation (tests/support/half_emulation.py)
and the witnesses of tests/support/half_models.py."""

import numpy as np
import pytest
from half_models import (
    HALF_PARTIALS,
    NAN_ON_OVERFLOW,
    check_bits,
    compute,
    emulate,
    every_witness,
    half_model,
    quarter_model,
    run,
    wild_halves,
)
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnxgraph import attribute
from simipu.numerics.quarter import F143, F152

NUMERICS = st.sampled_from([HALF_PARTIALS, NAN_ON_OVERFLOW])
SEEDS = st.integers(0, 2**31)
SIZES = st.one_of(st.integers(1, 4), st.integers(1, 70))


def add_up(left, right):
    """Return the float products of rows and columns, added one channel after the other from
    zero."""
    total = np.zeros((*left.shape[:-1], right.shape[-1]), np.float32)
    for k in range(left.shape[-1]):
        total += left[..., k, None] * right[..., k, :][..., None, :]
    return total


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_onnx_runtime_adds_up_one_channel_after_the_other(threads):
    """The lowering depends on this order for two or more rows and columns, and no document promises
    it."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "aby"]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["y"])], "g", values[:2], values[2:]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    told = False
    for rows, columns in ((2, 2), (2, 3), (3, 2), (17, 9), (2, 500), (500, 2), (300, 301)):
        for k in (1, 2, 3, 4, 7, 15, 16, 31, 32):
            for batch in ((), (3,)):
                left = wild_halves((*batch, rows, k), 1).astype(np.float32)
                right = wild_halves((*batch, k, columns), 3, axis=-2).astype(np.float32)
                expected = add_up(left, right)
                np.testing.assert_array_equal(run(model, left, right, threads=threads), expected)
                told |= bool((add_up(left[..., ::-1], right[..., ::-1, :]) != expected).any())
    assert told  # these values show the order


@every_witness
@given(
    batch=st.sampled_from([(), (2,), (2, 3)]),
    sizes=st.tuples(SIZES, SIZES, SIZES),
    shared=st.booleans(),
    open_rows=st.booleans(),
    num_special=st.sampled_from([0, 0, 1, 3]),
    numerics=NUMERICS,
    seed=SEEDS,
)
def test_a_matrix_product_has_one_order(
    witness, batch, sizes, shared, open_rows, num_special, numerics, seed
):
    rows, k, columns = sizes
    a = wild_halves((*batch, rows, k), seed, num_special)
    b = wild_halves((*(() if shared else batch), k, columns), seed + 2, num_special, axis=-2)
    shape = ["n", *a.shape[1:]] if open_rows else a.shape
    model = half_model(
        [helper.make_node("MatMul", ["a", "b"], ["y"])], {"a": shape, "b": b.shape}, "y", {}
    )
    check_bits(compute(witness, model, numerics, a, b), emulate(model, numerics, a, b))


@every_witness
@given(
    sizes=st.tuples(SIZES, SIZES, SIZES),
    transposed=st.tuples(st.booleans(), st.booleans()),
    scales=st.tuples(st.sampled_from([1.0, 0.5, 0.3]), st.sampled_from([1.0, 2.0, 0.7])),
    bias=st.sampled_from(["none", "all", "row", "one"]),
    numerics=NUMERICS,
    seed=SEEDS,
)
def test_a_gemm_scales_its_sums_and_adds_in_float(
    witness, sizes, transposed, scales, bias, numerics, seed
):
    rows, k, columns = sizes
    a, b = wild_halves((rows, k), seed), wild_halves((k, columns), seed + 2, axis=-2)
    a, b = a.T if transposed[0] else a, b.T if transposed[1] else b
    shapes = {"all": (rows, columns), "row": (columns,), "one": (rows, 1)}
    weights = {"b": b, **({"c": wild_halves(shapes[bias], seed + 4)} if bias in shapes else {})}
    node = helper.make_node(
        "Gemm",
        ["a", *weights],
        ["y"],
        transA=int(transposed[0]),
        transB=int(transposed[1]),
        alpha=scales[0],
        beta=scales[1],
    )
    model = half_model([node], {"a": a.shape}, "y", weights)
    check_bits(compute(witness, model, numerics, a), emulate(model, numerics, a))


@st.composite
def convolutions(draw):
    """Return a Conv of x and w, and perhaps b, with the shapes of x and w."""
    rank = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 2, 3, 8]))
    channels = draw(st.sampled_from([1, 2, 3, 4, 5, 8, 9, 16, 20, 40]))
    along = st.lists(st.integers(1, (45, 8, 4)[rank - 1]), min_size=rank, max_size=rank)
    kernel = draw(along)
    strides, dilations = (
        draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank)) for _ in range(2)
    )
    pads = draw(st.lists(st.integers(0, 2), min_size=2 * rank, max_size=2 * rank))
    more = draw(st.lists(st.integers(0, 5), min_size=rank, max_size=rank))
    field = [
        (n - 1) * step + 1 + each for n, step, each in zip(kernel, dilations, more, strict=True)
    ]
    outputs = groups * draw(st.integers(1, 4))
    node = helper.make_node(
        "Conv",
        ["x", "w", *draw(st.sampled_from([["b"], []]))],
        ["y"],
        group=groups,
        strides=strides,
        dilations=dilations,
        pads=pads,
    )
    return node, (draw(st.integers(1, 2)), groups * channels, *field), (outputs, channels, *kernel)


@pytest.mark.slow
@every_witness
@given(
    case=convolutions(), num_special=st.sampled_from([0, 0, 1, 3]), numerics=NUMERICS, seed=SEEDS
)
def test_a_convolution_has_one_order(witness, case, num_special, numerics, seed):
    node, field, filters = case
    w = wild_halves(filters, seed, num_special, axis=1)
    weights = {"w": w, "b": wild_halves(filters[:1], 2 * seed)}
    x = wild_halves(field, seed + 4, num_special, axis=1, channels=filters[1])
    model = half_model([node], {"x": ["n", *field[1:]]}, "y", weights)
    check_bits(compute(witness, model, numerics, x), emulate(model, numerics, x))


@st.composite
def transposed_convolutions(draw):
    """Return a ConvTranspose likewise. One of four ways determines the size of its result."""
    rank = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    channels, outputs = draw(st.sampled_from([1, 2, 3, 5, 16, 20])), draw(st.integers(1, 4))
    sizes, kernel, strides, dilations = (
        draw(st.lists(st.integers(1, most), min_size=rank, max_size=rank))
        for most in ((9, 5, 4)[rank - 1], (40, 5, 3)[rank - 1], 3, 2)
    )
    way = draw(st.sampled_from(["pads", "output_shape", "auto_pad", "valid"]))
    # ONNX's own shape inference and ONNX Runtime disagree about output_padding with SAME.
    more = [0 if way == "auto_pad" else draw(st.integers(0, each - 1)) for each in strides]
    whole = [
        (size - 1) * step + (taps - 1) * dilation + 1 + add
        for size, taps, step, dilation, add in zip(
            sizes, kernel, strides, dilations, more, strict=True
        )
    ]
    attributes = {
        "group": groups,
        "strides": strides,
        "dilations": dilations,
        "output_padding": more,
    }
    if way == "pads":
        pads = [[draw(st.integers(0, min(3, (each - 1) // 2))) for each in whole] for _ in range(2)]
        attributes["pads"] = pads[0] + pads[1]
    elif way == "output_shape":
        attributes["output_shape"] = [
            draw(st.integers(size, max(size, each)))
            for size, each in zip(sizes, whole, strict=True)
        ]
        attributes["auto_pad"] = draw(st.sampled_from(["NOTSET", "SAME_UPPER", "SAME_LOWER"]))
    elif way == "auto_pad":
        attributes["auto_pad"] = draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER"]))
    else:
        attributes["auto_pad"] = "VALID"
    node = helper.make_node(
        "ConvTranspose", ["x", "w", *draw(st.sampled_from([["b"], []]))], ["y"], **attributes
    )
    field = (draw(st.integers(1, 2)), groups * channels, *sizes)
    return node, field, (groups * channels, outputs, *kernel)


@pytest.mark.slow
@every_witness
@given(
    case=transposed_convolutions(),
    num_special=st.sampled_from([0, 0, 1, 3]),
    numerics=NUMERICS,
    seed=SEEDS,
)
def test_a_transposed_convolution_has_one_order(witness, case, num_special, numerics, seed):
    node, field, filters = case
    channels = filters[0] // attribute(node, "group")
    weights = {
        "w": wild_halves(filters, seed, num_special, axis=0, channels=channels),
        "b": wild_halves((filters[0] // channels * filters[1],), 2 * seed),
    }
    x = wild_halves(field, seed + 4, num_special, axis=1, channels=channels)
    model = half_model([node], {"x": ["n", *field[1:]]}, "y", weights)
    check_bits(compute(witness, model, numerics, x), emulate(model, numerics, x))


@pytest.mark.slow
@every_witness
@given(
    case=convolutions(),
    is_matmul=st.booleans(),
    sizes=st.tuples(SIZES, SIZES, SIZES),
    quarter=st.sampled_from([F143, F152]),
    numerics=NUMERICS,
    seed=SEEDS,
)
def test_products_of_8_bits_have_one_order(
    witness, case, is_matmul, sizes, quarter, numerics, seed
):
    """The codes are of all kinds, NaN included; blocks have 32 channels."""
    node, field, filters = case
    if is_matmul:
        rows, k, columns = sizes
        node, field, filters = (
            helper.make_node("MatMul", ["x", "w"], ["y"]),
            (rows, k),
            (k, columns),
        )
    node.input[:] = ["a", "b"]
    codes = np.random.default_rng(seed).integers(0, 256, filters).astype(np.uint8)
    model = quarter_model(node, field, codes, quarter)
    x = wild_halves(field, seed)
    check_bits(compute(witness, model, numerics, x), emulate(model, numerics, x))


# 1 is lost beside 4096 * 4096, 2 is not.
LOST, KEPT = (4096, 1, 1, -4096), (1, 1, 4096, -4096)


@every_witness
@pytest.mark.parametrize(("terms", "expected"), [(LOST, 0), (KEPT, 2)])
@pytest.mark.parametrize(
    ("node", "shapes"),
    [
        (helper.make_node("MatMul", ["x", "w"], ["y"]), ((1, 4), (4, 1))),
        (helper.make_node("Gemm", ["x", "w"], ["y"], transB=1), ((1, 4), (1, 4))),
        (helper.make_node("Conv", ["x", "w"], ["y"]), ((1, 4, 1), (1, 4, 1))),
        # Kernel rows count as channels: all channels of one row come first, then those of the next.
        (helper.make_node("Conv", ["x", "w"], ["y"]), ((1, 1, 4, 1), (1, 1, 4, 1))),
        # Groups with few channels sum the kernel positions of a row.
        (helper.make_node("Conv", ["x", "w"], ["y"], group=2), ((1, 2, 4), (2, 1, 4))),
    ],
)
def test_a_block_is_added_up_from_its_first_product_on(witness, node, shapes, terms, expected):
    x, w = (
        np.resize(np.float16(values), shape)
        for values, shape in zip((np.abs(terms), terms), shapes, strict=True)
    )
    model = half_model([node], {"x": x.shape}, "y", {"w": w})
    found = compute(witness, model, HALF_PARTIALS, x)
    np.testing.assert_array_equal(found, np.full_like(found, expected))
