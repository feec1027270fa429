"""Tests of custom-operator libraries of ONNX Runtime: a model with a C library's operators is
converted, compiled and run."""

from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from model_runtime import Session, SessionConfig
from onnx import TensorProto, helper
from onnxgraph import infer_shapes, inference
from operator_libraries import build_library, forget_libraries
from poprt import Compiler, CompilerOptions, Converter
from poprt.backend import get_session
from poprt.cli import main
from poprt.runtime import Runner
from sample_models import make_model
from simipu import GraphOptions, LoadError, OperatorLibrary, register_library
from simipu.engines import libraries
from simipu.operators import table
from triton_poplar.errors import ModelConfigError
from triton_poplar.parameters import BackendState, parse_parameters
from triton_poplar.sessions import make_graph_options

F = TensorProto.FLOAT
DOMAIN = "my.ops"
X = np.linspace(-3, 3, 12, dtype=np.float32).reshape(2, 6)


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return build_library(tmp_path_factory.mktemp("library"))


@pytest.fixture(autouse=True)
def forget():
    with forget_libraries():
        yield


def model(batch=2):
    """Return the model y = pairs(thrice(x + 1)) - 1."""
    nodes = [
        helper.make_node("Add", ["x", "one"], ["more"], name="add"),
        helper.make_node("Thrice", ["more"], ["three"], name="thrice", domain=DOMAIN),
        helper.make_node("Pairs", ["three"], ["pairs"], name="pairs", domain=DOMAIN),
        helper.make_node("Sub", ["pairs", "one"], ["y"], name="sub"),
    ]
    made = make_model(
        nodes, {"x": (F, [batch, 6])}, {"y": (F, [batch, 3])}, {"one": np.float32(1)}, 13
    )
    made.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    return made


def expected():
    return (3 * (X + 1)).reshape(2, 3, 2).sum(axis=2) - 1


def run(compiled, kind=np.float32):
    outputs = {"y": np.zeros((2, 3), kind)}
    runner = Runner(compiled)
    runner.execute({"x": X.astype(kind)}, outputs)
    runner.close()
    return outputs["y"].astype(np.float32)


@pytest.mark.parametrize(("precision", "kind"), [("fp32", np.float32), ("fp16", np.float16)])
def test_a_model_with_operators_of_a_library_compiles_and_runs(library, precision, kind):
    register_library(OperatorLibrary(DOMAIN, library))
    half, whole = Converter(precision=precision).convert_beside_float(model())
    compiled = Compiler.compile(half, float_model=whole)
    assert not compiled.executable.program(5).row_independent
    np.testing.assert_allclose(
        run(compiled, kind), expected(), rtol=2e-3 if kind is np.float16 else 1e-6
    )
    assert (compiled.findings.comparison is not None) == (precision == "fp16")


def test_types_and_shapes_are_those_that_the_library_makes(library):
    register_library(OperatorLibrary(DOMAIN, library))
    known = {value.name: value.type.tensor_type for value in infer_shapes(model()).graph.value_info}
    assert [dim.dim_value for dim in known["pairs"].shape.dim] == [2, 3]
    assert known["pairs"].elem_type == F
    half = infer_shapes(Converter(precision="fp16").convert(model()))
    kinds = {value.name: value.type.tensor_type.elem_type for value in half.graph.value_info}
    assert kinds["three"] == kinds["pairs"] == TensorProto.FLOAT16


def test_the_declared_cycles_are_counted(library):
    cycles = []
    for number in (0, 1, 100_000):
        register_library(OperatorLibrary(DOMAIN, library, number))
        cycles.append(
            Compiler.compile(model(), None, CompilerOptions(skip_dry_run=True)).executable.cycles(5)
        )
    # The results of both operators: one tile holds at least a few of their elements.
    assert cycles[2] - cycles[1] >= 2 * 99_999
    assert cycles[0] != cycles[1]


def test_an_executable_does_not_name_its_library(library):
    register_library(OperatorLibrary(DOMAIN, library))
    data = Compiler.compile(model()).executable.serialize()
    assert library.encode() not in bytes(data)


