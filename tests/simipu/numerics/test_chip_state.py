"""Tests of operators of packed samples, of codes and of caches, against numpy, and of inputs that
they reject."""

import numpy as np
import onnx
import pytest
from chip_models import build, run
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import CHIP_DOMAIN, collect_values
from poprt.passes import get_pass
from simipu import CompileError
from simipu.numerics import Numerics
from simipu.numerics.quarter import FORMATS, decode, encode

RANDOM = np.random.default_rng(0)
OPSETS = [11, *(pytest.param(opset, marks=pytest.mark.slow) for opset in (13, 17)), 20]


def unpack(data, lengths, sizes):
    """Unpack samples one after the other, in a loop."""
    flat, at = data.reshape(-1, *data.shape[2:]), 0
    made = np.zeros((len(lengths), sum(sizes), *data.shape[2:]), data.dtype)
    for sample, counts in enumerate(lengths.reshape(len(lengths), -1)):
        start = 0
        for count, size in zip(counts, sizes, strict=True):
            count = max(0, int(count))
            found = flat[at : at + min(count, size)]
            made[sample, start : start + len(found)] = found
            at, start = at + count, start + size
    return made


def repack(samples, lengths, sizes, batch, tokens):
    flat, at = np.zeros((batch * tokens, *samples.shape[2:]), samples.dtype), 0
    for sample, counts in zip(samples, lengths.reshape(len(lengths), -1), strict=True):
        start = 0
        for count, size in zip(counts, sizes, strict=True):
            count = max(0, int(count))
            seen = max(0, min(count, size, batch * tokens - at))
            flat[at : at + seen] = sample[start : start + seen]
            at, start = at + count, start + size
    return flat.reshape(batch, tokens, *samples.shape[2:])


LENGTHS = [
    ([8], [[8], [3], [5], [1], [0], [0]]),
    ([8], [8, 3, 5, 1, 0, 0]),
    ([5, 3], [[5, 1], [2, 3], [0, 0], [4, 0], [1, 1], [0, 2]]),
    ([8], [[0]] * 6),
    # Lengths of hostile requests: too long for a segment, negative, beyond the end.
    ([4], [[9], [-5], [3], [2**31 - 1], [2], [-(2**31)]]),
    ([8], [[2**31 - 1]] * 6),
]


@pytest.mark.parametrize("opset", OPSETS)
@pytest.mark.parametrize(("sizes", "lengths"), LENGTHS)
@pytest.mark.parametrize("further", [(), (3,), (2, 3)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32])
def test_samples_come_apart_and_together_again(sizes, lengths, further, dtype, opset):
    data = RANDOM.integers(-9, 9, (3, 8, *further)).astype(dtype)
    info, shared = np.array(lengths, np.int32), {"max_valid_num": 6, "segment_max_size": sizes}
    model = build("Unpack", {"x": data, "info": info}, opset=opset, **shared)
    samples = unpack(data, info, sizes)
    assert collect_values(model)["y"].shape == samples.shape
    np.testing.assert_array_equal(run(model, Numerics(), x=data, info=info)[0], samples)
    sized = {"batch_size": 3, "sequence_length": 8}
    model = build("Repack", {"x": samples, "info": info}, opset=opset, **shared, **sized)
    found = run(model, Numerics(), x=samples, info=info)[0]
    assert collect_values(model)["y"].shape == data.shape
    np.testing.assert_array_equal(found, repack(samples, info, sizes, 3, 8))


def test_packing_loses_nothing_of_samples_that_fit():
    data, info = (
        RANDOM.normal(size=(3, 8, 4)).astype(np.float32),
        np.array([[8], [3], [5], [8]], np.int32),
    )
    samples = unpack(data, info, [8])
    np.testing.assert_array_equal(repack(samples, info, [8], 3, 8), data)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_elements_kept_by_a_mask_move_to_the_front(axis):
    data = RANDOM.normal(size=(4, 5, 3)).astype(np.float32)
    mask = RANDOM.integers(0, 2, data.shape[axis]).astype(np.int32)
    kept = np.compress(mask, data, axis)
    expected = np.zeros_like(data)
    expected[tuple(slice(size) for size in kept.shape)] = kept
    model = build("MaskCompress", {"x": data, "mask": mask}, axis=axis)
    np.testing.assert_array_equal(run(model, x=data, mask=mask)[0], expected)


