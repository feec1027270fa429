"""Rules of the data and the options of Keras models on the IPU, with the real library's texts."""

import importlib
import logging

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from tensorflow.python import ipu  # noqa: E402
from tensorflow_ipu.keras_extensions import data_handler  # noqa: E402


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
def model(keras, strategy):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(3)])
        model.compile(loss="mse", steps_per_execution=4)
        yield model


@pytest.fixture
def messages(caplog):
    """Return what was logged since the last call."""
    logging.getLogger("tensorflow").setLevel(logging.INFO)
    caplog.set_level(logging.INFO, "tensorflow")

    def take():
        found = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return found

    return take


def ones(rows):
    return tf.ones([rows, 5])


def test_a_partial_batch_is_refused(model):
    with pytest.raises(
        ValueError,
        match=r"has a partial batch, which could result in data being dropped. Either adjust the "
        r"`batch_size` of your model \(currently set to 4\)",
    ):
        model.predict(ones(10), batch_size=4)
    with pytest.raises(ValueError, match="has a partial batch"):
        model.evaluate(ones(10), ones(10)[:, :3], batch_size=4)


def test_generators_are_refused(model):
    def generate():
        while True:
            yield ones(1)

    with pytest.raises(
        ValueError,
        match="of type `generator` which is not compatible with the IPU's requirement to know the "
        r"data shape ahead of time. Please use `tf.data.Dataset.from_generator\(\)`",
    ):
        model.predict(generate(), steps=4)


def test_steps_per_execution_must_divide_the_number_of_batches(model):
    with pytest.raises(
        ValueError,
        match=r"`steps_per_execution` \(4\) must be a divisor of the number of batches \(6\) in "
        "the dataset provided.",
    ):
        model.predict(ones(6), batch_size=1)


def test_too_many_steps_per_execution_are_lowered(model, messages):
    assert len(model.predict(ones(3), batch_size=1, verbose=0)) == 3
    assert (
        "`steps_per_execution` has been set to 4 but the dataset provided only contains 3 batches. "
        "Using 3 as `steps_per_execution`."
    ) in messages()


def test_one_step_per_execution_is_worth_a_hint(keras, strategy, messages):
    with strategy.scope():
        keras.Sequential([keras.layers.Dense(3)], name="mine").predict(
            ones(2), batch_size=1, verbose=0
        )
    assert (
        "The model `mine` has been configured with only 1 steps per execution. Consider increasing "
        "the value for the `steps_per_execution` argument passed to the `compile()` method to "
        "improve performance."
    ) in messages()


def test_shapes_must_be_known(model):
    dataset = tf.data.Dataset.from_tensor_slices(ones(8)).batch(2)
    with pytest.raises(
        ValueError,
        match=r"contains a shape \(None, 5\) which is not fully defined.* set "
        "`drop_remainder=True`.",
    ):
        model.predict(dataset)


def test_an_infinite_data_set_needs_steps(model):
    dataset = tf.data.Dataset.from_tensors(ones(2)).repeat()
    with pytest.raises(ValueError, match="infinite dataset, you must specify the number of steps"):
        model.predict(dataset)
    assert model.predict(dataset, steps=4, verbose=0).shape == (8, 3)


def test_a_data_set_of_unknown_size_needs_steps(model, messages):
    dataset = tf.data.Dataset.from_tensors(ones(2)).repeat(4).filter(lambda _: True)
    with pytest.raises(ValueError, match="Could not infer the size of the data"):
        model.predict(dataset)
    assert model.predict(dataset, steps=4, verbose=0).shape == (8, 3)
    assert any("has an unknown size" in message for message in messages())


def test_too_few_batches_are_refused(model):
    dataset = tf.data.Dataset.from_tensors(ones(2)).repeat(4)
    with pytest.raises(
        ValueError,
        match=r"can generate at least 8 batches \(currently it can only generate 4 batches\)",
    ):
        model.predict(dataset, steps=8)


def test_arrays_are_worth_one_warning(model, messages):
    data_handler._array_counts.clear()
    for expected in (0, 1, 0):
        model.predict(np.ones([4, 5], np.float32), batch_size=1, verbose=0)
        found = [m for m in messages() if m.startswith("x is of type `np.ndarray`.")]
        assert len(found) == expected


def test_64_bit_data_become_32_bit(model):
    dataset = tf.data.Dataset.from_tensor_slices(np.ones([4, 5])).batch(1, drop_remainder=True)
    assert dataset.element_spec.dtype == tf.float64
    outputs = model.predict(dataset.prefetch(2), verbose=0)
    assert outputs.dtype == np.float32
    np.testing.assert_allclose(outputs, model.predict(ones(4), batch_size=1, verbose=0))


