"""Tests of the number of elements that each tile has of a tensor."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cost_models import C600, one_node
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Builder, matmul
from onnx import TensorProto
from poprt.pipeline import estimate
from simipu.cost import Origin, TileKnowledge, Variable, count_elements
from simipu.operators.formulas.calibration import CALIBRATION
from simipu.operators.formulas.plan import PlanOptions, Product, plan_product
from simipu.operators.formulas.spread import Axis, Grid, Linear, Packed

VECTORS = st.integers(1, 8)


def named(name: str, variables: tuple[Variable, ...]) -> Variable:
    (found,) = (each for each in variables if each.name == name)
    return found


@pytest.mark.parametrize(
    ("elements", "num_tiles", "grain", "expected"),
    [
        (42, 8, 4, [4, 8, 8, 8, 8, 6]),  # 11 vectors on 6 tiles of at most 2: 1, 2, 2, 2, 2, 2
        (8, 8, 1, [1] * 8),
        (9, 8, 1, [1, 2, 2, 2, 2]),
        (3, 8, 4, [3]),
        (0, 8, 4, []),
    ],
)
def test_a_linear_mapping_is_that_of_poputil(elements, num_tiles, grain, expected):
    """The numbers follow by hand from the rule of splitRegions. With the fewest elements on the
    fullest tile it takes as few tiles as possible, and tile i of n ends at vector
    (i + 1) * vectors / n."""
    assert count_elements(Linear(elements, num_tiles, grain)).tolist() == expected


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 100_000), st.integers(1, 2000), VECTORS)
def test_a_linear_mapping_is_even_and_complete(elements: int, num_tiles: int, grain: int) -> None:
    found = count_elements(Linear(elements, num_tiles, grain))
    assert found.sum() == elements
    assert len(found) <= num_tiles
    vectors = math.ceil(elements / grain)
    assert found.max(initial=0) <= math.ceil(vectors / num_tiles) * grain
    assert all(size % grain == 0 for size in found[:-1].tolist())


def test_the_tiles_of_a_grid_are_counted_by_hand() -> None:
    # 10 rows in parts of 4, 4 and 2; 5 columns in parts of 3 and 2. Two tiles share each sum of a
    # product: of 12 sums each keeps 6. Columns are neighbours, and the tiles that share come first.
    #     rows x columns   12  8   12  8   6  4
    grid = Grid((Axis(1, 1, 1), Axis(2), Axis(3, 4, 10), Axis(2, 3, 5)))
    assert count_elements(grid).tolist() == [6, 4, 6, 4, 3, 2] * 2
    assert grid.elements == 50


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 40)), min_size=4, max_size=4),
    st.integers(0, 3),
    st.integers(1, 9),
)
def test_a_grid_equals_the_elements_dealt_one_by_one(
    dimensions: list[tuple[int, int]], shared: int, repeats: int
) -> None:
    axes = [
        Axis(parts) if i == shared else Axis(parts, math.ceil(total / parts), total)
        for i, (parts, total) in enumerate(dimensions)
    ]
    expected = np.zeros([axis.parts for axis in axes], dtype=np.int64)
    sizes = [1 if i == shared else axis.total for i, axis in enumerate(axes)]
    for place in np.ndindex(*sizes):
        cell = [0 if i == shared else place[i] // axis.size for i, axis in enumerate(axes)]
        expected[tuple(cell)] += repeats
    dealt = np.moveaxis(expected, shared, 0)
    cells = dealt[0].copy()
    parts = axes[shared].parts
    for part in range(parts):
        dealt[part] = cells * (part + 1) // parts - cells * part // parts
    found = count_elements(Grid(tuple(axes), repeats))
    flat = expected.ravel()
    assert found.tolist() == flat[: len(found)].tolist()
    assert not flat[len(found) :].any()
    assert found.sum() == Grid(tuple(axes), repeats).elements


def test_a_packed_spread_fills_one_tile_after_the_other() -> None:
    assert count_elements(Packed(10, 4)).tolist() == [4, 4, 2]


@settings(max_examples=examples(60), deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 3000),
    st.integers(1, 2000),
    st.integers(1, 2000),
    st.sampled_from([1, 1, 9]),
    st.booleans(),
)
def test_a_plan_places_every_element_on_its_tiles(
    groups: int, rows: int, k: int, n: int, taps: int, stored: bool
) -> None:
    product = Product(groups, rows, k, n, taps=taps, convolution=taps > 1, stored=stored)
    plan = plan_product(product, C600, PlanOptions(), CALIBRATION)
    result, columns = count_elements(plan.result), count_elements(plan.columns)
    assert result.sum() == groups * rows * n
    assert columns.sum() == groups * k * n * taps
    assert len(result) <= plan.tiles
    assert len(columns) <= plan.tiles
    assert result.max() <= plan.result_elements


def test_the_mapping_of_a_product_is_that_of_its_printed_plan() -> None:
    net = Builder()
    x = net.input("x", [1000, 256], TensorProto.FLOAT16)
    product = net.add("MatMul", x, net.weight(256, 100))
    found = estimate(net.model(net.add("Relu", product)), C600)
    # 100 columns in 5 parts of 20; 256 channels in 8 parts of 32; 1,000 rows in blocks of 16 units,
    # 63 of them in 32 parts of at most 2: 31 parts of 32 rows and one of 8.
    assert found.operators[0].work.plan == "rows 5 in 8 out 32"
    # A result of 20 x 32 sums is kept by the 8 tiles that made them, 80 on each; 20 x 8 of them
    # are 20 on each. The last of 32 neighbours has the short part.
    expected = ([80] * 31 + [20]) * 40
    made = named(product, found.variables)
    assert count_elements(made.spread).tolist() == expected
    assert made.source is TileKnowledge.PLAN
    # The weights of 32 channels by 20 columns are stored by the 32 tiles that read them.
    weights = named("weight_0", found.variables)
    assert count_elements(weights.spread).tolist() == [20] * 1280
    # The activation works where its operand lies.
    relu = found.variables[-1]
    assert (relu.kind, relu.source) == (Origin.TENSOR, TileKnowledge.PLAN)
    assert count_elements(relu.spread).tolist() == expected
    # Nobody knows where the host's input lies: 64,000 vectors, 44 on a tile, on 1,455 tiles.
    given_ = named("x", found.variables)
    assert given_.source is TileKnowledge.LINEAR
    assert count_elements(given_.spread).max() == 4 * 44
    assert len(count_elements(given_.spread)) == math.ceil(64_000 / 44)


def test_the_splits_of_a_plan_follow_each_other_as_poplin_numbers_tiles() -> None:
    """Poplin's linearizeTileIndices: groups, then input channels, rows, output channels."""
    found = estimate(matmul(1000, 256, 96), C600)
    (operator,) = found.operators
    assert operator.work.plan == "rows 30 in 8 out 6"
    # 29 parts of 34 rows and one of 14, by 16 columns. Of 544 sums each of 8 tiles keeps 68, of 224
    # sums 28; these 8 tiles are 180 apart.
    expected = ([68] * (29 * 6) + [28] * 6) * 8
    assert count_elements(named("MatMul_0", found.variables).spread).tolist() == expected


def test_an_elementwise_operator_lies_as_its_operand() -> None:
    found = estimate(one_node("Relu", [[64, 1000]]), C600)
    first, second = found.variables
    assert (first.kind, second.kind) == (Origin.INPUT, Origin.TENSOR)
    # 64,000 halves are 16,000 vectors of 4: 11 on a tile, 1,455 tiles.
    for each in (first, second):
        counts = count_elements(each.spread)
        assert (len(counts), int(counts.max()), int(counts.sum())) == (1455, 44, 64_000)


def test_transposed_weights_lie_as_the_product_reads_them() -> None:
    net = Builder()
    x = net.input("x", [64, 512], TensorProto.FLOAT16)
    turned = net.add("Transpose", net.weight(256, 512), perm=[1, 0])
    found = estimate(net.model(net.add("MatMul", x, turned)), C600)
    assert named("weight_0", found.variables).source is TileKnowledge.PLAN
