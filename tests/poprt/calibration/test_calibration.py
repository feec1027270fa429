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
from poprt.calibration import sides
from poprt.calibration.inputs import find_range, iter_given, iter_made_up
from sample_models import make_model
from simipu import CompileError, Direction, Stream
from simipu.computed import OrtGraph
from simipu.errors import RunTimeoutError

F, I64, I32, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL
F16 = TensorProto.FLOAT16
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


def indices(*nodes, weights=None, kind=I64, name="ids"):
    return make_model(list(nodes), {name: (kind, [4, 6])}, {"y": (F, None)}, weights or {})


TABLE = {"table": np.zeros((10, 3), np.float32)}


@pytest.mark.parametrize(
    ("model", "least", "greatest"),
    [
        (indices(node("Gather", "table ids", "y"), weights=TABLE), 0, 9),
        (indices(node("Gather", "table ids", "y", axis=1), weights=TABLE), 0, 2),
        (
            indices(
                node("Add", "ids two", "i"),
                node("Gather", "table i", "y"),
                weights={**TABLE, "two": np.array(2)},
            ),
            -2,
            7,
        ),
        (
            indices(
                node("Unsqueeze", "ids axes", "u"),
                node("Cast", "u", "c", to=I32),
                node("Gather", "table c", "a"),
                node("Gather", "short ids", "y"),
                weights={**TABLE, "axes": np.array([0]), "short": np.zeros((7, 2), np.float32)},
            ),
            0,
            6,
        ),
        (
            indices(
                node("OneHot", "ids depth values", "y"),
                weights={"depth": np.array(5), "values": np.array([0, 1], np.float32)},
            ),
            0,
            4,
        ),
        (
            indices(
                node("Unsqueeze", "ids axes", "u"),
                node("Equal", "u range", "e"),
                node("Cast", "e", "y", to=F),
                weights={"axes": np.array([2]), "range": np.arange(257)},
            ),
            0,
            256,
        ),
    ],
)
def test_indices_are_made_up_all_over_their_table_and_not_beyond(model, least, greatest):
    found = find_range(model, "ids")
    assert (found.least, found.greatest) == (least, greatest)
    values = made_up(
        model, Stream("ids", "ids", Direction.HOST_TO_DEVICE, np.dtype(np.int64), (4, 6))
    )
    assert least <= values.min() <= values.max() <= greatest
    assert len(np.unique(values)) > 2


@pytest.mark.parametrize(
    ("nodes", "least", "greatest"),
    [
        ([node("Sub", "ids two", "i"), node("Gather", "table i", "y")], 2, 11),
        ([node("Sub", "two ids", "i"), node("Gather", "table i", "y")], -np.inf, np.inf),
        ([node("Add", "ids unknown", "i"), node("Gather", "table i", "y")], 0, 9),
        ([node("Concat", "other ids", "i", axis=0), node("Gather", "table i", "y")], 0, 9),
        ([node("GatherElements", "table ids", "y", axis=1)], 0, 2),
        ([node("Gather", "ids zero", "i"), node("Gather", "table i", "y")], 0, 9),
        ([node("Gather", "table other", "i"), node("Add", "i ids", "y")], -np.inf, np.inf),
        ([node("Equal", "ids pair", "y")], -np.inf, np.inf),
        ([node("Equal", "ids two", "y")], -np.inf, np.inf),
        ([node("Equal", "ids three", "y")], 1, 3),
        ([node("Mul", "ids two", "i"), node("Gather", "table i", "y")], -np.inf, np.inf),
        ([node("OneHot", "ids vector values", "y")], 0, 6),
        ([node("OneHot", "other ids values", "y")], -np.inf, np.inf),
    ],
    ids=lambda value: value[0].op_type if isinstance(value, list) else None,
)
def test_a_range_follows_what_hands_values_on_and_what_is_added_to_them(nodes, least, greatest):
    weights = {
        **TABLE,
        "two": np.array(2),
        "zero": np.array(0),
        "pair": np.array([0, 5]),
        "three": np.array([1, 2, 3]),
        "vector": np.array([7]),
        "values": np.array([0, 1], np.float32),
    }
    model = make_model(
        nodes,
        {name: (I64, [4, 6]) for name in ("ids", "other", "unknown")},
        {"y": (F, None)},
        weights,
    )
    found = find_range(model, "ids")
    assert (found.least, found.greatest) == (least, greatest)
    assert found.is_known == np.isfinite(least)


