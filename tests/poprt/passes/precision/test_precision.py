"""Tests of precisions below fp32: the compiled file's answers, and the overflows found before it is
served."""

import pickle
import re

import half_emulation as emulation
import numpy as np
import onnx
import pytest
from model_runtime import ModelRunner, ModelRunnerConfig
from onnx import TensorProto, helper, numpy_helper
from poprt import Compiler, CompilerOptions, Converter
from poprt.comparing import read_calibration_data
from poprt.passes.base_pass import find_pass
from poprt.pipeline import estimate
from sample_models import make_model
from simipu import CompileError, Device, Engine, GraphOptions, LoadError, SimulatedExecutable
from simipu.chip.target import TARGETS
from simipu.numerics import Numerics

import popef

F = TensorProto.FLOAT


@pytest.fixture
def network() -> onnx.ModelProto:
    """Return a network of two convolutions, a pool and a matmul in opset 13."""
    random = np.random.default_rng(0)
    weights = {
        "w1": random.standard_normal((32, 3, 3, 3)) / 5,
        "b1": random.standard_normal(32) / 5,
        "w2": random.standard_normal((64, 32, 3, 3)) / 17,
        "w3": random.standard_normal((64, 10)) / 8,
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["a"], name="first", pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("Conv", ["b", "w2"], ["c"], name="second", pads=[1] * 4, strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["c"], ["d"], name="pool"),
        helper.make_node("Flatten", ["d"], ["e"], name="flat"),
        helper.make_node("MatMul", ["e", "w3"], ["y"], name="last"),
    ]
    tensors = {name: value.astype(np.float32) for name, value in weights.items()}
    return make_model(nodes, {"x": (F, ["n", 3, 16, 16])}, {"y": (F, ["n", 10])}, tensors)


def overflowing(factor: float) -> onnx.ModelProto:
    """Return x * factor, by a node called loud, then scaled back into range."""
    nodes = [
        helper.make_node("Mul", ["x", "factor"], ["big"], name="loud"),
        helper.make_node("Mul", ["big", "back"], ["y"], name="quiet"),
    ]
    factors = {
        "factor": np.full((1, 4), factor, np.float32),
        "back": np.full((1, 4), 1 / factor, np.float32),
    }
    return make_model(nodes, {"x": (F, ["n", 4])}, {"y": (F, ["n", 4])}, factors)


def answer(path, x) -> np.ndarray:
    runner = ModelRunner(path, config=ModelRunnerConfig())
    results = {"y": np.zeros((len(x), 10), np.float16)}
    runner.execute({"x": x}, results)
    return results["y"]


@pytest.mark.parametrize("constant_weights", [True, False])
@pytest.mark.parametrize(
    ("precision", "partials"),
    [("fp16", "half"), ("fp16", "float"), ("fp8", "half"), ("fp8_weight", "half")],
)
def test_a_compiled_network_answers_as_the_emulation_does(
    network, tmp_path, precision, partials, constant_weights
):
    converted = Converter(precision=precision, batch_size=4, fp8_params="F143,F152,-1,-3").convert(
        network
    )
    options = CompilerOptions(
        ipu_version="ipu21", partials_type=partials, constant_weights=constant_weights
    )
    Compiler.compile_and_export(converted, None, tmp_path / "executable.popef", options)
    x = np.random.default_rng(1).standard_normal((4, 3, 16, 16)).astype(np.float16)
    (expected,) = emulation.run_graph(converted, {"x": x}, partials == "half")
    found = answer(tmp_path / "executable.popef", x)
    np.testing.assert_allclose(
        found, expected, rtol=0, atol=2 * np.spacing(np.float16(np.abs(expected).max()))
    )
    assert len(np.unique(found)) > 10


