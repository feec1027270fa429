"""Tests of models in other opsets, which give the same answers. Every operator of the standard runs
on the standard's own examples, down to 11, 13 and 17 and on. Operators without an older form are
rejected by name."""

import functools

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import find_opset, iter_graphs
from oracles import unoptimised_session
from poprt import Converter
from poprt.passes import get_pass
from sample_models import linear_model, make_model
from simipu import CompileError
from simipu.operators import OPERATORS, names_where
from standard_examples import load_examples

F, F16, I64, B = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.BOOL
OLD = 11
MAX_CASES = 4
"""Maximum number of test cases of each operator: the standard has hundreds for Cast."""
DATA = (
    "Add And BitShift Div Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mod Mul Or Pow Sub "
    "Xor"
).split()
"""Operators whose second operand is data and stays an input."""
NOT_DOWN = {
    "AffineGrid": "nothing to make it of",
    "BitwiseAnd": "nothing to make it of",
    "BitwiseNot": "nothing to make it of",
    "BitwiseOr": "nothing to make it of",
    "BitwiseXor": "nothing to make it of",
    "Col2Im": "nothing to make it of",
    "CumProd": "nothing to make it of",
    "DFT": "nothing to make it of",
    "DeformConv": "nothing to make it of",
    "GridSample": "nothing to make it of",
    "ImageDecoder": "nothing to make it of",
    "STFT": "nothing to make it of",
    "TensorScatter": "nothing to make it of",
}
"""Operators of the table that opset 11 lacks and cannot express."""
UNLIKE = {"test_roialign_aligned_false": "ONNX Runtime's own answer is another"}
UNLIKE |= {"test_maxunpool_export_with_output_shape": "ONNX Runtime's own answer is another"}
UNLIKE |= {
    f"test_qlinearmatmul_{rank}_int8_{kind}": "onnx 1.16 has its answer wrong"
    for rank in ("2D", "3D")
    for kind in ("float16", "float32")
}
UNLIKE |= {"test_reduce_max_empty_set_bool": "the least truth is not that of whole numbers"}


@functools.cache
def examples():
    """Return by operator the examples of a single node whose inputs and results are tensors of
    numpy's types."""
    found = {}
    for case in load_examples():
        if case.model is None or len(case.model.graph.node) != 1 or case.name in UNLIKE:
            continue
        node = case.model.graph.node[0]
        taken, made = case.data_sets[0]
        arrays = [to_array(each) for each in (*taken, *made)]
        entry = OPERATORS.get(node.op_type)
        if (
            node.domain
            or entry is None
            or entry.refusal
            or entry.is_random
            or any(a is None for a in arrays)
        ):
            continue
        found.setdefault(node.op_type, []).append(
            (case, arrays[: len(taken)], arrays[len(taken) :])
        )
    return found


def to_array(value):
    value = numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value
    return value if isinstance(value, np.ndarray) and value.dtype.kind in "fiub" else None


def with_constants(case, taken):
    """Return the example with its parameters (axes, sizes, shapes) as constants, and the remaining
    inputs as feeds."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.ir_version = 8
    fed = {}
    for place, (value, array) in enumerate(zip(list(model.graph.input), taken, strict=True)):
        says_how = place and array.dtype.kind in "iub" and array.ndim <= 1 and array.size
        if says_how and model.graph.node[0].op_type not in DATA:
            model.graph.initializer.append(numpy_helper.from_array(array, value.name))
            model.graph.input.remove(value)
        else:
            fed[value.name] = array
    return model, fed


def run(model, fed):
    session = unoptimised_session(model)
    return session.run(None, fed)


def convert(model, *versions):
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for version in versions:
        copy = get_pass("convert_version", version)(copy)
    return copy


def try_to_run(model, fed):
    """Run the model; return None if ONNX Runtime has no kernel for the example's types."""
    try:
        return run(model, fed)
    except Exception as error:
        if "NOT_IMPLEMENTED" in str(error) or "is invalid" in str(error):
            return None
        raise


RUNTIME = tuple(map(int, onnxruntime.__version__.split(".")[:2]))


def are_close(expected, found):
    """Return whether answers differ by no more than a rounding or two of their type."""
    return all(
        (wanted.shape, wanted.dtype) == (made.shape, made.dtype)
        and np.allclose(
            made.astype(float),
            wanted.astype(float),
            rtol=1e-2 if wanted.dtype == np.float16 else 1e-4,
            atol=1e-2 if wanted.dtype == np.float16 else 1e-5,
            equal_nan=True,
        )
        for wanted, made in zip(expected, found, strict=True)
    )


