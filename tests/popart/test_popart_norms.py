"""Norms of popart beside numpy: statistics that runs move, their types, and windows of channels."""

import itertools

import numpy as np
import popart
import pytest
from popart_models import compute

F, H = np.float32, np.float16
R = np.random.default_rng(3)
EPSILON, MOMENTUM = 1e-3, 0.75


def batch_norm(domain, count):
    return lambda b, names: getattr(b, domain).batchnormalization(names, count, EPSILON, MOMENTUM)


def column(values, rank):
    return values.astype(np.float64).reshape(1, -1, *[1] * (rank - 2))


def normalize(x, scale, bias, mean, variance):
    off = (x.astype(np.float64) - column(mean, x.ndim)) / np.sqrt(
        column(variance, x.ndim) + EPSILON
    )
    return off * column(scale, x.ndim) + column(bias, x.ndim)


@pytest.mark.parametrize("domain", ["aiOnnx", "aiGraphcore"])
@pytest.mark.parametrize(("kind", "running"), [(F, F), (H, H), (H, F), (F, H)])
def test_statistics_of_a_batch_move_the_running_ones(domain, kind, running):
    x = R.standard_normal((2, 3, 4)).astype(kind)
    scale, bias = (R.random(3).astype(kind) + kind(0.5) for _ in range(2))
    mean, variance = (R.random(3).astype(running) + running(0.5) for _ in range(2))
    made = compute(batch_norm(domain, 5), [x, scale, bias, mean, variance])
    exact = x.astype(np.float64)
    batch_mean, batch_variance = exact.mean((0, 2)), exact.var((0, 2))
    y = normalize(x, scale, bias, batch_mean, batch_variance)
    if domain == "aiGraphcore":  # PopART derives it from the inverse deviation
        batch_variance = (batch_variance + EPSILON) * 8 / 7 - EPSILON
    moved = [
        MOMENTUM * old.astype(np.float64) + (1 - MOMENTUM) * new
        for old, new in ((mean, batch_mean), (variance, batch_variance))
    ]
    assert [each.dtype for each in made] == [kind, *[running] * 4]
    rtol = 1e-4 if kind == running == F else 5e-3
    for found, expected in zip(made, [y, *moved, batch_mean, batch_variance], strict=True):
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("domain", ["aiOnnx", "aiGraphcore"])
@pytest.mark.parametrize(("kind", "running"), [(H, F), (F, H)])
def test_running_statistics_may_have_another_type_than_the_input(domain, kind, running):
    x = R.standard_normal((2, 3, 4, 5)).astype(kind)
    scale, bias = (R.random(3).astype(kind) + kind(0.5) for _ in range(2))
    mean, variance = (R.random(3).astype(running) + running(0.5) for _ in range(2))
    (y,) = compute(batch_norm(domain, 1), [x, scale, bias, mean, variance])
    assert y.dtype == kind
    np.testing.assert_allclose(y, normalize(x, scale, bias, mean, variance), rtol=5e-3, atol=5e-3)


def test_scale_and_bias_have_the_type_of_the_input():
    parts = [np.ones((1, 2, 3), H), np.ones(2, F), *[np.ones(2, H)] * 3]
    with pytest.raises(popart.popart_exception, match="must have the type of X, FLOAT16"):
        compute(batch_norm("aiOnnx", 1), parts)


def test_one_value_of_a_channel_has_no_unbiased_variance():
    parts = [np.ones((1, 2, 1), F), *[np.ones(2, F)] * 4]
    found = compute(batch_norm("aiGraphcore", 5), parts)
    np.testing.assert_array_equal(found[2], np.full(2, np.inf, F))


@pytest.mark.parametrize(
    ("size", "shape"),
    list(itertools.product([1, 2, 3, 4, 5, 8], [(2, 5, 3, 4), (2, 5), (1, 6, 7), (1, 1, 2, 2)])),
)
@pytest.mark.parametrize("kind", [F, H])
def test_a_norm_of_channels_has_the_rest_of_an_even_window_behind(size, shape, kind):
    x = R.standard_normal(shape).astype(kind)
    alpha, beta, bias = 0.5, 0.6, 1.5
    (found,) = compute(lambda b, names: b.aiOnnx.lrn(names, size, alpha, beta, bias), [x])
    exact = x.astype(np.float64)
    scale = np.empty_like(exact)
    for channel in range(shape[1]):
        start = max(0, channel - (size - 1) // 2)
        window = exact[:, start : channel + size // 2 + 1]
        scale[:, channel] = bias + alpha / size * (window**2).sum(1)
    rtol = 1e-5 if kind == F else 4e-3
    np.testing.assert_allclose(found, exact / scale**beta, rtol=rtol, atol=rtol)
