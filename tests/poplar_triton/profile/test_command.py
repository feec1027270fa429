"""The command `poplar-triton profile`: its output, its files, and its errors for bad input."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from exported_graphs import Exporter, bert_like
from onnx import TensorProto, helper
from poplar_triton.cli import main
from poplar_triton.profile import command, search, weightless
from poplar_triton.profile.source import Estimator, ProfileSettings, Source, open_source
from poprt import Compiler, CompilerOptions, Converter
from poprt.cli import main as poprt
from poprt.performance.model_profile import Profile
from sample_models import make_model, steps_model
from simipu import SimulatedExecutable
from simipu.chip.target import TARGETS
from simipu.engine import iteration_timing

F, H = TensorProto.FLOAT, TensorProto.FLOAT16

KEYS = set(
    "modelled model target batch_size precision options cycles seconds_per_batch "
    "samples_per_second latency_seconds host_seconds peak_tile_bytes tile_bytes fits by_operator "
    "by_cause by_memory fallback_operators total_cycles interval_cycles assumptions ipus chip "
    "partials_type latency_parts expected_error io_tile_bytes peak host_buffer_bytes "
    "network_kind unvalidated_layers fits_closely".split()
)


def network(first: str = "multiply") -> onnx.ModelProto:
    """Return the model y = softmax(normalise(conv(x)) @ w), whose weights can be folded."""
    random = np.random.default_rng(0)

    def values(*shape: int) -> np.ndarray:
        return random.random(shape, np.float32) + 0.1

    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["c"], name="convolve", pads=[1, 1, 1, 1]),
        helper.make_node(
            "BatchNormalization", ["c", "scale", "bias", "mean", "var"], ["n"], name="normalise"
        ),
        helper.make_node("GlobalAveragePool", ["n"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", "w"], ["m"], name=first),
        helper.make_node("Softmax", ["m"], ["y"], name="softmax"),
    ]
    named = {name: values(32) for name in ("scale", "bias", "mean", "var")}
    held = {"kernel": values(32, 8, 3, 3), **named, "w": values(32, 40)}
    return make_model(nodes, {"x": (F, ["n", 8, 16, 16])}, {"y": (F, ["n", 40])}, held)


@pytest.fixture
def onnx_file(tmp_path: Path) -> Path:
    return save(network(), tmp_path / "network.onnx")


def save(model: onnx.ModelProto, path: Path) -> Path:
    onnx.save(model, path)
    return path


def profile(source: Source, settings: ProfileSettings | None = None) -> Profile:
    """Return the profile of one batch of `source`."""
    return Estimator(source).profile(settings or ProfileSettings())


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command in this process and return status, stdout and stderr."""

    def call(*arguments: object) -> tuple[int, str, str]:
        try:
            status = main(["profile", *map(str, arguments)])
        except SystemExit as exit_:
            status = int(exit_.code or 0)
        return status, *capsys.readouterr()

    return call


def test_json_has_the_stable_keys_and_its_causes_sum(onnx_file, run):
    status, out, err = run(onnx_file, "--batch_size", 2, "--json")
    found = json.loads(out)
    assert (status, err) == (0, "")
    assert set(found) == KEYS
    assert found["modelled"] is True
    assert (found["model"], found["target"], found["batch_size"], found["precision"]) == (
        "network",
        "ipu21",
        2,
        "fp32",
    )
    assert sum(found["by_cause"].values()) == found["total_cycles"] * TARGETS["ipu21"].num_tiles
    assert (
        found["by_cause"]["host"]
        == (found["total_cycles"] - found["cycles"]) * TARGETS["ipu21"].num_tiles
        > 0
    )
    assert found["ipus"] == [
        {"fits": True, **{name: found[name] for name in ("cycles", "by_memory", "peak_tile_bytes")}}
    ]
    assert sum(found["by_operator"].values()) == found["cycles"]
    assert sum(found["latency_parts"].values()) == pytest.approx(
        found["latency_seconds"], rel=1e-12
    )
    assert (found["chip"], found["partials_type"]) == ("C600", "half")
    assert (
        sum(found["by_memory"].values())
        == found["peak_tile_bytes"]
        <= found["tile_bytes"]
        == 638_976
    )
    assert found["samples_per_second"] == pytest.approx(2 / found["seconds_per_batch"])


