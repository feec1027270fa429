"""Tests of the calibration of 8-bit models: the search finds the best values, adjusted weights are
no worse, and invalid data is reported."""

import pickle

import ml_dtypes
import numpy as np
import onnx
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from model_runtime import ModelRunner, ModelRunnerConfig
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from poprt import Compiler, CompilerOptions, Converter, get_pass
from poprt.cli import main
from poprt.comparing.statistics import ERRORS, HalfCounts, Moments
from poprt.frontend import get_frontend
from poprt.passes import layer_precision_compare
from poprt.quantizer import FP8Quantizer, quantize
from poprt.quantizer.gptq import Hessian, WeightLayout, adjust
from poprt.quantizer.search import CANDIDATES, KLD_BINS, SCALES, ScaledFormat, Values, search
from sample_models import make_model
from simipu import CompileError
from simipu.numerics.quarter import F143, F152, FORMATS

F = TensorProto.FLOAT
WITNESSES = {"F143": ml_dtypes.float8_e4m3fnuz, "F152": ml_dtypes.float8_e5m2fnuz}


def network(batch="n") -> onnx.ModelProto:
    """Return a network of convolutions, one with groups, a Gemm of transposed weights and a
    MatMul."""
    random = np.random.default_rng(0)
    weights = {
        "w1": random.standard_normal((16, 3, 3, 3)) / 5,
        "w2": random.standard_normal((16, 4, 3, 3)) / 6,
        "w3": random.standard_normal((32, 16)) / 4,
        "b3": random.standard_normal(32),
        "w4": random.standard_normal((32, 10)) / 6,
    }
    nodes = [
        helper.make_node(
            "Conv", ["x", "w1"], ["a"], name="first", auto_pad="SAME_UPPER", strides=[2, 2]
        ),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Conv", ["b", "w2"], ["c"], name="groups", group=4, pads=[1] * 4),
        helper.make_node("GlobalAveragePool", ["c"], ["d"], name="pool"),
        helper.make_node("Flatten", ["d"], ["e"], name="flat"),
        helper.make_node("Gemm", ["e", "w3", "b3"], ["f"], name="gemm", transB=1),
        helper.make_node("MatMul", ["f", "w4"], ["y"], name="last"),
    ]
    tensors = {name: value.astype(np.float32) for name, value in weights.items()}
    return make_model(nodes, {"x": (F, [batch, 3, 12, 12])}, {"y": (F, [batch, 10])}, tensors)


def pictures(count=6) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((count, 3, 12, 12)).astype(np.float32)


def prepare(precision="fp8", model=None, **options) -> onnx.ModelProto:
    converter = Converter(precision=precision, batch_size=2, quantize=True, **options)
    return converter.convert(model or network())


def counted(values: np.ndarray) -> Values:
    counts = HalfCounts()
    counts.add(values)
    return Values.of(counts)


def brute_force(values: np.ndarray, loss: str, name: str, scale: int) -> float:
    """Compute the loss from each value by itself, with ml_dtypes' rounding."""
    original = values.astype(np.float16).astype(np.float64).ravel()

    def narrow(these):
        scaled = np.ldexp(these, -scale)
        limit = float(ml_dtypes.finfo(WITNESSES[name]).max)
        return np.ldexp(
            np.clip(scaled, -limit, limit).astype(WITNESSES[name]).astype(np.float64), scale
        )

    if loss != "kld":
        return ERRORS[loss](original, narrow(original))
    most = np.abs(original).max()
    if not most:
        return 0.0
    found, edges = np.histogram(original, KLD_BINS, (-most, most))
    middles = (edges[:-1] + edges[1:])[found > 0] / 2
    shares = found[found > 0] / original.size
    told = narrow(middles)
    spread = [shares[told == each].sum() / (told == each).sum() for each in told]
    return float(np.sum(shares * np.log(shares / spread)))


