"""IPUStrategy of TensorFlow 2 beside TensorFlow on the CPU."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.tensorflow


@pytest.fixture
def strategy(ipus):
    ipu = ipus()
    strategy = ipu.ipu_strategy.IPUStrategy()
    with strategy.scope():
        yield strategy


def test_a_function_runs_on_the_ipu_with_the_variables_of_now(strategy, compiled):
    weight = tf.Variable(tf.random.stateless_normal([4, 3], [1, 2]))

    @tf.function(jit_compile=True)
    def function(x, scale=2.0):
        return tf.nn.relu(x @ weight) * scale

    x = np.ones([2, 4], np.float32)
    for _ in range(2):
        expected = np.maximum(x @ weight.numpy(), 0) * 2
        np.testing.assert_allclose(strategy.run(function, [x]), expected, rtol=1e-5)
        np.testing.assert_allclose(function(tf.constant(x)), expected, rtol=1e-5)
        weight.assign(weight * -2.0)
    assert compiled() == 1


def test_a_loop_takes_elements_of_a_data_set_and_enqueues_results(strategy, compiled):
    from tensorflow.python import ipu

    data = np.arange(24, dtype=np.float32).reshape(6, 4)
    iterator = iter(tf.data.Dataset.from_tensor_slices(data))
    outfeed = ipu.ipu_outfeed_queue.IPUOutfeedQueue()

    @tf.function(jit_compile=True)
    def loop(elements, count):
        for _ in tf.range(count):
            outfeed.enqueue(tf.nn.softmax(next(elements)))

    strategy.run(loop, [iterator, 3])
    np.testing.assert_allclose(outfeed.dequeue(), tf.nn.softmax(data[:3]), rtol=1e-5)
    strategy.run(loop, [iterator, tf.constant(2)])
    rows = list(outfeed)
    np.testing.assert_allclose(rows, tf.nn.softmax(data[3:5]), rtol=1e-5)
    assert compiled() == 2


def test_a_python_function_is_refused_in_eager_mode(strategy):
    with pytest.raises(ValueError, match="does not support eager execution"):
        strategy.run(lambda x: x, [tf.ones([2])])


def test_float64_is_refused(strategy):
    @tf.function(jit_compile=True)
    def function(x):
        return x * 2

    with pytest.raises(TypeError, match="Unsupported data type for input: float64"):
        strategy.run(function, [tf.ones([2], tf.float64)])


def test_eager_operators_placed_on_an_ipu_are_compiled(ipus, compiled):
    ipus()
    square = np.array([[1, 2], [3, 4]], np.float32)
    x = tf.constant(square)
    with tf.device("/device:IPU:0"):
        np.testing.assert_allclose(tf.matmul(x, x), square @ square)
        assert compiled() == 1
        first, second = tf.split(x, 2, axis=1)
        np.testing.assert_array_equal(tf.concat([second, first], 1), square[:, ::-1])
        np.testing.assert_array_equal(tf.nn.top_k(x, 1).indices, [[1], [1]])

        @tf.function
        def function(value):
            return tf.nn.relu(value - 2)

        before = compiled()
        np.testing.assert_array_equal(function(x), np.maximum(square - 2, 0))
        assert compiled() == before + 1
    x @ x
    assert compiled() == before + 1


def test_attention_of_keras(strategy, compiled):
    import keras

    layer = keras.layers.MultiHeadAttention(2, 8)
    x = tf.random.stateless_normal([2, 5, 16], [1, 2])

    @tf.function(jit_compile=True)
    def function(value):
        return layer(value, value)

    found = strategy.run(function, [x])
    count = compiled()
    np.testing.assert_allclose(found, layer(x, x), rtol=1e-4, atol=1e-6)
    assert count == 1
