"""Tests of what a compilation to half reports: how far outputs differ from float, where, why, and
the remedy."""

import logging
import os
import re
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from poprt import Compiler, CompilerOptions, Converter, cli
from poprt.comparing import sides
from sample_models import make_model
from simipu import CompileError
from simipu.engines.computed import OrtGraph
from simipu.errors import RunTimeoutError

F, F16 = TensorProto.FLOAT, TensorProto.FLOAT16
random = np.random.default_rng(0)


def node(operator, inputs, outputs, **attributes):
    return helper.make_node(
        operator, inputs.split(), outputs.split(), name=f"the_{outputs.split()[0]}", **attributes
    )


def compile_half(model, caplog, batch=4, options=None, **convert):
    """Compile the model in half and return it with the text of the warnings."""
    converter = Converter(precision="fp16", batch_size=batch, **convert)
    half, whole = converter.convert_beside_float(model)
    with caplog.at_level(logging.WARNING, "poprt"):
        compiled = Compiler.compile(
            half, None, CompilerOptions(**(options or {})), float_model=whole
        )
    return compiled, "\n".join(record.getMessage() for record in caplog.records)


def simple(nodes, weights, shape=(8,), outputs=None):
    return make_model(
        nodes, {"x": (F, ["n", *shape])}, {"y": (F, outputs or ["n", *shape])}, weights
    )


def overflowing_norm():
    """Return a layer normalisation of single operators. Its sum of squares exceeds the range of
    half; the operators around it stay within it."""
    nodes = [
        node("Mul", "x loud", "l"),
        node("Mul", "l l", "square"),
        node("ReduceSum", "square axes", "sum"),
        node("Sqrt", "sum", "size"),
        node("Div", "l size", "norm"),
        node("Gemm", "norm w", "logits"),
        node("Softmax", "logits", "y", axis=-1),
    ]
    weights = {
        "loud": np.float32(200),
        "axes": np.array([1]),
        "w": random.standard_normal((8, 8)).astype(np.float32) * 5,
    }
    return simple(nodes, weights)


def quiet_power():
    """Return the logarithm of a power as audio front ends compute it. Most of the power is below
    the smallest half."""
    nodes = [
        node("Mul", "x x", "s"),
        node("Mul", "s small", "t"),
        node("Mul", "t small", "power"),
        node("Add", "power least", "p"),
        node("Log", "p", "y"),
    ]
    return simple(nodes, {"small": np.float32(1e-4), "least": np.float32(1e-10)})


def cancelling():
    """Return a model that computes the small difference of large numbers."""
    nodes = [node("Add", "x much", "large"), node("Sub", "large much", "y")]
    return simple(nodes, {"much": np.full(8, 3000, np.float32)})


def test_of_8_bits_the_command_is_named_that_looks_at_each_layer(caplog):
    model = simple(
        [node("MatMul", "x w", "y")], {"w": np.diag(np.linspace(1, 1.1, 8)).astype(np.float32)}
    )
    converted = Converter(precision="fp8", batch_size=4).convert(model)
    compiled = Compiler.compile(converted, None, CompilerOptions(ipu_version="ipu21"))
    assert compiled.findings.comparison.is_bad
    assert "poprt --precision_compare says how far each layer of 8 bits is off" in caplog.text


@pytest.mark.parametrize(
    ("model", "first", "cause"),
    [
        (overflowing_norm(), "the_(square|sum)", "overflow"),
        (quiet_power(), "the_power", "underflow"),
        (cancelling(), "the_y", "cancellation"),
    ],
)
@pytest.mark.parametrize("partials", ["half", "float"])
def test_outputs_that_part_are_told_of_with_the_first_node_and_what_mends_it(
    model, first, cause, partials, caplog
):
    compiled, warned = compile_half(model, caplog, options={"partials_type": partials})
    comparison = compiled.findings.comparison
    assert comparison.is_bad
    assert re.search(r"beside float, on made-up inputs \(x: \S+ to \S+\): largest error", warned)
    assert warned.count("pass some with --data_preprocess") >= 1
    assert re.search(rf"They first differ at node '{first}' \(\w+\): {cause}", warned)
    types = re.search(r"--fp16_skip_op_types (\S+) brings the error to (\S+)", warned)
    caplog.clear()
    mended, warned = compile_half(
        model, caplog, options={"partials_type": partials}, fp16_skip_op_types=types[1]
    )
    assert not mended.findings.comparison.is_bad
    assert "beside float" not in warned


def test_a_model_that_half_does_no_harm_is_not_warned_of(caplog):
    weights = {"w": random.standard_normal((8, 5)).astype(np.float32)}
    model = simple([node("Gemm", "x w", "l"), node("Softmax", "l", "y")], weights, outputs=["n", 5])
    compiled, warned = compile_half(model, caplog)
    comparison = compiled.findings.comparison
    assert not warned
    assert 0 < comparison.error < 0.002
    assert (comparison.labels, comparison.agreeing, comparison.lost) == (16, 16, 0)
    assert comparison.describe() == (
        f"beside float, on made-up inputs ({comparison.drawn}): largest error "
        f"{comparison.error:.2g} of the largest "
        "value (output 'y'), labels agree in 16 of 16, no NaN or infinity"
    )