@pytest.mark.parametrize("quarter", FORMATS)
@pytest.mark.parametrize("scale", [-3, 0, 2])
def test_bytes_are_the_codes_of_all_halves(quarter, scale):
    values = np.arange(2**16, dtype=np.uint16).view(np.float16).reshape(256, 256)
    values = values[:, np.isfinite(values).all(0)]
    given = np.array([scale], np.int32)
    model = build(
        "CastToUint8WithoutShapeInfer", {"x": values}, {"scale": given}, fp8Format=quarter
    )
    found = run(model, Numerics(), x=values)[0]
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, encode(values, FORMATS[quarter], scale))


@pytest.mark.parametrize(("left_format", "right_format"), [("F143", "F143"), ("F152", "F143")])
def test_a_product_of_bytes_is_that_of_their_values(left_format, right_format):
    left, right = (RANDOM.normal(size=shape).astype(np.float16) for shape in ((2, 3, 8), (8, 4)))
    codes = encode(left, FORMATS[left_format], -1), encode(right, FORMATS[right_format], -2)
    scales = {"sl": np.array([-1], np.int32), "sr": np.array([-2], np.int32)}
    formats = {"fp8FormatLHS": left_format, "fp8FormatRHS": right_format}
    wide = decode(codes[1], FORMATS[right_format], -2)
    for given, expected in ((codes[0], decode(codes[0], FORMATS[left_format], -1)), (left, left)):
        model = build(
            "FP8MatMulWithoutShapeInfer", {"x": given}, {"w": codes[1], **scales}, **formats
        )
        assert model.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT16
        found = run(model, Numerics(), x=given)[0]
        np.testing.assert_array_equal(
            found, (expected.astype(np.float32) @ wide).astype(np.float16)
        )


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("opset", OPSETS)
def test_nibbles_are_halves_the_high_one_first(axis, opset):
    weights = np.arange(-128, 128, dtype=np.int8).reshape(16, 16)[:, :12]
    scale = RANDOM.normal(size=weights.shape[1 - axis]).astype(np.float16)
    high, low = weights.astype(int) >> 4, ((weights.astype(int) & 15) ^ 8) - 8
    if axis:
        expected = np.stack([high, low], 2).reshape(16, 24).T
    else:
        expected = np.stack([high, low], 1).reshape(32, 12)
    expected = (expected * scale.astype(np.float32)).astype(np.float16)
    ref = np.zeros((1, 24), np.float16)
    model = build(
        "Int4ToHalf", {"x": weights, "s": scale, "ref": ref}, opset=opset, axis=axis, remap=1
    )
    assert collect_values(model)["y"].shape == expected.shape
    np.testing.assert_array_equal(run(model, Numerics(), x=weights, s=scale, ref=ref)[0], expected)


@pytest.mark.parametrize("groups", [1, 24])
def test_a_norm_counts_one_group_or_rows(groups):
    x = RANDOM.normal(size=(2, 12, 6)).astype(np.float32)
    scale, bias = np.ones(6, np.float32), np.zeros(6, np.float32)
    model = build("NormCE", {"x": x}, {"s": scale, "b": bias}, num_groups=groups, epsilon=1e-5)
    expected = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    get_pass("check_chip_operators")(model)
    np.testing.assert_allclose(run(model, x=x)[0], expected, atol=1e-5)