def test_indices_stay_within_what_the_type_of_an_input_holds():
    wide = indices(
        node("Gather", "table ids", "y"), weights={"table": np.zeros((300, 1), np.float32)}
    )
    for dtype, greatest in ((np.int8, 127), (np.uint8, 255), (np.int16, 299)):
        values = made_up(
            wide, Stream("ids", "ids", Direction.HOST_TO_DEVICE, np.dtype(dtype), (4, 6))
        )
        assert 0 <= values.min() <= values.max() <= greatest
        assert values.max() > greatest // 2
    shifted = indices(
        node("Add", "ids two", "a"),
        node("Cast", "a", "i", to=I64),
        node("Gather", "table i", "y"),
        weights={"table": np.zeros((3, 1), np.float32), "two": np.float32(2)},
        kind=F,
    )
    values = made_up(
        shifted, Stream("ids", "ids", Direction.HOST_TO_DEVICE, np.dtype(np.float32), (4, 6))
    )
    assert (values.min(), values.max()) == (-2, 0)


def made_up(model, stream, batch=4):
    batch = next(iter_made_up(model, [stream], batch))
    assert batch[stream.tensor].shape == stream.shape
    return batch[stream.tensor]


def test_masks_keep_everything_and_beginnings():
    nodes = [node("Cast", "mask", "c", to=F), node("Sub", "one c", "s"), node("Mul", "s far", "y")]
    model = indices(*nodes, weights={"one": np.float32(1), "far": np.float32(-10000)}, name="mask")
    for dtype in (np.int64, np.int32, bool, np.float32):
        values = made_up(
            model, Stream("mask", "mask", Direction.HOST_TO_DEVICE, np.dtype(dtype), (4, 6))
        )
        np.testing.assert_array_equal(
            values, [[1, 1, 1, 1, 1, 1], [1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]]
        )


@pytest.mark.parametrize(
    ("dtype", "least", "greatest"),
    [(np.uint8, 0, 255), (np.int16, -32768, 32767), (np.int8, -128, 127)],
)
def test_bytes_and_sounds_are_made_up_over_all_they_hold(dtype, least, greatest):
    model = make_model(
        [node("Cast", "x", "y", to=F)],
        {"x": (TensorProto.UINT8, [4, 500])},
        {"y": (F, [4, 500])},
        {},
    )
    values = made_up(model, Stream("x", "x", Direction.HOST_TO_DEVICE, np.dtype(dtype), (4, 500)))
    assert values.dtype == dtype
    assert values.min() < least + (greatest - least) / 50
    assert values.max() > greatest - (greatest - least) / 50


def test_floats_are_loud_quiet_and_between_0_and_1(linear):
    values = made_up(
        linear, Stream("x", "x", Direction.HOST_TO_DEVICE, np.dtype(np.float16), (5, 500)), 5
    )
    assert values.dtype == np.float32
    spread = values.std(axis=1)
    assert spread[0] > 0.9
    assert values[1].min() >= 0
    np.testing.assert_allclose(np.abs(values[3]), 1, atol=0.05)
    assert spread[4] < 0.05


def test_a_small_batch_is_made_up_several_times(linear):
    stream = Stream("x", "x", Direction.HOST_TO_DEVICE, np.dtype(np.float16), (1, 4))
    assert len(list(iter_made_up(linear, [stream], 1))) == 15


