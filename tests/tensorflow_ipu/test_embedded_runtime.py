"""The embedded runtime: executables of files within graphs."""

import threading

import numpy as np
import pytest
from waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from tensorflow_files import BIAS, WEIGHT, X, describe, make_model, write_division  # noqa: E402
from tensorflow_ipu.files import embedded_runtime as runtime  # noqa: E402
from tensorflow_ipu.files.application_runtime import (  # noqa: E402
    application_call,
    application_runtime,
    join_values,
)
from tensorflow_ipu.files.popef_files import StoredExecutable, write_executable  # noqa: E402

v1 = tf.compat.v1
EXPECTED = X @ WEIGHT + BIAS
INPUTS = {"XLA_Args/net/w": WEIGHT, "XLA_Args/_arg_bias_0_0/_3": BIAS}


@pytest.fixture
def file(tmp_path):
    write_executable(StoredExecutable(make_model(), describe()), tmp_path / "a.poplar_exec")
    return str(tmp_path / "a.poplar_exec")


@pytest.mark.parametrize("inputs", [INPUTS, [BIAS, WEIGHT], (BIAS, WEIGHT)], ids=lambda x: type(x))
def test_an_engine_runs_batches_in_eager_mode(file, inputs):
    context = runtime.embedded_runtime_start(file, inputs, "eager")
    for factor in (1, 2):
        (result,) = runtime.embedded_runtime_call([X * np.float32(factor)], context)
        np.testing.assert_allclose(result, X * factor @ WEIGHT + BIAS, rtol=1e-5)
    assert context.name() == "eager"
    assert context.output_types() == [tf.float32]
    assert [entry.name for entry in context.signature().streamed_inputs] == ["infeed_1.0"]


def test_an_engine_runs_batches_in_a_session(file):
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [2, 4])
        weight = v1.placeholder(tf.float32, [4, 3])
        context = runtime.embedded_runtime_start(
            tf.constant(file), [tf.constant(BIAS), weight], "session"
        )
        result = runtime.embedded_runtime_call([x], context)
        session.graph.finalize()
        for _ in range(2):
            (value,) = session.run(result, {x: X, weight: WEIGHT})
            np.testing.assert_allclose(value, EXPECTED, rtol=1e-5)


def test_start_and_call_returns_both(file):
    results, context = runtime.embedded_runtime_start_and_call(file, INPUTS, [X], "both")
    np.testing.assert_allclose(results[0], EXPECTED, rtol=1e-5)
    with pytest.raises(NotImplementedError, match="doesn't support stopping an engine"):
        runtime.embedded_runtime_stop(context)


def test_threads_share_an_engine(file):
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(tf.float32, [2, 4])
        path = str(join_values(file, "shared", [BIAS, WEIGHT]))
        anchor = application_runtime(inputs=(), filename=path, engine_name="shared")
        result = application_call(
            (x,), anchor=anchor, outfeed_types=[tf.float32], engine_name="shared"
        )
        session.graph.finalize()
        answers = {}

        def ask(number):
            (answers[number],) = session.run(result, {x: X + np.float32(number)})

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
    for number, answer in answers.items():
        np.testing.assert_allclose(answer, (X + number) @ WEIGHT + BIAS, rtol=1e-4)
    assert len(answers) == 8


def test_values_that_were_joined_once_are_not_joined_again(file):
    first = join_values(file, "one", [BIAS, WEIGHT])
    assert join_values(file, "one", [BIAS, WEIGHT]) == first
    assert join_values(file, "one", [BIAS + 1, WEIGHT]) != first


@pytest.mark.parametrize(
    ("inputs", "text"),
    [
        (4, "Expected the inputs to be a list."),
        ([BIAS], "Embedded application runtime expects 2 inputs, but 1 were provided."),
        ([BIAS] * 3, "Embedded application runtime expects 2 inputs, but 3 were provided."),
        (
            {"XLA_Args/net/w": WEIGHT},
            r"Failed to find input tensor with name 'XLA_Args/_arg_bias_0_0/_3' in input dictionary.",
        ),
        (
            [BIAS, WEIGHT.T],
            r"Mismatched input shape at position 1 \('XLA_Args/net/w'\). Expected \[4, 3\], but "
            r"input 1 has shape \[3, 4\].",
        ),
        (
            [BIAS, WEIGHT.astype("int32")],
            r"Mismatched input dtype at position 1 \('XLA_Args/net/w'\). Expected <dtype: "
            r"'float32'>, but input 1 has dtype int32.",
        ),
    ],
)
def test_wrong_inputs_of_a_start_are_errors(file, inputs, text):
    with pytest.raises(Exception, match=text):
        runtime.embedded_runtime_start(file, inputs, "wrong")


@pytest.mark.parametrize(
    ("inputs", "kind", "text"),
    [
        ([X, X], Exception, "Embedded application call expects 1 inputs, but 2 were provided."),
        (
            [X[:1]],
            Exception,
            r"Mismatched input shape at position 0 \('infeed_1.0'\). Expected \[2, 4\], but input 0 "
            r"has shape \[1, 4\].",
        ),
        (
            [X.astype("float64")],
            TypeError,
            r"Mismatched input dtype at position 0 \('infeed_1.0'\). Expected <dtype: 'float32'>, "
            "but input 0 has dtype float64.",
        ),
    ],
)
def test_wrong_inputs_of_a_call_are_errors(file, inputs, kind, text):
    context = runtime.embedded_runtime_start(file, INPUTS, "calls")
    with pytest.raises(kind, match=text):
        runtime.embedded_runtime_call(inputs, context)


def test_a_foreign_file_is_an_error(tmp_path):
    (tmp_path / "file").write_bytes(b"from a stranger")
    with pytest.raises(ValueError, match="file"):
        runtime.embedded_runtime_start(str(tmp_path / "file"), [], "foreign")


def test_an_exception_on_the_chip_is_an_internal_error_and_the_engine_goes_on(tmp_path):
    write_division(tmp_path / "division")
    with tf.Graph().as_default(), v1.Session() as session:
        context = runtime.embedded_runtime_start(str(tmp_path / "division"), [], "division")
        x = v1.placeholder(tf.float32, [1])
        result = runtime.embedded_runtime_call([x], context)
        assert session.run(result, {x: [1]}) == [12]
        with pytest.raises(
            tf.errors.InternalError,
            match=r"\[Poplar\]\[Execute engine\] application_runtime_error: \[Recovery action: "
            r"IPU_RESET\] Tiles in excepted state [\s\S]* IPU will be reset the next time a program "
            "is executed.",
        ):
            session.run(result, {x: [0]})
        assert session.run(result, {x: [2]}) == [6]
