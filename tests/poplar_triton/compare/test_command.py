"""The command `poplar-triton compare`: its rows, units and refusals. No time is asserted."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from poplar_triton.cli import main
from poplar_triton.compare.chips import read_list
from sample_models import make_model
from simipu.chip.target import TARGETS

F = TensorProto.FLOAT
QUICK = ("--seconds", "0.3", "--threads", "1", "--batch_sizes", "1,2")


def multiply(width: int = 16, copies: int = 1) -> onnx.ModelProto:
    """Return y = tanh(x @ w) ..., with as many products."""
    nodes, held = [], {}
    for i in range(copies):
        nodes.append(helper.make_node("MatMul", [f"t{i}", f"w{i}"], [f"m{i}"]))
        nodes.append(helper.make_node("Tanh", [f"m{i}"], [f"t{i + 1}"]))
        held[f"w{i}"] = np.full((width, width), 0.01, np.float32)
    shape = (F, ["n", width])
    return make_model(nodes, {"t0": shape}, {f"t{copies}": shape}, held)


def lookup() -> onnx.ModelProto:
    """Return a model with two inputs: rows of a table by index, plus floats of half precision."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Cast", ["x"], ["wide"], to=F),
        helper.make_node("Add", ["rows", "wide"], ["y"]),
    ]
    inputs = {"ids": (TensorProto.INT64, ["n", 4]), "x": (TensorProto.FLOAT16, ["n", 4, 8])}
    table = np.ones((3, 8), np.float32)
    return make_model(nodes, inputs, {"y": (F, ["n", 4, 8])}, {"table": table})


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the command on a model in this process and return status, stdout and stderr."""

    def call(model: onnx.ModelProto, *words: object) -> tuple[int, str, str]:
        file = tmp_path / "model.onnx"
        onnx.save(model, file)
        try:
            status = main(["compare", str(file), *QUICK, *map(str, words)])
        except SystemExit as exit_:
            status = int(exit_.code or 0)
        return status, *capsys.readouterr()

    return call


@pytest.fixture
def compare(run: Callable[..., tuple[int, str, str]]) -> Callable[..., dict]:
    """Run the command on a model and return the systems by name."""

    def call(model: onnx.ModelProto, *words: object) -> dict:
        status, out, err = run(model, "--json", *words)
        assert (status, err) == (0, "")
        return {system["name"]: system for system in json.loads(out)["systems"]}

    return call


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Return the systems by name of one run whose figures several tests look at."""
    file, out = tmp_path_factory.mktemp("found") / "model.onnx", io.StringIO()
    onnx.save(multiply(), file)
    prices = ("--price", "c600=3.6", "--price", "cpu=1")
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out):
        cpu_only = ["CPUExecutionProvider"]
        patch.setattr(onnxruntime, "get_available_providers", lambda: cpu_only)
        assert main(["compare", str(file), *QUICK, *prices, "--json"]) == 0
    return {system["name"]: system for system in json.loads(out.getvalue())["systems"]}


def test_chips_are_modelled_beside_the_measured_cpu(found):
    assert list(found) == ["c600", "mk2", "bow", "4xmk2", "4xbow", "cpu", "gpu"]
    assert [each["figures"] for each in found.values()] == ["modelled"] * 5 + ["measured"] * 2
    assert [point["batch_size"] for point in found["cpu"]["points"]] == [1, 2]
    for name, system in found.items():
        for point in system["points"]:
            is_measured = name == "cpu"
            assert (point["spread"] is not None) is is_measured
            assert bool(point["error"]) is not is_measured, "only models have an expected error"
            assert point["latency_seconds"] > 0


def test_a_chip_has_the_figures_of_its_profile(compare, tmp_path, capsys):
    point = compare(multiply(), "--systems", "bow", "--precision", "fp16")["bow"]["points"][1]
    words = ["--target", "bow", "--precision", "fp16", "--batch_size", "2", "--json"]
    assert main(["profile", str(tmp_path / "model.onnx"), *words]) == 0
    profile = json.loads(capsys.readouterr().out)
    for name in ("batch_size", "latency_seconds", "samples_per_second"):
        assert point[name] == profile[name]


def test_a_measured_throughput_agrees_with_its_latencies(found):
    (one, _) = found["cpu"]["points"]
    spread = one["spread"]
    assert spread["calls"] >= 1
    assert spread["p10_seconds"] <= one["latency_seconds"] <= spread["p90_seconds"]


