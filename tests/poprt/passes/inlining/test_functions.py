"""Tests of models with functions of their own (FunctionProto): they are inlined, under names that a
reader finds, and compute what numpy computes."""

import numpy as np
import onnx
import pytest
from function_models import SHAPE, make_function_model
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnxgraph import iter_nodes
from oracles import unoptimised_session
from poprt import Compiler, Converter
from poprt.cli import main
from poprt.runtime import Runner
from sample_models import make_model
from simipu import CompileError

F = TensorProto.FLOAT
X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(SHAPE)


def convert(model, **options):
    return Converter(disable_progress_bar=True, **options).convert(model)


def compute(model, x=X):
    return unoptimised_session(model).run(None, {"x": x})[0]


@pytest.mark.parametrize("seed", range(40))
def test_functions_that_call_each_other_are_inlined(seed):
    model, compute_it = make_function_model(seed)
    converted = convert(model)
    assert not converted.functions
    assert {node.domain for node in iter_nodes(converted.graph)} == {""}
    np.testing.assert_allclose(compute(converted), compute_it(X), rtol=1e-4, atol=1e-5)


def parse(functions, body="{ y = my.F(x) }", opset=18):
    imports = f'opset_import: ["": {opset}, "my": 1]'
    return onnx.parser.parse_model(
        f"<ir_version: 10, {imports}> modules (float[3,4] x) => (float[3,4] y) {body} {functions}"
    )


def function(body, name="F", opset=18, attributes="", domain="my", signature="(a) => (b)"):
    imports = f'opset_import: ["": {opset}, "my": 1]'
    return f'<{imports}, domain: "{domain}"> {name}{attributes} {signature} {{ {body} }} '


LAYER = function("[scaled] t = my.G(a) b = Neg(t)") + function("[half] b = Mul(a, a)", "G")


def test_tensors_and_nodes_inside_are_named_after_the_calls():
    model = parse(LAYER, "{ [first] h = my.F(x) y = my.F(h) }")
    converted = convert(model)
    names = {node.name: list(node.output) for node in converted.graph.node}
    assert names == {
        "first/scaled/half": ["h/F/t"],
        "first/1": ["h"],
        "y/F/scaled/half": ["y/F/t"],
        "y/F/1": ["y"],
    }


def test_a_message_about_a_node_inside_names_the_call():
    model = parse(function("[odd] b = my.Sparkle(a)"), "{ [layer] y = my.F(x) }")
    with pytest.raises(CompileError, match=r"node 'layer/odd' .*operator my.Sparkle is not"):
        convert(model)


def soften(x, axes):
    powers = np.exp(x - x.max(axes, keepdims=True))
    return powers / powers.sum(axes, keepdims=True)


def centre(x):
    return x - x.mean(1, keepdims=True)


