"""Tests that the figures of the tiles sum to those of the estimate, and of their document."""

from __future__ import annotations

import json
import math
from collections import Counter

import numpy as np
import onnx
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import Builder, matmul
from onnx import TensorProto, helper
from poprt.performance import Profile, Tiles, make_profile, tiles_of
from poprt.performance.tiles import find_runs
from simipu.chip.target import TARGETS
from simipu.cost import CostOptions, Origin

C600 = TARGETS["ipu21"]
HALF = TensorProto.FLOAT16
LAYERS = ("MatMul", "Relu", "Add", "Softmax", "Transpose", "bias", "Slice")


def chain(layers: list[str], rows: int, width: int) -> onnx.ModelProto:
    """Return a model of layers that keep [rows, width]."""
    net = Builder()
    x = first = net.input("x", [rows, width], HALF)
    for layer in layers:
        if layer == "MatMul":
            x = net.add("MatMul", x, net.weight(width, width))
        elif layer == "Add":
            x = net.add("Add", x, first)
        elif layer == "bias":
            x = net.add("Add", x, net.weight(width))
        elif layer == "Transpose":
            x = net.add("Transpose", net.add("Transpose", x, perm=[1, 0]), perm=[1, 0])
        elif layer == "Slice":
            joined = net.add("Concat", x, first, axis=0)
            x = net.add("Slice", joined, *map(net.integers, (0, rows, 0)))
        else:
            x = net.add(layer, x)
    return net.model(net.add("Relu", x))


def loop() -> onnx.ModelProto:
    """Return a model with an operator, a loop of three steps with two operators, and another."""
    net = Builder()
    x = net.add("Relu", net.input("x", [64, 256], HALF))
    nodes = [
        helper.make_node("Exp", ["h"], ["s"], name="exp"),  # it overwrites its operand
        helper.make_node("Softmax", ["s"], ["r"], name="soft"),
        helper.make_node("Identity", ["c"], ["d"]),
    ]
    inputs = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        helper.make_tensor_value_info("h", HALF, [64, 256]),
    ]
    outputs = [
        helper.make_tensor_value_info("d", TensorProto.BOOL, []),
        helper.make_tensor_value_info("r", HALF, [64, 256]),
    ]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    y = net.add("Loop", net.constant(3), net.constant(True), x, body=body)
    return net.model(net.add("Relu", y))


def profile_of(model: onnx.ModelProto, **options: object) -> Profile:
    return make_profile("m", "fp16", model, C600, CostOptions(**options))


def check_sums(tiles: Tiles) -> None:
    """Check every sum over the tiles with what the estimate says."""
    result = tiles.profile.estimate
    causes = Counter[str]()
    for each in tiles.cycles():
        totals = np.sum(list(each.values()), axis=0)
        assert (totals == result.total_cycles).all(), "every cycle of a tile has one cause"
        assert all((cycles >= 0).all() for cycles in each.values())
        causes.update({cause: int(cycles.sum()) for cause, cycles in each.items()})
    assert dict(causes) == result.by_cause()
    calibration = result.calibration
    for memory, ipu in zip(tiles.memory(), result.ipus, strict=True):
        found = {category.name: category for category in memory.categories}
        fullest = ipu.by_memory()
        assert {name: found[name].fullest_bytes for name in fullest} == fullest
        for name in ("weights", "handed on"):
            mean = found[name].total_bytes / tiles.compute_tiles
            assert math.ceil(mean * calibration.imbalance) == fullest[name]
        if memory.peak_step is not None:
            peak = result.operators[memory.peak_step]
            assert peak.live_bytes == fullest["live"]
            assert found["live"].total_bytes == peak.tensor_bytes
            stored = peak.tensor_bytes + peak.copied_weight_bytes
            mean = stored / tiles.compute_tiles * calibration.imbalance
            assert abs(peak.live_bytes - peak.copies_bytes - mean) <= 2 + peak.depth
        assert memory.tiles.sum() == sum(each.total_bytes for each in memory.categories)
        assert all(0 <= each.planned_bytes <= each.total_bytes for each in memory.categories)


def check_lifetimes(tiles: Tiles) -> None:
    """Check that the tensors listed as alive are those that the estimate counts."""
    for step, operator in enumerate(tiles.profile.estimate.operators):
        alive = sum(
            each.num_bytes
            for each in tiles.variables
            if each.kind in (Origin.INPUT, Origin.TENSOR)
            and each.ipu == operator.ipu
            and each.first <= step <= each.last
        )
        assert alive == operator.tensor_bytes


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.sampled_from(LAYERS), min_size=1, max_size=8),
    st.integers(1, 700),
    st.integers(1, 700),
    st.sampled_from([0, 32]),
)
def test_sums_over_the_tiles_are_the_totals_of_the_estimate(
    layers: list[str], rows: int, width: int, io_tiles: int
) -> None:
    tiles = tiles_of(profile_of(chain(layers, rows, width), num_io_tiles=io_tiles))
    check_sums(tiles)
    check_lifetimes(tiles)
    json.dumps(tiles.as_json(), allow_nan=False)


@pytest.mark.parametrize("pipelining", [False, True])
def test_sums_hold_for_several_ipus(pipelining):
    model = chain(["MatMul", "bias", "Relu"] * 6, 96, 512)
    tiles = tiles_of(profile_of(model, num_ipus=2, enable_pipelining=pipelining))
    operators = tiles.profile.estimate.operators
    (copy,) = (each for each in operators if each.op_type == "IpuCopy")
    assert (copy.sender, copy.ipu) == (0, 1)
    check_sums(tiles)
    check_lifetimes(tiles)
    sent, received = (each["exchange"] for each in tiles.cycles())
    assert min(sent.min(), received.min()) >= copy.work.exchange, "both IPUs are busy"
    handed = [each.ipu for each in tiles.variables if each.kind is Origin.HANDED_ON]
    assert handed == ([1] if pipelining else [])
    assert tiles.received_bytes(copy)[1] == pytest.approx(96 * 512 * 2, abs=64)


