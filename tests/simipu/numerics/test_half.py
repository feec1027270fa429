"""Tests of the conversion of floats to halves, with numpy's as the witness."""

import numpy as np
import pytest
from simipu.numerics import narrow_to_half

HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
BESIDE = np.float32(
    [65519.996, 65520, 1e9, np.finfo(np.float32).max, 2**-25, np.nextafter(np.float32(2**-25), 1)]
)


def bits(halves):
    """Return the codes; those of NaN may differ."""
    return np.where(np.isnan(halves), 0x7FFF, halves.view(np.uint16))


@pytest.mark.parametrize("sign", [1, -1])
def test_every_half_and_its_neighbours_are_converted(sign):
    with np.errstate(over="ignore", invalid="ignore"):
        nexts = np.concatenate([np.nextafter(HALVES, np.float32(end)) for end in (-1e9, 1e9)])
        values = np.float32(sign) * np.concatenate([HALVES, nexts])
        expected = values.astype(np.float16)
        expected[np.isfinite(values)] = expected[np.isfinite(values)].clip(-65504, 65504)
    np.testing.assert_array_equal(bits(narrow_to_half(values)), bits(expected))


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("value", BESIDE)
def test_a_finite_value_beyond_the_range_alone_is_the_largest_half(value, sign):
    values = np.float32(sign) * np.float32([1, value, -1])
    with np.errstate(over="ignore"):
        expected = np.clip(values.astype(np.float16), np.float16(-65504), np.float16(65504))
    np.testing.assert_array_equal(bits(narrow_to_half(values)), bits(expected))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_infinities_and_nan_stay_beside_values_beyond_the_range(value):
    expected = np.float16([value, 65504, -65504])
    np.testing.assert_array_equal(
        bits(narrow_to_half(np.float32([value, 70000, -70000]))), bits(expected)
    )


def test_no_values_are_no_halves():
    assert narrow_to_half(np.zeros((0, 3), np.float32)).shape == (0, 3)
