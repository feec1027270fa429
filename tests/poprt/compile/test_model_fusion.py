"""Tests of model fusion: several models in one executable; a run computes the one that `index`
names."""

import json

import numpy as np
import onnx
import pytest
from model_runtime import ModelRunner, ModelRunnerConfig, ModelRuntimeError
from onnx import TensorProto, helper, numpy_helper
from oracles import unoptimised_session
from poprt import Compiler, CompilerOptions
from poprt.cli import main
from poprt.cli.exec_command import time_runs
from poprt.compile.converter import MFConverter, Sharder
from poprt.compile.executable import Executable
from poprt.compile.model_fusion import split_models
from poprt.runtime import Runner, RuntimeConfig
from sample_models import linear_model, make_model
from simipu import CompileError, LoadError, SimulatedExecutable

import popef

F, F16 = TensorProto.FLOAT, TensorProto.FLOAT16
WIDTH = 512


def wide(layers, dtype=np.float32, opset=17, width=WIDTH):
    """Return the model y = x times some weights that are large enough to be stored outside the
    graph."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    weight = np.eye(width, dtype=dtype) * 2
    names = ["x", *(f"h{i}" for i in range(1, layers)), "y"]
    nodes = [
        helper.make_node("MatMul", [names[i], "w"], [names[i + 1]], name=f"m{i}")
        for i in range(layers)
    ]
    return make_model(
        nodes, {"x": (kind, [2, width])}, {"y": (kind, [2, width])}, {"w": weight}, opset
    )


def branchy():
    """Return a model with an If and with a weight that is also an output."""
    then, other = (
        helper.make_graph(
            [helper.make_node(op, ["x"], [f"in_{op}"], name=op)],
            op,
            [],
            [helper.make_tensor_value_info(f"in_{op}", F, [3])],
        )
        for op in ("Neg", "Abs")
    )
    node = helper.make_node("If", ["which"], ["y"], name="if", then_branch=then, else_branch=other)
    inputs = {"x": (F, [3]), "which": (TensorProto.BOOL, [])}
    made = make_model([node], inputs, {"y": (F, [3])}, {"k": np.arange(3, dtype=np.float32)})
    made.graph.output.append(helper.make_tensor_value_info("k", F, [3]))
    return made


def feed(models, number, **values):
    fed = {"index": np.array(number, np.int32)}
    for i, model in enumerate(models):
        for value in model.graph.input:
            tensor = value.type.tensor_type
            shape = [dim.dim_value for dim in tensor.shape.dim]
            name = f"graph{i}/{value.name}"
            given = values.get(value.name) if i == number else None
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            fed[name] = np.zeros(shape, dtype) if given is None else np.asarray(given, dtype)
    return fed


@pytest.fixture(scope="module")
def models():
    return [wide(1), wide(4, np.float16), branchy()]


@pytest.fixture(scope="module")
def fused(models):
    return MFConverter().convert(models)


@pytest.fixture(scope="module")
def compiled(fused):
    return Compiler.compile(fused, None, CompilerOptions(enable_model_fusion=True))


@pytest.fixture(scope="module")
def runner(compiled):
    config = ModelRunnerConfig(validate_io_params=False, timeout_ns=0)
    with ModelRunner(compiled.getPopefModel(), config) as made:
        yield made


def test_a_fused_model_is_valid_onnx_and_computes_the_model_of_its_index(models, fused):
    onnx.checker.check_model(fused)
    session = unoptimised_session(fused)
    x = np.ones((2, WIDTH))
    for number, factor in ((0, 2), (1, 16)):
        found = dict(
            zip(
                [o.name for o in fused.graph.output],
                session.run(None, feed(models, number, x=x)),
                strict=True,
            )
        )
        assert (found[f"graph{number}/y"] == factor).all()
        assert not found[f"graph{1 - number}/y"].any()
        assert not found["graph2/k"].any()


def test_each_model_is_as_it_was_once_they_are_taken_apart(models, fused):
    for number, (model, part) in enumerate(zip(models, split_models(fused), strict=True)):
        assert [value.name for value in part.graph.input] == [
            f"graph{number}/{v.name}" for v in model.graph.input
        ]
        assert [v.name for v in part.graph.output] == [
            f"graph{number}/{v.name}" for v in model.graph.output
        ]
        onnx.checker.check_model(part, full_check=True)
    assert split_models(models[0]) == []


def test_weights_are_there_once(fused, compiled, models):
    weights = sum(t.ByteSize() for model in models for t in model.graph.initializer)
    assert fused.ByteSize() < weights + 10_000
    size = sum(len(piece) for piece in compiled.executable.iter_serialized())
    assert size < weights + 20_000
    assert {constant.name for constant in compiled.executable.constants} == {"graph0/w", "graph1/w"}


@pytest.mark.parametrize("index", [None, np.array([1], np.int64), np.int32(1)])
def test_a_request_brings_the_inputs_of_one_model_and_gets_its_outputs(runner, index):
    request = {"graph1/x": np.ones((2, WIDTH), np.float16)}
    if index is not None:
        request["index"] = index
    found = runner.execute(request)
    assert list(found) == ["graph1/y"]
    assert (found["graph1/y"] == 16).all()


def test_the_index_decides_where_inputs_of_several_models_are_given(runner, models):
    found = runner.execute(feed(models, 2, x=[-1, 2, 3], which=True))
    np.testing.assert_array_equal(found["graph2/y"], [1, -2, -3])
    np.testing.assert_array_equal(found["graph2/k"], [0, 1, 2])


def test_the_real_tools_runner_writes_into_the_outputs_that_it_is_given(compiled):
    config = RuntimeConfig()
    config.validate_io_params, config.timeout_ns = False, 0
    out = np.zeros((2, WIDTH), np.float32)
    runner = Runner(compiled, config)
    runner.execute({"graph0/x": np.ones((2, WIDTH), np.float32)}, {"graph0/y": out})
    assert (out == 2).all()


X0, X1 = np.ones((2, WIDTH), np.float32), np.ones((2, WIDTH), np.float16)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        ({}, "those of model none"),
        (
            {"graph0/x": X0, "graph1/x": X1},
            "one of the 3 fused models, found those of model 0 and 1; send the inputs of one model",
        ),
        (
            {"graph2/x": np.zeros(3, np.float32)},
            "input 'graph2/which' is not given; the inputs of model 2 of the fused model",
        ),
        ({"graph3/x": X0}, "input 'graph3/x' is not known"),
        (
            {"graph0/x": X0, "index": np.int32(3)},
            "'index': expected the number of a model, 0 to 2, found 3",
        ),
        ({"graph0/x": X0, "index": np.int32(-1)}, "0 to 2, found -1"),
        (
            {"graph0/x": X0, "index": np.float32(0)},
            "'index': expected one whole number, found float32",
        ),
        (
            {"graph0/x": X0, "index": np.zeros(2, np.int32)},
            "one whole number, found int32 of shape",
        ),
        ({"graph0/x": X1}, "input 'graph0/x': expected float32"),
    ],
)
def test_a_request_for_no_one_model_is_refused(runner, request_, reason):
    with pytest.raises(ModelRuntimeError, match=reason):
        runner.execute(request_)


def test_a_strict_runner_says_what_to_do(compiled):
    with (
        ModelRunner(compiled.getPopefModel()) as strict,
        pytest.raises(ModelRuntimeError, match="set validate_io_params to False"),
    ):
        strict.execute({"graph0/x": X0})


@pytest.mark.slow
def test_a_run_takes_the_time_of_its_model_and_the_chip_holds_them_all(compiled, models):
    main = compiled.executable.program(5)
    alone = [Compiler.compile(model).cycles for model in models]
    assert [branch.cycles for branch in main.branches] == alone
    assert main.cycles == max(alone) == alone[1]
    options = CompilerOptions(ipu_version="ipu2")
    large = wide(1, width=7_000)
    Compiler.compile(large, None, options)
    many = MFConverter().convert([large] * 5)
    with pytest.raises(CompileError, match=r"Out of memory on tile 0: \d+ bytes"):
        Compiler.compile(many, None, options)


def test_an_executable_goes_through_a_file(compiled, tmp_path):
    compiled.export(tmp_path / "fused.popef")
    read = Executable(tmp_path / "fused.popef")
    assert read.executable.programs == compiled.executable.programs
    assert [len(model.inputs) for model in popef.fused_models(read.metadata)] == [1, 1, 2]


@pytest.mark.parametrize("fault", ["selector", "stream", "nested"])
def test_a_fused_program_that_does_not_fit_together_is_refused(compiled, fault):
    from dataclasses import replace

    main = compiled.executable.program(5)
    wrong = {
        "selector": replace(main, selector="graph0/x"),
        "stream": replace(main, streams=main.streams[:-1]),
        "nested": replace(main, branches=(main, *main.branches[1:])),
    }[fault]
    programs = (compiled.executable.programs[0], wrong)
    with pytest.raises(LoadError, match="damaged"):
        SimulatedExecutable.deserialize(replace(compiled.executable, programs=programs).serialize())


def test_models_of_different_opsets_become_one_of_the_newest():
    fused = MFConverter().convert([wide(1, opset=11), wide(1, opset=17)])
    assert [entry.version for entry in fused.opset_import] == [17]


def squeeze(opset):
    """Return a model with Upsample, which opset 10 removed and which has no newer form."""
    node = helper.make_node("Upsample", ["x"], ["y"], name="up", scales=[1.0, 2.0], mode="nearest")
    return make_model([node], {"x": (F, [2, 2])}, {"y": (F, [2, 4])}, {}, opset)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (list, "expected 1 to 1024 models to fuse, found 0"),
        (lambda: [b"x"], "model 0 to fuse: expected an onnx.ModelProto, found bytes"),
        (
            lambda: [wide(1), linear_model()],
            r"model 1 to fuse: output 'y' has shape .*give|model 1 to fuse: .*shape",
        ),
    ],
)
def test_models_that_cannot_be_fused_are_rejected_by_number(given, reason):
    with pytest.raises(CompileError, match=reason):
        MFConverter().convert(given())


@pytest.mark.parametrize("count", ["0", "9999999", "x", "4"])
def test_a_model_that_only_says_that_it_is_fused_is_refused(fused, count):
    wrong = onnx.ModelProto()
    wrong.CopyFrom(fused)
    wrong.metadata_props[0].value = count
    with pytest.raises(CompileError, match="fuse them with MFConverter again"):
        Compiler.compile(wrong)


def test_options_that_do_not_go_with_fusion_are_refused(fused, models):
    with pytest.raises(CompileError, match="expected a fused model"):
        Compiler.compile(models[0], None, CompilerOptions(enable_model_fusion=True))
    with pytest.raises(CompileError, match="give None for outputs"):
        Compiler.compile(fused, ["graph0/y"])


def test_the_command_fuses_what_a_file_lists(models, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(linear_model(), "a.onnx")
    onnx.save(linear_model(), "b.onnx")
    (tmp_path / "config.yaml").write_text(
        "export_popef: True\noutput_model: fused.onnx\nmodel_fusion:\n"
        "  - {input_model: a.onnx, input_shape: ['x=2,4'], precision: fp32}\n"
        "  - {input_model: b.onnx, batch_size: 3, precision: fp16}\n"
    )
    assert main(["--config_yaml", "config.yaml", "--triton_model_dir", "served"]) == 0
    made = popef.Reader()
    made.parseFile("executable.popef")
    types = {
        anchor.name(): anchor.tensorInfo().dataType().name
        for anchor in made.metadata()[0].anchors()
    }
    assert (types["graph0/x"], types["graph1/x"], types["index"]) == ("F32", "F16", "S32")
    assert len(split_models(onnx.load("fused.onnx"))) == 2
    config = (tmp_path / "served" / "config.pbtxt").read_text()
    assert config.count("optional: true") == 3
    assert json.loads((tmp_path / "served" / "1" / "name_map.json").read_text())["index"] == "index"


def test_a_paced_device_takes_the_time_of_the_model_that_runs(compiled):
    from simipu.engine import _LoadedMain, iteration_timing

    main, target = compiled.executable.program(5), compiled.executable.target
    timings = [iteration_timing(branch, target, 1) for branch in main.branches]
    loaded = _LoadedMain(main, None, timings)
    for number in (0, 1):
        values = [np.full((1, *s.shape), number, s.dtype) for s in loaded.inputs]
        assert loaded.find_timing(values) == timings[number]
    assert iteration_timing(main, target, 1) == max(timings, key=lambda timing: timing.interval)


def test_a_report_has_each_model_and_the_first_can_be_timed(fused, compiled):
    report = Compiler.compile_and_get_summary_report(fused)
    assert [f"graph{number}" in report for number in range(4)] == [True, True, True, False]
    assert time_runs(compiled)[0] == "Bs: 1"


def test_large_weights_stay_where_they_are(fused):
    stub = numpy_helper.to_array(next(t for t in fused.graph.initializer if t.name == "graph1/w"))
    assert stub.dtype == np.float16


def test_a_wrong_type_that_is_declared_of_an_output_is_not_believed():
    """The real tool's examples/poprt_run_popef.py declares such a type."""
    node = helper.make_node("Neg", ["x"], ["y"], name="neg")
    model = make_model([node], {"x": (F, [2])}, {"y": (F16, [2, 1])}, {})
    (anchor,) = (a for a in Compiler.compile(model).metadata.anchors() if a.name() == "y")
    assert (anchor.tensorInfo().dataType().name, tuple(anchor.tensorInfo().shape())) == (
        "F32",
        (2,),
    )


