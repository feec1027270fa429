"""Tests of nodes that ONNX Runtime computes wrongly, or that end its process: other nodes replace
them."""

from itertools import product

import numpy as np
import pytest
from child_answers import compute_in_child
from extreme_models import EXTREMES
from half_models import HALF_PARTIALS, compute, every_witness, half_model
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import iter_nodes
from oracles import unoptimised_session
from poprt.comparing import sides
from simipu import GraphOptions
from simipu.engines.computed import Lowered, make_graph
from simipu.engines.program_graphs import lower_model
from simipu.numerics import KernelUse, Numerics, lower

F, I64 = TensorProto.FLOAT, TensorProto.INT64
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def graph_of(nodes, inputs, weights=(), opset=17):
    """Return a model of the nodes. Its output is the result of the last node, with the type of the
    first input."""
    infos = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
        )
        for name, value in inputs.items()
    ]
    kind = infos[0].type.tensor_type.elem_type
    output = helper.make_tensor_value_info(nodes[-1].output[0], kind, None)
    tensors = [numpy_helper.from_array(value, name) for name, value in dict(weights).items()]
    graph = helper.make_graph(nodes, "guarded", infos, [output], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def answer(model, feeds, **options):
    """Return the only output of the model as it is served."""
    lowered, weights = lower_model(model, {}, None)
    graph = make_graph(
        Lowered(lowered.SerializeToString(), weights), GraphOptions(**options), "of a test"
    )
    return graph.run([model.graph.output[0].name], feeds)[0]


def operators(model):
    return [node.op_type for node in iter_nodes(model.graph)]


X = np.random.default_rng(0).standard_normal((2, 3, 5)).astype(np.float32)
RIGHT, LEFT = np.float32([1, -2, 4]), np.float32([3, 1, -2, 0.5, 7])
PRODUCTS = {
    "a vector on the right": (["t", "w"], RIGHT),
    "a vector on the left": (["w", "t"], LEFT),
}


def transposed_product(operands, weight, *, given, opset=17, between=()):
    nodes = [helper.make_node("Transpose", ["x"], ["t0"], perm=[0, 2, 1])]
    names = ["t0", *(f"t{i + 1}" for i in range(len(between)))]
    nodes += [
        helper.make_node(op, [names[i]], [names[i + 1]], name=op) for i, op in enumerate(between)
    ]
    operands = [names[-1] if name == "t" else name for name in operands]
    nodes.append(helper.make_node("MatMul", operands, ["y"], name="product"))
    inputs = {"x": X, "w": weight} if given else {"x": X}
    return graph_of(nodes, inputs, {} if given else {"w": weight}, opset), inputs


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("opset", [8, 12, 13])
@pytest.mark.parametrize("between", [(), ("Relu",)])
@pytest.mark.parametrize(("operands", "weight"), PRODUCTS.values(), ids=PRODUCTS)
def test_a_product_with_a_vector_is_not_transposed_wrongly(operands, weight, between, opset, given):
    model, feeds = transposed_product(operands, weight, given=given, opset=opset, between=between)
    (expected,) = unoptimised_session(model).run(None, feeds)
    found = answer(model, feeds)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@every_witness
@pytest.mark.parametrize(("operands", "weight"), PRODUCTS.values(), ids=PRODUCTS)
def test_nor_in_half(witness, operands, weight):
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", operands, ["y"]),
    ]
    model = half_model(nodes, {"x": [2, 3, 5]}, "y", {"w": weight.astype(np.float16)}, ["a", "b"])
    x = X.astype(np.float16)
    turned = x.astype(np.float64).transpose(0, 2, 1)
    expected = turned @ weight if operands[0] == "t" else weight @ turned
    found = compute(witness, model, HALF_PARTIALS, x)
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("operator", ["If", "Loop"])
def test_nor_inside_a_body(operator):
    inner = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["t", "w"], ["inner"]),
    ]
    made = helper.make_tensor_value_info("inner", F, [2, 5])
    if operator == "If":
        other = helper.make_node("ReduceMax", ["x"], ["other"], axes=[1], keepdims=0)
        without = helper.make_graph(
            [other], "no", [], [helper.make_tensor_value_info("other", F, [2, 5])]
        )
        body = helper.make_graph(inner, "yes", [], [made])
        node = helper.make_node("If", ["flag"], ["y"], then_branch=body, else_branch=without)
        inputs = {"x": X, "flag": np.array(True)}
    else:
        keep = helper.make_node("Identity", ["going"], ["goes"])
        trip = helper.make_tensor_value_info("trip", I64, [])
        going, goes = (
            helper.make_tensor_value_info(each, TensorProto.BOOL, []) for each in ("going", "goes")
        )
        body = helper.make_graph([*inner, keep], "body", [trip, going], [goes, made])
        node = helper.make_node("Loop", ["trips", ""], ["y"], body=body)
        inputs = {"x": X, "trips": np.array(2)}
    model = graph_of([node], inputs, {"w": RIGHT})
    (expected,) = unoptimised_session(model).run(None, inputs)
    np.testing.assert_allclose(answer(model, inputs), expected, rtol=1e-5, atol=1e-5)


