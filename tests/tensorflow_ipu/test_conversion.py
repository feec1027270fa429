"""Conversion of TensorFlow's operators, beside TensorFlow's own results."""

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
pytestmark = pytest.mark.tensorflow

from tensorflow_cases import FAMILIES, normal  # noqa: E402

TOLERANCES = {np.dtype(np.float16): 2e-2, np.dtype(np.float32): 3e-5}


def run_on_ipu(function, inputs):
    """Return what the simulated IPU computes, as arrays; at least one program must be compiled."""
    from tensorflow_ipu.execution import counters
    from tensorflow_ipu.launching import run_function

    before = counters.compiled
    results = run_function(
        lambda *tensors: [tf.convert_to_tensor(x) for x in tf.nest.flatten(function(*tensors))],
        [tf.constant(value) for value in inputs],
    )
    assert counters.compiled > before
    return [result.numpy() for result in results]


def find_difference(function, inputs):
    """Return how the results differ from TensorFlow's, or an empty text."""
    expected = [
        tf.convert_to_tensor(value).numpy()
        for value in tf.nest.flatten(function(*map(tf.constant, inputs)))
    ]
    try:
        results = run_on_ipu(function, inputs)
    except Exception as error:  # noqa: BLE001 - of any kind: the case is named
        return f"{type(error).__name__}: {error}"
    for result, value in zip(results, expected, strict=True):
        if (result.dtype, result.shape) != (value.dtype, value.shape):
            return f"{result.dtype}{result.shape} instead of {value.dtype}{value.shape}"
        tolerance = TOLERANCES.get(value.dtype, 0)
        wide = np.asarray(result, np.float64), np.asarray(value, np.float64)
        if not np.allclose(*wide, rtol=tolerance, atol=tolerance, equal_nan=True):
            return f"differs by {np.nanmax(np.abs(wide[0] - wide[1]))}"
    return ""


@pytest.mark.parametrize("family", FAMILIES)
def test_operators_compute_what_tensorflow_computes(family):
    cases = {name: (function, inputs) for name, function, inputs in FAMILIES[family]()}
    assert len(cases) > 2
    different = {name: text for name, case in cases.items() if (text := find_difference(*case))}
    assert not different


def test_an_operator_that_nothing_converts_is_named():
    from tensorflow_ipu.errors import IpuError

    with pytest.raises(IpuError, match="PopulationCount"):
        run_on_ipu(lambda x: tf.raw_ops.PopulationCount(x=x), [np.arange(4, dtype=np.int32)])


@pytest.mark.parametrize(
    ("draw", "mean", "deviation"),
    [
        (lambda: tf.random.uniform([4000], -1, 3), 1, 4 / 12**0.5),
        (lambda: tf.random.normal([4000], 2, 0.5), 2, 0.5),
        (lambda: tf.random.truncated_normal([4000]), 0, 0.88),
        (lambda: tf.random.uniform([4000], 3, 9, tf.int32), 5.5, (35 / 12) ** 0.5),
        (lambda: tf.random.stateless_uniform([4000], [1, 2]), 0.5, 12**-0.5),
        (lambda: tf.random.stateless_normal([4000], [3, 4]), 0, 1),
        (lambda: tf.random.stateless_truncated_normal([4000], [5, 6]), 0, 0.88),
        (lambda: tf.random.stateless_uniform([4000], [7, 8], 3, 9, tf.int32), 5.5, 1.708),
    ],
)
def test_random_numbers_have_their_distribution(draw, mean, deviation):
    (numbers,) = run_on_ipu(lambda x: tf.cast(draw(), tf.float32) + x, [np.float32(0)])
    assert len(np.unique(numbers)) > 5
    assert numbers.mean() == pytest.approx(mean, abs=0.12 * max(deviation, 1))
    assert numbers.std() == pytest.approx(deviation, rel=0.08)


def test_a_seed_decides_stateless_numbers_and_each_pair_has_its_own():
    def draw(seed):
        return [
            tf.random.stateless_uniform([64], seed),
            tf.random.stateless_uniform([64], seed + 1),
        ]

    first, other = run_on_ipu(draw, [np.array([1, 2], np.int32)])
    again, _ = run_on_ipu(draw, [np.array([1, 2], np.int32)])
    assert (first == again).all()
    assert (first != other).mean() > 0.9


def test_random_shuffle_and_samples_keep_what_they_are_given():
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    (shuffled,) = run_on_ipu(tf.random.shuffle, [rows])
    assert sorted(map(tuple, shuffled)) == sorted(map(tuple, rows))
    logits = np.log(np.array([[0.2, 0.8]], np.float32))
    (samples,) = run_on_ipu(lambda x: tf.random.categorical(x, 2000), [logits])
    assert samples.mean() == pytest.approx(0.8, abs=0.05)


def test_dropout_of_tensorflow_drops_and_scales():
    (result,) = run_on_ipu(lambda x: tf.nn.dropout(x, 0.25), [np.ones(4000, np.float32)])
    assert set(np.unique(result.round(5))) == {0, np.float32(4 / 3).round(5)}
    assert (result > 0).mean() == pytest.approx(0.75, abs=0.05)


def test_a_loop_that_reads_and_writes_lists_has_their_shape_from_the_writes():
    def double(x):
        return tf.map_fn(lambda y: y * 2, x)

    rows = normal(5, 2)
    assert np.allclose(run_on_ipu(double, [rows])[0], rows * 2)


@pytest.mark.parametrize("unique", [True, False])
def test_sampled_candidates_are_as_frequent_as_expected(unique):
    def sample(x):
        sampled, true, expected = tf.random.log_uniform_candidate_sampler(
            true_classes=[[0, 3]], num_true=2, num_sampled=6, unique=unique, range_max=12
        )
        return [tf.cast(sampled, tf.float32) + x, true, expected]

    sampled, true, expected = run_on_ipu(sample, [np.float32(0)])
    numbers = sampled.astype(int)
    assert ((numbers >= 0) & (numbers < 12)).all()
    if unique:
        assert len(set(numbers)) == 6
        assert ((expected > 0) & (expected <= 1)).all()
        assert true[0, 0] > true[0, 1]
    else:
        share = np.log((numbers + 2) / (numbers + 1)) / np.log(13)
        np.testing.assert_allclose(expected, 6 * share, rtol=1e-5)
