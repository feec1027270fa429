"""Tests of manual sharding and pipelining: a few named nodes determine the IPU and stage of each
node, and the time and memory."""

import re

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnxgraph import attribute
from poprt import Compiler, CompilerOptions
from poprt.cli import main
from poprt.compile.converter import Sharder
from poprt.compile.steps import check_memory
from poprt.pipeline import estimate
from poprt.runtime import Runner
from sample_models import make_model
from simipu import TARGETS, CompileError, OutOfMemoryError
from simipu.cost import CostOptions

F = TensorProto.FLOAT
IPU, STAGE = "__ipu_number", "__pipeline_stage"


def chain(layers=4, width=64):
    """Return a chain of n0 to n3, where n2 is twice as wide."""
    names = ["x", *(f"h{i}" for i in range(1, layers)), "y"]
    weights = {f"w{i}": np.eye(width, dtype=np.float32) for i in range(layers)}
    nodes = [
        helper.make_node("MatMul", [names[i], f"w{i}"], [names[i + 1]], name=f"n{i}")
        for i in range(layers)
    ]
    return make_model(nodes, {"x": (F, [8, width])}, {"y": (F, [8, width])}, weights)


def diamond():
    """Return a graph where a and b read x, join reads both, tail follows join, and aside reads
    b."""
    nodes = [
        helper.make_node("Neg", ["x"], ["a"], name="a"),
        helper.make_node("Abs", ["x"], ["b"], name="b"),
        helper.make_node("Add", ["a", "b"], ["j"], name="join"),
        helper.make_node("Sin", ["b"], ["s"], name="aside"),
        helper.make_node("Mul", ["j", "s"], ["y"], name="tail"),
    ]
    return make_model(nodes, {"x": (F, [4])}, {"y": (F, [4])}, {})


def numbers(model, key=IPU):
    return {node.name: attribute(node, key) for node in model.graph.node}


def test_each_point_takes_what_it_is_made_of_and_the_rest_comes_last():
    assert numbers(Sharder({"join": 0}).run(diamond())) == {
        "a": 0,
        "b": 0,
        "join": 0,
        "aside": 1,
        "tail": 1,
    }
    found = Sharder({"join": 3, "a": 0, "b": 0}, {"b": 0}).run(diamond())
    assert numbers(found) == {"a": 0, "b": 0, "join": 3, "aside": 4, "tail": 4}
    assert numbers(found, STAGE) == {"a": 1, "b": 0, "join": 1, "aside": 1, "tail": 1}
    assert numbers(Sharder({"tail": 1}).run(diamond())) == dict.fromkeys(
        ["a", "b", "join", "aside", "tail"], 1
    )


def test_points_are_taken_in_the_order_of_the_graph_whatever_their_own():
    one, other = (
        Sharder(dict(points)).run(chain())
        for points in ([("n0", 0), ("n2", 1)], [("n2", 1), ("n0", 0)])
    )
    assert one == other
    assert list(numbers(one).values()) == [0, 1, 1, 2]


def doubled():
    model = chain()
    model.graph.node[1].name = "n0"
    return model


def nameless():
    model = chain()
    model.graph.node[1].name = ""
    return model


@pytest.mark.parametrize(
    ("model", "devices", "stages", "reason"),
    [
        (
            chain,
            {"gone": 0},
            {},
            "sharding names the node 'gone', which the model's main graph has not",
        ),
        (doubled, {"n0": 0}, {}, "two nodes are called 'n0': to be sharded"),
        (nameless, {"n0": 0}, {}, "a MatMul has no name: to be sharded"),
        (
            chain,
            {"n0": -1},
            {},
            "sharding_info of 'n0': expected .* a number from 0 to 65535, found -1",
        ),
        (chain, {"n0": 1 << 70}, {}, "a number from 0 to 65535"),
        (chain, {"n0": True}, {}, "found True"),
        (chain, {"n0": "1"}, {}, "found 1"),
        (
            chain,
            [("n0", 1)],
            {},
            "sharding_info: expected numbers by the names of nodes, found list",
        ),
        (
            chain,
            {},
            {"n0": 1, "n2": 0},
            "'n1' is of pipeline stage 0 and reads what node 'n0' makes in stage 1",
        ),
    ],
)
def test_invalid_shardings_are_rejected_by_name(model, devices, stages, reason):
    with pytest.raises(CompileError, match=reason):
        Sharder(devices, stages).run(model())


