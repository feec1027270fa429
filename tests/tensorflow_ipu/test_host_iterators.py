"""Iterators that were made outside a strategy's scope, in functions that run on the IPU."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python import ipu
from tensorflow_ipu.execution import counters

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def strategy():
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = 1
    config.configure_ipu_system()
    yield ipu.ipu_strategy.IPUStrategy()
    ipu.config.reset_ipu_configuration()


def make_dataset(count=6):
    rows = np.arange(count * 3, dtype="f").reshape(count, 3)
    return tf.data.Dataset.from_tensor_slices({"x": rows, "y": rows + 0.5}).batch(
        2, drop_remainder=True
    )


def compute(element):
    return tf.reduce_sum(element["x"] * element["y"], axis=1)


def witness(dataset):
    return [compute(element).numpy() for element in dataset]


@pytest.mark.parametrize("jit_compile", [True, None])
def test_a_captured_iterator_gives_an_element_for_each_call(strategy, jit_compile):
    iterator = iter(make_dataset())

    @tf.function(jit_compile=jit_compile)
    def step():
        return compute(next(iterator))

    compiled = counters.compiled
    results = [strategy.run(step).numpy() for _ in range(3)]
    assert counters.compiled == compiled + 1
    np.testing.assert_allclose(results, witness(make_dataset()), rtol=1e-6)
    with pytest.raises(tf.errors.OutOfRangeError, match="reached the end of the dataset"):
        strategy.run(step)


def test_an_iterator_may_be_an_argument_and_is_advanced_in_loops(strategy):
    iterator = iter(make_dataset())

    @tf.function(jit_compile=True)
    def total(source, factor):
        result = tf.zeros([2])
        for _ in tf.range(2):
            result += compute(next(source)) * factor
        return result

    compiled = counters.compiled
    result = strategy.run(total, [iterator, tf.constant(2.0)])
    assert counters.compiled > compiled
    first, second, third = witness(make_dataset())
    np.testing.assert_allclose(result, (first + second) * 2, rtol=1e-6)
    np.testing.assert_allclose(compute(next(iterator)), third, rtol=1e-6)


def test_on_the_cpu_the_same_iterator_works_as_ever(strategy):
    iterator = iter(make_dataset())

    @tf.function
    def step():
        return compute(next(iterator))

    assert [step().numpy().tolist() for _ in range(3)] == [
        row.tolist() for row in witness(make_dataset())
    ]


def test_elements_without_a_static_shape_are_refused(strategy):
    iterator = iter(tf.data.Dataset.range(5).map(lambda n: tf.cast(n, tf.float32)).batch(2))

    @tf.function(jit_compile=True)
    def step():
        return next(iterator) * 2.0

    with pytest.raises(ValueError, match=r"is not fully defined.*drop_remainder=True"):
        strategy.run(step)