def cached(turns, *, start=0, dtype=np.float32, axis=1, max_len=3, fp8=0, first="step"):
    """Return a model with a Loop whose iterations write their inputs into a cache; the caches are
    stacked."""
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    one = numpy_helper.from_array(np.array(1, np.int32), "one")
    attributes = {"max_len": max_len, "step_len": 1, "sequence_axis": axis, "fp8": fp8}
    nodes = [
        helper.make_node("Gather", ["rows", "turn"], ["row"], name="row", axis=0),
        helper.make_node(
            "KVCache", ["step", "row"], ["kept"], name="cache", domain=CHIP_DOMAIN, **attributes
        ),
        helper.make_node("Add", ["step", "one"], ["next"], name="next"),
        helper.make_node("Identity", ["go"], ["on"], name="on"),
    ]
    inputs = [
        helper.make_tensor_value_info("turn", TensorProto.INT64, []),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        helper.make_tensor_value_info("step", TensorProto.INT32, []),
    ]
    outputs = [
        helper.make_tensor_value_info("on", TensorProto.BOOL, []),
        helper.make_tensor_value_info("next", TensorProto.INT32, []),
        helper.make_tensor_value_info("kept", element, None),
    ]
    body = helper.make_graph(nodes, "body", inputs, outputs, [one])
    loop = helper.make_node(
        "Loop", ["turns", "go0", first], ["last", "pile"], name="loop", body=body
    )
    held = [
        numpy_helper.from_array(np.array(turns, np.int64), "turns"),
        numpy_helper.from_array(np.array(True), "go0"),
    ]
    given = [helper.make_tensor_value_info("rows", element, [turns, 2, 1, 4])]
    if first == "step":
        held.append(numpy_helper.from_array(np.array(start, np.int32), "step"))
    else:
        given.append(helper.make_tensor_value_info(first, TensorProto.INT32, []))
    pile = helper.make_tensor_value_info("pile", element, [turns, 2, max_len, 4])
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid(CHIP_DOMAIN, 1)]
    graph = helper.make_graph([loop], "cached", given, [pile], held)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("fp8", [0, 1])
def test_a_cache_goes_round_its_loop_newest_first(dtype, fp8):
    rows = RANDOM.normal(size=(5, 2, 1, 4)).astype(dtype)
    model = get_pass("carry_caches")(cached(5, dtype=dtype, fp8=fp8))
    onnx.checker.check_model(model)
    codes = encode(rows, FORMATS["F143"], 1)
    expected = decode(codes, FORMATS["F143"], 1).astype(dtype) if fp8 else rows
    (found,) = run(model, Numerics(), rows=rows)
    for turn in range(5):
        seen = [
            expected[at] if at >= 0 else np.zeros_like(rows[0]) for at in range(turn, turn - 3, -1)
        ]
        np.testing.assert_array_equal(found[turn], np.concatenate(seen, axis=1))


def test_carrying_caches_again_changes_nothing():
    model = get_pass("carry_caches")(cached(5))
    before = model.SerializeToString()
    assert get_pass("carry_caches")(model).SerializeToString() == before


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (lambda: cached(5, start=1), "expected a first step 'step' of 0, found 1"),
        (lambda: cached(5, first="given"), "found one that is known at run time only"),
        (lambda: one_step(1), "expected a first step 'step' of 0, found 1"),
        (lambda: inside_a_branch(), "can go round a Loop of the main graph only"),
    ],
)
def test_a_cache_that_would_need_another_run_is_refused(model, told):
    with pytest.raises(CompileError, match="KVCache") as error:
        get_pass("carry_caches")(model())
    assert told in str(error.value)


def one_step(step):
    row = np.zeros((2, 1, 4), np.float32)
    weights = {"row": row}
    return build(
        "KVCache", {}, {"step": np.array(step, np.int32), **weights}, max_len=3, sequence_axis=1
    )


def inside_a_branch():
    model = cached(5)
    body = model.graph.node[0].attribute[0].g
    branch = helper.make_graph([body.node[1]], "branch", [], [body.output[2]])
    body.node[1].CopyFrom(
        helper.make_node("If", ["go"], ["kept"], name="if", then_branch=branch, else_branch=branch)
    )
    return model


def test_one_step_outside_of_a_loop_starts_empty():
    model = get_pass("carry_caches")(one_step(0))
    np.testing.assert_array_equal(run(model)[0], np.zeros((2, 3, 4)))