def test_weights_count_that_half_cannot_hold(caplog):
    """The comparison uses the original model: compared with itself, the converted model would lose
    nothing."""
    model = simple(
        [node("Mul", "x tiny", "t"), node("Mul", "t huge", "y")],
        {"tiny": np.full(8, 1e-9, np.float32), "huge": np.float32(1e4)},
    )
    compiled, warned = compile_half(model, caplog)
    assert compiled.findings.comparison.error == 1
    assert "underflow, weights 'tiny' of at most 1e-09" in warned
    caplog.clear()
    alone = Compiler.compile(Converter(precision="fp16", batch_size=4).convert(model))
    assert alone.findings.comparison.error < 0.01


def test_lost_values_are_counted(caplog):
    model = simple([node("Mul", "x loud", "l"), node("Sub", "l l", "y")], {"loud": np.float32(1e6)})
    options = {"engine_options": {"debug.nanOverflowException": "true"}}
    compiled, warned = compile_half(model, caplog, options=options)
    assert compiled.findings.comparison.lost
    assert f"{compiled.findings.comparison.lost} values lost to NaN or infinity" in warned


def test_single_nodes_stay_in_float_by_their_names(caplog):
    names = "the_square,the_sum,the_size,the_norm"
    compiled, _ = compile_half(overflowing_norm(), caplog, fp16_skip_op_names=names)
    assert not compiled.findings.comparison.is_bad
    with pytest.raises(CompileError, match="the model has no node 'nobody'"):
        compile_half(overflowing_norm(), caplog, fp16_skip_op_names=["nobody"])


def test_the_limit_of_a_run_grows_with_the_models_work(monkeypatch):
    limits = []
    for width in (8, 65536):
        product = node("MatMul", "x w", "y")
        weights = {"w": np.zeros((width, 8), np.float16)}
        model = make_model(
            [product], {"x": (F16, [width, width])}, {"y": (F16, [width, 8])}, weights
        )
        limits.append(sides.Side(model, {}, None)._limit_seconds())
    cores = os.cpu_count()
    assert limits == [
        pytest.approx(sides.MIN_LIMIT_SECONDS, abs=0.1),
        pytest.approx(sides.MIN_LIMIT_SECONDS + 65536 * 65536 * 8 / (5e8 * cores), rel=0.01),
    ]


def test_a_run_that_takes_too_long_says_what_would_help(monkeypatch, caplog):
    def stop(*_arguments):
        raise RunTimeoutError("a limit")

    monkeypatch.setattr(OrtGraph, "run", stop)
    model = Converter(precision="fp16", batch_size=4).convert(
        simple([node("Relu", "x", "y")], {}),
    )
    with caplog.at_level(logging.WARNING, "poprt"):
        Compiler.compile(model, None, CompilerOptions(skip_dry_run=True))
    assert "longer than its limit, which grows with the model's work" in caplog.text
    assert "compile with a smaller batch" in caplog.text


def test_models_in_float_are_not_compared(linear):
    assert Compiler.compile(Converter(batch_size=4).convert(linear)).findings.comparison is None


def test_8_bit_models_are_compared_too(caplog):
    weights = {"w": random.standard_normal((8, 8)).astype(np.float32)}
    model = simple([node("Gemm", "x w", "y")], weights)
    half, whole = Converter(precision="fp8", batch_size=4).convert_beside_float(model)
    compiled = Compiler.compile(half, None, CompilerOptions(ipu_version="ipu21"), float_model=whole)
    assert 0.005 < compiled.findings.comparison.error < 0.2


def test_the_command_says_it_in_one_line(tmp_path, capsys):
    onnx.save(overflowing_norm(), tmp_path / "m.onnx")
    arguments = [
        "--input_model",
        str(tmp_path / "m.onnx"),
        "--batch_size",
        "4",
        "--precision",
        "fp16",
        "--export_popef",
    ]
    assert cli.main([*arguments, "--output_dir", str(tmp_path)]) == 0
    (line,) = (
        line for line in capsys.readouterr().out.splitlines() if line.startswith("beside float")
    )
    assert re.fullmatch(
        r".*largest error .* of the largest value \(output 'y'\), labels agree in \d+ of 16, no "
        r"NaN or infinity",
        line,
    )


def test_a_warning_says_what_was_drawn_and_how_to_pass_real_inputs(caplog):
    """A front end for samples of 16 bits overflows with them, and not with values of about 1."""
    nodes = [
        node("Div", "x full", "s"),
        node("Mul", "s loud", "l"),
        node("Mul", "l l", "power"),
        node("Relu", "power", "y"),
    ]
    model = simple(nodes, {"full": np.float32(32768), "loud": np.float32(1000)})
    compiled, warned = compile_half(model, caplog)
    assert re.search(r"made-up inputs \(x: -3\d{4}\S* to 3\d{4}\S*\)", warned)
    assert compiled.findings.comparison.is_bad
    assert "--data_preprocess" in warned


