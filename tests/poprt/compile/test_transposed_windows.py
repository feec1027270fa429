"""Tests of ConvTranspose beside the standard's formula in numpy: 1 to 3 axes, strides, dilations,
groups, every form of padding, and output padding up to the stride or the dilation."""

import itertools

import numpy as np
import pytest
from model_runtime import ModelRunner, ModelRunnerConfig
from onnx import TensorProto, helper
from poprt import Compiler, Converter
from sample_models import make_model

F = TensorProto.FLOAT
ERRORS = {"fp32": 1e-4, "fp16": 6e-2}


def transpose(x, weight, window, sizes, before):
    """Return the convolution of which each result position is asked for, also beyond the reach."""
    strides, dilations, groups = window["strides"], window["dilations"], window["group"]
    rank, (inputs, each, *kernel) = x.ndim - 2, weight.shape
    reach = [
        (size - 1) * stride + (taps - 1) * step + 1
        for size, stride, taps, step in zip(x.shape[2:], strides, kernel, dilations, strict=True)
    ]
    room = [max(n, first + size) for n, first, size in zip(reach, before, sizes, strict=True)]
    y = np.zeros((x.shape[0], each * groups, *room))
    for place in itertools.product(*map(range, x.shape[2:])):
        for tap in itertools.product(*map(range, kernel)):
            at = tuple(np.multiply(place, strides) + np.multiply(tap, dilations))
            for group in range(groups):
                taken = slice(group * inputs // groups, (group + 1) * inputs // groups)
                made = slice(group * each, (group + 1) * each)
                y[(slice(None), made, *at)] += (
                    x[(slice(None), taken, *place)] @ weight[(taken, slice(None), *tap)]
                )
    shown = [slice(first, first + size) for first, size in zip(before, sizes, strict=True)]
    assert len(shown) == rank
    return y[(slice(None), slice(None), *shown)]


def draw(seed):
    """Return the attributes of a window, an input, weights, and the right result."""
    random = np.random.default_rng(seed)
    rank, groups = int(random.integers(1, 4)), int(random.choice([1, 2]))
    strides, dilations, kernel = (random.integers(1, 4, rank).tolist() for _ in range(3))
    given = random.integers(1, 5 - (rank == 3), rank).tolist()
    more = [
        int(random.integers(max(stride, step)))
        for stride, step in zip(strides, dilations, strict=True)
    ]
    window = {"strides": strides, "dilations": dilations, "group": groups, "output_padding": more}
    each = int(random.integers(1, 3))
    whole = [
        (size - 1) * stride + (taps - 1) * step + 1 + added
        for size, stride, taps, step, added in zip(
            given, strides, kernel, dilations, more, strict=True
        )
    ]
    sizes, before = whole, [0] * rank
    form = ("pads", "none", "VALID", "SAME_UPPER", "SAME_LOWER", "output_shape")[seed % 6]
    if form == "pads":
        before = [int(random.integers(min(size, 5))) for size in whole]
        behind = [
            int(random.integers(min(size - first, 5)))
            for size, first in zip(whole, before, strict=True)
        ]
        window["pads"] = [*before, *behind]
        sizes = [n - a - b for n, a, b in zip(whole, before, behind, strict=True)]
    elif form in ("SAME_UPPER", "SAME_LOWER", "output_shape"):
        same = [size * stride for size, stride in zip(given, strides, strict=True)]
        sizes = [min(n, size) for n, size in zip(whole, same, strict=True)]
        odd = form != "SAME_UPPER"  # the larger half is before
        before = [(n - size + odd) // 2 for n, size in zip(whole, sizes, strict=True)]
        if form == "output_shape" or sizes != same:
            window["output_shape"] = sizes if seed % 4 else [1, each * groups, *sizes]
        if form != "output_shape":
            window["auto_pad"] = form
    elif form == "VALID":
        window["auto_pad"] = form
    x = random.standard_normal((1, 2 * groups, *given)).astype(np.float32)
    weight = random.standard_normal((2 * groups, each, *kernel)).astype(np.float32)
    bias = random.standard_normal(each * groups if seed % 2 else 0).astype(np.float32)
    result = transpose(x.astype(float), weight.astype(float), window, sizes, before)
    if bias.size:
        result += bias.reshape(1, -1, *[1] * rank)
    return window, x, weight, bias, result


def compute(window, x, weight, bias, precision, numerics, opset=17):
    weights = {"w": weight, **({"b": bias} if bias.size else {})}
    node = helper.make_node("ConvTranspose", ["x", *weights], ["y"], **window)
    model = make_model([node], {"x": (F, list(x.shape))}, {"y": (F, None)}, weights, opset)
    converter = Converter(precision=precision, disable_progress_bar=True)
    executable = Compiler.compile(converter.convert(model))
    config = ModelRunnerConfig(timeout_ns=1_000, num_threads=1, numerics=numerics)
    with ModelRunner(executable.getPopefModel(), config) as runner:
        kind = np.float32 if precision == "fp32" else np.float16
        return np.asarray(runner.execute({"x": x.astype(kind)})["y"], np.float64)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(72))
def test_a_transposed_convolution_is_that_of_the_standard(seed):
    window, x, weight, bias, expected = draw(seed)
    ways = [("fp32", "exact"), *([("fp16", "exact"), ("fp16", "fast")] if seed % 3 == 0 else [])]
    for precision, numerics in ways:
        found = compute(window, x, weight, bias, precision, numerics)
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, atol=ERRORS[precision])


ONE = {"group": 1, "strides": [1], "dilations": [3]}


@pytest.mark.slow
@pytest.mark.parametrize("opset", [9, 11, 22])
@pytest.mark.parametrize(
    ("pads", "more"), [([0, 0], 2), ([0, 1], 2), ([0, 2], 2), ([3, 0], 2), ([4, 0], 1), ([4, 0], 2)]
)
def test_output_padding_of_a_stride_and_more_is_shown(pads, more, opset):
    """An input of one element, or nothing but output padding, is left to see."""
    x, weight, bias = np.float32([[[2]]]), np.float32([[[3, 5]]]), np.float32([7])
    window = {**ONE, "pads": pads, "output_padding": [more]}
    expected = np.array([6, 0, 0, 10, *[0] * more])[pads[0] : 4 + more - pads[1]] + 7
    found = compute(window, x, weight, bias, "fp32", "exact", opset)
    np.testing.assert_array_equal(found, expected[None, None])


def test_infinite_weights_do_not_reach_the_output_padding():
    x, weight = np.float32([[[2]]]), np.float32([[[3, np.inf]]])
    window = {**ONE, "output_padding": [2]}
    found = compute(window, x, weight, np.float32([]), "fp32", "exact")
    np.testing.assert_array_equal(found, [[[6, 0, 0, np.inf, 0, 0]]])
