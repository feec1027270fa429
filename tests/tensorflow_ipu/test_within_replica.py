"""Collectives between the IPUs of one replica."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ipu import config, ipu_compiler, scopes, within_replica_ops
from tensorflow_ipu.execution import counters

pytestmark = pytest.mark.tensorflow
SUM = "COLLECTIVE_OP_ADD"


@pytest.fixture(autouse=True)
def four_ipus():
    options = config.IPUConfig()
    options.auto_select_ipus = 4
    options.configure_ipu_system()
    yield
    config.reset_ipu_configuration()


def run(collective, size, order=(0, 1, 2, 3)):
    def net(zeros):
        shards = []
        for number in range(4):
            with scopes.ipu_shard(number):
                shards.append(zeros + float(number + 1))
        return collective([shards[number] for number in order])

    with tf.Graph().as_default(), scopes.ipu_scope("/device:IPU:0"):
        results = ipu_compiler.compile(net, [tf.zeros([size])])
        with tf.compat.v1.Session() as session:
            return session.run(results)


@pytest.mark.parametrize(
    ("size", "parts"),
    [
        (4, [[10], [10], [10], [10]]),
        (5, [[10, 10], [10, 0], [10, 0], [10, 0]]),
        (6, [[10, 10], [10, 10], [10, 0], [10, 0]]),
        (2, [[10], [10], [0], [0]]),
    ],
)
def test_the_first_ipus_get_one_element_more(size, parts):
    before = counters.runs
    found = run(lambda shards: within_replica_ops.reduce_scatter(shards, op=SUM), size)
    assert np.array_equal(found, parts)
    assert counters.runs > before


@pytest.mark.parametrize(
    "collective",
    [
        within_replica_ops.all_gather,
        lambda shards: within_replica_ops.all_reduce(shards, op=SUM),
        lambda shards: within_replica_ops.reduce_scatter(shards, op=SUM),
    ],
)
def test_tensors_must_be_in_the_order_of_their_ipus(collective):
    with pytest.raises(tf.errors.FailedPreconditionError, match="in the order of their IPUs"):
        run(collective, 4, order=(1, 0, 2, 3))