def test_indices_that_come_as_floats_are_indices_all_the_same():
    """Keras exports an embedding this way: negative indices count from the end."""
    nodes = [
        node("Cast", "x", "i", to=I64),
        node("Less", "i zero", "negative"),
        node("Cast", "negative", "n", to=I64),
        node("Mul", "n ten", "correction"),
        node("Add", "i correction", "at"),
        node("Gather", "table at", "y"),
    ]
    model = make_model(
        nodes,
        {"x": (F, [4, 6])},
        {"y": (F, None)},
        {**TABLE, "zero": np.array(0), "ten": np.array(10)},
    )
    values = made_up(
        model, Stream("x", "x", Direction.HOST_TO_DEVICE, np.dtype(np.float32), (4, 6))
    )
    assert set(values.ravel()) <= set(range(10))
    assert len(np.unique(values)) > 5


def pixels(*op_types):
    """Return nodes that standardise x as a graph for images does, with other constants."""
    names = iter([*"abc"[: len(op_types) - 1], "y"])
    nodes, source = [], "x"
    for op_type in op_types:
        result = next(names)
        nodes.append(node(op_type, f"{source} {op_type.lower()}", result))
        source = result
    return nodes


FLOATS = np.dtype(np.float32)


@pytest.mark.parametrize(
    ("nodes", "weights", "dtype", "least", "greatest"),
    [
        (pixels("Div"), {"div": 32768}, FLOATS, (-32768, -16000), (16000, 32768)),
        (pixels("Mul"), {"mul": 1 / 255}, FLOATS, (-255, -120), (120, 255)),
        (pixels("Mul", "Sub"), {"mul": 2 / 255, "sub": 1}, FLOATS, (-600, 0), (255, 800)),
        (
            pixels("Sub", "Div"),
            {"sub": np.full((3, 1, 1), 120), "div": np.array([57, 58, 59]).reshape(3, 1, 1)},
            FLOATS,
            (-200, 0),
            (220, 440),
        ),
        (pixels("Sub"), {"sub": np.full((3, 1, 1), 120)}, FLOATS, (-200, 0), (220, 440)),
        (
            [node("Cast", "x", "f", to=F), node("Div", "f div", "y")],
            {"div": 255},
            np.dtype(np.int32),
            (-255, -120),
            (120, 255),
        ),
        (
            [node("Transpose", "x", "t"), node("Clip", "t low high", "y")],
            {"low": 0, "high": 255},
            FLOATS,
            (0, 0),
            (255, 255),
        ),
        (
            [node("QuantizeLinear", "x step zero", "y")],
            {"step": 0.5, "zero": np.uint8(128)},
            FLOATS,
            (-64, -63),
            (63, 64),
        ),
        (
            [node("BatchNormalization", "x one one mean square", "y")],
            {"one": np.ones(3), "mean": np.full(3, 500), "square": np.full(3, 1e4)},
            FLOATS,
            (0, 300),
            (700, 1000),
        ),
        (
            [node("Conv", "x w bias", "y")],
            {"w": np.full((2, 3, 1, 1), 0.01), "bias": np.array([1, -1])},
            FLOATS,
            (-300, -100),
            (100, 300),
        ),
        (
            [node("MatMul", "x w", "m"), node("Add", "m bias", "y")],
            {"w": np.full((8, 2), 0.01), "bias": np.array([1, -1])},
            FLOATS,
            (-200, -60),
            (60, 200),
        ),
        ([node("Sqrt", "x", "y")], {}, FLOATS, (0, 0.1), (2, 6)),
        # Nothing here says how large x is: the values are about 1.
        ([node("Relu", "x", "y")], {}, FLOATS, (-6, -2), (2, 6)),
        (pixels("Mul"), {"mul": 1e6}, FLOATS, (-6, -2), (2, 6)),
        (pixels("Mul"), {"mul": 2}, FLOATS, (-6, -2), (2, 6)),
        (pixels("Mul"), {"mul": np.array([0.001, 1, 5])}, FLOATS, (-6, -2), (2, 6)),
        ([node("Div", "div x", "y")], {"div": 255}, FLOATS, (-6, -2), (2, 6)),
        (
            [node("Conv", "x w bias", "y")],
            {"w": np.full((2, 3, 1, 1), 0.5), "bias": np.array([1, -1])},
            FLOATS,
            (-6, -2),
            (2, 6),
        ),
        (
            [node("Clip", "x low high", "y")],
            {"low": 1e-7, "high": 65500},
            FLOATS,
            (-6, -2),
            (2, 6),
        ),
    ],
)
def test_floats_are_of_the_size_that_the_constants_at_the_front_suggest(
    nodes, weights, dtype, least, greatest
):
    values = {name: np.asarray(value) for name, value in weights.items()}
    values = {
        name: value if value.dtype.kind == "u" else value.astype(np.float32)
        for name, value in values.items()
    }
    shape = (5, 3, 8, 8)
    kind = F if dtype == FLOATS else TensorProto.INT32
    model = make_model(nodes, {"x": (kind, shape)}, {"y": (F, None)}, values)
    stream = Stream("x", "x", Direction.HOST_TO_DEVICE, dtype, shape)
    drawn = made_up(model, stream, 5)
    assert least[0] <= drawn.min() <= least[1]
    assert greatest[0] <= drawn.max() <= greatest[1]
    assert drawn.std() > (greatest[0] - least[1]) / 20


