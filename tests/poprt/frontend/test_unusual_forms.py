"""Tests of forms of a model that ONNX's IR allows and few exporters write: an output listed twice,
inputs and outputs without a shape, and the domain of the standard spelled "ai.onnx"."""

import numpy as np
import onnx
import pytest
from model_runtime import ModelRunner, ModelRunnerConfig
from onnxgraph import iter_nodes
from oracles import unoptimised_session
from poprt import Compiler, Converter
from poprt.cli import main
from simipu import CompileError

X = np.linspace(-2, 2, 16, dtype=np.float32).reshape(2, 8)


def parse(text, opset=18):
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> forms {text}')


def answer(executable, feeds):
    config = ModelRunnerConfig(timeout_ns=1_000, num_threads=1)
    with ModelRunner(executable.getPopefModel(), config) as runner:
        return dict(runner.execute(feeds))


def compile_model(model, precision="fp32"):
    converter = Converter(precision=precision, disable_progress_bar=True)
    return Compiler.compile(converter.convert(model))


LISTED = {
    "a result": ("(float[2,8] x) => (float[2,8] y, float[2,8] y) { y = Relu(x) }", ["y"]),
    "a result, apart": (
        "(float[2,8] x) => (float[2,8] y, float[2,8] z, float[2,8] y) { y = Relu(x) z = Neg(y) }",
        ["y", "z"],
    ),
    "a result without a shape": ("(float[2,8] x) => (float[2,8] y, y) { y = Relu(x) }", ["y"]),
    "an input": ("(float[2,8] x) => (float[2,8] x, float[2,8] x) { }", ["x"]),
    "an input beside a result": (
        "(float[2,8] x) => (float[2,8] x, float[2,8] y, float[2,8] x) { y = Neg(x) }", ["x", "y"]
    ),
    "a weight": (
        "(float[2,8] x) => (float[2] w, float[2] w, float[2,8] y) <float[2] w = {1, 2}> "
        "{ y = Relu(x) }",
        ["w", "y"],
    ),
    "a constant": (
        "(float[2,8] x) => (float[2] c, float[2,8] y, float[2] c) "
        "{ c = Constant<value_floats = [1.0, 2.0]>() y = Relu(x) }",
        ["c", "y"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("case", LISTED)
def test_a_tensor_that_is_listed_twice_as_an_output_is_one_output(case, precision):
    text, names = LISTED[case]
    executable = compile_model(parse(text), precision)
    x = X.astype(np.float16 if precision == "fp16" else np.float32)
    found = answer(executable, {"x": x})
    once = parse(text)
    outputs = {value.name: value for value in reversed(once.graph.output)}
    del once.graph.output[:]
    once.graph.output.extend(outputs[name] for name in names)
    expected = unoptimised_session(once).run(names, {"x": X})
    assert sorted(found) == sorted(names)
    for name, value in zip(names, expected, strict=True):
        np.testing.assert_allclose(found[name], value, atol=4e-3 if precision == "fp16" else 0)


def test_the_configuration_of_a_server_lists_such_an_output_once(tmp_path):
    onnx.save(parse(LISTED["a result, apart"][0]), tmp_path / "model.onnx")
    assert (
        main(["-i", str(tmp_path / "model.onnx"), "--triton_model_dir", str(tmp_path / "m")]) == 0
    )
    text = (tmp_path / "m" / "config.pbtxt").read_text()
    assert text.count('name: "y"') == 1
    assert text.count('name: "z"') == 1


BODIES = {
    "a branch": (
        "(float[2,8] x, bool[1] c) => (float[2,8] y, float[2,8] z) { y, z = If(c)<"
        "then_branch = t () => (float[2,8] p, float[2,8] p) { p = Relu(x) }, "
        "else_branch = e () => (float[2,8] q, float[2,8] r) { q = Neg(x) r = Abs(x) }> }",
        {"c": np.array([True])},
        [np.maximum(X, 0)] * 2,
    ),
    "a branch that gives a weight": (
        "(float[2,8] x, bool[1] c) => (float[2,8] y, float[2,8] z) { u, v = If(c)<"
        "then_branch = t () => (float[1] w, float[1] w) <float[1] w = {3}> { }, "
        "else_branch = e () => (float[1] q, float[1] r) <float[1] q = {1}, float[1] r = {2}> { }> "
        "y = Mul(x, u) z = Add(x, v) }",
        {"c": np.array([True])},
        [X * 3, X + 3],
    ),
    "a loop": (
        "(float[2,8] x) => (float[2,8] y, float[3,2,8] z, float[3,2,8] s) <int64 n = {3}> { "
        "y, z, s = Loop(n, , x)<body = b (int64 i, bool k, float[2,8] a) => "
        "(bool k, float[2,8] d, float[2,8] d, float[2,8] d) { d = Neg(a) }> }",
        {},
        [-X, np.stack([-X, X, -X]), np.stack([-X, X, -X])],
    ),
    "a loop that passes its input on": (
        "(float[2,8] x) => (float[2,8] y, float[3,2,8] z) <int64 n = {3}> { "
        "y, z = Loop(n, , x)<body = b (int64 i, bool k, float[2,8] a) => "
        "(bool k, float[2,8] a, float[2,8] a) { }> }",
        {},
        [X, np.stack([X] * 3)],
    ),
    "a scan": (
        "(float[2,8] x) => (float[8] y, float[2,8] z) <float[8] zero = {0,0,0,0,0,0,0,0}> { "
        "y, z = Scan<num_scan_inputs = 1, body = b (float[8] a, float[8] r) => "
        "(float[8] d, float[8] d) { d = Add(a, r) }>(zero, x) }",
        {},
        [X.sum(0), X.cumsum(0)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BODIES)
def test_a_body_may_list_an_output_twice(case):
    """ONNX Runtime returns uninitialised memory for such a branch."""
    text, more, expected = BODIES[case]
    found = answer(compile_model(parse(text)), {"x": X, **more})
    for value, wanted in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(value, wanted, atol=1e-6)


def without(what, side, text="(float[2,8] x) => (float[2,8] y) { z = Relu(x) y = Neg(z) }"):
    model = parse(text)
    (value,) = getattr(model.graph, side)
    if what == "type":
        value.ClearField("type")
    else:
        value.type.tensor_type.ClearField(what)
    return model


@pytest.mark.parametrize("what", ["shape", "elem_type", "type"])
def test_an_output_without_a_shape_or_a_type_has_that_which_is_inferred(what, tmp_path):
    model = without(what, "output")
    np.testing.assert_array_equal(answer(compile_model(model), {"x": X})["y"], -np.maximum(X, 0))
    np.testing.assert_array_equal(answer(Compiler.compile(model), {"x": X})["y"], -np.maximum(X, 0))
    onnx.save(model, tmp_path / "model.onnx")
    assert (
        main(["-i", str(tmp_path / "model.onnx"), "--triton_model_dir", str(tmp_path / "m")]) == 0
    )
    assert (tmp_path / "m" / "config.pbtxt").read_text().count("dims: [8]") == 2


def test_an_input_without_a_shape_is_asked_for_by_name(tmp_path, capsys):
    onnx.save(without("shape", "input"), tmp_path / "model.onnx")
    words = ["-i", str(tmp_path / "model.onnx"), "--output_dir", str(tmp_path), "--export_popef"]
    assert main(words) == 1
    assert "input 'x' has no shape; give it with --input_shape x=" in capsys.readouterr().err
    assert main([*words, "--input_shape", "x=2,8"]) == 0


@pytest.mark.parametrize("what", ["elem_type", "type"])
def test_an_input_without_a_type_is_refused_by_name(what, tmp_path, capsys):
    model = without(what, "input")
    onnx.save(model, tmp_path / "model.onnx")
    assert main(["-i", str(tmp_path / "model.onnx"), "--export_popef"]) == 1
    assert "input 'x' has no type" in capsys.readouterr().err
    for compile_it in (compile_model, Compiler.compile):
        with pytest.raises(CompileError, match="input 'x' has no type"):
            compile_it(model)


def spell(model, nodes, imports):
    """Spell the standard's domain in the nodes, bodies' too, and in the imports."""
    for node in iter_nodes(model.graph):
        node.domain = nodes
    (version,) = {each.version for each in model.opset_import}
    del model.opset_import[:]
    model.opset_import.extend(onnx.helper.make_opsetid(name, version) for name in imports)
    return model


SPELLED = "(float[2,8] x, bool[1] c) => (float[2,8] y) { z = Relu(x) y = If(c)<" \
    "then_branch = t () => (float[2,8] p) { p = Neg(z) }, " \
    "else_branch = e () => (float[2,8] q) { k = Constant<value_float = 2.0>() q = Mul(z, k) }> }"  # fmt: skip


@pytest.mark.parametrize("nodes", ["", "ai.onnx"])
@pytest.mark.parametrize("imports", [[""], ["ai.onnx"], ["", "ai.onnx"], ["ai.onnx", ""]])
def test_the_domain_of_the_standard_has_two_spellings(nodes, imports, tmp_path):
    model = spell(parse(SPELLED), nodes, imports)
    feeds = {"x": X, "c": np.array([False])}
    for executable in (compile_model(model), Compiler.compile(model)):
        np.testing.assert_array_equal(answer(executable, feeds)["y"], 2 * np.maximum(X, 0))
    onnx.save(model, tmp_path / "model.onnx")
    words = ["-i", str(tmp_path / "model.onnx"), "--output_dir", str(tmp_path), "--export_popef"]
    assert main(words) == 0


def test_two_versions_under_the_two_spellings_are_refused():
    model = spell(parse(SPELLED), "", ["", "ai.onnx"])
    model.opset_import[1].version = 11
    with pytest.raises(CompileError, match="found 11 and 18 under its two spellings"):
        compile_model(model)


def test_functions_may_spell_it_too():
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["ai.onnx": 18, "my": 1]> forms (float[2,8] x) => '
        '(float[2,8] y) { y = my.F(x) } <opset_import: ["ai.onnx": 18], domain: "my"> '
        "F (a) => (b) { b = Neg(a) }"
    )
    model.functions[0].node[0].domain = "ai.onnx"
    np.testing.assert_array_equal(answer(compile_model(model), {"x": X})["y"], -X)