def test_the_tables_name_the_chip_the_operators_and_the_plan(onnx_file, run):
    half = ("--precision", "fp16")
    status, out, _ = run(onnx_file, "--batch_size", 1, "--target", "mk2", "--top", 1, *half)
    assert status == 0
    assert "batch 1, fp16, half partials on Mk2 GC200, M2000 (mk2), modelled" in out
    for word in ("Conv", "Softmax", "bound by", "exchange", "weights", "624 KiB", "convolve"):
        assert word in out
    assert "multiply" not in out, "the dearest node only"


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("c600", "C600"),
        ("M2000", "Mk2 GC200, M2000"),
        ("mk2", "Mk2 GC200, M2000"),
        ("IPU2", "Mk2 GC200, M2000"),
        ("ipu21", "C600"),
        ("mk1", "Mk1 GC2"),
        ("bow", "Bow"),
    ],
)
def test_a_chip_is_called_by_the_name_that_was_given(onnx_file, run, alias, name):
    found = json.loads(run(onnx_file, "--batch_size", 1, "--json", "--target", alias)[1])
    assert (found["target"], found["chip"]) == (alias, name)


@pytest.mark.slow
def test_a_sweep_is_the_cross_product(onnx_file, run):
    axes = (
        "--sweep",
        "batch_size=1,2",
        "--sweep",
        "target=c600,bow",
        "--sweep",
        "precision=fp16,fp32",
    )
    found = json.loads(run(onnx_file, *axes, "--json")[1])
    points = {(each["batch_size"], each["target"], each["precision"]) for each in found}
    assert len(found) == len(points) == 8
    assert points == {(b, t, p) for b in (1, 2) for t in ("c600", "bow") for p in ("fp16", "fp32")}
    cycles = {
        (each["batch_size"], each["target"], each["precision"]): each["cycles"] for each in found
    }
    assert cycles[2, "bow", "fp16"] < cycles[2, "bow", "fp32"]
    table = run(onnx_file, *axes)[1]
    assert table.count("c600") == table.count("fp32") == 4
    assert table.count("half partials") == 4


def test_options_reach_the_cost_model(onnx_file, run):
    plain, changed = (
        json.loads(run(onnx_file, "--batch_size", 4, "--precision", "fp16", "--json", *options)[1])
        for options in (
            (),
            (
                "--num_io_tiles",
                32,
                "--partials_type",
                "float",
                "--available_memory_proportion",
                0.1,
            ),
        )
    )
    assert changed["options"] == {
        **plain["options"],
        "num_io_tiles": 32,
        "partials_type": "float",
        "available_memory_proportion": 0.1,
    }
    assert changed["cycles"] != plain["cycles"]


def test_a_fused_attention_is_the_pass_of_that_name(tmp_path, run):
    path = save(bert_like(), tmp_path / "bert.onnx")
    found = [
        json.loads(run(path, "--json", *asked)[1])
        for asked in ([], ["--fused_attention"], ["--passes", "fused_attention"])
    ]
    assert found[1] == found[2]
    assert found[0]["by_operator"].keys() != found[1]["by_operator"].keys() >= {"Split"}


def test_products_are_cut_as_the_converter_cuts_them(tmp_path, run):
    net = Exporter()
    made = net.add("MatMul", net.input("x", [256, 1024]), net.weight(1024, 8192))
    path = save(net.model({net.add("Relu", made): [256, 8192]}), tmp_path / "product.onnx")
    whole, parts = (
        json.loads(run(path, "--json", *asked)[1])
        for asked in ([], ["--serialize_matmul", "MatMul_0=4"])
    )
    assert parts["cycles"] > whole["cycles"]
    assert parts["by_operator"]["MatMul"] > whole["by_operator"]["MatMul"] > 0


def test_progress_ends_within_the_steps_that_were_announced(onnx_file, run, monkeypatch):
    announced, steps = [], []

    @contextlib.contextmanager
    def show(title, total):
        announced.append(total)
        yield steps.append

    monkeypatch.setattr(command, "show_progress", show)
    assert run(onnx_file, "--sweep", "batch_size=1,2")[0] == 0
    (total,) = announced
    assert total / 4 < len(steps) <= total
    assert steps.count("plan operators") == 2


def test_several_ipus_have_a_table_and_json_of_their_own(onnx_file, run):
    options = ("--batch_size", 4, "--num_ipus", 2, "--enable_pipelining", "--replication_factor", 3)
    found = json.loads(run(onnx_file, *options, "--json")[1])
    assert len(found["ipus"]) == 2
    assert sum(ipu["cycles"] for ipu in found["ipus"]) == found["cycles"]
    assert found["interval_cycles"] == max(ipu["cycles"] for ipu in found["ipus"])
    assert found["samples_per_second"] == pytest.approx(3 * 4 / found["seconds_per_batch"])
    assert found["by_operator"]["IpuCopy"] > 0
    out = run(onnx_file, *options)[1]
    assert "2 x C600 (ipu21)" in " ".join(out.split())
    assert "peak of a tile" in out