def test_the_size_is_told_by_weights_that_the_graph_does_not_hold():
    weights = {"w": np.full((2, 3, 1, 1), 0.01, np.float32), "bias": np.float32([1, -1])}
    model = make_model(
        [node("Conv", "x w bias", "y")], {"x": (F, [1, 3, 8, 8])}, {"y": (F, None)}, weights
    )
    for tensor in model.graph.initializer:
        tensor.ClearField("raw_data")
    assert not find_range(model, "x").size.is_evident
    assert find_range(model, "x", weights).size.spread > 50


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


def given(shape, data, batch, axis=0, dtype=np.float16):
    stream = Stream("x", "x", Direction.HOST_TO_DEVICE, np.dtype(dtype), shape, batch_axis=axis)
    return [found["x"] for found in iter_given([stream], {"x": data}, batch)]


def test_rows_of_data_come_in_batches_the_last_of_which_is_filled_up_with_the_first():
    rows = np.arange(10.0).reshape(5, 2)
    first, second = given((3, 2), rows, 3)
    np.testing.assert_array_equal(first, rows[:3])
    np.testing.assert_array_equal(second, rows[[3, 4, 0]])
    assert first.dtype == np.float32, "what becomes of floats in half is looked for"
    assert given((3, 2), rows.astype(np.int64), 3, dtype=np.int32)[0].dtype == np.int32


def test_data_may_be_rows_or_in_the_compiled_shape():
    rows = np.arange(12.0).reshape(4, 3)
    for data in (rows, rows.T):
        (found,) = given((3, 4), data, 4, axis=1)
        np.testing.assert_array_equal(found, rows.T)
    for data in (rows[0], rows[:1]):
        (found,) = given((3,), data, 0)
        np.testing.assert_array_equal(found, rows[0])
    assert len(given((3,), rows, 0)) == 4


@pytest.mark.parametrize(
    ("shape", "data", "batch", "found"),
    [
        ((3, 4), np.zeros((2, 5)), 3, r"\[2, 5\]"),
        ((3, 4), np.zeros((0, 4)), 3, r"\[0, 4\]"),
        ((3,), np.zeros(4), 0, r"\[4\]"),
        ((3, 4), None, 3, "none"),
    ],
)
def test_data_of_another_shape_are_refused(shape, data, batch, found):
    reason = f"input 'x': expected rows of shape .* found {found}; the inputs are x"
    with pytest.raises(CompileError, match=reason):
        given(shape, data, batch)


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


def test_a_batch_that_would_end_too_late_is_not_begun(monkeypatch):
    side = sides.Side(simple([node("Neg", "x", "y")], {}), {}, None)
    clock = iter(range(100))
    monkeypatch.setattr(sides, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    batches = [{"x": np.full((1, 8), size, np.float32)} for size in range(5)]
    assert len(list(side.run(batches, enough_seconds=2.5))) == 2
    assert len(list(side.run(batches, enough_seconds=0.5))) == 1
    assert len(list(side.run(batches, enough_seconds=9))) == 5
