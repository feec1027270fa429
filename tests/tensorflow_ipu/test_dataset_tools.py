"""Speed and sizes of data sets, on the host."""

import json

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_ipu.feeds.dataset_benchmark import dataset_benchmark
from tensorflow_ipu.feeds.dataset_ops import BufferDataset

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("is_eager", [True, False])
def test_a_benchmark_counts_elements_and_bytes(is_eager):
    with tf.Graph().as_default() if not is_eager else tf.device("cpu"):
        dataset = tf.data.Dataset.range(7).map(lambda n: (tf.ones([2, 3]), n)).repeat()
        text = dataset_benchmark(dataset, 3, 5, print_stats=False)
        if is_eager:
            text = text.numpy()
        else:
            with tf.compat.v1.Session() as session:
                session.run(text)
                text = session.run(text)
    epochs = json.loads(text[0])["epochs"]
    assert [epoch["elements_processed"] for epoch in epochs] == [5, 5, 5]
    assert [epoch["total_bytes_processed"] for epoch in epochs] == [5 * (24 + 8)] * 3
    assert all(epoch["elements_per_second"] > 0 for epoch in epochs)


def test_a_benchmark_needs_a_data_set_that_is_long_enough_and_not_empty():
    dataset = tf.data.Dataset.range(7)
    with pytest.raises(tf.errors.OutOfRangeError, match="has reached the end of the dataset"):
        dataset_benchmark(dataset, 2, 4)
    with pytest.raises(tf.errors.InvalidArgumentError, match="with a dimension of size 0"):
        dataset_benchmark(dataset.map(lambda _: tf.ones([4, 0])), 1, 1)
    with pytest.raises(ValueError, match="`number_of_epochs` to be at least 1"):
        dataset_benchmark(dataset, 0, 1)
    with pytest.raises(ValueError, match="`elements_per_epochs` to be at least 1"):
        dataset_benchmark(dataset, 1, 0)
    with pytest.raises(TypeError, match=r"to be of type `tf\.data\.Dataset`"):
        dataset_benchmark([1, 2], 1, 1)


@pytest.mark.parametrize("structure", [lambda n: n, lambda n: (n, n + 1), lambda n: {"a": n}])
def test_a_buffer_leaves_out_the_last_elements_that_do_not_fill_it(structure):
    dataset = tf.data.Dataset.range(7).map(structure)
    buffered = BufferDataset(dataset, 3)
    assert buffered.element_spec == dataset.element_spec
    expected = [tf.nest.flatten(element) for element in dataset.take(6)]
    found = [tf.nest.flatten(element) for element in buffered]
    assert np.array_equal(np.array(found), np.array(expected))