NEWER = "k = Constant<value_ints = [1]>() m = ReduceMean(a, k) b = Sub(a, m)"
OPSETS = {
    "an older one": (11, 18, "m = ReduceMean<axes = [1]>(a) b = Sub(a, m)", centre),
    "a newer one": (18, 13, NEWER, centre),
    "a newer one whose operators are the same": (18, 17, "b = Relu(a)", lambda x: np.maximum(x, 0)),
    "one in which a Softmax takes all axes behind its own": (
        12, 18, "b = Softmax<axis = 0>(a)", lambda x: soften(x, None)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OPSETS)
def test_a_function_may_have_another_opset_than_the_model(case):
    own, opset, body, computed = OPSETS[case]
    model = parse(function(body, opset=own), "{ z = my.F(x) t = Softmax(z) y = Sub(t, x) }", opset)
    expected = soften(computed(X), 1) - X
    np.testing.assert_allclose(compute(convert(model)), expected, rtol=1e-5, atol=1e-6)


def test_attributes_are_filled_in_before_operators_are_converted():
    body = "s = Unsqueeze<axes = [0, 1]>(a) b = Squeeze<axes: ints = @axes>(s)"
    called = function(body, opset=11, attributes="<axes: ints = [1]>")
    model = parse(called, "{ y = my.F(x) }")
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", F, [1, *SHAPE]))
    assert compute(convert(model)).shape == (1, *SHAPE)


def test_an_output_may_be_an_input_or_be_listed_twice():
    called = function("c = Neg(a)", signature="(a) => (a, c, c)")
    model = parse(called, "{ p, q, r = my.F(x) s = Sub(p, q) y = Add(s, r) }")
    np.testing.assert_array_equal(compute(convert(model)), X)


def test_inputs_and_outputs_may_be_left_out():
    called = function(
        "c = Clip(a, low, high) d = Exp(c) b = Abs(c)", signature="(a, low, high) => (d, b)"
    )
    for call in ("x", 'x, "", ""', "x, zero"):
        model = parse(called, f'{{ zero = Constant<value_float = 0.0>() "", y = my.F({call}) }}')
        bound = 0 if "zero" in call else -np.inf
        np.testing.assert_array_equal(compute(convert(model)), np.abs(np.maximum(X, bound)))


def test_a_function_of_a_standard_operators_name_is_not_called():
    """ONNX Runtime and onnx's reference evaluator do the same."""
    model = parse(function("b = Neg(a)", "Relu", domain=""), "{ y = Relu(x) }")
    np.testing.assert_array_equal(compute(convert(model)), np.maximum(X, 0))
    np.testing.assert_array_equal(
        ReferenceEvaluator(model).run(None, {"x": X})[0], np.maximum(X, 0)
    )


def test_functions_are_inlined_in_half_as_in_float():
    model = parse(function("h = Cast<to = 10>(a) s = Mul(h, h) b = Cast<to = 1>(s)"))
    executable = Compiler.compile(convert(model, precision="fp16"))
    y = np.zeros(SHAPE, np.float16)
    Runner(executable).execute({"x": X.astype(np.float16)}, {"y": y})
    np.testing.assert_allclose(y, X * X, atol=4e-3)


RECURSIVE = {
    "itself": (function("b = my.F(a)"), r"my.F calls itself \(my.F -> my.F\)"),
    "itself in a branch": (
        function(
            "c = Constant<value_int = 1>() d = Cast<to = 9>(c) b = If(d)<"
            "then_branch = t () => (float[3,4] p) { p = my.F(a) }, "
            "else_branch = e () => (float[3,4] q) { q = Neg(a) }>"
        ),
        r"my.F calls itself",
    ),
    "another one in turn": (
        function("b = my.G(a)") + function("b = my.F(a)", "G"),
        r"my.F calls itself \(my.F -> my.G -> my.F\)",
    ),
    "many more": (
        "".join(function(f"c = my.F{i + 1}(a) b = my.F{i + 1}(c)", f"F{i}") for i in range(40))
        + function("b = Neg(a)", "F40"),
        "largest, my.F0, 1099511627776; expected at most 200000",
    ),
    "ever deeper ones": (
        "".join(function(f"b = my.F{i + 1}(a)", f"F{i}") for i in range(500))
        + function("b = Neg(a)", "F500"),
        "my.F64: the functions of the model call each other more than 64 deep",
    ),
}


@pytest.mark.parametrize("case", RECURSIVE)
def test_functions_without_an_end_are_refused_at_once_by_name(case):
    functions, message = RECURSIVE[case]
    model = parse(
        functions,
        "{ y = my.F(x) }" if "my.F(" in functions or case == "itself" else "{ y = my.F0(x) }",
    )
    for compile_it in (convert, Compiler.compile):
        with pytest.raises(CompileError, match=message):
            compile_it(model)


def test_functions_that_are_deep_but_have_an_end_are_inlined():
    functions = "".join(function(f"b = my.F{i + 1}(a)", f"F{i}") for i in range(60))
    model = parse(functions + function("b = Neg(a)", "F60"), "{ y = my.F0(x) }")
    np.testing.assert_array_equal(compute(convert(model)), -X)


def test_a_call_with_too_many_inputs_is_refused_by_its_node():
    model = parse(function("b = Neg(a)"), "{ [layer] y = my.F(x, x) }")
    with pytest.raises(CompileError, match=r"node 'layer' .my.F.: it has 2 inputs and 1 outputs"):
        convert(model)


def test_the_commands_take_functions_of_other_opsets(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = parse(function("m = ReduceMean<axes = [1]>(a) b = Sub(a, m)", opset=11))
    onnx.save(model, "model.onnx")
    assert main(["-i", "model.onnx", "--export_popef", "--show_profile"]) == 0
    assert "y/F/" in capsys.readouterr().out
    y = np.zeros(SHAPE, np.float32)
    Runner("executable.popef").execute({"x": X}, {"y": y})
    np.testing.assert_allclose(y, X - X.mean(1, keepdims=True), atol=1e-6)


def test_a_model_with_large_weights_gets_the_opset_of_its_newest_function():
    weight = np.zeros((600, 600), np.float32)
    model = parse(function(NEWER), "{ z = my.F(x) y = ReduceMean<axes = [1]>(z) }", 13)
    other = make_model(
        [helper.make_node("Neg", ["w"], ["v"])], {}, {"v": (F, [600, 600])}, {"w": weight}
    )
    model.graph.node.extend(other.graph.node)
    model.graph.initializer.extend(other.graph.initializer)
    model.graph.output.extend(other.graph.output)
    converted = convert(model)
    assert {each.version for each in converted.opset_import if not each.domain} == {18}
