"""Tests of whole numbers out of range, as files of strangers have them: numbers of requests,
constants and attributes that an engine would trust or whose upper half it would drop. Each run is
right, by numpy, or an error."""

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from simipu import TARGETS, SimIpuError, SimulatedExecutable
from simipu.engines import opening
from simipu.fixing import fix_inputs
from simipu.numerics import KernelUse, Numerics
from simipu.numerics.lengths import clamp_lengths
from unchecked_programs import compute, make_program

I64, F = TensorProto.INT64, TensorProto.FLOAT
VALUES = (
    *(2**31, 2**32, 2**32 + 1, 2**32 + 2, 2**33, 2**63 - 1, -1, -(2**31) - 1, -(2**63)),
    *(2**31 - 1, -(2**31)),
)
X = np.arange(6, dtype=np.float32).reshape(2, 3)
MANY = 2**20
"""More elements than the memory of these graphs holds by far, in no result of these tests."""
ENGINES = ("onnxruntime", "reference", "openvino")


def whole(*values):
    return np.array(values, np.int64)


def scalar(value):
    return np.array(value, np.int64)


def arange(*parts):
    return np.arange(*parts) if -(-(parts[1] - parts[0]) // parts[2]) < MANY else None


def top(k):
    return np.sort(X, 1)[:, ::-1][:, :k] if 0 <= k <= X.shape[1] else None


def hot(index):
    rows = np.zeros((2, 3), np.float32)
    rows[1, 1] = 1
    if -3 <= index < 3:
        rows[0, index] = 1
    return rows


CASES = {
    "k of TopK": ("TopK", [X, None], lambda v: whole(v), top),
    "start of Range": (
        "Range",
        [None, scalar(4), scalar(1)],
        scalar,
        lambda v: arange(v, 4, 1) if v > -MANY else None,
    ),
    "limit of Range": ("Range", [scalar(0), None, scalar(1)], scalar, lambda v: arange(0, v, 1)),
    "delta of Range": ("Range", [scalar(0), scalar(4), None], scalar, lambda v: arange(0, 4, v)),
    "repeats of Tile": ("Tile", [X, None], lambda v: whole(v, 1), lambda v: None),
    "shape of Expand": ("Expand", [X, None], lambda v: whole(v, 3), lambda v: None),
    "shape of ConstantOfShape": ("ConstantOfShape", [None], whole, lambda v: None),
    "depth of OneHot": ("OneHot", [whole(0, 1), None, X[0, :2]], scalar, lambda v: None),
    "index of OneHot": ("OneHot", [None, scalar(3), X[0, :2]], lambda v: whole(v, 1), hot),
    "start of Slice": ("Slice", [X, None, whole(2), whole(1)], whole, lambda v: X[:, v:2]),
    "end of Slice": ("Slice", [X, whole(0), None, whole(1)], whole, lambda v: X[:, :v]),
    "axis of Slice": (
        "Slice",
        [X, whole(0), whole(2), None],
        whole,
        lambda v: X[:, :2] if v == -1 else None,
    ),
    "step of Slice": (
        "Slice",
        [X, whole(2), whole(-9), whole(1), None],
        whole,
        lambda v: X[:, 2 : -9 if v > 0 else None : v],
    ),
    "pads of Pad": (
        "Pad",
        [X, None],
        lambda v: whole(0, 0, 0, v),
        lambda v: X[:, :2] if v == -1 else None,
    ),
    "axis of CumSum": (
        "CumSum",
        [X, None],
        scalar,
        lambda v: np.cumsum(X, 1) if v == -1 else None,
    ),
    "lengths of ReverseSequence": (
        "ReverseSequence",
        [X, None],
        lambda v: whole(v, 2, 2),
        lambda v: None,
    ),
    "k of Trilu": ("Trilu", [X, None], scalar, lambda v: np.triu(X, max(-9, min(v, 9)))),
    "axes of Unsqueeze": (
        "Unsqueeze",
        [X, None],
        whole,
        lambda v: X[..., None] if v == -1 else None,
    ),
    "axes of ReduceSum": (
        "ReduceSum",
        [X, None],
        whole,
        lambda v: X.sum(1, keepdims=True) if v == -1 else None,
    ),
    "shape of Reshape": (
        "Reshape",
        [X, None],
        lambda v: whole(3, v),
        lambda v: X.reshape(3, 2) if v == -1 else None,
    ),
    "sizes of Resize": (
        "Resize",
        [X.reshape(1, 1, 2, 3), "", "", None],
        lambda v: whole(1, 1, v, 3),
        lambda v: None,
    ),
    "length of DFT": ("DFT", [X.reshape(1, 6, 1), None], scalar, lambda v: None),
    "length of HannWindow": ("HannWindow", [None], scalar, lambda v: None),
}
"""For each input: the operator, its inputs (None: that input), the input with a value, and the
result that numpy has; None if there is none that fits into memory."""


@pytest.mark.parametrize("is_constant", [False, True], ids=["run time", "constant"])
@pytest.mark.parametrize(
    ("case", "engine"),
    [
        *((case, engine) for case in CASES for engine in ("onnxruntime", "openvino")),
        # The memory of other results is limited in the child process of the reference only.
        *((case, "reference") for case in ("k of TopK", "length of DFT", "k of Trilu")),
    ],
)
def test_a_number_of_any_size_is_right_or_an_error(case, engine, is_constant):
    op_type, inputs, make, expect = CASES[case]
    names = ["" if isinstance(value, str) else f"i{i}" for i, value in enumerate(inputs)]
    number = next(name for name, value in zip(names, inputs, strict=True) if value is None)
    fixed = {
        name: value
        for name, value in zip(names, inputs, strict=True)
        if isinstance(value, np.ndarray)
    }
    results = ["y", "places"][: 1 + (op_type == "TopK")]
    node = helper.make_node(op_type, names, results, name="n")
    for value in VALUES:
        arrays = {**fixed, number: make(value)}
        constants = {
            name: array
            for name, array in arrays.items()
            if array.dtype == np.int64 and (is_constant or name != number)
        }
        feeds = {name: array for name, array in arrays.items() if name not in constants}
        program = make_program([node], feeds, constants, {"y": I64 if op_type == "Range" else F})
        try:
            (result,) = compute(program, feeds, ["y"], engine)
        except SimIpuError:
            continue
        expected = expect(value)
        assert expected is not None, f"{value}: expected an error, found {result.shape}"
        np.testing.assert_array_equal(result, expected, f"{value}")


@pytest.mark.parametrize("engine", ["onnxruntime", "reference"])
@pytest.mark.parametrize("case", CASES)
def test_a_number_among_the_weights_of_the_device_is_read(case, engine):
    """The graph of a file with the data of an input knows only the input's type and shape."""
    op_type, inputs, make, _ = CASES[case]
    number = make(-1 if op_type == "Reshape" else 1)
    arrays = {
        f"i{i}": number if value is None else value
        for i, value in enumerate(inputs)
        if not isinstance(value, str)
    }
    names = [f"i{i}" * (f"i{i}" in arrays) for i in range(len(inputs))]
    node = helper.make_node(op_type, names, ["y", "places"][: 1 + (op_type == "TopK")], name="n")
    fixed = {name: array for name, array in arrays.items() if array.dtype == np.int64}
    feeds = {name: array for name, array in arrays.items() if name not in fixed}
    outputs = {"y": I64 if op_type == "Range" else F}
    program = make_program([node], arrays, {}, outputs)
    (expected,) = ReferenceEvaluator(program.graph).run(["y"], arrays)
    program = make_program([node], arrays, {}, outputs, shape=expected.shape)
    held = fix_inputs(SimulatedExecutable("e", TARGETS["ipu2"], (program,)), fixed)
    weights = {constant.name: constant.array() for constant in held.constants}
    (found,) = compute(held.programs[0], feeds, ["y"], engine, weights=weights)
    np.testing.assert_allclose(found, expected, atol=1e-6)


ATTRIBUTES = {
    "GatherND": ("batch_dims", [X, whole([0, 0])], (-1, -3, -(2**31), 64, 2**31 - 1, *VALUES)),
    "Softmax": ("axis", [X], (2**32, 2**32 + 1, 2**63 - 1, -(2**63), 64)),
    "Hardmax": ("axis", [X], (2**32, 2**32 + 1, 2**63 - 1, -(2**63), 64)),
    "RoiAlign": (
        "sampling_ratio",
        [X.reshape(1, 1, 2, 3), X[:1, :1] + X[:1, [0] * 4], whole(0)],
        (2**32, 2**63 - 1, -1),
    ),
    "ReverseSequence": ("batch_axis", [X, whole(1, 1, 1)], (-1, -(2**31) - 1, 2**32 + 1)),
    "LpPool": ("p", [X.reshape(1, 1, 2, 3)], (-1, 2**32 + 1)),
    "Conv": ("group", [X.reshape(1, 1, 2, 3), X.reshape(1, 1, 2, 3)], (-1, 2**32 + 1)),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("op_type", ATTRIBUTES)
def test_an_attribute_out_of_range_is_an_error_of_loading(op_type, engine):
    """Some of them would end this process, or never return."""
    name, inputs, values = ATTRIBUTES[op_type]
    for value in values:
        others = {"kernel_shape": [1, 1]} if op_type == "LpPool" else {}
        names = [f"i{i}" for i in range(len(inputs))]
        node = helper.make_node(op_type, names, ["y"], name="n", **{name: value}, **others)
        feeds = dict(zip(names, inputs, strict=True))
        with pytest.raises(SimIpuError, match=f"attribute '{name}': expected .* found {value}"):
            compute(make_program([node], feeds, {}, {"y": F}), feeds, ["y"], engine)


KINDS = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, BATCH, WIDTH, HIDDEN = 3, 2, 5, 4
WAYS = {
    "fp32": (F, None, "onnxruntime", KernelUse.FUSED),
    "fp32 on the reference": (F, None, "reference", KernelUse.NONE),
    "fp32 on OpenVINO": (F, None, "openvino", KernelUse.NONE),
    "half": (TensorProto.FLOAT16, Numerics(), "onnxruntime", KernelUse.FUSED),
    "half without kernels": (TensorProto.FLOAT16, Numerics(), "onnxruntime", KernelUse.NONE),
}
"""Types, numerics, engines and kernels that compute recurrent networks."""


def recur(way, kind, lengths, is_constant, monkeypatch, directions=1):
    """Return the last states of a recurrent network."""
    data_type, numerics, engine, kernels = WAYS[way]
    monkeypatch.setattr(opening, "use_kernels", lambda: kernels)
    draw = np.random.default_rng(0).standard_normal
    dtype = helper.tensor_dtype_to_np_dtype(data_type)
    constants = {
        "w": draw((directions, KINDS[kind] * HIDDEN, WIDTH)).astype(dtype),
        "r": draw((directions, KINDS[kind] * HIDDEN, HIDDEN)).astype(dtype),
    }
    feeds = {"x": draw((STEPS, BATCH, WIDTH)).astype(dtype)}
    (constants if is_constant else feeds)["lengths"] = np.array(lengths, np.int32)
    node = helper.make_node(
        kind,
        ["x", "w", "r", "", "lengths"],
        ["", "y"],
        name="the_node",
        hidden_size=HIDDEN,
        direction="bidirectional" if directions > 1 else "forward",
    )
    program = make_program([node], feeds, constants, {"y": data_type})
    (last,) = compute(program, feeds, ["y"], engine, numerics)
    return last


@pytest.mark.parametrize("is_constant", [False, True], ids=["run time", "constant"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_length_out_of_range_is_an_error(kind, way, is_constant, monkeypatch):
    for lengths in ([4, 1], [1, 4], [-1, 2], [2, -1], [2**31 - 1, 1], [-(2**31), 1]):
        with pytest.raises(SimIpuError, match=r"sequence_lens"):
            recur(way, kind, lengths, is_constant, monkeypatch)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_lengths_from_0_to_all_steps_are_computed(kind, way, monkeypatch):
    """A row without steps has its first state, which is 0."""
    states = [recur(way, kind, [length, 1], False, monkeypatch) for length in range(STEPS + 1)]
    assert (states[0][0, 0] == 0).all()
    assert len({state[0, 0].tobytes() for state in states}) == STEPS + 1
    assert len({state[0, 1].tobytes() for state in states}) == 1


def test_both_directions_are_checked_without_kernels(monkeypatch):
    with pytest.raises(SimIpuError, match="sequence_lens of GRU: expected 0 to the number of"):
        recur("half without kernels", "GRU", [4, 1], False, monkeypatch, directions=2)


def test_lengths_in_the_body_of_another_node_are_rejected_by_an_accelerator():
    body = helper.make_graph(
        [helper.make_node("RNN", ["x", "w", "r", "", "lengths"], ["", "z"], hidden_size=1)],
        "branch",
        [],
        [helper.make_tensor_value_info("z", F, [1, 1, 1])],
    )
    node = helper.make_node("If", ["which"], ["y"], then_branch=body, else_branch=body)
    model = helper.make_model(helper.make_graph([node], "graph", [], []))
    with pytest.raises(SimIpuError, match="does not check sequence_lens of RNN"):
        clamp_lengths(model, {})


def test_an_accelerator_computes_no_shape_that_depends_on_the_data():
    """OpenVINO ends the process at axes of a Slice that a request brings."""
    node = helper.make_node("Slice", ["x", "start", "end", "axis"], ["y"], name="cut")
    feeds = {"x": X, "axis": whole(1)}
    program = make_program([node], feeds, {"start": whole(0), "end": whole(2)}, {"y": F})
    with pytest.raises(SimIpuError, match=r"result of Slice \(node 'cut'\) depends on the data"):
        compute(program, feeds, ["y"], "openvino")


def test_openvino_computes_no_dft_along_an_axis_that_it_ignores():
    node = helper.make_node("DFT", ["x", "", "axis"], ["y"], name="n")
    feeds = {"x": X.reshape(1, 2, 3, 1)}
    program = make_program([node], feeds, {"axis": scalar(1)}, {"y": F}, opset=20)
    (found,) = compute(program, feeds, ["y"])
    parts = np.fft.fft(X, axis=0)[None]
    np.testing.assert_allclose(found, np.stack([parts.real, parts.imag], -1), atol=1e-5)
    with pytest.raises(SimIpuError, match="does not check input 2 of DFT"):
        compute(program, feeds, ["y"], "openvino")


def test_an_end_of_a_slice_may_have_64_bits_on_openvino():
    node = helper.make_node("Slice", ["x", "start", "end", "axis"], ["y"])
    ends = {"start": whole(-(2**63)), "end": whole(2**63 - 1), "axis": whole(1)}
    program = make_program([node], {"x": X}, ends, {"y": F})
    np.testing.assert_array_equal(compute(program, {"x": X}, ["y"], "openvino")[0], X)


def test_a_step_of_a_slice_is_no_end_even_if_it_is_one_too():
    node = helper.make_node("Slice", ["x", "start", "wide", "axis", "wide"], ["y"])
    constants = {"start": whole(2), "wide": whole(-(2**31)), "axis": whole(1)}
    program = make_program([node], {"x": X}, constants, {"y": F})
    with pytest.raises(SimIpuError, match="the constant 'wide' of Slice"):
        compute(program, {"x": X}, ["y"], "openvino")