X = np.zeros((2, 8, 4), np.float32)
LENGTH = np.zeros((6, 1), np.int32)
SIZED = {"max_valid_num": 6, "segment_max_size": [8]}
BYTES, SCALE = np.zeros((4, 4), np.uint8), np.zeros(1, np.int32)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "told"),
    [
        (
            "Unpack",
            {"x": X, "i": LENGTH},
            {"max_valid_num": 0, "segment_max_size": [8]},
            "'max_valid_num'",
        ),
        (
            "Unpack",
            {"x": X, "i": LENGTH},
            {"max_valid_num": 2**40, "segment_max_size": [8]},
            "'max_valid_num'",
        ),
        (
            "Unpack",
            {"x": X, "i": LENGTH},
            {"max_valid_num": 6, "segment_max_size": [8, -1]},
            "found -1",
        ),
        (
            "Unpack",
            {"x": X, "i": LENGTH},
            {"max_valid_num": 6, "segment_max_size": b"8"},
            "found b'8'",
        ),
        ("Unpack", {"x": X, "i": LENGTH}, {"max_valid_num": 6}, "'segment_max_size'"),
        (
            "Unpack",
            {"x": X, "i": LENGTH},
            {"max_valid_num": 5, "segment_max_size": [8]},
            "lengths [5, 1]",
        ),
        (
            "Unpack",
            {"x": X, "i": LENGTH},
            {"max_valid_num": 6, "segment_max_size": [4, 4]},
            "lengths [6, 2]",
        ),
        (
            "Repack",
            {"x": X, "i": LENGTH},
            {**SIZED, "batch_size": 2, "sequence_length": 8},
            "samples [6, 8,",
        ),
        ("Repack", {"x": X, "i": LENGTH}, {**SIZED, "batch_size": 2}, "'sequence_length'"),
        ("MaskCompress", {"x": X, "m": LENGTH}, {}, "expected a mask [2]"),
        ("MaskCompress", {"x": X, "m": LENGTH}, {"axis": 3}, "expected an axis of 3"),
        ("NormCE", {"x": X, "s": X[0, 0], "b": X[0, 0]}, {"num_groups": 3}, "the 16 rows"),
        (
            "CastToUint8WithoutShapeInfer",
            {"x": X, "s": SCALE},
            {"fp8Format": "E4M3"},
            "F143 or F152",
        ),
        (
            "FP8MatMulWithoutShapeInfer",
            {"x": BYTES, "w": BYTES, "l": SCALE, "r": SCALE[:0]},
            {},
            "scale 'r'",
        ),
        (
            "FP8MatMulWithoutShapeInfer",
            dict.fromkeys("xwlr", BYTES),
            {"fp8FormatRHS": "F8"},
            "'fp8FormatRHS'",
        ),
        (
            "Int4ToHalf",
            {"x": BYTES.astype(np.int8), "s": np.ones(3, np.float16)},
            {},
            "expected a scale [4]",
        ),
        (
            "Int4ToHalf",
            {"x": BYTES.astype(np.int8), "s": np.ones(4, np.float16)},
            {"axis": 2},
            "0 or 1",
        ),
        ("Int4ToHalf", {"x": X.astype(np.int8), "s": np.ones(4, np.float16)}, {}, "two axes"),
        (
            "KVCache",
            {"t": SCALE, "x": X},
            {"max_len": 4, "step_len": 5},
            "step_len up to max_len 4",
        ),
        ("KVCache", {"t": SCALE, "x": X}, {"max_len": 4, "sequence_axis": 1}, "step_len 1 entries"),
        (
            "KVCache",
            {"t": SCALE, "x": X},
            {"max_len": 4, "sequence_axis": 7},
            "expected an axis of 3",
        ),
        (
            "KVCache",
            {"t": SCALE, "x": X, "p": X},
            {"max_len": 9, "step_len": 2},
            "expected old entries",
        ),
    ],
)
def test_invalid_nodes_of_chip_operators_are_rejected_by_name(op_type, inputs, attributes, told):
    with pytest.raises(CompileError) as error:
        get_pass("check_chip_operators")(loose(op_type, inputs, attributes))
    assert told in str(error.value)
    assert "'it'" in str(error.value)


def loose(op_type, inputs, attributes):
    """Return a model of one node whose result has no declared type or shape."""
    values = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
        )
        for name, value in inputs.items()
    ]
    node = helper.make_node(
        op_type, list(inputs), ["y"], name="it", domain=CHIP_DOMAIN, **attributes
    )
    graph = helper.make_graph([node], "loose", values, [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid(CHIP_DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)