def test_assumptions_about_control_flow_are_printed(tmp_path, run):
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node(op, ["x"], ["r"])], name, [], [onnx.ValueInfoProto(name="r")]
        )
        for name, op in (("then", "Relu"), ("else", "Softmax"))
    }
    node = helper.make_node("If", ["p"], ["y"], name="choose", **branches)
    path = save(
        make_model([node], {"x": (F, [4, 8]), "p": (TensorProto.BOOL, [])}, {"y": (F, [4, 8])}, {}),
        tmp_path / "if.onnx",
    )
    found = json.loads(run(path, "--precision", "fp32", "--json")[1])
    assert found["assumptions"] == ["If 'choose': the dearer branch is taken"]
    assert set(found["by_operator"]) == {"If", "Softmax"}
    assert "assumed: If 'choose': the dearer branch is taken" in run(path, "--precision", "fp32")[1]


def test_a_model_that_does_not_fit_is_reported_with_status_0(tmp_path, run):
    model = make_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": (F, ["n", 20000])},
        {"y": (F, ["n", 40000])},
        {},
    )
    model.graph.initializer.append(TensorProto(name="w", data_type=F, dims=[20000, 40000]))
    status, out, _ = run(save(model, tmp_path / "large.onnx"), "--batch_size", 1)
    assert status == 0
    assert "DOES NOT FIT" in out


@pytest.mark.parametrize(
    ("arguments", "status", "reason"),
    [
        (
            [],
            1,
            "use, with your size, --batch_size 1",
        ),
        (["--input_shape", "q=1,2"], 1, "input_shape names 'q'; the model's inputs are x"),
        (
            ["--batch_size", "1", "--num_io_tiles", "1472"],
            1,
            "num_io_tiles must be at least 0 and below the 1472 tiles of ipu21",
        ),
        (
            ["--sweep", "target=bow", "--sweep", "target=c600"],
            2,
            "--sweep names one of target, target twice",
        ),
        (
            ["--target", "c700"],
            2,
            "target 'c700' is not known; known are bow, c600, gc2, gc200, ipu1, ipu2, ipu21",
        ),
        (["--input_shape", "x"], 2, "expected NAME=d0,d1,..., found 'x'"),
        (
            ["--sweep", "tiles=1"],
            2,
            "with a name of batch_size, target, precision, found 'tiles=1'",
        ),
        (
            ["--sweep", "batch_size=1,two"],
            2,
            "batch_size, values separated by commas: expected a whole number",
        ),
        (["--sweep", "batch_size=0"], 2, "expected a whole number of at least 1, found '0'"),
        (
            ["--available_memory_proportion", "1.5"],
            2,
            "expected a number above 0 and at most 1, found '1.5'",
        ),
        (
            ["--batch_size", "many"],
            2,
            "argument --batch_size: expected a whole number of at least 1, found 'many'",
        ),
    ],
)
def test_bad_arguments_say_what_is_wrong(onnx_file, run, arguments, status, reason):
    found, out, err = run(onnx_file, *arguments)
    assert (found, out) == (status, "")
    (line,) = err.splitlines()
    assert reason in line


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("none.onnx", None, "none.onnx: No such file"),
        ("text.onnx", b"not a model", "text.onnx: expected an ONNX model, found a text file"),
        ("empty.onnx", b"", "empty.onnx: expected an ONNX model, found an empty file"),
        ("none.popef", None, "none.popef"),
        ("text.popef", b"not a model" * 100, "text.popef"),
    ],
)
def test_bad_files_take_one_line(tmp_path, run, name, content, reason):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    status, out, err = run(tmp_path / name)
    assert (status, out) == (1, "")
    assert len(err.splitlines()) == 1
    assert reason in err


@pytest.mark.parametrize(
    "options",
    [{}, {"num_io_tiles": 32}, {"num_ipus": 2, "enable_pipelining": True, "batches_per_step": 2}],
    ids=repr,
)
def test_a_paced_executable_takes_the_time_of_its_profile(onnx_file, options):
    found = profile(open_source(onnx_file), ProfileSettings("ipu21", 4, "fp16", options)).estimate
    compiled = Compiler.compile(
        Converter(batch_size=4, precision="fp16").convert(network()),
        None,
        CompilerOptions(ipu_version="ipu21", **options),
    )
    (main,) = (program for program in compiled.executable.programs if program.cycles)
    timing = iteration_timing(main, compiled.executable.target, 1)
    assert timing.interval == pytest.approx(found.seconds_per_batch)
    steps = 3 if options.get("num_io_tiles") else 1  # loaded, computed, stored
    assert timing.latency == pytest.approx(
        max(steps * found.seconds_per_batch, found.compute_seconds + found.host_seconds)
    )
    restored = SimulatedExecutable.deserialize(compiled.executable.serialize())
    assert restored.program(main.index) == main


