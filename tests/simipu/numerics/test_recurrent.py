"""Tests of LSTM, GRU and RNN with sums in half, to the bit, against plain numpy
(tests/support/half_recurrent.py)."""

from functools import cache

import numpy as np
import onnxruntime
import pytest
from half_models import (
    FLOAT_PARTIALS,
    HALF_PARTIALS,
    NAN_ON_OVERFLOW,
    check_bits,
    compute,
    every_witness,
    half_model,
    halves,
    wild_halves,
)
from half_recurrent import Network
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from simipu.numerics import lower

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
ALL_HALVES = np.arange(1 << 16, dtype=np.uint16).view(np.float16)


@cache
def table_of(op_type, **attributes):
    """Return an operator's values of all halves."""
    node = helper.make_node(op_type, ["x"], ["y"], **attributes)
    model = half_model([node], {"x": ALL_HALVES.shape}, "y", {}, ALL_HALVES.shape)
    return compute("nodes", model, HALF_PARTIALS, ALL_HALVES)


def look_up(op_type, **attributes):
    return lambda x: table_of(op_type, **attributes)[x.view(np.uint16)]


FUNCTIONS = {
    "Sigmoid": look_up("Sigmoid"),
    "Tanh": look_up("Tanh"),
    "Softsign": look_up("Softsign"),
    "Relu": lambda x: np.maximum(x, np.float16(0)),
    "LeakyRelu": look_up("LeakyRelu", alpha=0.25),
}
PARAMETERS = {"LeakyRelu": 0.25}
DEFAULTS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}


def make_case(kind, sizes, seed, draw=halves, functions=None, **attributes):
    """Return the inputs of a recurrent node, by ONNX's names, and its attributes."""
    steps, batch, width, hidden = sizes
    directions = 2 if attributes.get("direction") == "bidirectional" else 1
    gates, states = GATES[kind] * hidden, (directions, batch, hidden)
    shapes = {
        "X": (steps, batch, width),
        "W": (directions, gates, width),
        "R": (directions, gates, hidden),
        "B": (directions, 2 * gates),
        "h": states,
        "c": states,
        "P": (directions, 3 * hidden),
    }
    given = {name: draw(shape, seed + 2 * i) for i, (name, shape) in enumerate(shapes.items())}
    given["lengths"] = np.random.default_rng(seed).integers(1, steps + 1, batch, np.int32)
    if functions:
        parameters = [PARAMETERS[name] for name in functions * directions if name in PARAMETERS]
        attributes |= {"activations": functions * directions}
        attributes |= {"activation_alpha": parameters} if parameters else {}
    return given, {"hidden_size": hidden, **attributes}


def make_model(kind, given, attributes, open_rows=False):
    """Return a model whose only output has all outputs of the node, one after the other."""
    names = ["X", "W", "R", "B", "lengths", "h", *(["c", "P"] if kind == "LSTM" else [])]
    reads = [name if name in given else "" for name in names]
    outputs = ["Y", "Y_h", *(["Y_c"] if kind == "LSTM" else [])]
    nodes = [helper.make_node(kind, reads, outputs, **attributes)]
    flat = [f"{name}/flat" for name in outputs]
    for name, result in zip(outputs, flat, strict=True):
        nodes.append(helper.make_node("Reshape", [name, "all"], [result]))
    nodes.append(helper.make_node("Concat", flat, ["y"], axis=0))
    weights = {name: given[name] for name in reads[1:] if name} | {"all": np.array([-1])}
    x = given["X"].shape
    shape = [x[0], "rows", x[2]] if open_rows else x
    return half_model(nodes, {"X": shape}, "y", weights, [None])