@settings(max_examples=examples(25), deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    size=st.integers(1, 300),
    exponent=st.integers(-20, 14),
    tails=st.sampled_from([1.0, 0.3]),
    loss=st.sampled_from(["mse", "mae", "snr", "kld", "cos_dist"]),
)
def test_the_search_finds_what_trying_all_finds(seed, size, exponent, tails, loss):
    random = np.random.default_rng(seed)
    values = (random.standard_normal(size) * np.exp(random.standard_normal(size) / tails)).astype(
        np.float32
    )
    values = np.clip(np.ldexp(values, exponent), -65504, 65504)
    choice = search(counted(values), loss)
    losses = {
        ScaledFormat(FORMATS[name], scale): brute_force(values, loss, name, scale)
        for name in WITNESSES
        for scale in SCALES
    }
    assert choice.loss == pytest.approx(min(losses.values()), rel=1e-6, abs=1e-12)
    assert set(SCALES) >= set(range(-5, 3))
    for candidate, found in losses.items():
        assert choice.losses[candidate] == pytest.approx(found, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("loss", ["mse", "mae", "snr", "kld", "cos_dist"])
@pytest.mark.parametrize("value", [0.0, 1.0, -3e-6, 65504.0])
def test_a_tensor_of_one_value_has_a_choice(loss, value):
    choice = search(counted(np.full(100, value, np.float32)), loss)
    assert np.isfinite(choice.loss)
    assert (
        search(counted(np.zeros(0, np.float32)), loss).best
        == CANDIDATES[0]
        == ScaledFormat(F143, 0)
    )


def test_no_scale_beyond_those_tried_brings_any_half_nearer():
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    for quarter in (F143, F152):
        nearest = min_errors(halves, [ScaledFormat(quarter, scale) for scale in SCALES])
        beyond = [ScaledFormat(quarter, scale) for scale in range(-32, 32) if scale not in SCALES]
        assert (min_errors(halves, beyond) >= nearest).all()


def min_errors(values, candidates):
    return np.min([np.abs(each.quantise(values) - values) for each in candidates], axis=0)


def test_counts_say_what_the_values_say():
    values = np.random.default_rng(0).standard_normal(5000).astype(np.float16)
    counts = HalfCounts()
    for part in np.split(np.append(values, [np.inf, np.nan]).astype(np.float32), [1000, 3000]):
        counts.add(part)
    assert counts.lost == 2
    found, expected = Moments.of(*counts.distribution()), Moments.of(values)
    assert found.histogram == expected.histogram
    for name in ("mean", "std", "least", "most", "skewness", "kurtosis"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), abs=1e-9)
    wide = values.astype(np.float64)
    assert (found.least, found.most) == (wide.min(), wide.max())
    assert found.kurtosis == pytest.approx(((wide - wide.mean()) ** 4).mean() / wide.var() ** 2 - 3)


def quarters(model) -> dict[str, tuple[int, int]]:
    """Return format and scale by the name of the widened tensor."""
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    return {
        node.input[0].removesuffix("/fp8"): (types[node.input[0]], attribute.i)
        for node in model.graph.node
        if node.op_type == "Cast" and node.input[0] in types
        for attribute in node.attribute
        if attribute.name == "scale"
    }


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["mse", "mae", "snr", "kld", "cos_dist"])
@pytest.mark.parametrize("precision", ["fp8", "fp8_weight"])
def test_every_operand_gets_its_best_format_and_scale(loss, precision, tmp_path):
    prepared = prepare(precision)
    made = quantize(prepared, None, tmp_path, {"x": pictures()}, precision, loss)
    halves = {tensor.name: tensor for tensor in prepared.graph.initializer}
    for name, found in quarters(made).items():
        best = search(counted(onnx.numpy_helper.to_array(halves[name])), loss).best
        assert found == (best.quarter.data_type, best.scale)
    assert len(quarters(made)) == 4
    log = (tmp_path / "quantize.log").read_text()
    per_operand = 2 if precision == "fp8" else 1
    assert log.count("F143: -14: ") == log.count("F152: -14: ") == 4 * per_operand
    assert log.count("noise: mean") == (0 if loss == "kld" else 4 * per_operand)
    assert all(log.count(f"{word} ") for word in ("skewness", "kurtosis")) == (loss != "kld")
    x = np.asarray(pictures(2), np.float16)
    expected = answer(prepared, x, tmp_path)
    np.testing.assert_allclose(
        answer(made, x, tmp_path), expected, atol=0.1 * np.abs(expected).max()
    )


