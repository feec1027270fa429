"""Tests of inputs that are settings: fixed to a value, they select one branch of an If. Otherwise
the message names the input to fix."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnxgraph import iter_bodies
from oracles import unoptimised_session
from poprt import Compiler, Converter, get_pass
from poprt.cli import main
from poprt.passes.shapes.inputs import FixInputs
from sample_models import make_model
from simipu import CompileError

F, I32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL


def spec_of(name, shape=None):
    return helper.make_tensor_value_info(name, F, shape)


def branch_of(window: int) -> onnx.GraphProto:
    """Return a branch that sums the rows of windows of that size. All branches use the same names,
    which ONNX allows."""
    nodes = [
        helper.make_node("Constant", [], ["size"], value_ints=[-1, window]),
        helper.make_node("Reshape", ["x", "size"], ["windows"]),
        helper.make_node("MatMul", ["windows", f"w{window}"], ["r"]),
    ]
    return helper.make_graph(nodes, f"b{window}", [], [spec_of("r")])


def model_of(*, sr=(I64, [])) -> onnx.ModelProto:
    """Return a model like silero_vad: an input `sr` chooses the branch, and one branch does not fit
    12 samples."""
    nodes = [
        helper.make_node("Cast", ["sr"], ["rate"], to=I64),
        helper.make_node("Equal", ["rate", "sixteen"], ["is_sixteen"]),
        helper.make_node(
            "If",
            ["is_sixteen"],
            ["sums"],
            name="choose",
            then_branch=branch_of(4),
            else_branch=branch_of(5),
        ),
        helper.make_node(
            "If", ["is_sixteen"], ["again"], then_branch=branch_of(4), else_branch=branch_of(5)
        ),
        helper.make_node("Mul", ["sums", "again"], ["y"]),
    ]
    weights = {"sixteen": np.int64(16000)}
    weights |= {
        f"w{size}": np.arange(3 * size, dtype=np.float32).reshape(size, 3) for size in (4, 5)
    }
    return make_model(nodes, {"x": (F, ["n"]), "sr": sr}, {"y": (F, [None, 3])}, weights)


@pytest.mark.parametrize(
    ("sr", "size"), [(16000, 12), (8000, 10), ("16000", 8), (np.array(8000), 5)]
)
def test_only_the_branch_that_a_fixed_input_chooses_is_compiled(sr, size):
    model = model_of()
    converted = Converter(input_shape={"x": [size]}, fix_inputs={"sr": sr}).convert(model)
    onnx.checker.check_model(converted, full_check=True)
    assert [value.name for value in converted.graph.input] == ["x"]
    assert "If" not in [node.op_type for node in converted.graph.node]
    x = np.arange(size, dtype=np.float32)
    expected = unoptimised_session(model).run(None, {"x": x, "sr": np.array(int(sr))})
    found = unoptimised_session(converted).run(None, {"x": x})
    np.testing.assert_array_equal(found[0], expected[0])


def invalid_model() -> onnx.ModelProto:
    """Return a similar model with a branch whose error the ranks alone show."""
    good = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["r"])], "g", [], [spec_of("r")]
    )
    bad = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["s"], name="too_flat")], "h", [], [spec_of("s")]
    )
    nodes = [
        helper.make_node("Equal", ["sr", "sixteen"], ["is_sixteen"]),
        helper.make_node(
            "If", ["is_sixteen"], ["y"], name="choose", then_branch=good, else_branch=bad
        ),
    ]
    weights = {"sixteen": np.int64(16000), "w": np.ones((4, 3), np.float32)}
    return make_model(nodes, {"x": (F, ["n", 4]), "sr": (I64, [])}, {"y": (F, None)}, weights)


def test_a_branch_that_is_invalid_is_named_with_the_reason_and_the_input_to_fix():
    with pytest.raises(CompileError) as caught:
        Compiler.compile(Converter(batch_size=2).convert(invalid_model()))
    text = str(caught.value)
    assert "node 'choose' (If): its else branch is invalid at the given input shapes: " in text
    assert "too_flat" in text
    assert (
        "Its condition depends on input 'sr': fix it to a value with poprt --fix_input sr=VALUE"
        in text
    )
    assert "ONNX Runtime cannot load" not in text
    assert "\n" not in text
    assert Converter(batch_size=2, fix_inputs={"sr": 16000}).convert(invalid_model()).graph.node


def test_branches_in_branches_and_those_that_shapes_decide_are_taken():
    model = invalid_model()
    outer = helper.make_graph(
        [
            helper.make_node("Shape", ["x"], ["shape"]),
            helper.make_node("Gather", ["shape", "zero"], ["rows"]),
            helper.make_node("Equal", ["rows", "two"], ["is_two"]),
            helper.make_node(
                "If", ["is_two"], ["inner"], **{a.name: a.g for a in model.graph.node[1].attribute}
            ),
        ],
        "outer",
        [],
        [spec_of("inner")],
    )
    neither = helper.make_graph(
        [helper.make_node("Neg", ["v"], ["n"])], "neither", [], [spec_of("n")]
    )
    nodes = [
        helper.make_node("If", ["yes"], ["y"], name="outer", then_branch=outer, else_branch=neither)
    ]
    weights = {
        "two": np.int64(2),
        "zero": np.int64(0),
        "w": np.ones((4, 3), np.float32),
        "v": np.ones((2, 3), np.float32),
    }
    deep = make_model(nodes, {"x": (F, ["n", 4]), "yes": (BOOL, [])}, {"y": (F, [2, 3])}, weights)
    for options, left in (({}, ["If"]), ({"fix_inputs": {"yes": "true"}}, ["MatMul"])):
        converted = Converter(
            batch_size=2 if options else None, input_shape={"x": [2, 4]}, **options
        ).convert(deep)
        assert [node.op_type for node in converted.graph.node] == left
        bodies = [body for node in converted.graph.node for body in iter_bodies(node)]
        assert "If" not in [node.op_type for body in bodies for node in body.node]


def test_a_branch_in_a_loop_is_named_and_taken():
    branches = {a.name: a.g for a in invalid_model().graph.node[1].attribute}
    nodes = [
        helper.make_node("Identity", ["going"], ["on"]),
        helper.make_node("If", ["yes"], ["each"], name="inside", **branches),
    ]
    numbers = [
        helper.make_tensor_value_info("i", I64, []),
        helper.make_tensor_value_info("going", BOOL, []),
    ]
    body = helper.make_graph(
        nodes,
        "body",
        numbers,
        [helper.make_tensor_value_info("on", BOOL, []), spec_of("each", [2, 3])],
    )
    loop = helper.make_node("Loop", ["trips", ""], ["y"], name="around", body=body)
    weights = {"trips": np.int64(5), "w": np.ones((4, 3), np.float32)}
    model = make_model(
        [loop], {"x": (F, [2, 4]), "yes": (BOOL, [])}, {"y": (F, [5, 2, 3])}, weights
    )
    with pytest.raises(
        CompileError, match=r"node 'inside' \(If\): its else branch .* depends on input 'yes'"
    ):
        Compiler.compile(Converter().convert(model))
    (left,) = Converter(fix_inputs={"yes": True}).convert(model).graph.node
    assert "If" not in [node.op_type for body in iter_bodies(left) for node in body.node]


@pytest.mark.parametrize(
    ("kind", "given", "reason"),
    [
        (
            (I64, []),
            "fast",
            r"input 'sr' cannot be fixed: expected INT64 of shape \[\], found 'fast' in 'fast'",
        ),
        ((I64, []), "1.5", "expected INT64 .*found '1.5'"),
        ((I64, []), 1.5, "expected INT64 .*found 1.5"),
        ((I32, []), "3000000000", "found 3000000000, which is out of its range"),
        ((I64, []), "1,2", r"of shape \[\], found 2 values in '1,2'"),
        ((I64, [3]), "7", r"of shape \[3\], found 1 value in '7'"),
        ((I64, ["a", 2]), "1,2,3", r"of shape \[a, 2\], found 3 values"),
        ((I64, ["a", "b"]), "1,2", r"of shape \[a, b\], found 2 values"),
        ((BOOL, []), "maybe", "expected BOOL of shape .*found 'maybe'"),
        ((TensorProto.STRING, []), "x", "its type is STRING, and only numbers can be given"),
    ],
)
def test_a_wrong_value_names_the_input_its_type_its_shape_and_what_was_found(kind, given, reason):
    model = make_model(
        [helper.make_node("Neg", ["x"], ["y"])], {"x": (F, [2]), "sr": kind}, {"y": (F, [2])}, {}
    )
    with pytest.raises(CompileError, match=reason):
        Converter(fix_inputs={"sr": given}).convert(model)


@pytest.mark.parametrize(
    ("kind", "given", "shape", "expected"),
    [
        ((I64, []), "-3", None, np.int64(-3)),
        ((I64, ["a", 2]), "1, 2, 3, 4", None, np.array([[1, 2], [3, 4]])),
        ((F, ["a", "b"]), "[1,2.5]", [1, 2], np.array([[1, 2.5]], np.float32)),
        ((F, [1]), "1e-3", None, np.array([0.001], np.float32)),
        ((BOOL, [2]), "true,0", None, np.array([True, False])),
        ((F, [2]), np.array([1, 2]), None, np.array([1, 2], np.float32)),
    ],
)
def test_a_value_takes_the_inputs_type_and_shape(kind, given, shape, expected):
    model = make_model([helper.make_node("Identity", ["sr"], ["s"])], {"sr": kind}, {"s": kind}, {})
    FixInputs({"sr": given}, {} if shape is None else {"sr": shape}).run(model)
    found = onnx.numpy_helper.to_array(model.graph.initializer[0])
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_the_command_fixes_inputs_and_refuses_those_that_the_model_lacks(tmp_path, capsys):
    onnx.save(model_of(), tmp_path / "m.onnx")
    arguments = [
        "--input_model",
        str(tmp_path / "m.onnx"),
        "--input_shape",
        "x=12",
        "--output_dir",
        str(tmp_path),
    ]
    assert main([*arguments, "--fix_input", "sr=16000"]) == 0
    assert main([*arguments, "--fix_input", "rate=16000"]) == 1
    assert "fix_inputs names 'rate'; the model's inputs are x, sr" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        (
            [
                helper.make_node("Cast", ["sizes"], ["s"], to=I64),
                helper.make_node("Reshape", ["x", "s"], ["y"], name="n"),
            ],
            r"node 'n' \(Reshape\): the shape of its output 'y' depends on the data: on the values "
            r"of "
            r"tensor 's', computed of "
            r"input 'sizes' and known at run time only; .*--fix_input sizes=VALUE",
        ),
        (
            [helper.make_node("Tile", ["x", "wide"], ["y"], name="n")],
            "depends on the data: on the values of input 'wide', known at run time only",
        ),
        (
            [
                helper.make_node("NonZero", ["x"], ["at"], name="n"),
                helper.make_node("Cast", ["at"], ["y"], to=F),
            ],
            "output 'at' depends on the data: on the values of input 'x', .*a result of fixed "
            "size, as a mask or the first k",
        ),
    ],
)
def test_a_data_dependent_shape_is_rejected_with_its_tensor_and_inputs(nodes, reason):
    inputs = {"x": (F, [2, 4]), "sizes": (I32, [2]), "wide": (I64, [2])}
    used = {name for node in nodes for name in node.input}
    model = make_model(
        nodes, {name: spec for name, spec in inputs.items() if name in used}, {"y": (F, None)}, {}
    )
    converted = Converter().convert(model)
    with pytest.raises(CompileError, match=reason):
        Compiler.compile(converted)


def test_invalid_nodes_are_kept_in_branches_and_rejected_outside():
    nodes = [helper.make_node("Gather", ["w", "far"], ["picked"], name="too_far")]
    bodies = {}
    for kind in ("then", "else"):
        body = [helper.make_node("Gather", ["w", kind], [f"{kind}_picked"])]
        body += [helper.make_node("Add", ["x", f"{kind}_picked"], [f"{kind}_sum"])]
        bodies[f"{kind}_branch"] = helper.make_graph(body, kind, [], [spec_of(f"{kind}_sum")])
    choose = helper.make_node("If", ["yes"], ["y"], **bodies)
    weights = {"w": np.ones((4, 3), np.float32), "then": np.int64([1]), "else": np.int64([9])}
    inputs = {"x": (F, [1, 3]), "yes": (BOOL, [])}
    model = make_model([choose], inputs, {"y": (F, [1, 3])}, weights)
    converted = Converter().convert(model)
    found = unoptimised_session(converted).run(
        None, {"x": np.zeros((1, 3), np.float32), "yes": np.array(True)}
    )
    np.testing.assert_array_equal(found[0], np.ones((1, 3)))
    nodes += [helper.make_node("Add", ["x", "picked"], ["y"])]
    outside = make_model(
        nodes, {"x": (F, [1, 3])}, {"y": (F, [1, 3])}, {**weights, "far": np.int64([9])}
    )
    with pytest.raises(CompileError, match=r"ONNX Runtime cannot load the model: .*'too_far'"):
        Converter().convert(outside)


def test_an_if_that_folding_decides_is_taken_and_what_is_inside_is_folded():
    """The shape of the condition is known only after its operands are computed."""
    taken = [
        helper.make_node("Add", ["one", "one"], ["two"]),
        helper.make_node("Mul", ["x", "two"], ["t"]),
    ]
    yes = helper.make_graph(taken, "yes", [], [spec_of("t", [2])])
    no = helper.make_graph([helper.make_node("Squeeze", ["x"], ["n"])], "no", [], [spec_of("n")])
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Cast", ["shape"], ["float"], to=F),
        helper.make_node("Mul", ["float", "one"], ["same"]),
        helper.make_node("Cast", ["same"], ["sizes"], to=I64),
        helper.make_node("Reshape", ["x", "sizes"], ["r"]),
        helper.make_node("Shape", ["r"], ["r_shape"]),
        helper.make_node("Squeeze", ["r_shape"], ["size"]),
        helper.make_node("Equal", ["size", "wanted"], ["is_two"]),
        helper.make_node("If", ["is_two"], ["y"], then_branch=yes, else_branch=no),
    ]
    weights = {"one": np.float32([1]), "wanted": np.int64(2)}
    model = make_model(nodes, {"x": (F, ["n"])}, {"y": (F, [2])}, weights)
    model = get_pass("eliminate_nop_if")(get_pass("const_input_shape", {"x": [2]})(model))
    assert "If" in [node.op_type for node in model.graph.node]
    assert [node.op_type for node in Converter().convert(model).graph.node] == ["Mul"]