def test_eager_models_are_refused(keras, strategy):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(3)])
        model.compile(loss="mse", run_eagerly=True)
        with pytest.raises(
            RuntimeError, match="Keras models cannot run eagerly when using `IPUStrategy`"
        ):
            model.predict(ones(2), batch_size=1)


def test_a_model_must_be_compiled_before_it_is_evaluated(keras, strategy):
    with strategy.scope(), pytest.raises((RuntimeError, ValueError), match="compile"):
        keras.Sequential([keras.layers.Dense(3)]).evaluate(ones(2), ones(2)[:, :3])


@pytest.mark.parametrize(("name", "method"), [("predict", "predict"), ("test", "evaluate")])
def test_overridden_functions_are_refused(keras, strategy, name, method):
    function = f"make_{name}_function"
    mine = type("Mine", (keras.Sequential,), {function: lambda self, force=False: None})
    data = [ones(2), ones(2)[:, :3]] if method == "evaluate" else [ones(2)]
    with strategy.scope():
        model = mine([keras.layers.Dense(3)])
        model.compile(loss="mse")
        with pytest.raises(
            RuntimeError, match=f"The function `{function}` for the model .* has been overridden"
        ):
            getattr(model, method)(*data, batch_size=1)


def test_overridden_steps_run_on_the_ipu(keras, strategy):
    class Mine(keras.Sequential):
        def predict_step(self, data):
            return super().predict_step(data) * 2.0

    with strategy.scope():
        model = Mine([keras.layers.Dense(3)])
        doubled = model.predict(ones(2), batch_size=1, verbose=0)
        np.testing.assert_allclose(doubled, 2 * model(ones(2)), rtol=1e-6)


def test_a_subclass_without_call_is_refused(keras, strategy):
    class Empty(keras.Model):
        pass

    with (
        strategy.scope(),
        pytest.raises(NotImplementedError, match="you must implement the `call`"),
    ):
        Empty().predict(ones(2), batch_size=1)


def test_vectors_are_columns(keras, strategy):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(3)])
        assert model.predict(tf.range(4.0), batch_size=2, verbose=0).shape == (4, 3)
        assert model.get_weights()[0].shape == (1, 3)


OPTIONS = [
    ("set_pipelining_options", {"gradient_accumulation_steps_per_replica": -1}, "positive integer"),
    ("set_pipelining_options", {"device_mapping": [0.0]}, "a list of integers"),
    (
        "set_pipelining_options",
        {"gradient_accumulation_count": 4},
        "Found `gradient_accumulation_count` key in `pipelining_kwargs`. Set the "
        "`gradient_accumulation_steps_per_replica` argument",
    ),
    ("set_pipelining_options", {"repeat_count": 4}, "automatically set by Keras"),
    ("set_pipelining_options", {"outfeed_mask": []}, "not compatible with Keras"),
    (
        "set_pipelining_options",
        {"gradient_accumulation_reduction_method": "max"},
        "Cannot parse max as one of GradientAccumulationReductionMethod. Valid values are: SUM, "
        "MEAN, RUNNING_MEAN.",
    ),
    ("set_gradient_accumulation_options", {"num_mini_batches": 4}, "Found `num_mini_batches` key"),
    (
        "set_gradient_accumulation_options",
        {"experimental_normalize_gradients": True},
        "has now been removed",
    ),
    (
        "set_replication_options",
        {"replicated_metric_reduction_method": "best"},
        "Cannot parse best as a ReplicatedMetricReductionMethod. Valid values are: NONE, LIST, "
        "SUM, MEAN.",
    ),
    ("set_infeed_queue_options", {"dataset": 1}, "automatically set by Keras"),
    ("set_outfeed_queue_options", {"outfeed_mode": 1}, "not compatible with Keras"),
]


@pytest.mark.parametrize(("method", "options", "text"), OPTIONS)
def test_bad_options_are_refused(model, method, options, text):
    with pytest.raises(ValueError, match=text):
        getattr(model, method)(**options)


def test_queue_options_reach_the_queues(model):
    model.set_infeed_queue_options(prefetch_depth=300)
    with pytest.raises(ValueError, match="prefetch_depth"):
        model.predict(ones(4), batch_size=1)
    model.set_infeed_queue_options(prefetch_depth=2)
    model.set_outfeed_queue_options(buffer_depth=0)
    with pytest.raises(ValueError, match="buffer depth"):
        model.predict(ones(4), batch_size=1)


def test_a_scope_may_have_no_extensions(keras):
    strategy = ipu.ipu_strategy.IPUStrategy(enable_keras_extensions=False)
    with strategy.scope():
        assert not hasattr(keras.Sequential(), "set_pipelining_options")