def answer(model, x, folder) -> np.ndarray:
    Compiler.compile_and_export(
        model, None, folder / "m.popef", CompilerOptions(ipu_version="ipu21")
    )
    runner = ModelRunner(folder / "m.popef", config=ModelRunnerConfig())
    out = {"y": np.zeros((len(x), 10), np.float16)}
    runner.execute({"x": x}, out)
    return out["y"]


def test_layers_of_largest_loss_stay_in_half(tmp_path):
    prepared = prepare()
    made = quantize(prepared, None, tmp_path, {"x": pictures()}, "fp8", "snr", 2)
    last = (tmp_path / "quantize.log").read_text().splitlines()[-1]
    assert last.startswith("kept in fp16, of largest loss: ")
    assert len(quarters(made)) == 2
    assert quarters(quantize(prepared, None, tmp_path, {"x": pictures()}, "fp8", "snr", 99)) == {}


def test_options_of_the_converter_reach_the_quantizer(tmp_path):
    prepared = prepare("fp8_weight", fp8_skip_op_names="first, last", fp8_params="F152,F152,-2,-3")
    before = prepared.SerializeToString()
    made = quantize(prepared, None, tmp_path, {"x": pictures()}, "fp8_weight", "gptq")
    assert quarters(made) == dict.fromkeys(("w2", "w3"), (F152.data_type, -3))
    assert not made.metadata_props
    assert prepared.SerializeToString() == before
    options = {"fp8_params": "F143,F143,0,-4", "fp8_skip_op_names": ["gemm"]}
    made = quantize(
        prepared, None, tmp_path, {"x": pictures()}, "fp8_weight", "gptq", options=options
    )
    assert quarters(made) == dict.fromkeys(("w1", "w2", "w4"), (F143.data_type, -4))


@pytest.mark.parametrize("op_type", ["MatMul", "Gemm", "left", "Conv", "groups"])
def test_adjusted_weights_answer_no_worse_than_the_nearest(op_type):
    random = np.random.default_rng(2)
    node, shape, x_shape, place = {
        "MatMul": (helper.make_node("MatMul", ["x", "w"], ["y"]), (24, 10), (3, 5, 24), 1),
        "Gemm": (
            helper.make_node("Gemm", ["x", "w"], ["y"], transB=1, transA=1),
            (10, 24),
            (24, 15),
            1,
        ),
        "left": (helper.make_node("MatMul", ["w", "x"], ["y"]), (10, 24), (3, 24, 15), 0),
        "Conv": (
            helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4),
            (8, 6, 3, 3),
            (2, 6, 7, 7),
            1,
        ),
        "groups": (
            helper.make_node("Conv", ["x", "w"], ["y"], group=3, strides=[2, 1], dilations=[1, 2]),
            (6, 2, 3, 3),
            (2, 6, 9, 9),
            1,
        ),
    }[op_type]
    weight = (random.standard_normal(shape) / 5).astype(np.float16)
    x = random.standard_normal(x_shape).astype(np.float32)
    x += random.standard_normal(x_shape[:1] + (1,) * (x.ndim - 1)).astype(np.float32)
    layout = WeightLayout.of(node, place, shape)
    assert layout is not None
    np.testing.assert_array_equal(layout.from_matrix(layout.to_matrix(weight)), weight)
    hessian = Hessian(layout)
    hessian.add(x)
    candidate = ScaledFormat(F143, -3)
    adjusted = adjust(weight, layout, candidate, hessian)
    np.testing.assert_array_equal(candidate.quantise(adjusted.values), adjusted.values)
    errors = {
        name: np.sum((run(node, x, values) - run(node, x, weight)) ** 2)
        for name, values in (("adjusted", adjusted.values), ("rounded", candidate.quantise(weight)))
    }
    assert adjusted.loss == pytest.approx(errors["adjusted"], rel=1e-3)
    assert adjusted.rounded_loss == pytest.approx(errors["rounded"], rel=1e-3)
    assert errors["adjusted"] < 0.9 * errors["rounded"]