def test_a_loop_is_a_part_of_the_program_with_its_body_inside():
    tiles = tiles_of(profile_of(loop()))
    check_sums(tiles)
    check_lifetimes(tiles)
    names = [each.name for each in tiles.profile.estimate.operators]
    sent, before, whole, after, received = tiles.program().children
    assert (sent.kind, received.kind) == ("StreamCopy", "StreamCopy")
    assert sent.num_bytes == received.num_bytes == 64 * 256 * 2
    (body,) = whole.children
    assert whole.kind == "Loop"
    assert names[whole.first] == whole.name
    inside = names[body.first : body.last + 1]
    assert inside[:2] == [f"{whole.name}/exp", f"{whole.name}/soft"]
    assert [before.first, after.last] == [0, len(names) - 1]
    assert (before.last + 1, whole.last + 1) == (whole.first, after.first)


def test_the_tensors_inside_a_node_are_those_of_the_graph_that_counts():
    net = Builder()
    x = net.input("x", [64, 256], HALF)
    asked = net.input("asked", [], TensorProto.BOOL)

    def branch(name: str, *op_types: str) -> onnx.GraphProto:
        names = [x, *(f"{name}{i}" for i in range(len(op_types)))]
        nodes = [
            helper.make_node(op_type, [names[i]], [names[i + 1]], name=names[i + 1])
            for i, op_type in enumerate(op_types)
        ]
        result = helper.make_tensor_value_info(names[-1], HALF, [64, 256])
        return helper.make_graph(nodes, name, [], [result])

    branches = {"then_branch": branch("cheap", "Relu"), "else_branch": branch("dear", "Exp", "Erf")}
    y = net.add("If", asked, **branches)
    tiles = tiles_of(profile_of(net.model(net.add("Relu", y))))
    check_sums(tiles)
    check_lifetimes(tiles)
    names = [each.name for each in tiles.variables]
    # Erf overwrites the result of Exp, and the dearer branch is taken.
    assert [name for name in names if name.startswith(("cheap", "dear"))] == ["dear0", "dear1"]


def test_the_steps_of_the_document_are_the_nodes_one_after_the_other():
    profile = profile_of(chain(list(LAYERS), 100, 300))
    document = tiles_of(profile).as_json()
    steps = document["steps"]
    lengths = {len(column) for name, column in steps.items() if "types" not in name}
    assert lengths == {len(profile.estimate.operators)}
    took = [
        sum(parts) for parts in zip(steps["sync"], steps["exchange"], steps["compute"], strict=True)
    ]
    assert steps["start"] == [sum(took[:i]) for i in range(len(took))]
    assert sum(took) == profile.estimate.cycles
    vertices = document["vertices"]
    assert sum(each["cycles"] for each in vertices) == sum(steps["compute"])
    assert sum(each["nodes"] for each in vertices) == sum(kind >= 0 for kind in steps["vertex"])
    assert all(share is None or 0 < share <= 1 for share in steps["workers"])
    spots = document["hot_spots"]
    dearest = max(range(len(took)), key=lambda step: steps["exchange"][step])
    assert spots[0]["step"] == dearest
    assert sum(each["share"] for each in spots) == pytest.approx(1)


def test_the_variables_of_the_document_name_their_mapping():
    document = tiles_of(profile_of(matmul(512, 256, 768))).as_json()
    variables, mappings = document["variables"], document["mappings"]
    by_name = dict(zip(variables["name"], variables["mapping"], strict=True))
    weights = mappings[by_name["weight_0"]]
    assert (weights["source"], weights["average"]) == ("plan", False)
    assert sum(tiles * elements for tiles, elements in weights["levels"]) == 256 * 768
    assert mappings[by_name["x"]]["average"]
    for mapping in mappings:
        elements = [size for _, size in mapping["levels"]]
        assert elements == sorted(elements, reverse=True)
        assert sum(tiles * size for tiles, size in mapping["levels"]) == mapping["elements"]


def test_the_workers_of_the_busiest_tile_share_its_rows():
    (product,) = profile_of(matmul(1000, 256, 100)).estimate.operators
    # The weights' 100 columns are the rows of the plan, in 5 parts of 20: a worker has 3 or 4.
    assert product.work.plan == "rows 5 in 8 out 32"
    assert product.work.busy_workers == pytest.approx(20 / (6 * 4))
    (relu,) = profile_of(chain([], 64, 1000)).estimate.operators
    # 64,000 halves are 44 on the fullest tile, 11 vectors of 4: a worker has 1 or 2.
    assert relu.work.busy_workers == pytest.approx(11 / (6 * 2))


def test_a_large_graph_has_a_small_document():
    model = chain(["MatMul", "bias", "Relu", "Softmax"] * 600, 64, 64)
    document = json.dumps(tiles_of(profile_of(model)).as_json(), separators=(",", ":"))
    assert len(model.graph.node) > 2400
    assert len(document) < 250 * len(model.graph.node)


def test_runs_are_neighbours_with_equal_values():
    assert find_runs(np.array([5, 5, 1, 5])) == [[2, 5], [1, 1], [1, 5]]
    assert find_runs(np.array([], dtype=np.int64)) == []