def test_products_of_matrices_and_of_two_vectors_stay():
    for left, right in (([2, 3, 4], [4, 5]), ([4], [4])):
        inputs = {"x": np.zeros(left, np.float32), "w": np.zeros(right, np.float32)}
        model = graph_of([helper.make_node("MatMul", ["x", "w"], ["y"])], inputs)
        assert lower(model, None) is model


@pytest.mark.parametrize(("order", "operator"), [([0, 1], "Identity"), ([1, 0], "Transpose")])
def test_a_transpose_that_moves_no_axis_becomes_an_identity(order, operator):
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=order),
        helper.make_node("MatMul", ["t", "w"], ["p"]),
        helper.make_node("Add", ["p", "w"], ["y"]),
    ]
    feeds = {"x": np.float32([[1, 2], [3, 4]])}
    model = graph_of(nodes, feeds, {"w": np.float32([[1, 0], [-2, 3]])})
    assert operators(lower(model, None)) == [operator, "MatMul", "Add"]
    (expected,) = unoptimised_session(model).run(None, feeds)
    np.testing.assert_array_equal(answer(model, feeds), expected)


def test_an_oracle_is_not_optimised(monkeypatch):
    model, feeds = transposed_product(["t", "w"], RIGHT, given=False)
    graph = make_graph(
        Lowered(model.SerializeToString(), {}), GraphOptions(optimise=False), "of a test"
    )
    expected = X.transpose(0, 2, 1) @ RIGHT
    np.testing.assert_allclose(graph.run(["y"], feeds)[0], expected, rtol=1e-5, atol=1e-5)
    opened = []

    def open_lowered(make, options, *_):
        opened.append(options)
        make(KernelUse.NONE)
        return graph

    monkeypatch.setattr(sides, "open_lowered", open_lowered)
    for numerics in (None, HALF_PARTIALS):
        list(sides.Side(model, {}, numerics).run([feeds], ["y"]))
    assert [options.optimise for options in opened] == [False, True]


def divide(operator, values, divisors, *, constant=False, opset=17, **attributes):
    node = helper.make_node(operator, ["x", "d"], ["y"], **attributes)
    inputs = {"x": values} if constant else {"x": values, "d": divisors}
    return graph_of([node], inputs, {"d": divisors} if constant else {}, opset), inputs


def wrap(operator, values, divisors, fmod=0):
    """Compute the operator with Python's integers as the table in docs/limits.md defines it."""
    made = []
    for x, d in zip(values.tolist(), divisors.tolist(), strict=True):
        quotient = 0 if d == 0 else abs(x) // abs(d) * (1 if (x < 0) == (d < 0) else -1)
        truncated = 0 if d == 0 else x - quotient * d
        floored = 0 if d == 0 else x % d
        made.append({"Div": quotient, "Mod": truncated if fmod else floored}[operator])
    bits = values.dtype.itemsize * 8
    return np.array([each % 2**bits for each in made], f"uint{bits}").view(values.dtype)