def run(node, x, weight) -> np.ndarray:
    arrays = {"x": x.astype(np.float64), "w": np.asarray(weight, np.float64)}
    inputs = {name: (TensorProto.DOUBLE, array.shape) for name, array in arrays.items()}
    model = make_model([node], inputs, {"y": (TensorProto.DOUBLE, None)}, {})
    return np.asarray(ReferenceEvaluator(model).run(None, arrays)[0])


def test_a_channel_that_is_never_used_is_rounded():
    node, weight = helper.make_node("MatMul", ["x", "w"], ["y"]), np.full((4, 2), 0.3, np.float16)
    layout = WeightLayout.of(node, 1, weight.shape)
    hessian = Hessian(layout)
    hessian.add(np.zeros((5, 4), np.float32))
    adjusted = adjust(weight, layout, ScaledFormat(F143, 0), hessian)
    assert adjusted.loss == adjusted.rounded_loss == 0
    np.testing.assert_array_equal(adjusted.values, ScaledFormat(F143, 0).quantise(weight))


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({}, "calibration data for input 'x': expected rows of shape"),
        ({"x": pictures()[..., :5]}, r"expected rows of shape \[3, 12, 12\], found"),
        (
            {"x": np.full((2, 3, 12, 12), np.nan, np.float32)},
            "'x': expected finite numbers, found NaN",
        ),
        ({"x": np.full((2, 3, 12, 12), "a")}, "'x': expected numbers, found <U1"),
        ([1, 2], "data_preprocess: expected a file, or arrays by input name"),
        (None, "data_preprocess: expected samples by input name"),
        (lambda: 1, "data_preprocess: expected a file"),
    ],
)
def test_bad_samples_are_refused_by_name(data, told, tmp_path):
    with pytest.raises(CompileError, match=told):
        quantize(prepare(), None, tmp_path, data)


@pytest.mark.slow
def test_samples_may_be_more_or_fewer_than_a_batch(tmp_path):
    prepared = prepare()
    for count in (1, 2, 5):
        quantize(prepared, None, tmp_path, {"x": pictures(count)})
    whole = pictures(6).reshape(3, 2, 3, 12, 12)  # each a whole batch
    logs = []
    for samples in (whole, pictures(6)):
        quantize(prepared, None, tmp_path, {"x": samples, "unused": np.zeros(1)})
        logs.append((tmp_path / "quantize.log").read_text())
    assert logs[0] == logs[1]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"loss_type": "kl"}, "quantize_loss_type: expected mse, mae"),
        ({"precision": "fp16"}, "precision: expected fp8 or fp8_weight"),
        ({"loss_type": "gptq"}, "gptq: expected precision fp8_weight"),
        ({"num_of_layers_keep_fp16": -1}, "num_of_layers_keep_fp16: expected 0 or more"),
        ({"options": {"fp9": 1}}, "options: expected fp8_params or fp8_skip_op_names, found 'fp9'"),
        ({"options": {"fp8_params": "F144"}}, "fp8_params: expected"),
    ],
)
def test_wrong_settings_are_refused(arguments, told, tmp_path):
    with pytest.raises(CompileError, match=told):
        FP8Quantizer(tmp_path, **{"data_preprocess": {"x": pictures()}, **arguments})