def test_a_circle_of_nodes_is_refused():
    model = chain()
    model.graph.node[0].input[0] = "y"
    with pytest.raises(CompileError, match="depends on its own result"):
        Sharder({"n0": 0}).run(model)


def options(**given):
    return CompilerOptions(ipu_version="ipu21", virtual_graph_mode="manual", **given)


def test_a_sharded_model_computes_what_it_did():
    model = Sharder({"n0": 0, "n2": 1}, {"n0": 0, "n2": 1}).run(chain())
    made = Compiler.compile(
        model, ["y"], options(num_ipus=3, enable_pipelining=True, batches_per_step=6)
    )
    assert made.metadata.numIpus() == 3
    assert "__" not in str(onnx.load_model_from_string(made.executable.program(5).graph))
    x, y = np.random.default_rng(0).random((8, 64), np.float32), np.zeros((8, 64), np.float32)
    Runner(made).execute({"x": x}, {"y": y})
    np.testing.assert_array_equal(y, x)


def test_ipus_and_stages_out_of_range_are_rejected():
    model = Sharder({"n0": 0, "n2": 1}, {"n0": 0, "n2": 1}).run(chain())
    with pytest.raises(
        CompileError, match="'n3': __ipu_number must be at least 0 and below num_ipus=2, found 2"
    ):
        Compiler.compile(model, None, options(num_ipus=2))
    with pytest.raises(CompileError, match="a multiple of the 3 stages of the pipeline, found 4"):
        Compiler.compile(
            model, None, options(num_ipus=4, enable_pipelining=True, batches_per_step=4)
        )
    for node, stage in zip(model.graph.node, (0, 1, 0, 2), strict=True):
        next(each for each in node.attribute if each.name == STAGE).i = stage
    with pytest.raises(
        CompileError, match=r"'n2' is of pipeline stage 0 and reads .* 'n1' makes in stage 1"
    ):
        Compiler.compile(
            model, None, options(num_ipus=3, enable_pipelining=True, batches_per_step=3)
        )


def test_a_pipeline_is_as_fast_as_its_slowest_stage():
    devices, stages = {"n0": 0, "n2": 1}, {"n0": 0, "n1": 1, "n2": 2}
    model = Sharder(devices, stages).run(chain(width=512))
    how = {"num_ipus": 3, "virtual_graph_mode": "manual"}
    sharded = estimate(model, TARGETS["ipu21"], CostOptions(**how))
    pipelined = estimate(model, TARGETS["ipu21"], CostOptions(**how, enable_pipelining=True))
    assert sharded.interval_cycles == sharded.cycles == pipelined.cycles
    assert sum(pipelined.stage_cycles) == pipelined.cycles
    assert pipelined.num_stages == len(pipelined.stage_cycles) == 4
    # IPU 1 has stages 1 and 2: it does one after the other.
    by_ipu = [ipu.cycles for ipu in pipelined.ipus]
    assert pipelined.interval_cycles == max(by_ipu) == by_ipu[1] > max(pipelined.stage_cycles)
    assert pipelined.interval_cycles < sharded.interval_cycles
    assert "IpuCopy" in pipelined.by_operator()


def test_a_stage_on_two_ipus_takes_the_time_of_both():
    model = Sharder({"n1": 0}, {"n3": 0}).run(chain(width=512))
    how = CostOptions(num_ipus=2, virtual_graph_mode="manual", enable_pipelining=True)
    found = estimate(model, TARGETS["ipu21"], how)
    assert found.interval_cycles == found.cycles > max(ipu.cycles for ipu in found.ipus)


