"""Tests of convolutions whose channels are in blocks: the same bits as of plain channels. The
reference is the same kernel's plain layout, which test_fuzz.py and test_operators.py compare with
other implementations."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from kernel_nodes import ADD, CONV, KEPT, MULTIPLY, ROUNDED, TABLE, halves, run, wide
from simipu.engines.computed import ORT_ERRORS
from simipu.kernels import find_kernels

pytestmark = pytest.mark.skipif(not find_kernels().are_there, reason=find_kernels().reason)
MAXIMUM = 7


def in_blocks(plain):
    """Return [n, channels, ...] as [n, channels / 16, ..., 16]."""
    rows, channels, *sizes = plain.shape
    parts = plain.reshape(rows, channels // 16, 16, *sizes)
    return np.ascontiguousarray(np.moveaxis(parts, 2, -1))


def check_layouts(field, filters, operands=(), steps=(), **attributes):
    """Compare all layouts of the field and the result that have whole blocks. An operand of as many
    axes as the field lies as the result does."""
    expected = run("Conv", [field, filters, *operands], steps, **attributes)
    for source, result in itertools.product([0, 1], repeat=2):
        if (source and field.shape[1] % 16) or (result and filters.shape[0] % 16):
            continue
        layout = {"blocked_source": source, "blocked_result": result}
        placed = [
            in_blocks(each) if result and each.shape[1:] == expected.shape[1:] else each
            for each in operands
        ]
        feeds = [in_blocks(field) if source else field, filters, *placed]
        found = run("Conv", feeds, steps, **attributes, **layout)
        np.testing.assert_array_equal(found, in_blocks(expected) if result else expected)
    return expected


@pytest.mark.parametrize(
    ("channels", "outputs", "sizes", "kernel"),
    [
        (16, 32, (14, 14), (1, 1)),
        (32, 48, (7, 7), (3, 3)),
        (3, 16, (11, 9), (3, 3)),
        (64, 5, (6, 5), (3, 2)),
        (32, 272, (12, 12), (1, 1)),
        (16, 16, (20, 19), (12, 12)),
        (48, 16, (9,), (3,)),
        (16, 16, (5, 4, 6), (2, 1, 3)),
    ],
)
@pytest.mark.parametrize(("stride", "dilation", "pad"), [(1, 1, 0), (2, 1, 1), (1, 2, 2)])
def test_convolutions_are_the_same_in_every_layout(
    channels, outputs, sizes, kernel, stride, dilation, pad
):
    axes = len(sizes)
    field, filters = wide(2, channels, *sizes), halves(outputs, channels, *kernel, seed=1)
    pads = {"pads": [pad] * axes + [pad + 1] * axes} if pad else {"pads": [0] * 2 * axes}
    reach = [1 + (size - 1) * dilation for size in kernel]
    if any(size + 2 * pad < each for size, each in zip(sizes, reach, strict=True)):
        dilation = 1
    check_layouts(
        field, filters, **pads, strides=[stride] * axes, dilations=[dilation] * axes, threads=2
    )


@pytest.mark.parametrize("kernel", [3, 5, 7])
@pytest.mark.parametrize(("stride", "pad"), [(1, 0), (1, 2), (2, 1), (3, 3)])
def test_depthwise_convolutions_are_the_same_in_every_layout(kernel, stride, pad):
    field, filters = wide(2, 48, 13, 11), halves(48, 1, kernel, kernel, seed=1)
    geometry = {"pads": [pad] * 4, "strides": [stride] * 2}
    check_layouts(field, filters, group=48, slic_taps=4, **geometry)


@pytest.mark.parametrize(
    ("sizes", "depth"), [((97, 31), 1), ((40, 7), 1), ((2, 41, 9), 1), ((2, 41, 9), 2)]
)
@pytest.mark.parametrize("channels", [16, 48])
@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "pad"),
    [(3, 1, 1, 1), (5, 1, 1, 2), (3, 2, 1, 0), (3, 1, 3, 1), (2, 3, 1, 1)],
)
def test_rows_of_few_channels_are_divided_among_threads(
    sizes, depth, channels, kernel, stride, dilation, pad
):
    axes = len(sizes)
    kernels = [depth] * (axes - 2) + [kernel] * 2
    pads = ([0] * (axes - 2) + [pad] * 2) * 2
    field, filters = wide(1, channels, *sizes), halves(channels, 1, *kernels, seed=1)
    dilations = [1] * (axes - 2) + [dilation] * 2
    geometry = {"pads": pads, "strides": [stride] * axes, "dilations": dilations}
    one, two = (
        check_layouts(field, filters, group=channels, slic_taps=2, **geometry, threads=threads)
        for threads in (1, 2)
    )
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("groups", [1, 32])
@pytest.mark.parametrize("size", [5, 19])
def test_operands_of_steps_are_those_of_their_channels_and_positions(groups, size):
    field, filters = wide(3, 32, size, size), halves(32, 32 // groups, 3, 3, seed=1)
    table = np.linspace(-4, 4, 1 << 16).astype(np.float16)
    operands = [
        halves(32, 1, 1, seed=2),
        wide(3, 32, size, size, seed=3),
        wide(3, 32, 1, 1, seed=4),
        wide(1, 1, 1, seed=5),
        table,
        halves(1, 32, size, size, seed=6),
    ]
    steps = [
        *((ADD, ROUNDED, 0), (ADD, ROUNDED, 1), (MULTIPLY, ROUNDED, 2), (MULTIPLY, ROUNDED, 3)),
        *((TABLE, KEPT, 4), (ADD, ROUNDED, 5), (MAXIMUM, KEPT, -1, 0.25)),
    ]
    check_layouts(field, filters, operands, steps, group=groups, pads=[1] * 4)


@pytest.mark.parametrize("groups", [1, 32])
@pytest.mark.parametrize("nan_on_overflow", [0, 1])
def test_values_that_are_too_large_are_so_in_every_layout(groups, nan_on_overflow):
    field, filters = wide(1, 32, 9, 9), halves(32, 32 // groups, 3, 3, seed=1)
    field[0, :, 4, 4] = 60000
    field[0, 7, 0, 0] = np.inf
    found = check_layouts(
        field, filters, group=groups, nan_on_overflow=nan_on_overflow, pads=[1] * 4
    )
    assert (np.abs(found) == 65504).any() != bool(nan_on_overflow)
    feeds, raising = [in_blocks(field), filters], {"raises": 1, "pads": [1] * 4}
    with pytest.raises(ORT_ERRORS, match="floating-point exception"):
        run("Conv", feeds, group=groups, blocked_source=1, blocked_result=1, **raising)


@pytest.mark.parametrize("channels", [16, 64])
@pytest.mark.parametrize("element_format", [1, 2])
def test_filters_of_8_bits_are_the_same_in_every_layout(channels, element_format):
    codes = np.random.default_rng(0).integers(0, 0x70, (32, channels, 3, 3)).astype(np.uint8)
    geometry = {"pads": [1] * 4, "packed_rows": 2 if channels == 16 else 1, "block": 32}
    check_layouts(wide(2, channels, 6, 6), codes, **geometry, filters_format=element_format)


FIELD, FILTERS = wide(1, 2, 4, 4, 16), halves(32, 32, 1, 1)
BOTH = {"blocked_source": 1, "blocked_result": 1}


@pytest.mark.parametrize(
    ("feeds", "attributes", "message"),
    [
        (
            [wide(1, 32, 4, 4), FILTERS],
            BOTH,
            "input 0: expected 5 axes, .* of 16 channels, found 4",
        ),
        (
            [wide(1, 4, 4, 4, 8), FILTERS],
            BOTH,
            "input 0: expected 5 axes, the last of a block of 16",
        ),
        ([FIELD.astype(np.float16), FILTERS], BOTH, "input 0: expected floats"),
        ([FIELD, halves(24, 32, 1, 1)], BOTH, "expected a multiple of 16 channels in one group"),
        ([FIELD, halves(32, 16, 1, 1)], BOTH | {"group": 2}, "found 2 groups of 16 channels"),
        (
            [FIELD, halves(64, 1, 1, 1)],
            BOTH | {"group": 32},
            "32 groups of 1 channels and 2 filters",
        ),
        ([FIELD, FILTERS, wide(1, 32, 4, 4)], BOTH, "operand 0 of the steps: .* found neither"),
        ([FIELD, FILTERS, wide(4, 4)], BOTH, "operand 0 of the steps: .* found neither"),
        ([FIELD, FILTERS, wide(1, 2, 4, 4, 8)], BOTH, "input 2: expected 5 axes"),
        (
            [FIELD, FILTERS, FIELD],
            {"blocked_source": 1},
            "operand 0 of the steps: expected batches",
        ),
        ([FIELD, FILTERS], BOTH | {"pads": [1 << 15] * 4}, "less than 2.*31 elements of a batch"),
        ([FIELD, FILTERS], {"blocked_result": 2}, "attribute 'blocked_result': expected 0 to 1"),
    ],
)
def test_layouts_that_do_not_fit_are_refused(feeds, attributes, message):
    steps = [(ADD, KEPT, 0)] if len(feeds) > 2 else ()
    with pytest.raises(ORT_ERRORS, match=message):
        run("Conv", feeds, steps, **(CONV | attributes))


def test_fields_without_rows_or_of_one_position_have_the_shape_of_their_layout():
    empty = run("Conv", [FIELD[:0], FILTERS], **BOTH)
    assert empty.shape == (0, 2, 4, 4, 16)
    found = check_layouts(wide(3, 32, 1, 1), FILTERS, [halves(32, 1, 1)], [(ADD, ROUNDED, 0)])
    assert found.any()