def test_fp8_halves_the_weights_in_the_file(network):
    sizes = {}
    for precision in ("fp16", "fp8", "fp8_weight"):
        constants = Compiler.compile(
            Converter(precision=precision, batch_size=4).convert(network)
        ).executable.constants
        sizes[precision] = max(len(constant.data) for constant in constants)
    assert sizes["fp8"] == sizes["fp8_weight"] == sizes["fp16"] / 2


def test_named_products_stay_in_fp16(network):
    converted = Converter(
        precision="fp8", batch_size=4, fp8_params=None, fp8_skip_op_names=" first, last,"
    ).convert(network)
    narrow = {
        tensor.name
        for tensor in converted.graph.initializer
        if tensor.data_type == TensorProto.FLOAT8E4M3FNUZ
    }
    assert narrow == {"w2/fp8"}
    with pytest.raises(CompileError, match="no Conv, Gemm or MatMul 'frist'"):
        Converter(precision="fp8", batch_size=4, fp8_skip_op_names=["frist"]).convert(network)


@pytest.mark.parametrize(
    "params", ["F143", "F143,F144,0,0", "F143,F152,0,x", "F143,F152,0,40", "F143,F152,0,0,0"]
)
def test_wrong_fp8_params_are_refused(params):
    with pytest.raises(CompileError, match="fp8_params: expected input_format"):
        Converter(precision="fp8", fp8_params=params)


def test_older_models_are_brought_to_the_opset_that_rounding_needs(network):
    network.opset_import[0].version = 9
    converted = Converter(precision="fp16", batch_size=4).convert(network)
    assert converted.opset_import[0].version == 11
    assert Converter(precision="fp32", batch_size=4).convert(network).opset_import[0].version == 9


def test_a_node_that_overflows_in_half_is_named_at_compile_time(caplog):
    converted = Converter(precision="fp16", batch_size=16).convert(overflowing(60_000))
    compiled = Compiler.compile(converted)
    (overflow,) = compiled.findings.overflows
    assert (overflow.node, overflow.op_type) == ("loud", "Mul")
    assert overflow.largest > 65_520
    assert re.search(
        r"with made-up inputs \(x: \S+ to \S+\) results overflow on the chip, where the largest "
        r"half is 65504: node 'loud' \(Mul\)",
        caplog.text,
    )
    assert "pass some with --data_preprocess" in caplog.text
    assert not Compiler.compile(
        Converter(precision="fp16", batch_size=16).convert(overflowing(100))
    ).findings.overflows
    assert not Compiler.compile(
        Converter(batch_size=16).convert(overflowing(1e30))
    ).findings.overflows


def test_a_sum_of_exponentials_that_overflows_is_named_and_one_operator_for_it_does_not_overflow():
    written = [
        helper.make_node("Exp", ["x"], ["grown"], name="grow"),
        helper.make_node("ReduceSum", ["grown"], ["sum"], name="sum", axes=[1]),
        helper.make_node("Log", ["sum"], ["y"], name="log"),
    ]
    whole = [helper.make_node("ReduceLogSumExp", ["x"], ["y"], name="whole", axes=[1])]
    overflows = []
    for nodes in (written, whole):
        model = make_model(nodes, {"x": (F, ["n", 4])}, {"y": (F, ["n", 1])}, {}, opset=11)
        converted = Converter(precision="fp16", batch_size=1).convert(model)
        compiled = Compiler.compile(converted, calibration_data={"x": np.full((1, 4), 20.0)})
        overflows.append([(each.node, each.op_type) for each in compiled.findings.overflows])
    assert overflows[0][0] == ("grow", "Exp")
    assert overflows[1] == []


def test_calibration_data_decide_what_overflows():
    converted = Converter(precision="fp16", batch_size=2).convert(overflowing(1_000))
    rows = np.full((3, 4), 10.0)
    assert not Compiler.compile(converted, calibration_data={"x": rows}).findings.overflows
    rows[2] = 100  # in the second batch, which is filled up
    (overflow,) = Compiler.compile(converted, calibration_data={"x": rows}).findings.overflows
    assert overflow.largest == 100_000
    for data in ({}, {"x": rows[:, :3]}, {"x": rows[0]}, {"x": rows[:0]}):
        with pytest.raises(
            CompileError, match="calibration data for input 'x': expected rows of shape"
        ):
            Compiler.compile(converted, calibration_data=data)


