"""Samplers of candidates: their distribution, and expected counts beside TensorFlow's formulas."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.tensorflow
CLASSES = 20


def sample(ipus, sampler, count, unique):
    ipu = ipus()
    strategy = ipu.ipu_strategy.IPUStrategy()

    @tf.function(jit_compile=True)
    def draw(true):
        return sampler(true, 2, count, unique, CLASSES, seed=3)

    with strategy.scope():
        true = tf.constant([[0, 5], [19, 1]], tf.int64)
        return [part.numpy() for part in strategy.run(draw, [true])]


def find_probabilities(sampler):
    numbers = np.arange(CLASSES)
    if sampler is tf.random.uniform_candidate_sampler:
        return np.full(CLASSES, 1 / CLASSES)
    return np.log((numbers + 2) / (numbers + 1)) / np.log(CLASSES + 1)


SAMPLERS = [tf.random.uniform_candidate_sampler, tf.random.log_uniform_candidate_sampler]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_draws_have_the_distribution(ipus, compiled, sampler):
    sampled, true, counts = sample(ipus, sampler, 4000, unique=False)
    probabilities = find_probabilities(sampler)
    found = np.bincount(sampled, minlength=CLASSES) / 4000
    np.testing.assert_allclose(found, probabilities, atol=0.03)
    np.testing.assert_allclose(counts, 4000 * probabilities[sampled], rtol=1e-5)
    np.testing.assert_allclose(true, 4000 * probabilities[[[0, 5], [19, 1]]], rtol=1e-5)
    assert compiled() == 1


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("count", [5, CLASSES])
def test_unique_candidates_occur_once(ipus, compiled, sampler, count):
    sampled, true, counts = sample(ipus, sampler, count, unique=True)
    assert len(set(sampled.tolist())) == count
    assert ((sampled >= 0) & (sampled < CLASSES)).all()
    if count == CLASSES:
        np.testing.assert_allclose(counts, np.ones(CLASSES))
    elif sampler is tf.random.uniform_candidate_sampler:
        np.testing.assert_allclose(counts, [count / CLASSES] * count, rtol=1e-5)
        np.testing.assert_allclose(true, [[count / CLASSES] * 2] * 2, rtol=1e-5)
    assert compiled() == 1