def test_the_command_names_a_library_and_a_process_that_knows_none_loads_nothing(
    library, tmp_path, capsys
):
    onnx.save(model(), tmp_path / "m.onnx")
    given = [
        "--input_model",
        str(tmp_path / "m.onnx"),
        "--export_popef",
        "--output_dir",
        str(tmp_path),
    ]
    assert main(given) == 1
    assert "operator my.ops.Thrice is not supported" in capsys.readouterr().err
    assert main([*given, "--custom_ort_library", f"{DOMAIN}={library},4"]) == 0
    popef = tmp_path / "executable.popef"
    np.testing.assert_allclose(run(popef), expected(), rtol=1e-6)
    for each in (libraries.LIBRARIES, table._DOMAINS, inference._DOMAIN_FUNCTIONS):
        each.clear()
    with pytest.raises(LoadError, match=r"my.ops.*name the library.*sim_custom_ops"):
        run(popef)


@pytest.mark.parametrize("isolated", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_session_is_given_its_libraries(library, isolated, tmp_path):
    """A server has registered no library either. The child process of an isolated session gets them
    too."""
    register_library(OperatorLibrary(DOMAIN, library))
    Compiler.compile(model()).export(tmp_path / "m.popef")
    for each in (libraries.LIBRARIES, table._DOMAINS, inference._DOMAIN_FUNCTIONS):
        each.clear()
    options = GraphOptions(num_threads=1, libraries=(OperatorLibrary(DOMAIN, library),))
    session = Session(tmp_path / "m.popef", SessionConfig(graph_options=options, isolated=isolated))
    session.runLoadPrograms()
    (anchor,) = session.getUserInputAnchors()
    (found,) = session.run({anchor.name(): X}).values()
    session.unloadFromDevice()
    np.testing.assert_allclose(found, expected(), rtol=1e-6)


def test_scripts_run_the_operators_under_onnx_runtime_too(library, tmp_path):
    register_library(OperatorLibrary(DOMAIN, library))
    onnx.save(model(), tmp_path / "m.onnx")
    session = get_session(tmp_path / "m.onnx", 1, "onnxruntime").load()
    np.testing.assert_allclose(session.run(["y"], {"x": X})[0], expected(), rtol=1e-6)


def test_invalid_operator_libraries_are_rejected(library, tmp_path):
    (tmp_path / "no.so").write_text("no")
    for bad, reason in (
        (OperatorLibrary(DOMAIN, str(tmp_path / "nosuch.so")), "no such file"),
        (OperatorLibrary(DOMAIN, str(tmp_path / "no.so")), "ONNX Runtime cannot load"),
        (OperatorLibrary("ai.graphcore", library), "the domain 'ai.graphcore' is reserved"),
        (OperatorLibrary("", library), "the domain '' is reserved"),
    ):
        with pytest.raises(LoadError, match=reason):
            register_library(bad)
    register_library(OperatorLibrary(DOMAIN, library))
    with pytest.raises(LoadError, match="a process can have one library for a domain"):
        register_library(OperatorLibrary(DOMAIN, str(tmp_path / "no.so")))
    assert GraphOptions().libraries == (OperatorLibrary(DOMAIN, library),)


@pytest.mark.parametrize("text", ["my.ops", "=a.so", "my.ops=", "my.ops=a.so,x", "my.ops=a.so,-1"])
def test_texts_that_name_no_library_are_refused(text):
    with pytest.raises(ValueError, match=r"DOMAIN=FILE|cycles"):
        OperatorLibrary.parse(text)


def test_a_models_parameter_wants_absolute_paths():
    def parse(text):
        return parse_parameters(
            {"parameters": {"sim_custom_ops": {"string_value": text}}}
        ).sim_custom_ops

    assert parse("my.ops=/a.so,other=/b.so") == "my.ops=/a.so,other=/b.so"
    with pytest.raises(ModelConfigError, match=r"expected DOMAIN=/path/of/library.so"):
        parse("my.ops=a.so")


def test_a_models_parameter_becomes_an_option_of_its_graphs():
    def libraries(text):
        parameters = parse_parameters(
            {"parameters": {"sim_custom_ops": {"string_value": text}} if text else {}}
        )
        return make_graph_options(
            SimpleNamespace(
                parameters=parameters, num_threads=1, accelerators=(), backend=BackendState()
            )
        ).libraries

    assert libraries("my.ops=/a.so,other=/b.so") == (
        OperatorLibrary("my.ops", "/a.so"),
        OperatorLibrary("other", "/b.so"),
    )
    assert libraries("") == ()
