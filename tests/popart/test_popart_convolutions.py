"""Convolutions of popart beside sums written out: several at once, and transposed ones."""

import itertools

import numpy as np
import popart
import pytest
from popart_methods.by_hand import convolve, crop, spread
from popart_models import compute

F = np.float32
R = np.random.default_rng(5)


GROUPS = {
    "no bias": [((1, 2, 5, 5), (3, 2, 3, 3), False)] * 2,
    "the first has a bias": [
        ((1, 2, 5, 5), (3, 2, 3, 3), True),
        ((1, 2, 6, 4), (2, 2, 1, 2), False),
    ],
    "the last has a bias": [((1, 4, 6), (2, 2, 3), False), ((1, 2, 6), (3, 2, 2), True)],
    "ranks differ": [((1, 1, 7), (1, 1, 3), False), ((2, 1, 4, 4), (2, 1, 2, 2), False)],
    "a single one": [((1, 2, 5), (4, 1, 2), False)],
}


@pytest.mark.parametrize("case", GROUPS)
@pytest.mark.parametrize("window", [False, True])
def test_convolutions_of_a_multiconv_have_inputs_and_windows_of_their_own(case, window):
    arrays, groups, counts = [], [], []
    for shape, kernel, has_bias in GROUPS[case]:
        sizes = [shape, kernel, *[(kernel[0],)] * has_bias]
        counts.append(len(sizes))
        arrays += [R.standard_normal(each).astype(F) for each in sizes]
    ranks = [len(shape) - 2 for shape, _, _ in GROUPS[case]]
    strides = [[1 + i % 2] * n for i, n in enumerate(ranks)]
    dilations = [[1 + (i + 1) % 2] * n for i, n in enumerate(ranks)]
    pads = [[i % 2, *[1] * (2 * n - 1)] for i, n in enumerate(ranks)]
    more = {"strides": strides, "dilations": dilations, "pads": pads} if window else {}

    def make(builder, names):
        left = iter(names)
        groups[:] = [list(itertools.islice(left, count)) for count in counts]
        return builder.aiGraphcore.multiconv(groups, **more)

    found = compute(make, arrays)
    left = iter(arrays)
    for index, (made, count) in enumerate(zip(found, counts, strict=True)):
        x, weights, *bias = itertools.islice(left, count)
        n = ranks[index]
        chosen = (strides[index], pads[index], dilations[index])
        expected = convolve(
            x,
            weights,
            next(iter(bias), None),
            *(chosen if window else ([1] * n, [0] * 2 * n, [1] * n)),
        )
        np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)


WRONG_WINDOWS = {
    "strides": ([[1]], r"^Length of strides vector 1 != number of spatial dimensions 2$"),
    "dilations": ([[1, 1, 1]], r"^Length of dilations vector 3 != number of spatial"),
    "inDilations": ([[1]], r"^Length of inDilations vector 1 != number of spatial"),
    "pads": ([[0, 0, 0]], r"^Padding vector \(length 3\) does not have 2 values for each"),
    "sets": ([[1, 1]] * 2, r"number of strides parameter sets \(2\) does not match the number"),
}


@pytest.mark.parametrize("name", WRONG_WINDOWS)
def test_the_builder_counts_the_numbers_of_a_multiconv(name):
    values, text = WRONG_WINDOWS[name]
    given = {"strides" if name == "sets" else name: values}
    arrays = [np.zeros((1, 2, 5, 5), F), np.zeros((3, 2, 3, 3), F)]
    with pytest.raises(popart.popart_exception, match=text):
        compute(lambda b, names: b.aiGraphcore.multiconv([names], **given), arrays)


def test_a_kernel_that_is_larger_than_the_input_of_a_multiconv_is_refused():
    arrays = [np.zeros((1, 2, 2, 2), F), np.zeros((3, 2, 6, 6), F)]
    with pytest.raises(popart.popart_exception, match="invalid spatial output shape"):
        compute(lambda b, names: b.aiGraphcore.multiconv([names]), arrays)


SIZES = sorted(itertools.product([2, 3], [1, 2, 3], [1, 2, 3], range(-2, 4)))


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("axes", [1, 2])
def test_output_shape_cuts_the_larger_half_off_behind(axes, whole):
    for size, kernel, stride, total in SIZES[:: 3 if axes == 2 else 1]:
        reached = stride * (size - 1) + kernel
        if reached - total < 1:
            continue
        x = R.standard_normal((1, 2, *[size] * axes)).astype(F)
        weights = R.standard_normal((2, 3, *[kernel] * axes)).astype(F)
        shape = [reached - total] * axes
        given = [1, 3, *shape] if whole else shape

        def make(b, names, stride=stride, given=given):
            return b.aiOnnx.convtranspose(names, strides=[stride] * axes, output_shape=given)

        (found,) = compute(make, [x, weights])
        half = total // 2
        expected = crop(spread(x, weights, [stride] * axes), [half] * axes, [total - half] * axes)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("bias", [False, True])
def test_pads_and_output_padding_cut_and_add(bias):
    for pads, more, stride in itertools.product(
        [[0, 0], [1, 0], [0, 1], [2, 1], [-1, 0]], [0, 1, 2, 4], [1, 2, 3]
    ):
        x = R.standard_normal((2, 2, 4)).astype(F)
        weights = R.standard_normal((2, 3, 3)).astype(F)
        values = R.standard_normal(3).astype(F)

        def make(b, names, pads=pads, more=more, stride=stride):
            return b.aiOnnx.convtranspose(names, strides=[stride], pads=pads, output_padding=[more])

        (found,) = compute(make, [x, weights, *[values] * bias])
        expected = crop(spread(x, weights, [stride]), pads[:1], [pads[1] - more])
        if bias:
            expected = expected + values[:, None]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_an_output_shape_of_another_batch_is_refused():
    arrays = [np.zeros((1, 2, 4), F), np.zeros((2, 3, 3), F)]
    with pytest.raises(popart.popart_exception, match=r"output_shape \[2 3 6\] has neither"):
        compute(lambda b, names: b.aiOnnx.convtranspose(names, output_shape=[2, 3, 6]), arrays)