@pytest.mark.parametrize(
    "through", [(OLD,), pytest.param((13, OLD), marks=pytest.mark.slow), (17, OLD)]
)
@pytest.mark.parametrize("operator", sorted(OPERATORS))
def test_an_operator_answers_the_same_in_an_old_opset(operator, through):
    if operator == "ReverseSequence" and RUNTIME < (1, 24):
        pytest.skip("ONNX Runtime 1.23 leaves sequences of length 0 unwritten")
    cases = [
        each for each in examples().get(operator, []) if find_opset(each[0].model) > through[0]
    ]
    spread = cases[:: max(1, len(cases) // MAX_CASES)]
    arrived = 0
    for case, taken, expected in spread:
        model, fed = with_constants(case, taken)
        try:
            converted = convert(model, *through)
        except CompileError:
            continue
        arrived += 1
        assert find_opset(converted) == OLD
        onnx.checker.check_model(converted)
        found = try_to_run(converted, fed)
        assert found is None or are_close(expected, found), case.name
    assert not spread or bool(arrived) == (operator not in NOT_DOWN), operator


@pytest.mark.parametrize(("operator", "reason"), NOT_DOWN.items())
def test_an_operator_that_has_no_older_form_is_refused_by_its_node(operator, reason):
    for case, taken, _ in examples().get(operator, [])[:1]:
        model, _ = with_constants(case, taken)
        model.graph.node[0].name = "culprit"
        with pytest.raises(
            CompileError, match=f"to opset 11: node 'culprit'.*{reason}.*no convert_version"
        ):
            convert(model, OLD)


@pytest.mark.parametrize(
    "operator", sorted(names_where(lambda entry: entry.is_reduction and entry.keeps_single))
)
def test_a_reduction_over_no_axes_that_keeps_elements_is_an_identity_in_an_old_opset(operator):
    node = helper.make_node(operator, ["x"], ["y"], noop_with_empty_axes=1)
    model = make_model([node], {"x": (F, [3])}, {"y": (F, [3])}, {}, opset=18)
    converted = convert(model, OLD)
    assert [node.op_type for node in converted.graph.node] == ["Identity"]
    x = np.array([-2, 0, 3], np.float32)
    np.testing.assert_array_equal(run(model, {"x": x})[0], x)


def norm_in_a_body():
    """Return a model with a layer norm and a ReduceSum with axes after it, in both branches of an
    If; the weights are outside."""
    bodies = []
    for kind in ("a", "b"):
        nodes = [
            helper.make_node(
                "LayerNormalization", ["x", "scale", "bias"], [f"{kind}n"], name=f"{kind}norm"
            ),
            helper.make_node(
                "Constant", [], [f"{kind}axes"], value=numpy_helper.from_array(np.array([1]))
            ),
            helper.make_node("ReduceSum", [f"{kind}n", f"{kind}axes"], [f"{kind}s"], keepdims=0),
            helper.make_node("Softmax", [f"{kind}s"], [f"{kind}y"], axis=0),
        ]
        bodies.append(
            helper.make_graph(nodes, kind, [], [helper.make_tensor_value_info(f"{kind}y", F, [3])])
        )
    node = helper.make_node("If", ["c"], ["y"], then_branch=bodies[0], else_branch=bodies[1])
    weights = {"scale": np.arange(4, dtype=np.float32), "bias": np.ones(4, np.float32)}
    return make_model([node], {"x": (F, [3, 4]), "c": (B, [])}, {"y": (F, [3])}, weights)


def test_bodies_go_down_with_what_they_see_of_the_graph_around_them():
    model = norm_in_a_body()
    converted = convert(model, OLD)
    onnx.checker.check_model(converted)
    operators = {node.op_type for graph in iter_graphs(converted.graph) for node in graph.node}
    assert "LayerNormalization" not in operators
    x = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    for choice in (True, False):
        fed = {"x": x, "c": np.array(choice)}
        np.testing.assert_allclose(run(converted, fed)[0], run(model, fed)[0], rtol=1e-5)


def test_sizes_that_are_computed_of_known_shapes_count_as_constants():
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "one"], ["width"]),
        helper.make_node("Div", ["width", "two"], ["half"]),
        helper.make_node("Concat", ["half", "half"], ["sizes"], axis=0),
        helper.make_node("Split", ["x", "sizes"], ["y", "z"], axis=1),
    ]
    weights = {"one": np.array([1]), "two": np.array([2])}
    model = make_model(nodes, {"x": (F, [2, 6])}, {"y": (F, [2, 3]), "z": (F, [2, 3])}, weights)
    converted = convert(model, OLD)
    assert [
        list(each.ints) for each in converted.graph.node[-1].attribute if each.name == "split"
    ] == [[3, 3]]