def test_a_mask_of_infinities_is_no_overflow():
    nodes = [
        helper.make_node("Add", ["x", "mask"], ["z"]),
        helper.make_node("Softmax", ["z"], ["y"]),
    ]
    mask = {"mask": np.array([[0, 0, -np.inf, -np.inf]], np.float32)}
    model = make_model(nodes, {"x": (F, ["n", 4])}, {"y": (F, ["n", 4])}, mask)
    assert not Compiler.compile(
        Converter(precision="fp16", batch_size=2).convert(model)
    ).findings.overflows


def test_calibration_data_are_read_from_archives_and_pickles_that_hold_arrays_only(tmp_path):
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.savez(tmp_path / "rows.npz", x=rows)
    (tmp_path / "rows.pkl").write_bytes(pickle.dumps({"x": rows}))
    for name in ("rows.npz", "rows.pkl"):
        np.testing.assert_array_equal(read_calibration_data(tmp_path / name)["x"], rows)

    class Evil:
        def __reduce__(self):
            return print, ("run",)

    for content in (pickle.dumps({"x": Evil()}), pickle.dumps([rows]), b"nonsense", b""):
        (tmp_path / "bad.pkl").write_bytes(content)
        with pytest.raises(CompileError, match=r"bad\.pkl: expected arrays by input name"):
            read_calibration_data(tmp_path / "bad.pkl")


def test_the_executable_carries_what_the_options_say_of_half():
    converted = Converter(precision="fp16", batch_size=2).convert(overflowing(100))
    switches = ("debug.nanOverflowException", "debug.floatPointOpException")
    options = CompilerOptions(partials_type="float", engine_options=dict.fromkeys(switches, "true"))
    executable = Compiler.compile(converted, None, options).executable
    assert executable.numerics == Numerics(half_partials=False, nan_on_overflow=True, raises=True)
    assert SimulatedExecutable.deserialize(executable.serialize()) == executable


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("debug.nanOverflowException", "maybe", "expected true or false, found 'maybe'"),
        ("debug.floatPointOpException", "1", "expected true or false, found '1'"),
        (
            "prng.enableStochasticRounding",
            "TRUE",
            "expected false, found true; results are rounded to the nearest",
        ),
    ],
)
def test_an_invalid_engine_option_of_half_is_rejected(name, value, message):
    with pytest.raises(CompileError, match=f"engine option {name}: {message}"):
        CompilerOptions(engine_options={name: value}).numerics()


def test_an_exception_of_the_calibration_run_does_not_end_the_compilation():
    """The model overflows: requests receive the error, and the compiler only warns."""
    converted = Converter(precision="fp16", batch_size=2).convert(overflowing(60_000))
    options = CompilerOptions(engine_options={"debug.floatPointOpException": "true"})
    assert Compiler.compile(converted, None, options).executable.numerics.raises


@pytest.mark.parametrize(("exact", "expected"), [(True, 65504 / 60_000), (False, 3.0)])
def test_fast_numerics_hide_the_overflow_of_the_chip(exact, expected):
    converted = Converter(precision="fp16", batch_size=2).convert(overflowing(60_000))
    executable = Compiler.compile(converted).executable
    engine = Engine(executable, Device(executable.target), graph_options=GraphOptions(exact=exact))
    (y,) = engine.compute(5, [np.full((2, 4), 3, np.float16)])
    np.testing.assert_allclose(y, expected, rtol=2e-3)