def test_an_overflow_that_does_no_harm_to_the_outputs_is_not_one_to_mend(caplog):
    """The mask of a position that is padding may overflow: its share is 0 in any case."""
    nodes = [node("Add", "x far", "a"), node("Add", "a far", "l"), node("Softmax", "l", "y")]
    far = np.float32([0, 0, 0, 0, -6e4, -6e4, -6e4, -6e4])
    compiled, warned = compile_half(simple(nodes, {"far": far}), caplog)
    assert compiled.findings.overflows
    assert re.search(r"The outputs agree with float all the same \(largest error 0\.0\d+\)", warned)
    assert "fp16_skip_op_types" not in warned


def front_end(*first, length=512, **weights):
    """Return the size of what may be sound, after the first nodes, whose result is s."""
    nodes = [*first, node("Mul", "s s", "power"), node("ReduceMean", "power", "mean", axes=[1])]
    return make_model(
        [*nodes, node("Sqrt", "mean", "y")],
        {"x": (F, ["n", length])},
        {"y": (F, ["n", 1])},
        {name: np.float32(value) for name, value in weights.items()},
        opset=13,
    )


def test_where_no_constant_tells_the_size_of_sound_the_error_on_16_bits_is_told(caplog):
    compiled, warned = compile_half(front_end(node("Identity", "x", "s")), caplog)
    comparison = compiled.findings.comparison
    assert not comparison.is_bad
    assert not compiled.findings.overflows
    assert not warned
    assert comparison.loud.is_bad
    assert comparison.describe().endswith(
        f"but an error of {comparison.loud.error:.2g} on sound of 16 bits (to 32767)"
    )


@pytest.mark.parametrize(
    "model",
    [
        front_end(node("Div", "x full", "s"), full=32768),
        front_end(node("Identity", "x", "s"), length=300),
    ],
)
def test_sound_whose_size_is_known_and_short_rows_are_not_tried_louder(model, caplog):
    compiled, _ = compile_half(model, caplog)
    assert compiled.findings.comparison.loud is None
    assert "sound" not in compiled.findings.comparison.describe()


@pytest.mark.parametrize("operator", ["RandomNormalLike", "Identity"])
def test_a_model_that_draws_is_not_compared_with_another_draw(operator, caplog):
    steps = [node("Gemm", "x w", "g"), node(operator, "g", "r"), node("Gemm", "r w", "y")]
    compiled, text = compile_half(simple(steps, {"w": np.eye(8, dtype=np.float32)}), caplog)
    assert not text
    assert (compiled.findings.comparison is None) == (operator == "RandomNormalLike")


def test_a_side_is_lowered_once_and_a_change_of_one_run_is_gone_in_the_next(monkeypatch):
    lowered, lower = [], sides.lower_model
    monkeypatch.setattr(
        sides, "lower_model", lambda *given, **named: lowered.append(1) or lower(*given, **named)
    )
    side = sides.Side(simple([node("Neg", "x", "n"), node("Relu", "n", "y")], {}), {}, None)
    feeds = {"x": -np.ones((1, 8), np.float32)}

    def watch(graph):
        graph.output.append(helper.make_tensor_value_info("n", F, [1, 8]))

    assert [len(values) for values in side.run([feeds], change=watch)] == [2]
    ((found,),) = side.run([feeds])
    np.testing.assert_array_equal(found, np.ones((1, 8)))
    assert len(lowered) == 1


def test_a_batch_that_would_end_too_late_is_not_started(monkeypatch):
    side = sides.Side(simple([node("Neg", "x", "y")], {}), {}, None)
    clock = iter(range(100))
    monkeypatch.setattr(sides, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    batches = [{"x": np.full((1, 8), size, np.float32)} for size in range(5)]
    assert len(list(side.run(batches, enough_seconds=2.5))) == 2
    assert len(list(side.run(batches, enough_seconds=0.5))) == 1
    assert len(list(side.run(batches, enough_seconds=9))) == 5


@pytest.mark.parametrize(("operations", "rows"), [(3000, 3), (2999, 2), (1, 1), (10**6, 15)])
def test_the_number_of_batches_that_are_compared_follows_from_the_model(
    operations, rows, monkeypatch, caplog
):
    """A time limit would make the same compilation report other figures on a busy machine."""
    ran = []
    run = sides.Side.run

    def watch(side, batches, *names, **options):
        ran.append(len(batches))
        return run(side, batches, *names, **options)

    monkeypatch.setattr(sides, "count_all_operations", lambda _: 1000)
    monkeypatch.setattr(sides, "ENOUGH_OPERATIONS", operations)
    monkeypatch.setattr(sides.Side, "run", watch)
    model = simple([node("MatMul", "x w", "y")], {"w": np.eye(8, dtype=np.float32)})
    compile_half(model, caplog, batch=1)
    assert set(ran) == {rows}
