"""Tests of the kernels as operators of ONNX Runtime: the shapes, types and attributes that they
accept or reject. test_fuzz.py compares their results with plain loops."""

from __future__ import annotations

import math
import random

import numpy as np
import onnxruntime
import pytest
from half_emulation import convolve, multiply, to_half
from kernel_nodes import (
    ADD,
    CONV,
    DEFAULTS,
    F143_STEP,
    KEPT,
    MULTIPLY,
    NONE,
    ROUNDED,
    TABLE,
    TYPES,
    USED,
    halves,
    make_model,
    make_session,
    run,
    wide,
)
from onnx import TensorProto, helper
from simipu import GraphOptions, RunError
from simipu.engines import computed
from simipu.engines.computed import ORT_ERRORS
from simipu.kernels import find_kernels
from simipu.numerics.quarter import F143, decode

pytestmark = pytest.mark.skipif(not find_kernels().are_there, reason=find_kernels().reason)
ORT = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((5, 40), (40, 7)),
        ((2, 3, 5, 40), (40, 7)),
        ((2, 1, 5, 40), (3, 40, 7)),
        ((3, 5, 40), (2, 1, 40, 7)),
        ((5, 40), (2, 3, 40, 7)),
        ((70, 2, 1, 40), (70, 1, 40, 2)),
        ((4, 1, 40), (1, 1, 40, 7)),
    ],
)
@pytest.mark.parametrize("turned", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_leading_axes_of_products_broadcast(left, right, turned):
    left, right = wide(*left), halves(*right, seed=1)
    sides = [
        side.swapaxes(-1, -2) if turn else side
        for side, turn in zip((left, right), turned, strict=True)
    ]
    found = run(
        "Product",
        [np.ascontiguousarray(side) for side in sides],
        trans_left=turned[0],
        trans_right=turned[1],
        threads=2,
    )
    np.testing.assert_array_equal(found, multiply(left, right, 16))


@pytest.mark.parametrize(
    "shape",
    [
        (),
        (1,),
        (7,),
        (5, 7),
        (5, 1),
        (3, 5, 7),
        (3, 1, 7),
        (2, 3, 5, 7),
        (2, 3, 1, 1),
        (2, 3, 1, 7),
        (1, 1, 1, 7),
    ],
)
@pytest.mark.parametrize("shared", [True, False], ids=["joined", "apart"])
def test_operands_of_steps_lie_in_batches_rows_and_columns(shape, shared):
    left, right = wide(2, 3, 5, 20), halves(*([] if shared else [2, 3]), 20, 7, seed=1)
    if len(shape) == 3 and shape[0] == 3:
        left, right = left[0], right if shared else right[0]
    operand = halves(*shape, seed=2)
    found = run("Product", [left, right, operand], [(ADD, ROUNDED, 0)])
    exact = multiply(left, right, 16).astype(np.float32) + operand.astype(np.float32)
    np.testing.assert_array_equal(found, to_half(exact))


def test_one_row_in_many_batches_is_many_rows():
    left, right, operand = wide(9, 1, 20), halves(20, 7, seed=1), wide(9, 1, 7, seed=2)
    found = run("Product", [left, right, operand], [(ADD, ROUNDED, 0)])
    np.testing.assert_array_equal(
        found, to_half(multiply(left, right, 16).astype(np.float32) + operand)
    )


def test_codes_of_8_bits_are_values_at_their_scale():
    codes = np.arange(256, dtype=np.uint8).reshape(8, 32)
    codes[codes == 0x80] = 0
    left = wide(3, 8)
    found = run("Product", [left, codes], right_format=1, right_scale=-2, block=32)
    np.testing.assert_array_equal(found, multiply(left, decode(codes, F143, -2), 32))


def test_tables_are_looked_up_by_the_bits_of_a_half():
    values = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    with np.errstate(all="ignore"):
        table = values * np.float16(2)
    source = wide(3, 5)
    found = run("Chain", [source, table, halves(5)], [(TABLE, KEPT, 0), (ADD, ROUNDED, 1)])
    np.testing.assert_array_equal(found, to_half(to_half(source * 2).astype(np.float32) + wide(5)))


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions_have_up_to_three_axes(axes, groups):
    field, filters = (
        wide(2, 6, *[9, 7, 5][:axes]),
        halves(4, 6 // groups, *[3, 2, 1][:axes], seed=1),
    )
    pads = [1, 0, 2, 0, 1, 1][: 2 * axes]
    slic = {"slic_taps": 4} if groups > 1 else {"packed_rows": 2}
    geometry = {"strides": [2, 1, 1][:axes], "dilations": [1, 2, 1][:axes]}
    bias = halves(4, *[1] * axes, seed=2)
    found = run(
        "Conv",
        [field, filters, bias],
        [(ADD, ROUNDED, 0)],
        group=groups,
        pads=pads,
        **geometry,
        **slic,
    )
    total = convolve(
        field, filters, 16, before=pads[:axes], after=pads[axes:], groups=groups, **geometry
    )
    np.testing.assert_array_equal(
        found, to_half(total.astype(np.float32) + bias.astype(np.float32))
    )


@pytest.mark.parametrize(
    ("source", "operand"),
    [
        ((), ()),
        ((4,), ()),
        ((), (4,)),
        ((1, 4), (3, 1)),
        ((2, 3, 4), (3, 1)),
        ((3, 1), (2, 3, 4)),
        ((2, 1, 3, 1, 2, 1), (1, 2, 1, 3, 1, 2)),
        ((2,) * 12, (2,) * 12),
        ((5000,), (1,)),
    ],
)
@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_shapes_of_chains_broadcast(source, operand, kind):
    source, operand = halves(*source).astype(kind), halves(*operand, seed=1)
    found = run(
        "Chain", [source, operand], [(MULTIPLY, ROUNDED, 0), (ADD, ROUNDED, -1, 3.0)], threads=2
    )
    first = to_half(source.astype(np.float32) * operand.astype(np.float32)).astype(np.float32)
    np.testing.assert_array_equal(found, to_half(first + 3))
    assert found.shape == np.broadcast_shapes(source.shape, operand.shape)


@pytest.mark.parametrize(
    ("op_type", "feeds", "attributes", "shape"),
    [
        ("Product", [wide(0, 4), halves(4, 3)], {}, (0, 3)),
        ("Product", [wide(2, 0), halves(0, 3)], {}, (2, 3)),
        ("Product", [wide(0, 2, 4), halves(4, 3)], {}, (0, 2, 3)),
        ("Product", [wide(2, 4), halves(4, 0)], {}, (2, 0)),
        ("Conv", [wide(0, 2, 4, 4), halves(3, 2, 3, 3)], {}, (0, 3, 2, 2)),
        ("Conv", [wide(1, 2, 4, 4), halves(0, 2, 3, 3)], {}, (1, 0, 2, 2)),
        ("Conv", [wide(1, 0, 4, 4), halves(3, 0, 3, 3)], {}, (1, 3, 2, 2)),
        ("Conv", [wide(1, 2, 0, 4), halves(3, 2, 1, 1)], {"pads": [1, 0, 1, 0]}, (1, 3, 2, 4)),
        (
            "Conv",
            [wide(1, 0, 1 << 28, 4), halves(3, 0, 1 << 28, 3)],
            {"slic_taps": 4},
            (1, 3, 1, 2),
        ),
        ("Chain", [wide(2, 0)], {}, (2, 0)),
    ],
)
def test_empty_inputs_give_empty_results_or_zeros(op_type, feeds, attributes, shape):
    np.testing.assert_array_equal(run(op_type, feeds, **attributes), np.zeros(shape, np.float32))


def test_a_chain_that_writes_over_its_source_gives_the_same():
    """Several chains follow each other; no other node reads the values between them."""
    source = wide(300, 50)
    once = run("Chain", [source], [(MULTIPLY, ROUNDED, -1, 1.5)])
    np.testing.assert_array_equal(once, to_half(source * np.float32(1.5)))
    np.testing.assert_array_equal(source, wide(300, 50))


LEFT, RIGHT, FIELD, FILTERS = wide(5, 8), halves(8, 3), wide(1, 4, 6, 6), halves(2, 4, 3, 3)
HUGE = 1 << 62


@pytest.mark.parametrize(
    ("op_type", "inputs", "steps", "attributes", "message"),
    [
        ("Product", 2, [], {"block": None}, "attribute 'block': expected an integer, found none"),
        ("Product", 2, [], {"block": 2.5}, "attribute 'block': expected an integer, found none"),
        ("Product", 2, [], {"block": 129}, "attribute 'block': expected 0 to 128, found 129"),
        ("Product", 2, [], {"block": -1}, "attribute 'block': expected 0 to 128, found -1"),
        ("Product", 2, [], {"right_scale": 101}, "'right_scale': expected -100 to 100, found 101"),
        ("Product", 2, [], {"trans_left": HUGE}, "'trans_left': expected 0 to 1, found"),
        ("Product", 67, [], {}, "expected 2 to 66 inputs, found 67"),
        (
            "Product",
            2,
            [(ADD, KEPT, 0)],
            {},
            "step 0 of kind 1: expected one of 0 operands, found 0",
        ),
        (
            "Product",
            3,
            [(ADD, KEPT, 1)],
            {},
            "step 0 of kind 1: expected one of 1 operands, found 1",
        ),
        ("Product", 3, [(ADD, KEPT, -2)], {}, "expected one of 1 operands, found -2"),
        (
            "Product",
            3,
            [(TABLE, KEPT, -1)],
            {},
            "step 0 of kind 9: expected one of 1 operands, found -1",
        ),
        ("Product", 2, [(12, KEPT, -1)], {}, "step 0: expected a kind up to 11"),
        ("Product", 2, [(NONE, 4, -1)], {}, "a rounding up to 3, found 0 and 4"),
        (
            "Product",
            2,
            [(NONE, KEPT, -1), (F143_STEP, KEPT, -1, 3.0)],
            {},
            r"step 1: expected a power of two",
        ),
        ("Product", 2, [(F143_STEP, KEPT, -1, np.nan)], {}, "step 0: expected a power of two"),
        (
            "Product",
            2,
            [(NONE, KEPT)],
            {},
            "three integers and a float for each step, found 2 and 1",
        ),
        (
            "Product",
            2,
            [(NONE, KEPT, -1)] * 65,
            {},
            "attribute 'steps': expected at most 192 integers, found 195",
        ),
        ("Conv", 2, [], {"group": 0}, "attribute 'group': expected 1 to"),
        (
            "Conv",
            2,
            [],
            {"strides": [1] * 4},
            "attribute 'strides': expected at most 3 integers, found 4",
        ),
        (
            "Conv",
            2,
            [],
            {"strides": None},
            "1 to 3 integers, as many, and twice as many, found 0, 2 and 4",
        ),
        ("Conv", 2, [], {"pads": [0, 0]}, "found 2, 2 and 2"),
        ("Conv", 2, [], {"strides": [1, 0]}, "expected 1, 1 and 0 or more"),
        ("Conv", 2, [], {"pads": [0, 0, 0, -1]}, "expected 1, 1 and 0 or more"),
        ("Conv", 2, [], {"dilations": [HUGE, 1]}, r"less than 2\*\*31, found"),
        ("Conv", 2, [], {"packed_rows": 5}, "attribute 'packed_rows': expected 1 to 4, found 5"),
        (
            "Conv",
            2,
            [],
            {"packed_rows": 2, "group": 2},
            "attribute 'packed_rows': expected 1 where there are groups",
        ),
        (
            "Conv",
            2,
            [],
            {"slic_taps": 1, "block": 0},
            "attribute 'slic_taps': expected 0 where there is no block, found 1",
        ),
        (
            "Chain",
            1,
            [],
            {"nan_on_overflow": 2},
            "attribute 'nan_on_overflow': expected 0 to 1, found 2",
        ),
    ],
)
def test_refused_when_it_is_made(op_type, inputs, steps, attributes, message):
    feeds = {"Product": [LEFT, RIGHT], "Conv": [FIELD, FILTERS], "Chain": [LEFT]}[op_type]
    feeds = feeds + [wide(1)] * (inputs - len(feeds))
    with pytest.raises(ORT_ERRORS, match=message) as caught:
        make_session(op_type, feeds, steps, **attributes)
    assert f"simipu.{op_type} it: " in str(caught.value)


CODES = np.zeros((8, 3), np.uint8)
ADDED = [(ADD, KEPT, 0)]


@pytest.mark.parametrize(
    ("op_type", "feeds", "steps", "attributes", "message"),
    [
        (
            "Product",
            [wide(8), RIGHT],
            [],
            {},
            "inputs 0 and 1: expected two or more axes, found 1 and 2",
        ),
        (
            "Product",
            [wide(5, 9), RIGHT],
            [],
            {},
            "expected as many channels in both, found 9 and 8",
        ),
        (
            "Product",
            [wide(2, 5, 8), halves(3, 8, 3)],
            [],
            {},
            "leading axes that broadcast, found sizes 2 and 3",
        ),
        ("Product", [LEFT, CODES], [], {}, "input 1: expected floats or halves, found ONNX type 2"),
        (
            "Product",
            [LEFT, RIGHT],
            [],
            {"right_format": 1},
            r"input 1: expected 8-bit codes \(UINT8\), found",
        ),
        (
            "Product",
            [LEFT, RIGHT, wide(2, 3)],
            ADDED,
            {},
            r"operand 0 of the steps: expected .* found \[2, 3\]",
        ),
        (
            "Product",
            [LEFT, RIGHT, wide(2, 5, 3)],
            ADDED,
            {},
            r"operand 0 of the steps: expected .*\[2, 5, 3\]",
        ),
        (
            "Product",
            [LEFT, RIGHT, CODES],
            ADDED,
            {},
            "operand 0 of the steps: expected floats or halves",
        ),
        (
            "Product",
            [LEFT, RIGHT, halves(100)],
            [(TABLE, KEPT, 0)],
            {},
            r"a table of 65536 halves, found \[100\]",
        ),
        (
            "Product",
            [LEFT, RIGHT, wide(1 << 16)],
            [(TABLE, KEPT, 0)],
            {},
            "a table of 65536 halves",
        ),
        (
            "Product",
            [LEFT, RIGHT, None],
            ADDED,
            {},
            "input 2: expected a tensor, found none|absent",
        ),
        (
            "Product",
            [wide(*[1] * 16, 5, 8), RIGHT],
            [],
            {},
            "input 0: expected at most 16 axes, found 18",
        ),
        (
            "Conv",
            [wide(4, 6, 6), FILTERS],
            [],
            {},
            "inputs 0 and 1: expected 4 axes, found 3 and 4",
        ),
        ("Conv", [FIELD, halves(2, 3, 3, 3)], [], {}, "found 4 channels and 2 filters of 3"),
        ("Conv", [FIELD, halves(3, 2, 3, 3)], [], {"group": 2}, "channels and filters of 2 groups"),
        ("Conv", [FIELD, halves(2, 4, 3, 0)], [], {}, "axis 3: expected sizes below"),
        (
            "Conv",
            [FIELD, halves(2, 4, 7, 3)],
            [],
            {},
            "axis 2: expected a field of at least 7, with its padding, found 6",
        ),
        (
            "Conv",
            [FIELD, FILTERS],
            [],
            {"dilations": [1, 2**31 - 1]},
            "axis 3: expected a field of at least 4294967295",
        ),
        (
            "Conv",
            [wide(1, 5, 6, 6), halves(2, 5, 3, 3)],
            [],
            {"packed_rows": 4},
            "a block of 16 has room for, found 5",
        ),
        (
            "Conv",
            [wide(1, 600, 6, 6), halves(2, 300, 3, 3)],
            [],
            {"slic_taps": 1, "group": 2},
            "a block of 16 has room for, found 300",
        ),
        (
            "Conv",
            [FIELD, FILTERS, wide(2)],
            ADDED,
            {},
            r"operand 0 of the steps: expected batches, .*found \[2\]",
        ),
        ("Conv", [FIELD.astype(np.uint8), FILTERS], [], {}, "input 0: expected floats or halves"),
        ("Chain", [CODES], [], {}, "input 0: expected floats or halves, found ONNX type 2"),
        (
            "Chain",
            [wide(2), wide(3)],
            ADDED,
            {},
            "expected shapes that broadcast, found sizes 2 and 3",
        ),
        (
            "Chain",
            [wide(*[2, 1] * 4), wide(*[1, 2] * 4)],
            ADDED,
            {},
            "broadcast along at most 6 axes, found 8",
        ),
    ],
)
def test_refused_when_it_is_called(op_type, feeds, steps, attributes, message):
    with pytest.raises(ORT_ERRORS, match=message):
        run(op_type, feeds, steps, **attributes)


LARGE = [1 << 20, 1 << 20, 1 << 21]
WIDE = {2: {"pads": [1 << 30] * 4}, 3: {"pads": [0] * 6, "strides": [1] * 3, "dilations": [1] * 3}}


@pytest.mark.parametrize(
    ("op_type", "feeds", "attributes"),
    [
        ("Product", [np.zeros((1 << 40, 0), np.float32), np.zeros((0, 1 << 40), np.float16)], {}),
        ("Chain", [np.zeros((1 << 32, 0), np.float32), np.zeros((1 << 32, 1, 0), np.float32)], {}),
        ("Conv", [FIELD, halves(2, 4, 1, 1)], {"pads": [2**31 - 1] * 4}),
        (
            "Conv",
            [FIELD, halves(2, 4, 2, 2)],
            {"pads": [2**31 - 1] * 4, "dilations": [2**31 - 1] * 2},
        ),
        (
            "Conv",
            [wide(1, 4, 6, 6, 6), halves(2, 4, 2, 2, 2)],
            {"pads": [2**31 - 1] * 6, "strides": [2**31 - 1] * 3, "dilations": [2**31 - 1] * 3},
        ),
        (
            "Conv",
            [np.zeros((1, 0, 1, 1), np.float16), np.zeros((1, 0, *LARGE[:2]), np.float16)],
            WIDE[2],
        ),
        (
            "Conv",
            [np.zeros((1, 0, *LARGE), np.float16), np.zeros((1, 0, *LARGE), np.float16)],
            WIDE[3],
        ),
    ],
    ids=["product", "chain", "result", "copy", "overflow", "no-channels", "no-channels-or-pads"],
)
def test_too_large_is_refused_without_trying(op_type, feeds, attributes):
    """No memory could hold the result, or the copy of a field; its size may exceed 2**64."""
    steps = [(ADD, KEPT, 0)] if op_type == "Chain" else []
    with pytest.raises(ORT_ERRORS, match=r"elements|allocate|Available memory|bad_alloc|overflow"):
        run(op_type, feeds, steps, **attributes)


SIZES = [0, 1, 2, 3, 5, 17, 130, 300, 1 << 10, 1 << 30, 2**31 - 1]


def draw_convolution(draw):
    """Return a Conv whose shapes and attributes fit together but are seldom legal. Large sizes
    occur only where a size of 0 keeps the tensors small."""
    axes, group = draw.randrange(1, 4), draw.choice([1, 1, 2, 3])
    channels, outputs, batches = (
        draw.choice(SIZES[:8]),
        draw.choice(SIZES[:4]),
        draw.choice(SIZES[:3]),
    )
    is_small = min(channels, outputs, batches) > 0
    sizes = SIZES[:4] if is_small else SIZES
    kernel = [draw.choice(sizes) for _ in range(axes)]
    field = [draw.choice([size, size + draw.randrange(9), draw.choice(sizes)]) for size in kernel]
    numbers = [1, 1, 2, 3, 1 << 30]
    attributes = {
        **CONV,
        "group": group,
        "block": draw.choice([0, 1, 16, 32, 128]),
        "slic_taps": draw.choice([0, 1, 2, 4]),
        "packed_rows": draw.choice([1, 1, 1, 2, 4]),
        "strides": [draw.choice(numbers) for _ in kernel],
        "dilations": [draw.choice(numbers[:4]) for _ in kernel],
        "pads": [draw.choice([0, 0, 1, 3 if is_small else draw.choice(SIZES)]) for _ in kernel * 2],
    }
    shapes = [batches, channels * group, *field], [outputs * group, channels, *kernel]
    # numpy has a limit for the product of the other sizes, too.
    fit = all(
        math.prod(shape) < 1 << 20 and math.prod(filter(None, shape)) < 1 << 62 for shape in shapes
    )
    return [np.zeros(shape, np.float16) for shape in shapes] if fit else [], attributes


@pytest.mark.skipif(
    ORT < (1, 23), reason="ONNX Runtime before 1.23 keeps to the first limit of a process"
)
def test_convolutions_that_no_file_has_are_refused_or_computed(monkeypatch):
    """Hostile shapes are rejected or computed as well: blocks too large for their tables, and
    products that overflow despite a size of 0."""
    monkeypatch.setattr(computed, "LIBRARY", USED)
    draw, computed_some, refused = random.Random(2), 0, 0
    while computed_some + refused < 300:
        feeds, attributes = draw_convolution(draw)
        if len(feeds) < 2:
            continue
        try:
            model = make_model("Conv", feeds, **attributes)
            options = GraphOptions(num_threads=1, memory_bytes=1 << 24)
            computed.OrtGraph(model, {}, options).run(["y"], {"x0": feeds[0], "x1": feeds[1]})
        except (*ORT_ERRORS, RunError):
            refused += 1
        else:
            computed_some += 1
    assert min(computed_some, refused) > 20


NUMBERS = [0, 1, 2, 4, 16, -1, 129, 2**31 - 1, 2**31, HUGE, -(1 << 63)]


def draw_node(draw):
    """Return a valid node, a few of whose attributes and inputs are replaced at random."""
    op_type = draw.choice(list(DEFAULTS))
    attributes = dict(DEFAULTS[op_type])
    for name, value in attributes.items():
        if draw.random() < 0.1:
            attributes[name] = (
                [draw.choice(NUMBERS) for _ in value]
                if isinstance(value, list)
                else draw.choice(NUMBERS)
            )
    shapes = {
        "Product": [[3, 5, 8], [8, 4]],
        "Conv": [[2, 4, 6, 6], [3, 4, 2, 2]],
        "Chain": [[3, 5, 8]],
    }[op_type]
    shapes += [
        draw.choice([[], [4], [5, 1], [3, 5, 4], [3, 1, 1], [5, 8]])
        for _ in range(draw.randrange(3))
    ]
    if draw.random() < 0.4:
        changed = draw.choice(shapes)
        changed[:] = draw.choice([changed[1:], [1, *changed], [draw.randrange(9) for _ in changed]])
    feeds = [
        np.ones(shape, draw.choice([np.float32, np.float16, np.float16, np.float32, np.uint8]))
        for shape in shapes
    ]
    steps = [
        (
            draw.randrange(-1, 13),
            draw.randrange(5),
            draw.randrange(-2, 3),
            draw.choice([0.5, 2.0, np.nan, 3.0]),
        )
        for _ in range(draw.choice([0, 0, 1, 3]))
    ]
    return op_type, feeds, steps, attributes


@pytest.mark.slow
@pytest.mark.skipif(
    ORT < (1, 23), reason="ONNX Runtime before 1.23 keeps to the first limit of a process"
)
def test_nodes_at_random_are_refused_or_computed(monkeypatch):
    """No node crashes, reads beyond its tensors (under a sanitizer), or takes more memory than
    there is."""
    monkeypatch.setattr(computed, "LIBRARY", USED)
    draw, computed_some, refused = random.Random(1), 0, 0
    for _ in range(1000):
        op_type, feeds, steps, attributes = draw_node(draw)
        try:
            model = make_model(op_type, feeds, steps, **attributes)
            graph = computed.OrtGraph(model, {}, GraphOptions(num_threads=1, memory_bytes=1 << 26))
            (result,) = graph.run(["y"], {f"x{i}": value for i, value in enumerate(feeds)})
        except (*ORT_ERRORS, RunError):
            refused += 1
        else:
            computed_some += 1
            assert result.dtype == np.float32
    assert min(computed_some, refused) > 100


RECURRENT = {
    **dict.fromkeys(("bias", "lengths", "state", "cells", "peepholes", "is_reversed"), 0),
    "cell": 0,
    "hidden": 20,
    "block": 16,
    "directions": 1,
    "is_coupled": 0,
    "clip": 0x7C00,
    "nan_on_overflow": 0,
    "threads": 1,
}
IDENTITY = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


def run_recurrent(feeds, **attributes):
    """Return the results of a Recurrent node, an RNN of the identity unless told otherwise."""
    names = [f"x{i}" for i in range(len(feeds))]
    kinds = {**TYPES, "int32": TensorProto.INT32}
    inputs = [
        helper.make_tensor_value_info(name, kinds[value.dtype.name], None)
        for name, value in zip(names, feeds, strict=True)
    ]
    outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "yhc"]
    given = {**RECURRENT, **attributes}
    node = helper.make_node("Recurrent", names, list("yhc"), "it", domain="simipu", **given)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("simipu", 1)]
    model = helper.make_model(
        helper.make_graph([node], "one", inputs, outputs), opset_imports=imports, ir_version=8
    )
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(USED)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, dict(zip(names, feeds, strict=True)))