def weightless(layers, width):
    """Return the chain with weights that have shapes but no data."""
    model = chain(layers)
    for tensor in model.graph.initializer:
        tensor.CopyFrom(
            TensorProto(name=tensor.name, data_type=F, dims=[width, width], data_location=1)
        )
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[1].dim_value = width
    return model


def test_a_model_too_large_for_one_ipu_names_the_tile_and_fits_on_several():
    model, how = weightless(6, 7_168), CostOptions(num_ipus=4, virtual_graph_mode="manual")
    found = estimate(Sharder({"n0": 2}).run(model), TARGETS["ipu21"], how)
    with pytest.raises(OutOfMemoryError) as told:
        check_memory(found, CompilerOptions())
    (place,) = re.findall(r"Out of memory on tile (.+?) bytes", str(told.value))
    tile, size = map(int, place.split(": "))
    assert tile // 1472 == 3
    assert size > 638_976
    balanced = Sharder({"n0": 0, "n2": 1, "n4": 2}).run(model)
    check_memory(estimate(balanced, TARGETS["ipu21"], how), CompilerOptions())


def test_shares_of_the_ipus_are_obeyed():
    how = CostOptions(
        num_ipus=2, virtual_graph_mode="auto", virtual_graph_split_ratios=(0.75, 0.25)
    )
    found = estimate(chain(width=512), TARGETS["ipu21"], how)
    first, second = (ipu.weight_bytes for ipu in found.ipus)
    assert first == pytest.approx(3 * second, rel=0.05)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(chain(), "model.onnx")
    (tmp_path / "shard.yaml").write_text(
        "-\n  node: n0\n  device: 0\n  stage: 0\n-\n  node: n2\n  device: 1\n  stage: 1\n"
    )
    return tmp_path


@pytest.mark.parametrize("only", [False, True])
def test_the_command_shards_by_a_file(folder, only):
    words = [
        "-i",
        "model.onnx",
        "--manual_sharding_config",
        "shard.yaml",
        "--output_model",
        "out.onnx",
    ]
    assert main([*words, *(["--only_manual_sharding"] if only else [])]) == 0
    sharded = onnx.load("out.onnx")
    assert list(numbers(sharded).values()) == list(numbers(sharded, STAGE).values()) == [0, 1, 1, 2]
    again = ["num_ipus=3", "virtual_graph_mode=manual"]
    assert main(["-i", "out.onnx", "--export_popef", "--compiler_options", *again]) == 0


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{}", "expected a list of 1 to 10000 maps"),
        ("[]", "expected a list of 1 to 10000 maps"),
        ("[1]", "entry 0: expected the name of a node and a whole number"),
        ("[{node: n0}]", "entry 0: expected the name of a node"),
        ("[{node: n0, device: yes}]", "entry 0: expected the name of a node"),
        ("[{node: n0, device: 0.5}]", "entry 0: expected the name of a node"),
        ("[{node: [n0], device: 0}]", "entry 0: expected the name of a node"),
        ("[{node: n0, device: 0, x: 1}]", "entry 0: expected the name of a node"),
        ("[{node: n0, device: 0}, {node: n0, stage: 1}]", "entry 1: node 'n0' is listed twice"),
        ("a: &a [*a]", "is not valid YAML|expected a list"),
        pytest.param("[" * 5_000, "is not valid YAML", marks=pytest.mark.slow),
    ],
)
def test_a_sharding_file_that_is_wrong_is_refused(folder, capsys, text, reason):
    (folder / "shard.yaml").write_text(text)
    words = ["-i", "model.onnx", "--manual_sharding_config", "shard.yaml", "--only_manual_sharding"]
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert re.search(reason, capsys.readouterr().err)


def test_only_manual_sharding_needs_the_file(folder, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["-i", "model.onnx", "--only_manual_sharding"])
    assert "--only_manual_sharding requires --manual_sharding_config" in capsys.readouterr().err
