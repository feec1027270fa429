"""Keras models in the scope of an IPUStrategy: Keras 3 and tf_keras, against plain Keras."""

import importlib

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from tensorflow.python import ipu  # noqa: E402
from tensorflow_ipu.execution import counters  # noqa: E402

ROWS, BATCH, WIDTH = 12, 2, 8


@pytest.fixture(params=["keras", "tf_keras"])
def keras(request):
    return importlib.import_module(request.param)


@pytest.fixture
def strategy():
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 1
    config.configure_ipu_system()
    yield ipu.ipu_strategy.IPUStrategy()
    ipu.config.reset_ipu_configuration()


@pytest.fixture
def compiled():
    """Count the programs that a test compiles."""
    before = counters.compiled
    return lambda: counters.compiled - before


def make_sequential(keras):
    return keras.Sequential(
        [keras.layers.Dense(4, activation="relu"), keras.layers.Dense(3, name="last")]
    )


def make_functional(keras):
    first, second = keras.Input((WIDTH,), name="first"), keras.Input((WIDTH,), name="second")
    shared = keras.layers.Dense(4, activation="tanh")
    both = keras.layers.Concatenate()([shared(first), shared(second)])
    outputs = {"sum": keras.layers.Dense(1)(both), "all": both}
    return keras.Model([first, second], outputs)


def make_subclassed(keras):
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(4, activation="relu")
            self.norm = keras.layers.LayerNormalization()

        def call(self, inputs):
            return self.norm(self.dense(inputs)), self.dense(inputs)

    return Net()


def draw(*shape, seed=1):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def copy_weights(model, plain, data):
    plain(data)
    for target, source in zip(plain.weights, model.weights, strict=True):
        target.assign(source)
    return plain


@pytest.mark.parametrize("steps_per_execution", [1, 3, 6])
@pytest.mark.parametrize("make", [make_sequential, make_functional, make_subclassed])
def test_predict_returns_what_plain_keras_does(
    keras, strategy, make, steps_per_execution, compiled
):
    x = draw(ROWS, WIDTH)
    x = [x, draw(ROWS, WIDTH, seed=2)] if make is make_functional else x
    with strategy.scope():
        model = make(keras)
        model.compile(steps_per_execution=steps_per_execution)
        outputs = model.predict(x, batch_size=BATCH, verbose=0)
    expected = copy_weights(model, make(keras), x).predict(x, batch_size=BATCH, verbose=0)
    assert compiled() == 1
    tf.nest.assert_same_structure(outputs, expected)
    for found, wanted in zip(tf.nest.flatten(outputs), tf.nest.flatten(expected), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_further_predictions_compile_nothing(keras, strategy, compiled):
    with strategy.scope():
        model = make_sequential(keras)
        first = model.predict(draw(ROWS, WIDTH), batch_size=BATCH, verbose=0)
        model.get_layer("last").bias.assign([1.0, 2.0, 3.0])
        second = model.predict(draw(ROWS, WIDTH), batch_size=BATCH, verbose=0)
    assert compiled() == 1
    np.testing.assert_allclose(second - first, [[1, 2, 3]] * ROWS, rtol=1e-5)


def test_evaluate_returns_losses_and_metrics(keras, strategy, compiled):
    x, y = draw(ROWS, WIDTH), draw(ROWS, 3, seed=3)
    with strategy.scope():
        model = make_sequential(keras)
        model.compile(loss="mse", metrics=["mae"], steps_per_execution=2)
        results = model.evaluate(x, y, batch_size=BATCH, verbose=0)
        named = model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)
    plain = copy_weights(model, make_sequential(keras), x)
    plain.compile(loss="mse", metrics=["mae"])
    assert compiled() >= 1
    np.testing.assert_allclose(
        results, plain.evaluate(x, y, batch_size=BATCH, verbose=0), rtol=1e-5
    )
    assert list(named.values()) == results


@pytest.mark.parametrize("loss", ["sparse_categorical_crossentropy", "categorical_crossentropy"])
def test_accuracies_are_those_of_plain_keras(keras, strategy, loss):
    x, y = draw(ROWS, WIDTH), np.arange(ROWS, dtype=np.int32) % 3
    y = np.eye(3, dtype=np.float32)[y] if loss.startswith("cat") else y

    def make():
        return keras.Sequential([keras.layers.Dense(3, activation="softmax")])

    with strategy.scope():
        model = make()
        model.compile(loss=loss, metrics=["accuracy"], steps_per_execution=6)
        results = model.evaluate(x, y, batch_size=BATCH, verbose=0)
    plain = copy_weights(model, make(), x)
    plain.compile(loss=loss, metrics=["accuracy"])
    np.testing.assert_allclose(
        results, plain.evaluate(x, y, batch_size=BATCH, verbose=0), rtol=1e-5
    )


def test_a_call_with_tensors_runs_on_the_ipu(keras, strategy, compiled):
    x = draw(BATCH, WIDTH)
    with strategy.scope():
        model = make_sequential(keras)
        outputs = model(x)
    assert compiled() == 1
    plain = copy_weights(model, make_sequential(keras), x)
    np.testing.assert_allclose(outputs, plain(x), rtol=1e-5, atol=1e-6)