def test_several_ipus_hold_a_copy_each_if_the_model_fits_on_one(found):
    assert found["4xbow"]["points"][0]["how"] == "a copy on each IPU"
    assert found["bow"]["points"][0]["how"] == ""


def test_a_model_that_does_not_fit_on_one_chip_has_no_figures_there_and_shares_several(compare):
    # 300 MiB of floats in eight products: more than a third of a chip's memory each in two copies.
    large = weightless(multiply(4, copies=8), 6400)
    found = compare(large, "--systems", "c600,4xc600,2xc600", "--batch_sizes", "1")
    one, four = found["c600"], found["4xc600"]
    assert "does not fit" in one["reason"]
    assert "2xc600" in one["reason"]
    assert (one["best_batch_size"], one["energy_per_sample_joules"]) == (None, None)
    assert four["points"][0]["fits"]
    assert "pipeline of" in four["points"][0]["how"]
    assert "ONNX Runtime cannot load the model" in found["cpu"]["reason"]


def weightless(model: onnx.ModelProto, width: int) -> onnx.ModelProto:
    """Return a model with square weights of another width, whose external data are missing."""
    for tensor in model.graph.initializer:
        del tensor.dims[:]
        tensor.dims.extend([width, width])
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="missing.bin")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[1].dim_value = width
    return model


def test_several_inputs_of_other_types_are_made_up_within_their_tables(compare):
    cpu = compare(lookup())["cpu"]
    assert (cpu["reason"], cpu["missing"]) == (None, {})
    assert len(cpu["points"]) == 2


def test_energy_is_published_power_over_throughput_for_each_ipu(found):
    for name, count, chip in (("c600", 1, "ipu21"), ("4xmk2", 4, "ipu2"), ("bow", 1, "bow")):
        system, power = found[name], TARGETS[chip].power
        best = max(system["points"], key=lambda point: point["samples_per_second"])
        energy = system["energy_per_sample_joules"]
        for key, watts in (
            ("least", power.idle_watts),
            ("typical", power.typical_watts),
            ("most", power.max_watts),
        ):
            expected = watts and count * watts / best["samples_per_second"]
            assert energy[key] == pytest.approx(expected)
        assert "published" in energy["how"]


def test_the_cpu_has_measured_energy_or_says_why_not(found):
    energy = found["cpu"]["energy_per_sample_joules"]
    assert energy["typical"] is not None or "RAPL" in energy["how"]
    assert energy["least"] is energy["most"] is None


def test_a_gpu_that_onnx_runtime_cannot_use_is_skipped_with_the_reason(found):
    gpu = found["gpu"]
    assert gpu["points"] == []
    assert "has no CUDAExecutionProvider" in gpu["reason"]


@pytest.mark.slow
def test_a_provider_that_falls_back_to_the_cpu_is_not_called_a_gpu(compare, monkeypatch):
    """ONNX Runtime computes on the CPU, and says so in a warning, if CUDA does not start."""
    both = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    if set(both) <= set(onnxruntime.get_available_providers()):
        pytest.skip("ONNX Runtime has CUDA here")
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: both)
    gpu = compare(multiply())["gpu"]
    assert gpu["points"] == []
    assert "could not start its CUDAExecutionProvider" in gpu["reason"]


def test_the_cost_of_a_million_samples_is_price_over_throughput(found):
    system = found["c600"]
    rate = max(point["samples_per_second"] for point in system["points"])
    assert system["cost_per_million_samples"] == pytest.approx(3.6 / 3600 / rate * 1e6)
    assert found["cpu"]["cost_per_million_samples"] > 0
    assert found["bow"]["cost_per_million_samples"] is None
    assert found["bow"]["price_per_hour"] is None


@pytest.mark.slow
def test_a_latency_limit_chooses_the_best_batch_within_it(compare):
    free = compare(multiply(512), "--systems", "c600", "--batch_sizes", "1,64")["c600"]
    one, many = free["points"]
    assert one["latency_seconds"] < many["latency_seconds"]
    limit = 1e3 * (one["latency_seconds"] + many["latency_seconds"]) / 2
    words = ("--systems", "c600", "--batch_sizes", "1,64", "--latency-limit-ms")
    held = compare(multiply(512), *words, limit)["c600"]
    assert (held["best_batch_size"], held["chosen_batch_size"]) == (64, 1)
    none = compare(multiply(512), *words, 1e-6)
    assert none["c600"]["chosen_batch_size"] is none["cpu"]["chosen_batch_size"] is None