def emulate(kind, given, attributes, nan_on_overflow=False):
    """Return the same output, by numpy."""
    direction = attributes.get("direction", "forward")
    order = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    options = frozenset(
        name for name in ("input_forget", "linear_before_reset") if attributes.get(name)
    )
    made = [
        Network(
            kind,
            {name: given[name][i] for name in "WRBhcP" if name in given},
            [FUNCTIONS[name] for name in attributes.get("activations", DEFAULTS[kind])],
            nan_on_overflow,
            is_reversed,
            attributes.get("clip", np.inf),
            options,
        ).run(given["X"], given.get("lengths"))
        for i, is_reversed in enumerate(order)
    ]
    states, last, cells = zip(*made, strict=True)
    parts = [np.stack(states, 1), np.stack(last), *([np.stack(cells)] if kind == "LSTM" else [])]
    return np.concatenate([part.reshape(-1) for part in parts])


def check(witness, kind, given, attributes, numerics=HALF_PARTIALS, open_rows=False):
    model = make_model(kind, given, attributes, open_rows)
    with np.errstate(all="ignore"):
        expected = emulate(kind, given, attributes, numerics.nan_on_overflow)
    check_bits(compute(witness, model, numerics, given["X"]), expected)


CASES = {
    "LSTM": ("LSTM", {}),
    "coupled LSTM": ("LSTM", {"input_forget": 1, "clip": 0.7}),
    "GRU": ("GRU", {}),
    "GRU that resets after": ("GRU", {"linear_before_reset": 1}),
    "RNN": ("RNN", {"clip": 0.5}),
}


@every_witness
@pytest.mark.parametrize("case", CASES)
def test_a_recurrent_network_rounds_every_operator_to_half(witness, case):
    kind, attributes = CASES[case]
    given, attributes = make_case(kind, (4, 3, 21, 19), 1, direction="bidirectional", **attributes)
    check(witness, kind, given, attributes, open_rows=True)


@pytest.mark.slow
@every_witness
@given(
    case=st.sampled_from(list(CASES)),
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(1, 40), st.integers(1, 40)),
    direction=st.sampled_from(["forward", "reverse", "bidirectional"]),
    present=st.sets(st.sampled_from(["B", "h", "c", "P", "lengths"])),
    is_wild=st.booleans(),
    function=st.sampled_from([None, "Sigmoid", "Softsign", "Relu", "LeakyRelu"]),
    numerics=st.sampled_from([HALF_PARTIALS, NAN_ON_OVERFLOW]),
    seed=st.integers(0, 2**31),
)
def test_recurrent_networks_of_all_options_equal_plain_numpy(
    witness, case, sizes, direction, present, is_wild, function, numerics, seed
):
    kind, attributes = CASES[case]

    def draw(shape, seed):
        return wild_halves(shape, seed, 1) if is_wild else halves(shape, seed, 0.3)

    functions = [function] * len(DEFAULTS[kind]) if function else None
    given, attributes = make_case(
        kind, sizes, seed, draw, functions, direction=direction, **attributes
    )
    kept = {name: value for name, value in given.items() if name in {"X", "W", "R"} | present}
    check(witness, kind, kept, attributes, numerics)


@pytest.mark.parametrize("kind", GATES)
def test_a_recurrent_network_with_float_partials_is_one_operator(kind):
    given, attributes = make_case(kind, (3, 2, 20, 20), 1)
    lowered = lower(make_model(kind, given, attributes), FLOAT_PARTIALS)
    assert kind in [node.op_type for node in lowered.graph.node]


@every_witness
@pytest.mark.parametrize("case", CASES)
def test_half_partials_stay_near_onnx_runtimes_float(witness, case):
    """The definition is that of ONNX's operator: the gates' order, directions and peepholes."""
    kind, attributes = CASES[case]
    given, attributes = make_case(
        kind,
        (5, 3, 20, 24),
        5,
        lambda *at: halves(*at, 0.3),
        direction="bidirectional",
        **attributes,
    )
    model = make_model(kind, given, attributes)
    found = compute(witness, model, HALF_PARTIALS, given["X"])
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT16:
            wide = numpy_helper.to_array(tensor).astype(np.float32)
            tensor.CopyFrom(numpy_helper.from_array(wide, tensor.name))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (expected,) = session.run(None, {"X": given["X"].astype(np.float32)})
    np.testing.assert_allclose(found.astype(np.float32), expected, atol=0.02)