def test_a_model_made_outside_the_scope_is_left_alone(keras, strategy, compiled):
    model = make_sequential(keras)
    with strategy.scope():
        pass
    model.predict(draw(ROWS, WIDTH), verbose=0)
    assert not hasattr(model, "set_pipelining_options")
    assert compiled() == 0


def test_a_model_remains_one_of_the_ipu_after_the_scope(keras, strategy, compiled):
    with strategy.scope():
        model = make_sequential(keras)
    model.predict(draw(ROWS, WIDTH), batch_size=BATCH, verbose=0)
    assert compiled() == 1


def test_training_is_refused(keras, strategy):
    x, y = draw(ROWS, WIDTH), draw(ROWS, 3)
    with strategy.scope():
        model = make_sequential(keras)
        model.compile("sgd", "mse")
        with pytest.raises(NotImplementedError, match="Training is not supported: `fit`"):
            model.fit(x, y, batch_size=BATCH)
        with pytest.raises(NotImplementedError, match="`train_on_batch`"):
            model.train_on_batch(x, y)


def test_callbacks_are_called_for_executions_or_steps(keras, strategy):
    class Count(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.steps, self.rows = [], 0

        def on_predict_batch_end(self, batch, logs=None):
            self.steps.append(batch)
            self.rows += len(logs["outputs"])

    with strategy.scope():
        model = make_sequential(keras)
        model.compile(steps_per_execution=3)
        for is_asynchronous, steps in [(False, [2, 5]), (True, list(range(6)))]:
            model.set_asynchronous_callbacks(is_asynchronous)
            count = Count()
            outputs = model.predict(
                draw(ROWS, WIDTH), batch_size=BATCH, verbose=0, callbacks=[count]
            )
            assert count.steps == steps
            assert count.rows == len(outputs) == ROWS


def test_a_failing_asynchronous_callback_is_reported(keras, strategy):
    class Fail(keras.callbacks.Callback):
        def on_predict_batch_end(self, batch, logs=None):
            raise KeyError("mine")

    with strategy.scope():
        model = make_sequential(keras)
        model.set_asynchronous_callbacks(True)
        with pytest.raises(KeyError, match="mine"):
            model.predict(draw(ROWS, WIDTH), batch_size=BATCH, verbose=0, callbacks=[Fail()])


def test_half_models_compute_in_half(keras, strategy, compiled):
    x = draw(ROWS, WIDTH)
    with strategy.scope():
        model = keras.Sequential(
            [keras.layers.Dense(4, dtype="float16"), keras.layers.Dense(3, dtype="float16")]
        )
        outputs = model.predict(x.astype(np.float16), batch_size=BATCH, verbose=0)
    first, second, third, fourth = (np.float32(w) for w in model.get_weights())
    assert outputs.dtype == np.float16
    assert compiled() == 1
    np.testing.assert_allclose(outputs, (x @ first + second) @ third + fourth, atol=1e-2)


def test_mixed_precision_is_that_of_the_policy(keras, strategy):
    x = draw(ROWS, WIDTH)
    before = keras.mixed_precision.global_policy()
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        with strategy.scope():
            outputs = make_sequential(keras).predict(x, batch_size=BATCH, verbose=0)
    finally:
        keras.mixed_precision.set_global_policy(before)
    assert outputs.dtype == np.float16


def test_integers_and_embeddings(keras, strategy, compiled):
    ids = np.arange(ROWS * 5, dtype=np.int32).reshape(ROWS, 5) % 7
    with strategy.scope():
        inputs = keras.Input((5,), dtype="int32")
        outputs = keras.layers.GlobalAveragePooling1D()(keras.layers.Embedding(7, 3)(inputs))
        model = keras.Model(inputs, outputs)
        found = model.predict(ids, batch_size=BATCH, verbose=0)
    assert compiled() == 1
    np.testing.assert_allclose(found, model.get_weights()[0][ids].mean(1), rtol=1e-5, atol=1e-7)


def test_options_and_assignments_are_saved_and_loaded(keras, strategy, tmp_path):
    file = tmp_path / "model.keras"
    with strategy.scope():
        model = make_sequential(keras)
        model.build((None, WIDTH))
        model.set_pipeline_stage_assignment([0, 1])
        model.set_pipelining_options(
            gradient_accumulation_steps_per_replica=4, device_mapping=[1, 0]
        )
        model.set_replication_options("mean")
        model.save(file)
        loaded = keras.models.load_model(file)
    assert [a.pipeline_stage for a in loaded.get_pipeline_stage_assignment()] == [0, 1]
    assert loaded._pipelining_device_mapping == [1, 0]
    assert loaded._pipelining_gradient_accumulation_steps_per_replica == 4
    assert loaded._replicated_metric_reduction_method.name == "MEAN"
    for found, wanted in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(found, wanted)
    # Without a strategy the file is one of plain Keras.
    plain = keras.models.load_model(file)
    assert not hasattr(plain, "set_replication_options")