def test_a_model_that_was_not_prepared_is_refused(tmp_path):
    with pytest.raises(
        CompileError, match=r"convert it with Converter\(precision='fp8', quantize=True\)"
    ):
        quantize(network(2), None, tmp_path, {"x": pictures()})
    with pytest.raises(CompileError, match="quantize prepares a model for 8 bits"):
        Converter(quantize=True)


def inside(model) -> onnx.ModelProto:
    """Return the model with its nodes in a branch of an If and its weights outside."""
    graph = model.graph
    branches = {}
    for name in ("then_branch", "else_branch"):
        body = helper.make_graph([], name, [], [])
        for node in graph.node:
            made = body.node.add()
            made.CopyFrom(node)
            made.name = f"{name}/{node.name}"
            made.output[:] = [f"{name}/{each}" for each in node.output]
            made.input[:] = [
                f"{name}/{each}" if each in {n for m in graph.node for n in m.output} else each
                for each in node.input
            ]
        body.output.extend([helper.make_tensor_value_info(f"{name}/y", F, ["n", 10])])
        branches[name] = body
    outer = [helper.make_node("If", ["which"], ["y"], name="if", **branches)]
    made = make_model(outer, {"x": (F, ["n", 3, 12, 12])}, {"y": (F, ["n", 10])}, {})
    made.graph.input.append(helper.make_tensor_value_info("which", TensorProto.BOOL, []))
    made.graph.initializer.extend(graph.initializer)
    return made


@pytest.mark.parametrize("precision", ["fp8", "fp8_weight"])
def test_products_in_bodies_become_8_bits_too(precision, tmp_path):
    made = Converter(precision=precision, batch_size=2).convert(inside(network()))
    widths = {tensor.data_type for tensor in made.graph.initializer if len(tensor.dims) > 1}
    assert widths == {F143.data_type}
    found = quantize(
        prepare(precision, inside(network())), None, tmp_path, {"x": pictures(), "which": [True]}
    )
    assert {t.data_type for t in found.graph.initializer if len(t.dims) > 1} <= {
        F143.data_type,
        F152.data_type,
    }
    for model in (made, found):
        assert Compiler.compile(model, None, CompilerOptions(ipu_version="ipu21")).cycles > 0


@pytest.mark.parametrize("precision", ["fp8", "fp8_weight"])
@pytest.mark.parametrize("again", ["fp32", "fp16", "fp8", "fp8_weight"])
def test_an_8_bit_model_is_read_and_converted_again_as_it_is(precision, again, tmp_path):
    made = Converter(precision=precision, batch_size=2, fp8_params="F143,F152,-1,-3").convert(
        network()
    )
    onnx.save(made, tmp_path / "m.onnx")
    read = get_frontend(tmp_path / "m.onnx").load_model()
    twice = Converter(precision=again).convert(read)
    assert [str(node) for node in twice.graph.node] == [str(node) for node in made.graph.node]
    weights = [{t.name: t.data_type for t in model.graph.initializer} for model in (made, twice)]
    assert weights[0] == weights[1]


def test_layers_are_compared_in_numbers(tmp_path):
    converted = Converter(precision="fp8", batch_size=2).convert(network())
    layer_precision_compare(network(), converted, {"x": pictures()}, tmp_path)
    lines = (tmp_path / "precision_compare.log").read_text().splitlines()
    assert len(lines) == 4 * 8
    assert lines[0] == "Conv 'first' output 'a'"
    histograms = [line.split(": ")[1].split() for line in lines if "histogram" in line]
    assert {len(each) for each in histograms} == {32}
    assert len({sum(map(int, each)) for each in histograms[:3]}) == 1
    assert all(f"{name} " in lines[7] for name in ("mse", "mae", "snr", "cos_dist"))