def test_models_that_are_sharded_stay_so_when_they_are_fused():
    layers = [Sharder({"m0": 0}).run(wide(2)), Sharder({"m2": 0}).run(wide(4))]
    options = CompilerOptions(num_ipus=2, virtual_graph_mode="manual")
    compiled = Compiler.compile(MFConverter().convert(layers), None, options)
    alone = [Compiler.compile(model, None, options).cycles for model in layers]
    assert [branch.cycles for branch in compiled.executable.program(5).branches] == alone
    with ModelRunner(compiled.getPopefModel(), ModelRunnerConfig(validate_io_params=False)) as made:
        assert (made.execute({"graph1/x": X0})["graph1/y"] == 16).all()


def test_a_fused_model_can_be_one_of_those_to_fuse(models):
    inner = MFConverter().convert([wide(1), branchy()])
    compiled = Compiler.compile(MFConverter().convert([inner, wide(2)]))
    request = {
        f"graph0/{name}": value for name, value in feed([wide(1), branchy()], 0, x=X0).items()
    }
    with ModelRunner(compiled.getPopefModel(), ModelRunnerConfig(validate_io_params=False)) as made:
        assert (made.execute(request)["graph0/graph0/y"] == 2).all()
        assert (made.execute({"graph1/x": X0})["graph1/y"] == 4).all()