def test_an_executable_of_an_older_format_is_refused(linear, compile_popef):
    executable = popef.Reader()
    executable.parseFile(compile_popef(linear))
    payload = bytearray(executable.executables()[0].executable())
    payload[6:8] = b"02"
    with pytest.raises(LoadError, match="format version 02, this simulator reads 04"):
        SimulatedExecutable.deserialize(bytes(payload))


def deep_products(batch: int) -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", [f"t{i}", f"w{i}"], [f"t{i + 1}"], name=f"m{i}")
        for i in range(3)
    ]
    weights = {f"w{i}": np.ones((512, 512), np.float32) for i in range(3)}
    return make_model(nodes, {"t0": (F, [batch, 512])}, {"t3": (F, [batch, 512])}, weights)


def test_fp8_products_are_modelled_as_such_where_the_chip_has_them():
    converted = {
        p: Converter(precision=p).convert(deep_products(2048))
        for p in ("fp16", "fp8", "fp8_weight")
    }
    cost = {
        (p, name): estimate(model, TARGETS[name])
        for p, model in converted.items()
        for name in ("ipu2", "ipu21")
    }
    by_operator = cost["fp8", "ipu21"].by_operator()
    assert by_operator["MatMul"] < cost["fp16", "ipu21"].by_operator()["MatMul"]
    assert sum(by_operator.values()) == by_operator["MatMul"]
    assert [o.op_type for o in cost["fp8", "ipu21"].operators if o.cycles] == ["MatMul"] * 3
    for chip in ("ipu2", "ipu21"):
        assert cost["fp8_weight", chip].cycles > cost["fp16", chip].cycles
    assert cost["fp8", "ipu2"].cycles > cost["fp16", "ipu2"].cycles
    assert cost["fp8", "ipu2"].ipus[0].weight_bytes < cost["fp16", "ipu2"].ipus[0].weight_bytes


def branches() -> onnx.ModelProto:
    """Return (x + w) * x, or x * w by a loop of three rounds that doubles, as `flag` says."""
    grow = helper.make_graph(
        [
            helper.make_node("Add", ["v", "v"], ["v2"]),
            helper.make_node("Identity", ["go"], ["go2"]),
        ],
        "round",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", F, [4]),
        ],
        [
            helper.make_tensor_value_info("go2", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v2", F, [4]),
        ],
    )
    yes = [helper.make_node("Add", ["x", "w"], ["s"]), helper.make_node("Mul", ["s", "x"], ["p"])]
    no = [
        helper.make_node(
            "Constant", [], ["three"], value=helper.make_tensor("", TensorProto.INT64, [], [3])
        ),
        helper.make_node("Mul", ["x", "w"], ["m"]),
        helper.make_node("Loop", ["three", "", "m"], ["q"], body=grow),
    ]
    bodies = {
        name: helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(output, F, [4])])
        for name, nodes, output in (("then_branch", yes, "p"), ("else_branch", no, "q"))
    }
    weights = {"w": np.float32([0.1, 30_000, 3, -7])}
    inputs = {"x": (F, [4]), "flag": (TensorProto.BOOL, [])}
    return make_model(
        [helper.make_node("If", ["flag"], ["y"], **bodies)], inputs, {"y": (F, [4])}, weights
    )


@pytest.mark.parametrize("flag", [True, False])
def test_control_flow_computes_in_half_too(flag):
    executable = Compiler.compile(Converter(precision="fp16").convert(branches())).executable
    x, w = np.float16([1.1, 2, -3, 0.7]), np.float16([0.1, 30_000, 3, -7])
    with np.errstate(over="ignore"):
        expected = (x + w) * x if flag else x * w * np.float16(8)
    engine = Engine(executable, Device(executable.target))
    (y,) = engine.compute(5, [x[None], np.array([flag])])
    np.testing.assert_array_equal(y[0], np.clip(expected, -65504, 65504))