@pytest.mark.slow
def test_no_integers_end_the_process(tmp_path):
    cases, expected = {}, {}
    for kind in map(np.dtype, INTEGERS):
        bounds = np.iinfo(kind)
        picked = {bounds.min, bounds.max, 0, 1, 7, 100} | ({-1, -3, -100} if bounds.min else set())
        values, divisors = (
            each.reshape(-1) for each in np.meshgrid(*[np.array(sorted(picked), kind)] * 2)
        )
        for operator, fmod, opset in product(("Div", "Mod"), (0, 1), (11, 17)):
            if operator == "Div" and (fmod or (opset < 14 and kind.itemsize < 4)):
                continue  # Div has no such attribute, and no small integers before opset 14
            name = f"{operator} of {kind}, fmod {fmod}, opset {opset}"
            attributes = {"fmod": fmod} if fmod else {}
            model, feeds = divide(operator, values, divisors, opset=opset, **attributes)
            cases[name] = (model, [feeds])
            expected[name] = wrap(operator, values, divisors, fmod)
        name = f"Div of {kind} by a constant"
        model, feeds = divide("Div", values, divisors, constant=True)
        cases[name] = (model, [feeds])
        expected[name] = wrap("Div", values, divisors)
    found = compute_in_child(cases, tmp_path)
    for name, answers in expected.items():
        np.testing.assert_array_equal(found[name], [[answers]], err_msg=name)
        assert found[name][0][0].dtype == answers.dtype


@pytest.mark.parametrize("operator", ["Div", "Mod"])
def test_harmless_constants_and_floats_cost_nothing(operator):
    values = np.arange(4, dtype=np.int32)
    model, _ = divide(operator, values, np.int32([1, 2, 3, 7]), constant=True)
    assert lower(model, None) is model
    for harmful in (0, -1):
        model, _ = divide(operator, values, np.int32([1, 2, 3, harmful]), constant=True)
        assert len(operators(lower(model, None))) > 1
    node = helper.make_node(
        operator, ["x", "d"], ["y"], **({"fmod": 1} if operator == "Mod" else {})
    )
    model = graph_of([node], {"x": X, "d": X})
    assert lower(model, None) is model
    with np.errstate(all="ignore"):
        expected = X / np.zeros_like(X) if operator == "Div" else X * np.nan
    np.testing.assert_array_equal(answer(model, {"x": X, "d": np.zeros_like(X)}), expected)


def test_a_constant_that_a_node_makes_is_one():
    value = numpy_helper.from_array(np.int32([2]))
    nodes = [
        helper.make_node("Constant", [], ["d"], value=value),
        helper.make_node("Div", ["x", "d"], ["y"]),
    ]
    model = graph_of(nodes, {"x": np.arange(4, dtype=np.int32)})
    assert lower(model, None) is model


def recurrent_over_nothing(operator, gates, steps, rows, *, begins):
    """Return the model, its feeds and the right answers."""
    outputs = ["y", "h", "c"][: 3 if operator == "LSTM" else 2]
    weights = {
        "w": np.ones((1, gates * 3, 4), np.float32),
        "r": np.ones((1, gates * 3, 3), np.float32),
    }
    start = np.full((1, rows, 3), 0.5, np.float32)
    feeds = {"x": np.zeros((steps, rows, 4), np.float32), **({"start": start} if begins else {})}
    names = ["x", "w", "r", *(["", ""] + ["start"] * (len(outputs) - 1) if begins else [])]
    model = graph_of([helper.make_node(operator, names, outputs, hidden_size=3)], feeds, weights)
    del model.graph.output[:]
    model.graph.output.extend(helper.make_tensor_value_info(name, F, None) for name in outputs)
    last = start if begins else np.zeros_like(start)
    return model, feeds, [np.zeros((steps, 1, rows, 3), np.float32), *[last] * (len(outputs) - 1)]


def test_a_recurrent_network_over_nothing_ends_no_process(tmp_path):
    cases, expected = {}, {}
    networks = [("LSTM", 4), ("GRU", 3), ("RNN", 1)]
    for network, sizes, begins in product(networks, [(0, 2), (3, 0), (0, 0)], [False, True]):
        name = f"{network[0]} of {sizes}, {begins}"
        model, feeds, expected[name] = recurrent_over_nothing(*network, *sizes, begins=begins)
        cases[name] = (model, [feeds])
    for name, (answers,) in compute_in_child(cases, tmp_path).items():
        for value, wanted in zip(answers, expected[name], strict=True):
            np.testing.assert_array_equal(value, wanted, err_msg=name)
            assert value.shape == wanted.shape