def test_sizes_that_are_given_at_run_time_are_refused():
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], name="sum", keepdims=0)
    model = make_model([node], {"x": (F, [2, 3]), "axes": (I64, [1])}, {"y": (F, None)}, {})
    with pytest.raises(
        CompileError, match=r"node 'sum' \(ReduceSum\): its axes would have to be constant"
    ):
        convert(model, OLD)


def test_the_models_own_opset_stays_unless_another_is_asked_for():
    assert find_opset(Converter(batch_size=2).convert(linear_model())) == 17
    assert find_opset(Converter(batch_size=2, convert_version=OLD).convert(linear_model())) == OLD


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("opset", [7, 9, 10, 13, 17, 20])
def test_a_model_of_any_opset_goes_to_eleven_and_is_converted_there(opset, precision):
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
        helper.make_node("Softmax", ["m"], ["y"], axis=-1 if opset > 10 else 1, name="soft"),
    ]
    model = make_model(
        nodes, {"x": (F, [2, 3])}, {"y": (F, [2, 4])}, {"w": np.eye(3, 4, dtype=np.float32)}, opset
    )
    converted = Converter(convert_version=OLD, precision=precision).convert(model)
    assert find_opset(converted) == OLD
    x = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    narrow = x.astype(np.float16 if precision == "fp16" else np.float32)
    np.testing.assert_allclose(run(converted, {"x": narrow})[0], run(model, {"x": x})[0], atol=2e-3)


def test_a_model_newer_than_the_installed_onnx_is_refused():
    model = linear_model()
    model.opset_import[0].version = onnx.defs.onnx_opset_version() + 1
    with pytest.raises(CompileError, match=r"the installed onnx .* knows those up to"):
        Converter(batch_size=1).convert(model)


def test_an_unknown_opset_is_rejected():
    with pytest.raises(
        CompileError, match="convert_version=99: the installed onnx knows opsets 1 to"
    ):
        convert(linear_model(), 99)


def test_large_weights_do_not_travel(monkeypatch):
    """Weights stay in place in both directions: they may be gigabytes, and a message holds two."""
    model = linear_model(width=100_000)
    seen = []
    monkeypatch.setattr(
        onnx.version_converter,
        "convert_version",
        lambda given, version: seen.append(given.ByteSize()) or given,
    )
    convert(model, 18)
    assert seen[0] < 10_000


def test_a_model_in_float_with_halves_in_it_is_brought_to_opset_11():
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=F16),
        helper.make_node("Cast", ["h"], ["y"], to=F),
    ]
    model = make_model(nodes, {"x": (F, [2])}, {"y": (F, [2])}, {}, 7)
    assert find_opset(Converter().convert(model)) == OLD


@pytest.mark.parametrize("version", [11, 13, 18])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(
    ("op_type", "opset", "scales"),
    [
        ("Upsample", 7, [1, 1, 1.5, 3]),
        ("Upsample", 9, [1, 1, 2, 1.5]),
        ("Resize", 10, [1, 1, 1.5, 2]),
        ("Resize", 10, [1, 1, 0.6, 0.5]),
        ("Resize", 10, [1, 1, 0.6, 1.5]),
        ("Resize", 10, [1, 1, 1, 1]),
    ],
)
def test_resizes_of_old_still_begin_at_the_first_element(op_type, opset, scales, mode, version):
    """The converter of onnx makes newer resizes scale from the centres of elements."""
    given = {"scales": [float(each) for each in scales]} if opset < 9 else {}
    node = helper.make_node(op_type, ["x"] if given else ["x", "s"], ["y"], mode=mode, **given)
    x = np.random.default_rng(0).integers(0, 99, (1, 1, 6, 5)).astype(np.float32)
    size = [int(np.floor(length * scale)) for length, scale in zip(x.shape, scales, strict=True)]
    weights = {} if given else {"s": np.array(scales, np.float32)}
    model = make_model([node], {"x": (F, x.shape)}, {"y": (F, size)}, weights, opset)
    converted = convert(model, version)
    onnx.checker.check_model(converted, full_check=True)
    (expected,), (found,) = (run(each, {"x": x}) for each in (model, converted))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("opset", [7, 12])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, 3])
@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax", "Hardmax"])
def test_an_axis_and_all_behind_it_stay_one(op_type, axis, opset):
    """The converter of onnx does not convert Hardmax."""
    given = {} if axis is None else {"axis": axis}
    x = np.random.default_rng(0).normal(size=(2, 3, 2, 4)).astype(np.float32)
    node = helper.make_node(op_type, ["x"], ["y"], **given)
    model = make_model([node], {"x": (F, x.shape)}, {"y": (F, x.shape)}, {}, opset)
    (expected,), (found,) = (run(each, {"x": x}) for each in (model, convert(model, 13)))
    np.testing.assert_allclose(found, expected, atol=1e-6)