def test_a_model_that_is_in_half_already_is_taken_as_it_is(network):
    half = Converter(precision="fp16", batch_size=4).convert(network)
    for precision in ("fp32", "fp16"):
        again = Converter(precision=precision).convert(half)
        assert [node.op_type for node in again.graph.node] == [
            node.op_type for node in half.graph.node
        ]
        assert {tensor.data_type for tensor in again.graph.initializer} == {TensorProto.FLOAT16}


def test_all_halves_of_a_model_become_floats_and_nothing_else_does():
    """Constants are folded in float. The pass converts weights, casts, and the values that nodes
    hold or make, in bodies too."""
    half, whole = TensorProto.FLOAT16, TensorProto.INT64

    def nodes(suffix):
        held = numpy_helper.from_array(np.ones(2, np.float16), "held")
        return [
            helper.make_node("Cast", ["x"], ["a" + suffix], to=half),
            helper.make_node("Cast", ["x"], ["b" + suffix], to=whole),
            helper.make_node("Constant", [], ["c" + suffix], value=held),
            helper.make_node("RandomNormal", [], ["d" + suffix], dtype=half, shape=[half]),
        ]

    body = helper.make_graph(
        nodes("/body"), "body", [], [helper.make_tensor_value_info("a/body", half, [2])]
    )
    weights = {"w": np.ones(2, np.float16), "n": np.ones(2, np.int64)}
    model = make_model(
        [*nodes(""), helper.make_node("If", ["go"], ["y"], then_branch=body, else_branch=body)],
        {"x": (half, [2]), "go": (TensorProto.BOOL, [])},
        {"y": (half, [2]), "b": (whole, [2])},
        weights,
    )
    graph = find_pass("half_to_float")().run(model).graph
    infos = {each.name: each.type.tensor_type.elem_type for each in (*graph.input, *graph.output)}
    assert infos == {"x": F, "go": TensorProto.BOOL, "y": F, "b": whole}
    assert {tensor.name: tensor.data_type for tensor in graph.initializer} == {"w": F, "n": whole}
    inner = graph.node[-1].attribute[0].g
    assert inner.output[0].type.tensor_type.elem_type == F
    for each in (graph, inner):
        to_half, to_whole, constant, drawn = (node.attribute for node in list(each.node)[:4])
        assert (to_half[0].i, to_whole[0].i, constant[0].t.data_type) == (F, whole, F)
        assert {attribute.name: attribute.i for attribute in drawn}["dtype"] == F
        assert list(next(attribute.ints for attribute in drawn if attribute.name == "shape")) == [
            half
        ]


@pytest.mark.parametrize("precision", ["fp32", "fp16", "fp8", "fp8_weight"])
def test_names_that_conversion_would_give_may_be_taken(precision):
    """A different tensor has each of these names."""
    ids, x, f16 = TensorProto.INT64, TensorProto.FLOAT, ("x/float", "w/fp8", "x/fp8", "x/fp8/half")
    nodes = [
        helper.make_node("Abs", ["ids"], ["ids/int64"]),
        helper.make_node("MatMul", ["x", "w"], ["p"]),
    ]
    names = ["p", *f16]
    nodes += [helper.make_node("Neg", [names[i]], [names[i + 1]]) for i in range(len(f16))]
    nodes.append(helper.make_node("Mod", ["x", names[-1]], ["m"], fmod=1))
    inputs = {"ids": (ids, [4]), "x": (x, [4, 4])}
    outputs = {"ids/int64": (ids, [4]), "m": (x, [4, 4]), "p": (x, [4, 4])}
    model = make_model(nodes, inputs, outputs, {"w": np.eye(4, dtype=np.float32)})
    converted = Converter(precision=precision, fp16_skip_op_types="Mod").convert(model)
    made = [name for node in converted.graph.node for name in node.output]
    made += [value.name for value in (*converted.graph.input, *converted.graph.initializer)]
    assert len(made) == len(set(made))
    assert Compiler.compile(converted, None, CompilerOptions(ipu_version="ipu21")).cycles > 0