@pytest.mark.parametrize("large_bytes", [1, 1 << 20])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_compiled_model_profiles_to_the_cycles_of_its_onnx(
    onnx_file, tmp_path, monkeypatch, large_bytes, precision
):
    monkeypatch.setattr(weightless, "LARGE_BYTES", large_bytes)
    options = CompilerOptions(ipu_version="ipu21", partials_type="float")
    compiled = Compiler.compile(
        Converter(batch_size=4, precision=precision).convert(network()), None, options
    )
    compiled.export(tmp_path / "network.popef")
    settings = ProfileSettings("ipu21", 4, precision, {"partials_type": "float"})
    source, popef = (
        profile(open_source(onnx_file), settings),
        profile(open_source(tmp_path / "network.popef")),
    )
    assert popef.estimate.cycles == source.estimate.cycles == compiled.cycles
    assert popef.estimate.by_memory() == source.estimate.by_memory()
    assert (popef.batch_size, popef.precision, popef.target.name) == (4, precision, "ipu21")


def test_a_compiled_model_of_independent_rows_has_other_batch_sizes_but_one_precision(
    compile_popef, run
):
    path = compile_popef(network(), batch=4)
    found = json.loads(run(path, "--sweep", "batch_size=2,4,256", "--json")[1])
    assert [each["batch_size"] for each in found] == [2, 4, 256]
    assert found[0]["cycles"] <= found[1]["cycles"] < found[2]["cycles"]
    status, _, err = run(path, "--precision", "fp16")
    assert status == 1
    assert "is compiled in fp32; profile its ONNX model for fp16" in err
    assert "--input_shape is for ONNX models" in run(path, "--input_shape", "x=1")[2]


def test_the_batch_of_a_compiled_model_may_lie_along_another_axis(compile_popef, run):
    path = compile_popef(steps_model(), batch_axis=1)
    found = json.loads(run(path, "--sweep", "batch_size=4,64", "--json")[1])
    assert found[0]["cycles"] < found[1]["cycles"]


def test_weights_may_be_missing(onnx_file, tmp_path):
    model = network()
    onnx.save(
        model,
        tmp_path / "outside.onnx",
        save_as_external_data=True,
        location="weights.bin",
        size_threshold=0,
    )
    (tmp_path / "weights.bin").unlink()
    whole, bare = (
        profile(open_source(path), ProfileSettings(batch_size=2))
        for path in (onnx_file, tmp_path / "outside.onnx")
    )
    assert bare.estimate.by_operator() == whole.estimate.by_operator()
    assert bare.estimate.weight_bytes == whole.estimate.weight_bytes


