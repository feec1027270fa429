"""Tests of when tensors are on the same tiles, so that an operator moves nothing, and of what Remap
costs."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import onnx
import pytest
from cost_models import C600, cycles
from exported_graphs import bert_like, deberta_like
from onnxgraph import CHIP_DOMAIN
from poprt import Converter
from poprt.pipeline import estimate
from simipu.cost import CostOptions, OperatorCost

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from networks import Builder

ROWS, WIDTH = 1024, 256


def remap(net: Builder, x: str, **attributes: Any) -> str:
    return net.add("Remap", x, domain=CHIP_DOMAIN, **attributes)


def product(net: Builder, x: str, width: int = WIDTH) -> str:
    return net.add("MatMul", x, net.weight(width, WIDTH))


def start() -> tuple[Builder, str]:
    """Return a network with one input."""
    net = Builder()
    return net, net.input("x", [ROWS, WIDTH])


def last(net: Builder, result: str) -> OperatorCost:
    """Return the cost of the node that was added last."""
    return estimate(net.model(result), C600).operators[-1]


def is_still(found: OperatorCost) -> bool:
    """Return whether a node moves nothing between tiles."""
    return found.work.exchange == found.work.steps == 0


def test_a_remap_of_what_lies_evenly_costs_its_copy_alone() -> None:
    net, x = start()
    rows = net.add("Reshape", remap(net, product(net, x)), net.integers(ROWS * 4, WIDTH // 4))
    found = last(net, remap(net, rows))
    assert is_still(found)
    # 1024 x 256 halves are 357 bytes of each tile, 8 a cycle.
    assert found.work.compute == 45
    moved = last(net, remap(net, product(net, x)))
    assert (moved.work.compute, moved.work.exchange, moved.work.steps) == (158, 90, 1)


def test_a_remap_that_clones_its_layout_moves_nothing() -> None:
    net, x = start()
    first, second = product(net, x), product(net, x)
    cloned = remap(net, first, fwd_clone_layout=1)
    assert last(net, cloned).cycles == 0
    assert is_still(last(net, net.add("Add", cloned, second)))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda net, x, y: (remap(net, x), remap(net, y)), True),
        (lambda net, x, y: (x, y), True),
        (lambda net, x, y: (net.add("Relu", x), y), True),
        (lambda net, x, y: (remap(net, x), y), False),
        (lambda net, x, y: (x, product(net, net.input("z", [ROWS, 4096]), 4096)), False),
        (lambda net, x, y: (norm(net, x), norm(net, y)), True),
        (lambda net, x, y: (norm(net, x), remap(net, y)), False),
        (lambda net, x, y: (x, reverse(net, y)), False),
    ],
    ids=[
        "two even ones",
        "two products with one plan",
        "what an operator left in place",
        "an even one and a product",
        "products with other plans",
        "whole rows",
        "whole rows and an even one",
        "the other way round",
    ],
)
def test_operands_are_exchanged_only_if_they_lie_on_other_tiles(
    change: Any, expected: bool
) -> None:
    net, x = start()
    added = net.add("Add", *change(net, product(net, x), product(net, x)))
    assert is_still(last(net, added)) is expected


def norm(net: Builder, x: str) -> str:
    weights = [net.weight(WIDTH) for _ in range(2)]
    return net.add("FastNorm", x, *weights, domain=CHIP_DOMAIN)


def reverse(net: Builder, x: str) -> str:
    return net.add("Slice", x, *map(net.integers, (-1, -(2**31), 0, -1)))


def test_a_transposed_square_lies_elsewhere_and_two_alike_lie_together() -> None:
    net = Builder()
    x = net.input("x", [WIDTH, WIDTH])
    first, second = product(net, x), product(net, x)
    turned = [net.add("Transpose", each, perm=[1, 0]) for each in (first, second)]
    assert not is_still(last(net, net.add("Add", first, turned[0])))
    assert is_still(last(net, net.add("Add", turned[0], turned[0])))


def test_moving_axes_of_one_element_moves_nothing() -> None:
    net, x = start()
    first, second = product(net, x), product(net, x)
    shape = net.integers(ROWS, 1, 4, WIDTH // 4)
    first, second = (net.add("Reshape", each, shape) for each in (first, second))
    first, second = (
        net.add("Transpose", each, perm=perm)
        for each, perm in ((first, [1, 0, 2, 3]), (second, [0, 2, 1, 3]))
    )
    second = net.add("Reshape", second, net.integers(1, ROWS, 4, WIDTH // 4))
    assert is_still(last(net, net.add("Add", first, second)))


@pytest.mark.parametrize("make", [bert_like, deberta_like])
@pytest.mark.parametrize("mode", ["after_matmul", "before_add", "after_matmul, before_add"])
def test_remaps_cost_a_network_no_more_than_their_own_copies(make: Any, mode: str) -> None:
    model = make(2, 128, heads=4, size=32)
    plain = Converter(precision="fp16").convert(model)
    laid_out = Converter(
        precision="fp16", enable_insert_remap=True, remap_mode=mode.split(",")
    ).convert(model)
    found = estimate(laid_out, C600)
    assert found.by_operator()["Remap"] > 0
    assert found.cycles - found.by_operator()["Remap"] <= cycles(plain)


def convert(model: onnx.ModelProto, *passes: str) -> int:
    """Return the cycles of a model after these passes, too."""
    return cycles(Converter(precision="fp16", used_passes=list(passes)).convert(model))


@pytest.mark.parametrize("tokens", [64, 77])
def test_padding_keys_never_slows_attention_down(tokens: int) -> None:
    model = bert_like(8, tokens, heads=4, size=32)
    plain, padded = convert(model), convert(model, "attention_padding")
    assert padded < plain if tokens % 16 else padded == plain


def test_merging_slices_costs_nothing() -> None:
    net, x = start()
    source = product(net, x)
    parts = [
        net.add("Slice", source, *map(net.integers, (first, first + WIDTH // 4, 1)))
        for first in range(0, WIDTH, WIDTH // 4)
    ]
    model = net.model(net.add("Sum", *parts))
    assert convert(model, "merge_multi_slice") <= convert(model)


@pytest.mark.parametrize(("rows", "k", "n"), [(64, 256, 512), (256, 1024, 64), (16, 1024, 4096)])
def test_weights_times_columns_cost_what_rows_times_weights_do(rows: int, k: int, n: int) -> None:
    net = Builder()
    columns = net.add("Softmax", net.input("x", [k, rows]))
    first = last(net, net.add("MatMul", net.weight(n, k), columns)).work
    turned = net.add("Transpose", columns, perm=[1, 0])
    second = last(net, net.add("MatMul", turned, net.weight(k, n))).work
    assert (first.plan, first.compute, first.exchange) == (
        second.plan,
        second.compute,
        second.exchange,
    )
    assert first.temporary_bytes == second.temporary_bytes


@pytest.mark.parametrize("kernel", [3, 7])
def test_more_memory_never_makes_a_convolution_slower(kernel: int) -> None:
    net = Builder()
    x = net.input("x", [16, 3, 64, 64])
    pads = [kernel // 2] * 4
    model = net.model(net.add("Conv", x, net.weight(64, 3, kernel, kernel), pads=pads))
    proportions = (0.005, 0.01, 0.02, 0.05, 0.1, 0.6)
    times = [cycles(model, available_memory_proportion=each) for each in proportions]
    assert times == sorted(times, reverse=True)


def test_tiles_are_listed_only_when_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def find_variables(*given: Any) -> tuple[()]:
        asked.append(given)
        return ()

    monkeypatch.setattr(import_module("simipu.cost.estimate"), "find_variables", find_variables)
    net, x = start()
    found = estimate(net.model(product(net, x)), C600, CostOptions())
    assert not asked
    assert found.variables == found.variables == ()
    assert len(asked) == 1
