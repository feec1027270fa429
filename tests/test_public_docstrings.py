"""Tests of the docstrings of the public API: their examples run, and parameters are documented."""

import doctest
import importlib
import inspect
import re

import model_runtime
import onnx
import popart
import poplar_serving
import poprt
import pytest
from onnx import TensorProto, helper

import popef

PACKAGES = [popef, model_runtime, poprt, poplar_serving]
EXAMPLES = """
    popef.enums.numpyDTypeToPopefType popef.enums.popefTypeToNumpyDType popef.anchors.member_name
    popef.model.ModelBuilder popef.reader.Reader popef.model.batch_size popef.writer.Writer
    model_runtime.devices.DeviceManager model_runtime.environment.host_sync_timeout_seconds
    model_runtime.queues.QueueManager model_runtime.runner.ModelRunner model_runtime.session.Session
    poprt.compile.compiler.Compiler poprt.compile.converter.Converter
    poprt.frontend.get_frontend poprt.rewrite.base.Pass poprt.rewrite.base.get_pass
    poprt.rewrite.manager.PassManager poprt.backends.Backend
    poprt.options.CompilerOptions
    poprt.runtime.runners.Runner
    popart.builder.Builder popart.tensorinfo.TensorInfo popart.transformer.GraphTransformer
""".split()
CLASSES = [
    popef.FusedModel,
    popef.Model,
    popef.ModelBuilder,
    popef.Reader,
    popef.RowFacts,
    popef.Writer,
    model_runtime.DataDesc,
    model_runtime.DeviceManager,
    model_runtime.DeviceWaitConfig,
    model_runtime.ModelRunner,
    model_runtime.ModelRunnerConfig,
    model_runtime.QueueManager,
    model_runtime.Session,
    model_runtime.SessionConfig,
    popart.Builder,
    popart.GraphTransformer,
    poprt.Backend,
    poprt.CompilerOptions,
    poprt.Converter,
    poprt.PassManager,
    poprt.quantizer.FP8Quantizer,
    poprt.optimizer.Optimizer,
    poprt.runtime.HostConcatRunner,
    poprt.runtime.LightRunner,
    poprt.runtime.PackRunner,
    poprt.runtime.PackRunnerConfig,
    poprt.runtime.Runner,
]
"""Classes that users create."""
RECORDS = [
    kind
    for name in popef.__all__
    if hasattr(kind := getattr(popef, name), "SCHEMA") and isinstance(kind, type)
]
"""Structures of a file, whose arguments are their fields."""
FUNCTIONS = [
    pytest.param(getattr(package, name), id=f"{package.__name__}.{name}")
    for package in PACKAGES
    for name in package.__all__
    if inspect.isfunction(getattr(package, name))
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with model.onnx, y = 2x with rows of 4, and model.popef, for 2 rows."""
    folder = tmp_path_factory.mktemp("examples")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    converted = poprt.Converter(batch_size=2).convert(model)
    poprt.Compiler.compile_and_export(converted, None, folder / "model.popef")
    return folder


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_print_what_they_say(name, folder, monkeypatch):
    monkeypatch.chdir(folder)
    module, _, member = name.rpartition(".")
    shown = getattr(importlib.import_module(module), member)
    tests = doctest.DocTestFinder().find(shown, member, globs={})
    output: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.FAIL_FAST)
    for test in tests:
        runner.run(test, out=output.append)
    assert runner.summarize(verbose=False).attempted, "expected an example"
    assert not output, "".join(output)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_public_function_documents_each_parameter_and_its_result(function):
    documented, signature = inspect.getdoc(function), inspect.signature(function)
    assert find_arguments(documented) == set(signature.parameters)
    if signature.return_annotation not in (None, "None"):
        assert "\nReturns:\n" in documented or documented.startswith("Return ")


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_public_class_documents_each_argument(kind):
    assert find_arguments(inspect.getdoc(kind)) == set(inspect.signature(kind).parameters)


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
def test_a_public_structure_documents_each_field(kind):
    assert find_arguments(inspect.getdoc(kind)) == {field.name for field in kind.SCHEMA.fields}


def find_arguments(documented):
    """Return the names in the section Args of a docstring."""
    section = re.search(r"^Args:\n((?: .*\n?|\n(?= ))*)", documented, re.MULTILINE)
    return set(re.findall(r"^    (\w+):", section[1], re.MULTILINE)) if section else set()