@pytest.mark.parametrize("kernels", [KernelUse.NONE, KernelUse.APART, KernelUse.FUSED])
@pytest.mark.parametrize(("operator", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_a_recurrent_network_in_half_over_nothing_is_not_run(operator, gates, kernels):
    """Rounding takes the place of its results, whose shapes are then not known."""
    model, *_ = recurrent_over_nothing(operator, gates, 0, 2, begins=False)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    for tensor in model.graph.initializer:
        half = numpy_helper.to_array(tensor).astype(np.float16)
        tensor.CopyFrom(numpy_helper.from_array(half, tensor.name))
    lowered, _ = lower_model(model, {}, Numerics(), kernels=kernels)
    assert operator not in {node.op_type for node in iter_nodes(lowered.graph)}


def cast_after(nodes, x, order, operands, weight):
    """Return a model that transposes, casts and multiplies x, and the product."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], name="turn", perm=order),
        *(helper.make_node(op, ["t"], ["n"]) for op in nodes),
        helper.make_node("Cast", ["n" if nodes else "t"], ["c"], name="cast", to=F),
        helper.make_node("MatMul", operands, ["y"]),
        helper.make_node("Identity", ["t"], ["z"]),
    ]
    model = graph_of(nodes, {"x": x}, {"w": weight})
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", F, None))
    turned = x.transpose(order).astype(np.float32)
    return model, turned @ weight if operands[0] == "c" else weight @ turned


@pytest.mark.parametrize("opset", [11, 17])
def test_a_cast_between_a_transpose_and_a_product_ends_no_process(opset, tmp_path):
    cases, expected = {}, {}
    for dtype, between in product([np.int32, np.float16], [(), ("Identity",)]):
        for order, operands, shape in (
            ([1, 0, 2], ["c", "w"], (4, 2)),
            ([1, 2, 0], ["c", "w"], (2, 3)),
            ([1, 0, 2], ["w", "c"], (2, 3, 5, 2)),
            ([2, 1, 0], ["w", "c"], (5, 3)),
            ([0, 2, 1], ["c", "w"], (3, 5)),
        ):
            x = np.arange(24).reshape(2, 3, 4).astype(dtype)
            name = f"{np.dtype(dtype)} {between} {order} {operands}"
            model, expected[name] = cast_after(
                between, x, order, operands, np.ones(shape, np.float32)
            )
            model.opset_import[0].version = opset
            named = [node.name for node in lower(model, None).graph.node if node.name]
            assert len(named) == len(set(named))
            cases[name] = (model, [{"x": x}])
    for name, ((answers,),) in compute_in_child(cases, tmp_path).items():
        np.testing.assert_allclose(answers, expected[name], rtol=1e-5, err_msg=name)


ENDLESS_REGIONS = np.float32([[-1e10, -(2.0**63), 2.0**31, 0], [1e10, -(2.0**63), 0, 2]])


def test_a_region_that_is_cut_off_beyond_the_image_is_otherwise_as_it_was():
    attributes = {"output_height": 2, "output_width": 2, "spatial_scale": 0.5}
    node = helper.make_node("RoiAlign", ["x", "r", "b"], ["y"], **attributes)
    regions = np.float32([[0, 0, 6, 7], [-3, 2, 11, 4], [4, 4, 4, 4], [-10, -8, 20, 16]])
    feeds = {
        "x": np.random.default_rng(2).standard_normal((2, 1, 4, 5)).astype(np.float32),
        "r": regions,
        "b": np.int64([0, 1, 1, 0]),
    }
    model = graph_of([node], feeds)
    (expected,) = unoptimised_session(model).run(None, feeds)
    np.testing.assert_array_equal(answer(model, feeds), expected)
    fixed = graph_of(
        [helper.make_node("RoiAlign", ["x", "r", "b"], ["y"], sampling_ratio=2)], feeds
    )
    assert lower(fixed, None) is fixed


@pytest.mark.slow
def test_no_values_of_an_input_end_the_process(tmp_path):
    cases = {each.name: each.make() for each in EXTREMES}
    (regions,) = (
        runs
        for name, (_, runs) in cases.items()
        if name.startswith("RoiAlign") and "input 1" in name
    )
    regions.append({**regions[0], "i1": ENDLESS_REGIONS})
    found = compute_in_child(cases, tmp_path)
    loaded = [name for name, answers in found.items() if len(answers) == len(cases[name][1])]
    # The other nodes have no kernel, or the load rejects them.
    assert len(loaded) > len(cases) * 0.9
