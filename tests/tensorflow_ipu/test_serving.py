"""Application compile, and exports for TensorFlow Serving."""

import numpy as np
import pytest

import popef

pytestmark = [pytest.mark.tensorflow, pytest.mark.slow]
tf = pytest.importorskip("tensorflow")

from tensorflow.python import ipu  # noqa: E402
from tensorflow_ipu.execution import counters  # noqa: E402
from tensorflow_ipu.files.embedded_runtime import (  # noqa: E402
    embedded_runtime_call,
    embedded_runtime_start,
)
from tensorflow_ipu.files.popef_files import read_message  # noqa: E402

X = np.float32([1, 2, 3])
SPEC = tf.TensorSpec([3], tf.float32, "x")
compile_op = ipu.application_compile_op.experimental_application_compile_op


@pytest.fixture(autouse=True)
def configured():
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 1
    config.configure_ipu_system()
    before = counters.compiled
    yield
    ipu.config.reset_ipu_configuration()
    assert counters.compiled > before or counters.loaded


def test_a_step_is_exported_with_its_variables(tmp_path):
    scale, shift = tf.Variable(2.0), tf.Variable([1.0, 2.0, 3.0])

    @tf.function
    def step(x):
        return x * scale + shift, tf.reduce_sum(x)

    predict = ipu.serving.export_single_step(
        step, tmp_path / "model", 16, (SPEC,), output_names=["y", "sum"]
    )
    expected = X * 2 + [1, 2, 3]
    np.testing.assert_allclose(predict(tf.constant(X))["y"], expected)
    loaded = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    answer = ipu.ipu_strategy.IPUStrategy().run(loaded, kwargs={"x": tf.constant(X)})
    np.testing.assert_allclose(answer["y"], expected)
    assert answer["sum"] == 6
    (asset,) = (tmp_path / "model" / "assets").iterdir()
    assert asset.name.startswith("application_")
    with popef.Reader() as reader:
        reader.parseFile(asset)
        assert reader.metadata()[0].executable() == "UNHASHED_EXECUTABLE"


def test_steps_before_and_after_are_exported(tmp_path):
    weight = tf.Variable(4.0)
    ipu.serving.export_single_step(
        tf.function(lambda x: x * weight),
        tmp_path / "model",
        4,
        (SPEC,),
        preprocessing_step=lambda x: x - 1.0,
        preprocessing_step_signature=(SPEC,),
        postprocessing_step=lambda x: x / weight,
        postprocessing_step_signature=(SPEC,),
    )
    loaded = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    np.testing.assert_allclose(loaded(x=tf.constant(X))["output_0"], X - 1)


def test_a_signature_comes_from_a_data_set(tmp_path):
    dataset = tf.data.Dataset.from_tensors((np.zeros(3, "float16"), np.zeros(3, "float16")))
    predict = ipu.serving.export_single_step(
        lambda a, b: a - b, tmp_path / "model", 4, input_dataset=dataset
    )
    half = tf.constant(X, tf.float16)
    np.testing.assert_array_equal(predict(half, half + 1)[0], [-1, -1, -1])


@pytest.mark.parametrize(
    ("arguments", "kind", "text"),
    [
        ({}, ValueError, "deduction from given `predict_step` is not possible"),
        ({"predict_step_signature": ()}, ValueError, "must be not empty"),
        ({"predict_step_signature": SPEC}, TypeError, "must be an instance of tuple or list"),
        ({"predict_step_signature": (1,)}, TypeError, r"`predict_step_signature\[0\]` is not an"),
        ({"input_dataset": [1]}, TypeError, "should be an instance of tf.Dataset"),
        (
            {
                "predict_step_signature": (SPEC,),
                "input_dataset": tf.data.Dataset.from_tensors(X),
            },
            ValueError,
            "Both `predict_step_signature` and `input_dataset` cannot",
        ),
        (
            {"predict_step_signature": (SPEC, SPEC)},
            ValueError,
            "Length of input_signature does not match",
        ),
        (
            {"predict_step_signature": (SPEC,), "postprocessing_step": lambda x: x},
            ValueError,
            "deduction from given `postprocessing_step` is not possible",
        ),
    ],
)
def test_wrong_signatures_are_errors(tmp_path, arguments, kind, text):
    counters.loaded += 1  # nothing is compiled
    with pytest.raises(kind, match=text):
        ipu.serving.export_single_step(lambda x: x, tmp_path / "model", 4, **arguments)


def test_a_folder_with_files_is_an_error(tmp_path):
    counters.loaded += 1  # nothing is compiled
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is not empty"):
        ipu.serving.export_single_step(lambda x: x, tmp_path, 4, (SPEC,))
    with pytest.raises(ValueError, match="inside an IPU strategy"):
        ipu.serving.export_keras(object(), tmp_path)


def test_variables_are_arguments_of_a_compiled_application(tmp_path):
    weight = tf.Variable(np.eye(3, dtype="float32"), name="weight")
    dataset = tf.data.Dataset.from_tensors(np.zeros((2, 3), "float32")).repeat()
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(dataset)
    outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

    def net():
        return ipu.loops.repeat(4, lambda x: outfeed.enqueue(x @ weight), [], infeed)

    path = compile_op(net, output_path=tmp_path / "file").numpy()
    signature = read_message(path.decode()).embedded_runtime_config.signature
    assert [entry.name for entry in signature.inputs] == ["XLA_Args/weight"]
    context = embedded_runtime_start(path, {"XLA_Args/weight": 2 * np.eye(3, dtype="float32")}, "e")
    x = np.arange(6, dtype="float32").reshape(2, 3)
    np.testing.assert_allclose(embedded_runtime_call([x], context)[0], 2 * x)


def test_a_value_that_a_loop_carries_begins_with_its_argument(tmp_path):
    dataset = tf.data.Dataset.from_tensors(np.zeros(3, "float32")).repeat()
    infeed = ipu.ipu_infeed_queue.IPUInfeedQueue(dataset)
    outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

    def net():
        def body(total, x):
            total = total + x
            return total, outfeed.enqueue(total)

        return ipu.loops.repeat(4, body, [tf.constant([10.0, 20.0, 30.0])], infeed)

    path = compile_op(net, output_path=tmp_path / "file").numpy()
    signature = read_message(path.decode()).embedded_runtime_config.signature
    assert (len(signature.inputs), len(signature.outputs)) == (0, 1)
    context = embedded_runtime_start(path, [], "carried")
    np.testing.assert_allclose(embedded_runtime_call([X], context)[0], [11, 22, 33])


@pytest.mark.parametrize(
    ("function", "inputs", "text"),
    [
        (lambda x: x * x, [np.float64([1, 2])], "Detected unsupported operations when trying"),
        (lambda x: x, [np.float32([1, 2])], "Cannot serialize a constant graph"),
    ],
)
def test_what_cannot_be_compiled_is_an_error(tmp_path, function, inputs, text):
    counters.loaded += 1  # nothing is compiled
    with pytest.raises(tf.errors.OpError, match=text):
        compile_op(function, inputs, tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_a_folder_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(tf.errors.InternalError, match="Failed to open file for writing"):
        compile_op(lambda: tf.constant(X) * 2, output_path=tmp_path / "no" / "file")