def test_the_command_calibrates_and_compares(tmp_path, capsys):
    onnx.save(network(), tmp_path / "m.onnx")
    (tmp_path / "d.pickle").write_bytes(pickle.dumps({"x": pictures()}))
    words = ["-i", str(tmp_path / "m.onnx"), "--batch_size", "2", "--output_dir", str(tmp_path)]
    calibrate = ["--calibration_with_data", "--data_preprocess", str(tmp_path / "d.pickle")]
    extra = [
        "--calibration_loss_type",
        "mae",
        "--num_of_layers_keep_fp16",
        "1",
        "--precision_compare",
    ]
    assert main([*words, "--precision", "fp8", *calibrate, *extra, "--output_model", "q.onnx"]) == 0
    assert {"quantize.log", "precision_compare.log", "q.onnx"} <= {
        each.name for each in tmp_path.iterdir()
    }
    assert len(quarters(onnx.load(tmp_path / "q.onnx"))) == 3
    old = ["--quantize", "--quantize_loss_type", "gptq", *calibrate[1:]]
    assert main([*words, "--precision", "fp8_weight", *old]) == 0
    for wrong in (
        ["--precision", "fp16", *calibrate],
        ["--precision", "fp8", "--calibration_with_data"],
        ["--precision", "fp8", "--num_of_layers_keep_fp16", "2"],
        ["--precision_compare"],
    ):
        with pytest.raises(SystemExit, match="2"):
            main([*words, *wrong])
    assert "--calibration_with_data requires" in capsys.readouterr().err


def test_weights_shared_with_others_are_not_adjusted(tmp_path):
    """An embedding that is also read by index shares its weights, for example."""
    nodes = [
        helper.make_node("Gather", ["w", "ids"], ["g"], name="gather"),
        helper.make_node("MatMul", ["g", "turned"], ["h"], name="own"),
        helper.make_node("MatMul", ["h", "w"], ["y"], name="shared"),
    ]
    random = np.random.default_rng(0)
    weights = {"w": random.standard_normal((8, 8)), "turned": random.standard_normal((8, 8))}
    tensors = {name: value.astype(np.float32) for name, value in weights.items()}
    model = make_model(nodes, {"ids": (TensorProto.INT64, ["n"])}, {"y": (F, ["n", 8])}, tensors)
    made = quantize(
        prepare("fp8_weight", model), None, tmp_path, {"ids": np.arange(6)}, "fp8_weight", "gptq"
    )
    log = (tmp_path / "quantize.log").read_text()
    assert "'turned': loss" in log
    assert "'w': loss" not in log
    kept = next(t for t in made.graph.initializer if t.name == "w")
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(kept), tensors["w"].astype(np.float16))
    assert get_pass("float_to_fp8").name == "float_to_fp8"


def test_samples_that_the_model_cannot_compute_are_refused(tmp_path):
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["g"], name="gather"),
        helper.make_node("MatMul", ["g", "w"], ["y"], name="product"),
    ]
    tensors = {"table": np.ones((8, 4), np.float32), "w": np.ones((4, 4), np.float32)}
    model = make_model(nodes, {"ids": (TensorProto.INT64, ["n"])}, {"y": (F, ["n", 4])}, tensors)
    with pytest.raises(CompileError, match="the model cannot be computed on data_preprocess: "):
        quantize(prepare("fp8", model), None, tmp_path, {"ids": np.array([9, 9])})


def test_values_that_half_cannot_hold_are_left_out_of_the_search(tmp_path, caplog):
    nodes = [
        helper.make_node("Div", ["x", "zero"], ["infinite"], name="div"),
        helper.make_node("MatMul", ["infinite", "w"], ["y"], name="product"),
    ]
    tensors = {"zero": np.array([1, 0, 1, 1], np.float32), "w": np.ones((4, 4), np.float32)}
    model = make_model(nodes, {"x": (F, ["n", 4])}, {"y": (F, ["n", 4])}, tensors)
    quantize(prepare("fp8", model), None, tmp_path, {"x": np.ones((6, 4), np.float32)})
    assert "activation 'infinite': 6 values that are not finite were left out" in caplog.text
