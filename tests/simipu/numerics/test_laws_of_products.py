"""Tests of the laws of planned products: more to multiply, fewer tiles or less memory never make
one faster.

How groups and blocks of channels divide among tiles leaves small exceptions, for which each law has
a bound. Almost all products obey it exactly.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, lru_cache

import onnx
import pytest
from cost_models import C600
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from poprt.pipeline import estimate
from simipu.chip.target import Target
from simipu.cost import CALIBRATION
from simipu.operators.formulas.plan import Plan, PlanOptions, Product, plan_product

SIZES = (
    1,
    2,
    3,
    4,
    7,
    8,
    12,
    16,
    17,
    32,
    49,
    64,
    77,
    96,
    128,
    197,
    300,
    384,
    512,
    768,
    1000,
    1536,
    3072,
)
GROUPS = (1, 1, 1, 2, 12, 48, 192, 700, 1472, 3000)
Change = Callable[[Product], Product]


def plan(product: Product, target: Target = C600, proportion: float = 0.6, **options: bool) -> Plan:
    return plan_product(product, target, PlanOptions(proportion, **options), CALIBRATION)


@cache
def cycles(
    product: Product, target: Target = C600, proportion: float = 0.6, **options: bool
) -> int:
    found = plan(product, target, proportion, **options)
    return found.cycles + round(found.steps * CALIBRATION.step_cycles(target))


@lru_cache
def products() -> Sequence[Product]:
    """Return matmuls and convolutions of all sizes whose copies memory does not limit."""
    chosen, found = random.Random(17), []
    while len(found) < 200:
        rows, k, n = (chosen.choice(SIZES) for _ in range(3))
        product = Product(chosen.choice(GROUPS), rows, k, n, stored=chosen.random() < 0.5)
        if chosen.random() < 0.3:
            width = min(rows, chosen.choice([7, 14, 56]))
            product = Product(
                chosen.choice([1, 1, 2, 32]),
                rows,
                k,
                n,
                taps=9,
                width=width,
                inputs_per_row=1.5,
                convolution=True,
            )
        if plan(product, proportion=0.05).fits:
            found.append(product)
    return found


def check(smaller_over_larger: Iterable[float], bound: float, exact: float) -> None:
    """Check that no ratio exceeds 1 by more than `bound`, and that at least the share `exact` does
    not exceed 1 at all."""
    ratios = list(smaller_over_larger)
    assert max(ratios) <= 1 + bound
    assert sum(ratio <= 1 for ratio in ratios) >= exact * len(ratios)


@pytest.mark.slow
@pytest.mark.parametrize("dimension", ["groups", "rows", "k", "n"])
@pytest.mark.parametrize(
    "grow", [lambda size: size + 1, lambda size: 2 * size], ids=["one more", "twice"]
)
def test_more_to_multiply_never_takes_less(dimension: str, grow: Callable[[int], int]) -> None:
    """There are three exceptions. A dot product reads rows that do not begin at 64 bits twice, and
    one more channel may cause them. Groups divide among tiles with remainders. The planner's charge
    for rearranging is spread over the tiles that a plan happens to use."""
    check(
        (
            cycles(product)
            / cycles(replace(product, **{dimension: grow(getattr(product, dimension))}))
            for product in products()
        ),
        bound=0.1,
        exact=0.9,
    )


@pytest.mark.slow
@pytest.mark.parametrize("tiles", [736, 1216, 1440, 1464])
def test_more_tiles_never_cost_time(tiles: int) -> None:
    fewer = replace(C600, tiles_per_ipu=tiles)
    check(
        (cycles(product) / cycles(product, fewer) for product in products()), bound=0.07, exact=0.95
    )


@pytest.mark.slow
def test_more_available_memory_never_costs_time() -> None:
    proportions = (0.02, 0.05, 0.1, 0.3, 0.6, 1.0)
    for product in products():
        times = [cycles(product, proportion=proportion) for proportion in proportions]
        assert times == sorted(times, reverse=True), product


@pytest.mark.parametrize(
    ("faster", "slower", "bound"),
    [
        (lambda p: p, lambda p: replace(p, partial_bytes=4), 0.02),
        (lambda p: p, lambda p: replace(p, partial_bytes=4, element_bytes=4), 0.04),
    ],
    ids=["half partials", "half"],
)
def test_narrower_types_never_take_longer(faster: Change, slower: Change, bound: float) -> None:
    """A dot product of few halves is an exception: its sums have to be narrowed."""
    check(
        (cycles(faster(each)) / cycles(slower(each)) for each in products()),
        bound=bound,
        exact=0.95,
    )


def test_fp8_is_faster_where_its_units_are_full() -> None:
    """Blocks of fp8 have 32 input channels, and the loops of its vertex cost more: products of
    fewer channels or rows gain nothing."""
    full = [
        product
        for product in products()
        if min(product.k, product.n, product.rows) >= 64 and not product.convolution
    ]
    assert len(full) > 5
    for product in full:
        assert cycles(replace(product, element_bytes=1)) <= 1.02 * cycles(product), product


def test_wider_loads_of_weights_never_cost_time() -> None:
    for product in products():
        assert cycles(product, use_128bit_conv_unit_load=True) <= cycles(product), product


@settings(max_examples=examples(50), deadline=None)
@given(st.sampled_from(GROUPS), *[st.sampled_from(SIZES)] * 3, st.sampled_from([0.02, 0.6]))
def test_swapped_activations_take_as_long(
    groups: int, rows: int, k: int, n: int, proportion: float
) -> None:
    product = Product(groups, rows, k, n)
    swapped = replace(product, rows=n, n=rows)
    assert cycles(product, proportion=proportion) == cycles(swapped, proportion=proportion)


def matmul(
    left: Sequence[int], right: Sequence[int], known: str, op_type: str = "MatMul"
) -> onnx.ModelProto:
    """Return a model of the product of `x` and `y`; the operands in `known` are weights."""
    shapes = {"x": left, "y": right}
    node = helper.make_node(op_type, ["x", "y"], ["z"], name="product")
    given_inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT16, shape)
        for name, shape in shapes.items()
        if name not in known
    ]
    weights = [
        onnx.TensorProto(
            name=name,
            data_type=TensorProto.FLOAT16,
            dims=shape,
            raw_data=bytes(2 * shape[0] * shape[1]),
        )
        for name, shape in shapes.items()
        if name in known
    ]
    graph = helper.make_graph(
        [node], "graph", given_inputs, [onnx.ValueInfoProto(name="z")], weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@pytest.mark.parametrize(("rows", "k", "n"), [(8, 512, 2048), (384, 768, 3072), (1000, 64, 10)])
def test_a_matmul_takes_as_long_whichever_side_the_weights_are_on(
    rows: int, k: int, n: int
) -> None:
    right = estimate(matmul([rows, k], [k, n], "y"), C600)
    left = estimate(matmul([n, k], [k, rows], "x"), C600)
    assert right.cycles == left.cycles
    assert right.cycles == estimate(matmul([rows, k], [k, n], "y", "Gemm"), C600).cycles


def test_batches_of_one_side_are_its_rows() -> None:
    """PopART reshapes them this way: the weights of a product are not repeated for each sample."""
    flat = estimate(matmul([64 * 12, 96], [96, 200], "y"), C600).cycles
    assert estimate(matmul([64, 12, 96], [96, 200], "y"), C600).cycles == flat
    columns = estimate(matmul([200, 96], [12, 96, 64], "x"), C600).cycles
    assert columns == estimate(matmul([200, 96], [96, 12 * 64], "x"), C600).cycles


@pytest.mark.parametrize(
    ("batch", "channels", "filters", "side"), [(1, 64, 256, 56), (4, 512, 128, 28), (2, 96, 96, 7)]
)
def test_a_convolution_of_one_position_is_a_product(
    batch: int, channels: int, filters: int, side: int
) -> None:
    """The times agree within 10 %: poplin's planner prefers streamed weights for a matmul with
    weights, but not for a convolution."""
    rows = batch * side * side
    product = estimate(matmul([rows, channels], [channels, filters], "y"), C600).cycles
    free = Product(1, rows, channels, filters)
    assert cycles(free) <= cycles(replace(free, stored=True)) <= 1.1 * cycles(free)
    field = helper.make_tensor_value_info("x", TensorProto.FLOAT16, [batch, channels, side, side])
    weights = onnx.TensorProto(
        name="w",
        data_type=TensorProto.FLOAT16,
        dims=[filters, channels, 1, 1],
        raw_data=bytes(2 * channels * filters),
    )
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", kernel_shape=[1, 1])
    graph = helper.make_graph([node], "graph", [field], [onnx.ValueInfoProto(name="y")], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    assert estimate(model, C600).cycles == pytest.approx(product, rel=0.1)