def test_weights_made_by_a_node_are_not_made(tmp_path):
    held = {"rows": np.array([2000, 1000])}
    nodes = [
        helper.make_node("ConstantOfShape", ["rows"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    model = make_model(nodes, {"x": (F, ["n", 2000])}, {"y": (F, ["n", 1000])}, held)
    source = open_source(save(model, tmp_path / "light.onnx"))
    converted = source.convert(1, "fp16", lambda step: None)
    assert converted.ByteSize() < 10_000
    assert (
        profile(source, ProfileSettings(batch_size=1)).estimate.weight_bytes > 2_000_000 * 2 // 1472
    )


def test_missing_integers_are_an_error_because_shapes_may_depend_on_them(tmp_path, run):
    model = make_model(
        [helper.make_node("Reshape", ["x", "shape"], ["y"])],
        {"x": (F, [1, 4])},
        {"y": (F, [2, 2])},
        {"shape": np.array([2, 2])},
    )
    path = tmp_path / "reshape.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert run(path)[0] == 0
    (tmp_path / "weights.bin").unlink()
    assert "weight 'shape' has no data, but its type is INT64" in run(path)[2]


def test_a_model_in_half_keeps_its_operators(tmp_path):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"]),
        helper.make_node("Softmax", ["m"], ["y"]),
    ]
    weight = {"w": np.ones((64, 64), np.float16)}
    path = save(
        make_model(nodes, {"x": (H, [1, 64])}, {"y": (H, [1, 64])}, weight), tmp_path / "half.onnx"
    )
    assert set(profile(open_source(path)).estimate.by_operator()) == {"MatMul", "Softmax"}


def test_an_operator_without_a_formula_is_named_in_a_warning(tmp_path, run):
    node = helper.make_node("Det", ["x"], ["y"])
    path = save(
        make_model([node], {"x": (F, ["n", 8, 8])}, {"y": (F, ["n"])}, {}), tmp_path / "det.onnx"
    )
    assert "warning: no formula for Det (1)" in run(path, "--batch_size", 4)[1]
    assert json.loads(run(path, "--batch_size", 4, "--json")[1])["fallback_operators"] == {"Det": 1}


def test_another_model_or_the_same_under_other_settings_stands_beside_it(onnx_file, tmp_path, run):
    plain = json.loads(run(onnx_file, "--batch_size", 2, "--json")[1])
    wider = save(network("other"), tmp_path / "wider.onnx")
    for words, expected in (
        (
            ("--compare", "target=bow,partials_type=float"),
            {"target": "bow", "partials_type": "float"},
        ),
        (("--compare", "precision=fp32,batch_size=8"), {"precision": "fp32", "batch_size": 8}),
        (("--compare", wider), {"model": "wider", "batch_size": 2}),
    ):
        found = json.loads(run(onnx_file, "--batch_size", 2, *words, "--json")[1])
        both = found.pop("comparison")
        assert found == plain
        assert both["with"] == {**both["with"], **expected}
        assert {name: pair[0] for name, pair in both["by_operator"].items() if pair[0]} == {
            name: cycles for name, cycles in plain["by_operator"].items() if cycles
        }
        sums = [sum(pair[side] or 0 for pair in both["by_operator"].values()) for side in (0, 1)]
        assert sums == [plain["cycles"], both["with"]["cycles"]]
    out = run(onnx_file, "--batch_size", 2, "--compare", "num_io_tiles=32")[1]
    assert "B: network, batch 2, fp32 on C600 (ipu21), num_io_tiles=32" in out
    assert "B - A" in out


def test_warnings_are_lines_of_the_command(onnx_file, run, monkeypatch):
    monkeypatch.setattr(logging.root, "handlers", [])
    status, _, err = run(onnx_file, "--batch_size", 1, "--serialize_matmul", "a\x1b[31m\nb=2")
    assert status == 0
    expected = r"serialize_matmul: the model has no such node as a\x1b[31m\nb"
    assert err == f"poplar-triton: warning: {expected}\n"


@pytest.mark.parametrize("text", ["gone.onnx", "tiles=3", "="])
def test_compare_takes_a_model_or_settings(onnx_file, run, text):
    status, _, err = run(onnx_file, "--batch_size", 1, "--compare", text)
    assert status == 2
    assert (
        "--compare: expected an existing model, or NAME=VALUE[,NAME=VALUE] of batch_size, target"
        in err
    )


def test_compare_in_a_sweep_changes_only_the_given_settings(onnx_file, run):
    sweep = ("--sweep", "batch_size=4,8", "--partials_type", "float")
    compare = ("--compare", "num_ipus=2,enable_pipelining=true,target=mk2")
    found = json.loads(run(onnx_file, *sweep, *compare, "--json")[1])
    other = found[0]["comparison"]["with"]
    assert (other["batch_size"], other["target"], other["partials_type"]) == (4, "mk2", "float")
    assert (other["options"]["num_ipus"], other["options"]["enable_pipelining"]) == (2, True)
    assert "comparison" not in found[1]
    status, _, err = run(onnx_file, "--batch_size", 1, "--compare", "enable_pipelining=false")
    assert status == 2
    assert "--compare: expected enable_pipelining=true, found 'false'; omit it for false" in err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("batch=2", "found 'batch=2'; did you mean batch_size?"),
        ("precison=fp16", "found 'precison=fp16'; did you mean precision?"),
        ("precision=fp61", "--compare: precision: expected one of fp32, fp16"),
        ("batch_size=two", "--compare: batch_size: expected a whole number of at least 1"),
        ("num_ipus=0", "--compare: num_ipus: expected a whole number of at least 1"),
        ("target=bwo", "--compare: target: IPU target 'bwo' is not known"),
        ("batch_size", "did you mean batch_size?"),
    ],
)
def test_a_wrong_setting_to_compare_with_blames_no_other_option(onnx_file, run, text, told):
    status, _, err = run(onnx_file, "--batch_size", 1, "--compare", text)
    assert status == 2
    assert told in err
    assert "argument" not in err


def test_a_misspelt_axis_of_a_sweep_gets_a_suggestion(onnx_file, run):
    status, _, err = run(onnx_file, "--sweep", "batch=1")
    assert status == 2
    assert "found 'batch=1'; did you mean batch_size?" in err


def test_a_report_does_not_overwrite_the_model(onnx_file, run):
    content = onnx_file.read_bytes()
    status, _, err = run(onnx_file, "--batch_size", 1, "--html", onnx_file)
    assert status == 1
    assert f"--html: {onnx_file}: it is an input of the same command" in err
    assert onnx_file.read_bytes() == content


