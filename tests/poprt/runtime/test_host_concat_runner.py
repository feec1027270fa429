"""Tests of HostConcatRunner: it takes the inputs from before apply_host_concat_split and returns
the same answers."""

import json

import numpy as np
import pytest
from model_runtime import ModelRuntimeError
from onnx import TensorProto, helper
from poprt import Compiler, CompilerOptions, runtime
from poprt._names import sHostConcatRunnerConfig
from poprt.passes import get_pass
from sample_models import make_model

ROWS = 4


def model():
    """Return the model y = concat(a, b, c) @ w + d."""
    shape = (TensorProto.FLOAT, [ROWS, 1])
    return make_model(
        [
            helper.make_node("Concat", ["a", "b", "c"], ["joined"], axis=1),
            helper.make_node("MatMul", ["joined", "w"], ["product"]),
            helper.make_node("Add", ["product", "d"], ["y"]),
        ],
        {**dict.fromkeys("abc", shape), "d": (TensorProto.FLOAT, [ROWS, 2])},
        {"y": (TensorProto.FLOAT, [ROWS, 2])},
        {"w": np.arange(6, dtype=np.float32).reshape(3, 2)},
    )


@pytest.fixture(scope="module")
def merged():
    return get_pass("apply_host_concat_split", [(TensorProto.FLOAT, (ROWS, 1))])(model())


@pytest.fixture(scope="module")
def blob(merged):
    return {each.key: each.value for each in merged.metadata_props}[sHostConcatRunnerConfig]


@pytest.fixture
def given():
    rng = np.random.default_rng(0)
    arrays = {name: rng.random((ROWS, 1), np.float32) for name in "abc"}
    return {**arrays, "d": rng.random((ROWS, 2), np.float32)}


def ask(runner, given, rows=ROWS):
    places = {"y": np.zeros((rows, 2), np.float32)}
    runner.execute(given, places)
    again = {"y": np.zeros((rows, 2), np.float32)}
    runner.execute_async(given, again).wait()
    np.testing.assert_array_equal(places["y"], again["y"])
    return places["y"]


def test_the_blob_in_the_file_says_what_to_join(merged, blob, given, tmp_path):
    expected = ask(runtime.Runner(Compiler.compile(model())), given)
    file = tmp_path / "executable.popef"
    options = CompilerOptions(opaque_blobs={sHostConcatRunnerConfig: blob})
    Compiler.compile_and_export(merged, None, file, options)
    runner = runtime.HostConcatRunner(file)
    described = {each.name: each.shape for each in runner.get_execute_inputs()}
    assert described == {"a": [ROWS, 1], "b": [ROWS, 1], "c": [ROWS, 1], "d": [ROWS, 2]}
    np.testing.assert_array_equal(ask(runner, given), expected)


def test_the_configuration_may_say_it_instead(merged, blob, given):
    config = runtime.HostConcatRunnerConfig()
    joined = runtime.HostConcatConfig()
    (entry,) = json.loads(blob).values()
    joined.tensor_name, joined.input_tensor_names = (
        entry["tensor_name"],
        entry["input_tensor_names"],
    )
    joined.shape, joined.data_size_bytes = entry["shape"], entry["data_size_bytes"]
    config.host_concat_config = {joined.tensor_name: joined}
    runner = runtime.HostConcatRunner(Compiler.compile(merged), config)
    assert [each.shape for each in runner.get_execute_inputs()][:1] == [[ROWS]]
    np.testing.assert_array_equal(
        ask(runner, given), ask(runtime.Runner(Compiler.compile(model())), given)
    )


def test_a_model_that_was_not_changed_runs_as_it_is(given):
    compiled = Compiler.compile(model())
    np.testing.assert_array_equal(
        ask(runtime.HostConcatRunner(compiled), given), ask(runtime.Runner(compiled), given)
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"b": None}, "input 'b' is not given, a part of 'host_concat_0'"),
        ({"b": np.ones((5, 1), np.float32)}, "input 'b': expected float32 of 4 elements as 'a'"),
        ({"b": np.ones((4, 1))}, "input 'b': expected float32 of 4 elements as 'a', found float64"),
        ({"q": np.ones(1)}, "input 'q' is not known"),
    ],
)
def test_inputs_that_do_not_fit_are_named(change, reason, merged, blob, given):
    options = CompilerOptions(opaque_blobs={sHostConcatRunnerConfig: blob})
    runner = runtime.HostConcatRunner(Compiler.compile(merged, None, options))
    wrong = {name: array for name, array in {**given, **change}.items() if array is not None}
    with pytest.raises(ModelRuntimeError, match=reason):
        ask(runner, wrong)
    ask(runner, given)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ("[1]", "expected JSON of HostConcatConfig by input"),
        ("{", "expected JSON of HostConcatConfig by input"),
        ('{"x": {"other": 1}}', "expected JSON of HostConcatConfig by input"),
        ('{"x": {"tensor_name": "x"}}', "the model has no input 'x', only host_concat_0, d"),
        (
            '{"x": {"tensor_name": "host_concat_0", "shape": [2, 4], "input_tensor_names": ["a", '
            '"b"]}}',
            r"expected shape \[3, 4\]",
        ),
        (
            '{"x": {"tensor_name": "host_concat_0", "shape": 5}}',
            r"expected shape \[3, 4\] .* found 5",
        ),
        ('{"x": {"tensor_name": ["a"]}}', "the model has no input"),
        (
            '{"x": {"tensor_name": "host_concat_0", "shape": [3, 4], "input_tensor_names": [1, 2, '
            "3]}}",
            "expected names of inputs",
        ),
    ],
)
def test_a_configuration_of_another_model_is_named(found, reason, merged):
    options = CompilerOptions(opaque_blobs={sHostConcatRunnerConfig: found})
    compiled = Compiler.compile(merged, None, options)
    with pytest.raises(ModelRuntimeError, match=reason):
        runtime.HostConcatRunner(compiled)
