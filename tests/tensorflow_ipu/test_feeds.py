"""Infeed and outfeed queues, and the loops that use them."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ipu import (
    config,
    ipu_compiler,
    ipu_infeed_queue,
    ipu_outfeed_queue,
    ipu_strategy,
    loops,
    scopes,
)
from tensorflow_ipu.execution import counters

pytestmark = pytest.mark.tensorflow
tf1 = tf.compat.v1


@pytest.fixture(autouse=True)
def one_ipu():
    options = config.IPUConfig()
    options.auto_select_ipus = 1
    options.configure_ipu_system()
    yield
    config.reset_ipu_configuration()


def count_up(number, **options):
    dataset = tf.data.Dataset.range(number).map(lambda n: tf.fill([2], tf.cast(n, tf.float32)))
    return ipu_infeed_queue.IPUInfeedQueue(dataset, **options)


def run_loop(queue, body, number, inputs=()):
    with scopes.ipu_scope("/device:IPU:0"):
        result = ipu_compiler.compile(
            lambda *values: loops.repeat(number, body, list(values), queue), list(inputs)
        )
    session = tf1.Session()
    session.run(queue.initializer)
    return session, result


def test_each_iteration_takes_an_element_and_returns_one():
    with tf.Graph().as_default():
        queue, outfeed = count_up(6), ipu_outfeed_queue.IPUOutfeedQueue()
        before = counters.runs
        session, result = run_loop(
            queue, lambda v, x: (v + x, outfeed.enqueue({"x": x, "v": v * x})), 3, [[1.0, 2.0]]
        )
        dequeued = outfeed.dequeue()
        assert np.array_equal(session.run(result)[0], [4, 5])
        found = session.run(dequeued)
        assert np.array_equal(found["x"], [[0, 0], [1, 1], [2, 2]])
        assert np.array_equal(found["v"], [[0, 0], [1, 2], [4, 6]])
        assert session.run(dequeued)["x"].shape == (0, 2)
        assert np.array_equal(session.run(result)[0], [13, 14]), "the data set goes on"
        assert counters.runs > before


def test_a_data_set_that_ends_is_an_error_where_more_is_taken():
    with tf.Graph().as_default():
        session, result = run_loop(count_up(3), lambda v, x: v + x, 2, [[1.0, 2.0]])
        session.run(result)
        with pytest.raises(tf.errors.OutOfRangeError, match="the end of the dataset"):
            session.run(result)


def test_a_data_set_that_fails_is_an_error_with_its_reason():
    with tf.Graph().as_default():
        dataset = tf.data.FixedLengthRecordDataset(["no/such/file"], 100)
        dataset = dataset.map(lambda text: tf.io.decode_raw(text, tf.float32)[0])
        queue = ipu_infeed_queue.IPUInfeedQueue(dataset)
        session, result = run_loop(queue, lambda v, x: v + x, 2, [[1.0, 2.0]])
        with pytest.raises(
            tf.errors.InternalError, match=r"iterator has failed with status.*no/su"
        ):
            session.run(result)


@pytest.mark.parametrize(
    ("element", "body"),
    [
        (lambda n: (n, n + 1), lambda v, a, b: v + a * b),
        (lambda n: {"b": n + 1, "a": n}, lambda v, a, b: v + a * b),
        (lambda n: ({"b": n + 1, "a": n},), lambda v, b, a: v + a * b),
        (lambda n: ({"a": n}, n + 1), lambda v, d, b: v + d["a"] * b),
        (lambda n: {1: n, 2: n + 1}, lambda v, d: v + d[1] * d[2]),
        (lambda n: ((n, n + 1), n), lambda v, d, _: v + d[0] * d[1]),
    ],
)
def test_an_element_stands_for_positional_or_named_arguments(element, body):
    with tf.Graph().as_default():
        dataset = tf.data.Dataset.range(4).map(
            lambda n: element(tf.fill([2], tf.cast(n, tf.int32)))
        )
        queue = ipu_infeed_queue.IPUInfeedQueue(dataset)
        session, result = run_loop(queue, body, 4, [[0, 1]])
        assert np.array_equal(session.run(result)[0], [20, 21])


def test_wrong_bodies_are_refused_with_the_real_texts():
    queue = count_up(3)
    value = tf.constant(1.0)

    @tf.function
    def build(body, infeed=None):
        return loops.repeat(2, body, [value], infeed)

    with pytest.raises(TypeError, match=r"cannot be called.*1 inputs.*needs exactly 2 arguments"):
        build(lambda a, b: a)
    with pytest.raises(TypeError, match="and 1 additional inputs from infeed, but the computation"):
        build(lambda a: a, queue)
    with pytest.raises(TypeError, match="Mismatch between input types and output types"):
        build(lambda a: tf.cast(a, tf.int32))
    with pytest.raises(ValueError, match="zero or more Tensor values followed by"):
        build(lambda a: (tf.no_op(), a))
    with pytest.raises(TypeError, match="loop condition function cannot be called"):
        tf.function(lambda: loops.while_loop(lambda: True, lambda a: a, [value]))()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"prefetch_depth": -1}, "must be greater than zero, but it is -1"),
        ({"prefetch_depth": 256}, "must be less than 256, but it is 256"),
        ({"device_ordinal": "0"}, "Device ordinal must be an integer"),
        ({"device_ordinal": -1}, "Device ordinal must be >= 0"),
    ],
)
def test_wrong_options_of_queues_are_refused(options, text):
    with pytest.raises(ValueError, match=text):
        count_up(3, **options)


def test_wrong_elements_are_refused():
    dataset = tf.data.Dataset.range(5)
    with pytest.raises(ValueError, match=r"Output shape \(None,\) is not fully defined"):
        ipu_infeed_queue.IPUInfeedQueue(dataset.batch(2))
    with pytest.raises(tf.errors.FailedPreconditionError, match="Unsupported datatype int64 on"):
        ipu_infeed_queue.IPUInfeedQueue(dataset).initializer  # noqa: B018
    empty = ipu_infeed_queue.IPUInfeedQueue(dataset.map(lambda _: tf.zeros([1, 0])))
    with pytest.raises(tf.errors.InvalidArgumentError, match="an infeed queue with a dimension of"):
        empty.initializer  # noqa: B018
    with pytest.raises(tf.errors.NotFoundError, match="Infeed with id="):
        empty.deleter  # noqa: B018
    with pytest.raises(ValueError, match="is now obsolete"):
        empty.get_next()


def test_outfeeds_keep_the_last_element_if_asked_to():
    mode = ipu_outfeed_queue.IPUOutfeedMode
    with tf.Graph().as_default():
        outfeed = ipu_outfeed_queue.IPUOutfeedQueue(mode.LAST)
        with pytest.raises(ValueError, match="an outfeed which has not been enqueued"):
            outfeed.dequeue()
        session, result = run_loop(count_up(6), lambda x: outfeed.enqueue((x, x + 1)), 3)
        dequeued = outfeed.dequeue()
        with pytest.raises(tf.errors.FailedPreconditionError, match="Trying to get the last value"):
            session.run(dequeued)
        session.run(result)
        for _ in range(2):
            assert np.array_equal(session.run(dequeued), [[2, 2], [3, 3]])
    with pytest.raises(RuntimeError, match=r"set to .IPUOutfeedMode\.ALL"):
        iter(ipu_outfeed_queue.IPUOutfeedQueue(mode.LAST))
    with pytest.raises(ValueError, match="Expected `outfeed_mode` value to be of"):
        ipu_outfeed_queue.IPUOutfeedQueue("all")
    with pytest.raises(ValueError, match="buffer depth cannot be less than 1"):
        ipu_outfeed_queue.IPUOutfeedQueue(buffer_depth=0)


def test_a_graph_enqueues_once_and_a_second_graph_may_too():
    outfeed = ipu_outfeed_queue.IPUOutfeedQueue()
    for _ in range(2):
        with tf.Graph().as_default(), scopes.ipu_scope("/device:IPU:0"):
            assert not outfeed.enqueued
            ipu_compiler.compile(lambda: loops.repeat(2, lambda: outfeed.enqueue(1.0)))
            assert outfeed.enqueued
            with pytest.raises(ValueError, match="can only be enqueued once"):
                outfeed.enqueue(2.0)


def test_iterators_feed_functions_of_a_strategy_and_outfeeds_are_iterated():
    strategy = ipu_strategy.IPUStrategy()
    outfeed = ipu_outfeed_queue.IPUOutfeedQueue()
    with strategy.scope():
        iterator = iter(tf.data.Dataset.range(9).map(lambda n: tf.fill([2], tf.cast(n, tf.int32))))
        with pytest.raises(RuntimeError, match="can not be accessed in eager mode"):
            next(iterator)

        @tf.function(jit_compile=True)
        def step(number):
            for _ in tf.range(number):
                outfeed.enqueue((next(iterator), 3.0))

        assert list(outfeed) == []
        strategy.run(step, args=(4,))
        strategy.run(step, args=(2,))
        elements = list(outfeed)
        assert [int(x[1]) for x, _ in elements] == [0, 1, 2, 3, 4, 5]
        assert all(float(y) == 3.0 for _, y in elements)
        assert list(outfeed) == []


def test_synthetic_data_needs_no_data_set(monkeypatch):
    monkeypatch.setenv("TF_POPLAR_FLAGS", "--use_synthetic_data --synthetic_data_initializer=3")
    with tf.Graph().as_default(), scopes.ipu_scope("/device:IPU:0"):
        queue, outfeed = count_up(1), ipu_outfeed_queue.IPUOutfeedQueue()
        result = ipu_compiler.compile(
            lambda v: loops.repeat(2, lambda v, x: (v + x, outfeed.enqueue(x)), [v], queue),
            [[1.0, 2.0]],
        )
        with tf1.Session() as session:
            assert np.array_equal(session.run(result)[0], [7, 8])
            assert session.run(outfeed.dequeue()).shape == (0, 2)