def test_a_value_that_cannot_be_compared_with_is_named(onnx_file, run):
    status, _, err = run(onnx_file, "--batch_size", 1, "--compare", "target=c700")
    assert status == 2
    assert "target 'c700' is not known; known are bow, c600" in err


def test_suggestions_are_listed_with_the_option_only(onnx_file, run):
    options = ("--batch_size", 2, "--partials_type", "float")
    assert "advice" not in json.loads(run(onnx_file, *options, "--json")[1])
    advice = json.loads(run(onnx_file, *options, "--json", "--suggest")[1])["advice"]
    assert (advice["goal"], advice["not_tried"]) == ("throughput", 0)
    assert advice["tried"] > len(advice["suggestions"]) > 0
    out = run(onnx_file, *options, "--suggest")[1]
    assert "For more throughput, try" in out
    for each in advice["suggestions"]:
        assert each["fits"]
        assert each["change"] in out
        changed = json.loads(run(onnx_file, *options, *each["change"].split(), "--json")[1])
        for name in ("latency_seconds", "samples_per_second", "peak_tile_bytes"):
            assert changed[name] == each[name], "it can be had as it is said"


@pytest.mark.slow
def test_the_goal_of_the_suggestions_is_chosen(onnx_file, run):
    told = {}
    for goal in ("latency", "throughput"):
        words = ("--batch_size", 256, "--json", "--suggest", "--goal", goal)
        advice = json.loads(run(onnx_file, *words)[1])["advice"]
        assert advice["goal"] == goal
        told[goal] = [each["change"] for each in advice["suggestions"]]
    assert "--batch_size 1" in told["latency"]
    assert "--batch_size 4096" in told["throughput"]
    out = run(onnx_file, "--batch_size", 256, "--suggest", "--goal", "latency")[1]
    assert "For a lower latency, try" in out


def test_a_large_graph_is_profiled_less_often_by_default(onnx_file, run, monkeypatch):
    def count(*words):
        advice = json.loads(run(onnx_file, "--batch_size", 1, "--suggest", "--json", *words)[1])[
            "advice"
        ]
        return advice["tried"] + advice["combinations_tried"]

    monkeypatch.setattr(search, "MAX_NODES", 1)
    assert count() == 8
    assert count("--max_profiles", 11) == 11


@pytest.mark.parametrize("option", [("--goal", "latency"), ("--max_profiles", 3)])
def test_options_of_the_suggestions_require_them(onnx_file, run, option):
    status, _, err = run(onnx_file, "--batch_size", 1, *option)
    assert status == 2
    assert f"{option[0]} requires --suggest or --html" in err


@pytest.mark.slow
def test_two_runs_of_a_command_give_the_same_bytes(onnx_file, tmp_path):
    """The command runs in two processes, whose sets of strings have different orders."""
    outputs, pages = [], []
    for seed in ("1", "2"):
        page = tmp_path / "report.html"
        words = ["profile", str(onnx_file), "--batch_size", "4", "--suggest", "--json"]
        words += ["--compare", "target=bow", "--html", str(page), "--time_limit", "600"]
        code = f"import sys; from poplar_triton.cli import main; sys.exit(main({words!r}))"
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        ended = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, check=True
        )
        outputs.append(ended.stdout)
        pages.append(page.read_bytes())
    assert outputs[0] == outputs[1]
    assert pages[0] == pages[1]
    assert len(pages[0]) > len(outputs[0]) > 1000


@pytest.mark.slow
def test_a_report_on_a_slow_machine_is_the_same(onnx_file, tmp_path, run, monkeypatch):
    """Each look at a clock is as late as if the machine had stood still for an hour."""
    pages = []
    hours = itertools.count(time.monotonic(), 3600)
    for slow in (False, True):
        if slow:
            for clock in ("monotonic", "perf_counter", "time"):
                monkeypatch.setattr(time, clock, lambda: float(next(hours)))
        page = tmp_path / f"{slow}.html"
        assert run(onnx_file, "--batch_size", 4, "--html", page)[0] == 0
        pages.append(page.read_bytes())
    assert pages[0] == pages[1]


def drawn(page: Path) -> dict:
    """Return the batch sizes of a report's charts, and what it says of the missing ones."""
    text = page.read_text("utf-8")
    found = re.search(r'<script id="data" type="application/json">(.*?)</script>', text)
    batches = json.loads(found[1])["batches"]
    return {"sizes": [each["batch"] for each in batches["points"]], "told": batches["missing"]}