def test_a_recurrent_network_adds_input_and_state_in_one_sum():
    x, weights = wide(3, 2, 21, seed=1), halves(1, 41, 32, seed=2) / np.float16(8)
    found, last, cells = run_recurrent([x, weights, IDENTITY])
    state = np.zeros((2, 20), np.float16)
    for step in range(3):
        joined = np.concatenate([x[step].astype(np.float16), state], 1)
        state = multiply(joined, weights[0, :, :20], 16)
        np.testing.assert_array_equal(found[step, 0], state)
    np.testing.assert_array_equal(last[0], state)
    assert cells.size == 0


@pytest.mark.parametrize(
    ("feeds", "attributes", "message"),
    [
        ([wide(3, 2), halves(1, 41, 32), IDENTITY], {}, "input 0: expected 3 axes, found 2"),
        (
            [wide(3, 2, 21), halves(1, 40, 32), IDENTITY],
            {},
            "input 1, axis 1: expected a size of 41",
        ),
        ([wide(3, 2, 21), wide(1, 41, 32), IDENTITY], {}, "input 1: expected ONNX type 10"),
        ([wide(3, 2, 21), halves(1, 41, 32), halves(9)], {}, "input 2, axis 0: expected .* 65536"),
        ([wide(3, 2, 21), halves(1, 41, 32)], {}, "expected input 2, which an attribute names"),
        (
            [wide(3, 2, 21), halves(1, 41, 32), IDENTITY, wide(1, 39)],
            {"bias": 3},
            "input 3, axis 1: expected a size of 40, found 39",
        ),
        (
            [wide(3, 2, 21), halves(1, 41, 32), IDENTITY, np.ones(3, np.int32)],
            {"lengths": 3},
            "input 3, axis 0: expected a size of 2, found 3",
        ),
        *(
            (
                [wide(3, 2, 21), halves(1, 41, 32), IDENTITY, np.array([0, length], np.int32)],
                {"lengths": 3},
                f"sequence_lens, row 1: expected a length from 0 to 3, found {length}",
            )
            for length in (4, -1, 2**31 - 1, -(2**31))
        ),
        ([wide(3, 2, 21), halves(1, 41, 32), IDENTITY], {"cell": 4}, "'cell': expected 0 to 3"),
        ([wide(3, 2, 21), halves(1, 41, 32), IDENTITY], {"state": 7}, "expected input 7"),
    ],
)
def test_recurrent_networks_of_other_shapes_are_refused(feeds, attributes, message):
    with pytest.raises(ORT_ERRORS, match=message):
        run_recurrent(feeds, **attributes)