def test_a_model_of_a_fixed_batch_is_compared_at_that_batch(compare):
    model = multiply()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 3
    found = compare(model)
    assert [point["batch_size"] for point in found["cpu"]["points"]] == [3]
    (note,) = found["c600"]["notes"]
    assert note.startswith("only batch 3 is compared: input ")
    assert "export the model with a variable dimension there" in note
    assert found["c600"]["latency_batch_1_seconds"] is None


def test_a_model_that_no_batch_size_suits_is_refused_with_the_reason_and_the_remedy(run):
    model = multiply()
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "width"
    status, out, err = run(model)
    assert (status, out) == (1, "")
    assert "'t0' [n, width]; use, with your sizes, --input_shape t0=-1,128\n" in err
    assert "--batch_size" not in err, "compare has no such option"


def test_input_shapes_may_hold_the_batch_size_of_each_comparison(compare):
    model = multiply()
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "width"
    found = compare(model, "--systems", "c600", "--input_shape", "t0=-1,16")
    for name in ("c600", "cpu"):
        assert [point["batch_size"] for point in found[name]["points"]] == [1, 2]


def test_the_table_says_what_is_modelled_and_what_is_measured(run):
    status, out, err = run(multiply(), "--latency_limit_ms", 1000, "--price", "c600=1")
    assert (status, err) == (0, "")
    for word in (
        "batch within 1 s",
        "energy of a sample",
        "a million cost",
        "cpu: CPU, ",
        "1 thread,",
        "gpu: ",
        "validation found",
        "share of the IPU-M2000 of 4 IPUs: idle not published, typical 250 W, maximum 375 W (https://",
    ):
        assert word in out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--systems", "c700"), "IPU target 'c700' is not known; known are bow, c600"),
        (("--systems", "0xbow"), "expected a whole number from 1 to 64, found '0'"),
        (("--systems", "9999xbow"), "expected a whole number from 1 to 64, found '9999'"),
        (("--price", "c60=1"), "found 'c60'; did you mean c600?"),
        (("--price", "2xbow=1"), "expected one of c600, mk2, bow, 4xmk2, 4xbow, cpu, gpu"),
        (("--price", "c600"), "expected NAME=PRICE_OF_AN_HOUR, found 'c600'"),
        (("--price", "c600=-1"), "expected a number above 0, found '-1'"),
        (("--price", "c600=nan"), "expected a number above 0, found 'nan'"),
        (("--price", "c600=1", "--price", "c600=2"), "'c600' has two prices; give one"),
        (("--latency-limit-ms", "0"), "expected a number above 0, found '0'"),
        (("--seconds", "1e9"), "expected a number of seconds up to 600, found '1e9'"),
        (("--batch_sizes", "1,x"), "expected a whole number of at least 1, found 'x'"),
    ],
)
def test_a_wrong_call_is_refused_with_what_was_expected(run, words, told):
    status, out, err = run(multiply(), *words)
    assert (status, out) == (2, "")
    assert told in err


def test_systems_are_listed_once_by_the_names_that_users_give():
    names = [(each.name, each.num_ipus) for each in read_list("C600, 4xBow,c600")]
    assert names == [("c600", 1), ("4xbow", 4)]


def test_a_compiled_model_is_modelled_and_not_measured(run, tmp_path, capsys):
    from poprt.cli import main as poprt

    onnx.save(multiply(), tmp_path / "source.onnx")
    words = ["--input_model", str(tmp_path / "source.onnx"), "--batch_size", "2"]
    assert poprt([*words, "--export_popef", "--output_dir", str(tmp_path)]) == 0
    capsys.readouterr()
    file = tmp_path / "executable.popef"
    assert main(["compare", str(file), "--systems", "bow", "--batch_sizes", "2", "--json"]) == 0
    bow, cpu, _ = json.loads(capsys.readouterr().out)["systems"]
    assert [point["batch_size"] for point in bow["points"]] == [2]
    assert "name its ONNX file" in cpu["reason"]