@pytest.mark.slow
def test_the_report_draws_its_own_batch_and_says_which_are_missing(onnx_file, tmp_path, run):
    page = tmp_path / "report.html"
    assert run(onnx_file, "--batch_size", 3, "--html", page)[0] == 0
    found = drawn(page)
    assert set(found["sizes"]) >= {1, 2, 3, 4, 8, 16, 48}, "48 is advised: 16 times its own"
    assert found["told"] == ""
    assert run(onnx_file, "--batch_size", 3, "--html", page, "--max_profiles", 2)[0] == 0
    assert drawn(page) == {
        "sizes": [1, 3],
        "told": "Not drawn: batch 2, 4, 8, 16, because of --max_profiles.",
    }
    assert run(onnx_file, "--sweep", "batch_size=2,6", "--html", page)[0] == 0
    assert set(drawn(page)["sizes"]) >= {2, 6, 32}, "32 is advised for the first point"
    node = helper.make_node("Tanh", ["x"], ["y"])
    fixed = save(make_model([node], {"x": (F, [4])}, {"y": (F, [4])}, {}), tmp_path / "fixed.onnx")
    assert run(fixed, "--html", page)[0] == 0
    assert (
        "Not drawn: batch 1, 2, 8, 16, which failed (batch 1: input 'x' has shape [4]"
        in drawn(page)["told"]
    )


def test_a_folder_stands_for_its_model(onnx_file, compile_popef, tmp_path, run):
    popef = compile_popef(network(), name="served/1/executable.popef")
    compile_popef(network(), batch=8, name="served/10/executable.popef")
    (tmp_path / "served" / "labels").mkdir()
    found = json.loads(run(tmp_path / "served", "--json")[1])
    assert (found["model"], found["batch_size"]) == ("served", 8), "the newest version, by number"
    config = tmp_path / "served" / "config.pbtxt"
    config.write_text(
        'parameters { key: "executable_path" value { string_value: "../1/executable.popef" } }'
    )
    assert json.loads(run(tmp_path / "served", "--json")[1])["batch_size"] == 4
    config.write_text('parameters { key: "executable_path" value { string_value: "gone.popef" } }')
    assert "executable_path 'gone.popef' does not exist;" in run(tmp_path / "served")[2]
    config.write_text("no configuration")
    assert "config.pbtxt: expected a model configuration" in run(tmp_path / "served")[2]
    folder = tmp_path / "exported"
    folder.mkdir()
    assert "exported: expected executable.popef or model.onnx, another file" in run(folder)[2]
    save(network(), folder / "a.onnx")
    assert json.loads(run(folder, "--batch_size", 1, "--json")[1])["model"] == "exported"
    save(network(), folder / "b.onnx")
    assert "must hold exactly one model, found a.onnx, b.onnx; name the file" in run(folder)[2]
    (folder / "executable.popef").write_bytes(popef.read_bytes())
    assert json.loads(run(folder, "--json")[1])["batch_size"] == 4


def test_the_events_of_a_trace_follow_each_other_and_sum_to_the_total(onnx_file, tmp_path, run):
    file = tmp_path / "trace.json"
    found = json.loads(run(onnx_file, "--batch_size", 2, "--json", "--trace", file)[1])
    trace = json.loads(file.read_text())
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    rows = {
        event["tid"]: event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name"
    }
    assert sum(event["args"]["cycles"] for event in events) == found["cycles"]
    microseconds = found["cycles"] / TARGETS["ipu21"].clock_hz * 1e6
    assert sum(event["dur"] for event in events) == pytest.approx(microseconds)
    assert set(rows.values()) == {"compute", "exchange", "sync"}
    for before, after in itertools.pairwise(events):
        assert after["ts"] == pytest.approx(before["ts"] + before["dur"])
    assert {"convolve", "softmax"} <= {event["name"].split("/")[0] for event in events}
    assert all(rows[event["tid"]] == event["cat"] for event in events)
    steps = profile(open_source(onnx_file), ProfileSettings(batch_size=2)).steps
    syncs = sum(event["args"]["cycles"] for event in events if event["cat"] == "sync")
    assert syncs == sum(step.sync_cycles for step in steps)


def test_tiles_are_written_beside_the_profile(onnx_file, tmp_path, run):
    file = tmp_path / "tiles.json"
    words = ("--batch_size", 2, "--json", "--tiles", file)
    found, tiles = json.loads(run(onnx_file, *words)[1]), json.loads(file.read_text())
    assert tiles["modelled"]
    assert (tiles["model"], tiles["batch_size"]) == (found["model"], 2)
    assert tiles["memory"][0]["fullest_bytes"] == found["peak_tile_bytes"]
    assert {"c", "m", "w"} <= set(tiles["variables"]["name"])
    took = (sum(tiles["steps"][cause]) for cause in ("sync", "exchange", "compute"))
    assert sum(took) == found["cycles"]
    assert f"wrote {file}" in run(onnx_file, "--batch_size", 2, "--tiles", file)[1]


def test_the_tile_mapping_of_every_tensor_is_printed(onnx_file, run):
    status, out, _ = run(onnx_file, "--batch_size", 2, "--print-tile-mapping")
    assert status == 0
    assert "tile mapping" in out
    (weights,) = (line for line in out.splitlines() if line.startswith("│ w "))
    assert [cell.strip() for cell in weights.split("│")[2:6]] == ["weight", "0", "5,120", "1,280"]
    status, _, err = run(onnx_file, "--print_tile_mapping", "--json")
    assert status == 2
    assert "with --json write the mappings with --tiles" in err


def test_only_the_tensors_that_a_model_asks_for_are_printed(tmp_path, run):
    """The model of PopRT's example print_tile_mapping.py."""
    shape = [4, 4, 8, 8]
    nodes = [
        helper.make_node("MatMul", ["X", "Y"], ["Z"]),
        helper.make_node("PrintTileMapping", ["Z"], ["Out"], domain="ai.graphcore"),
    ]
    inputs = {"X": (F, shape), "Y": (F, shape)}
    model = make_model(nodes, inputs, {"Out": (F, shape)}, {})
    del model.opset_import[:]
    model.opset_import.extend([helper.make_opsetid("", 11), helper.make_opsetid("ai.graphcore", 1)])
    _, out, _ = run(save(model, tmp_path / "m.onnx"), "--print_tile_mapping")
    table = out[out.index("tile mapping") :]
    rows = [line.split("│")[1:-1] for line in table.splitlines() if line.startswith("│")]
    assert len(rows) == 1, "X and Y are not asked for"
    name, kind, _, size, elements = (cell.strip() for cell in rows[0][:5])
    assert (name, kind, size, elements) == ("Z", "tensor", "4,096", "1,024")


@pytest.mark.slow
def test_the_command_prints_json_only_on_stdout_and_errors_on_stderr(onnx_file):
    command = [sys.executable, "-m", "poplar_triton.cli", "profile"]
    child = subprocess.run(
        [*command, onnx_file, "--batch_size", "1", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(child.stdout)["cycles"] > 0
    assert child.stderr == ""
    child = subprocess.run([*command, "none.onnx"], capture_output=True, text=True, check=False)
    assert (child.returncode, child.stdout) == (1, "")
    assert child.stderr == "poplar-triton: error: none.onnx: No such file or directory\n"


@pytest.mark.parametrize(
    "words",
    [
        ("--input_shape", "a=2,4", "b=2,4"),
        ("--input_shape", "a=2,4", "--input_shape", "b=2,4"),
        ("--input-shape", "a=-1,4", "b=-1,4", "--batch-size", 2),
    ],
)
def test_shapes_of_several_inputs_are_given_together_or_one_after_the_other(words, run, tmp_path):
    sides = {name: (F, ["n", "m"]) for name in "ab"}
    model = make_model([helper.make_node("Add", ["a", "b"], ["y"])], sides, {"y": sides["a"]}, {})
    status, out, _ = run(save(model, tmp_path / "sum.onnx"), *words)
    assert status == 0
    assert "batch 2" in out


def mixed(types: tuple[int, int]) -> onnx.ModelProto:
    """Return two products with weights of these types, and a Cast between them."""
    first, last = types
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"]),
        helper.make_node("Cast", ["a"], ["b"], to=last),
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    numbers = np.random.default_rng(0).random((2, 64, 64))
    weights = {
        name: each.astype(helper.tensor_dtype_to_np_dtype(dtype))
        for name, each, dtype in zip("vw", numbers, types, strict=True)
    }
    return make_model(nodes, {"x": (first, ["n", 64])}, {"y": (last, ["n", 64])}, weights)


@pytest.mark.parametrize(
    ("types", "arithmetic"),
    [((F, F), "fp32"), ((H, H), "fp16, half partials"), ((H, F), "fp16, half partials")],
)
def test_without_a_precision_a_profile_is_of_what_poprt_compiles(
    types, arithmetic, tmp_path, run, capsys
):
    path = save(mixed(types), tmp_path / "mixed.onnx")
    words = ["-i", path, "--batch_size", 4, "--export_popef", "--output_dir", tmp_path]
    assert poprt([str(word) for word in words]) == 0
    line = next(each for each in capsys.readouterr().out.splitlines() if "modelled" in each)
    assert f"C600 (ipu21), {arithmetic} (modelled)" in line
    cycles = int(re.search(r"(\d+) cycles", line)[1])
    for given in (path, tmp_path / "executable.popef"):
        out = run(given, "--batch_size", 4)[1]
        assert f"batch 4, {arithmetic} on C600 (ipu21), modelled: {cycles:,} cycles" in out
