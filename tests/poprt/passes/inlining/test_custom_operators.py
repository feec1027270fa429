"""Tests of users' operators: a model with an operator whose body is in Python is converted,
compiled and run."""

import textwrap

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import iter_nodes
from oracles import unoptimised_session
from poprt import Compiler, Converter
from poprt.cli import main
from poprt.passes import register_op_body, register_op_function
from poprt.passes.inlining.custom_operators import _BODIES
from poprt.runtime import Runner
from sample_models import make_model
from simipu import CompileError

F, F16 = TensorProto.FLOAT, TensorProto.FLOAT16
DOMAIN = "my.ops"
X = np.linspace(-3, 3, 8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(autouse=True)
def forget():
    known = dict(_BODIES)
    yield
    _BODIES.clear()
    _BODIES.update(known)


def custom(op_type="Swish", domain=DOMAIN, kind=F, inside=False, **attributes):
    """Return the model y = op(x) + x, in a body too if `inside`."""
    node = helper.make_node(op_type, ["x"], ["s"], name="op", domain=domain, **attributes)
    nodes = [node, helper.make_node("Add", ["s", "x"], ["y"], name="add")]
    model = make_model(nodes, {"x": (kind, [2, 4])}, {"y": (kind, [2, 4])}, {}, 13)
    if inside:
        bodies = {}
        for which in ("then", "else"):
            body = helper.make_graph(
                [], which, [], [helper.make_tensor_value_info(f"{which}_y", kind, [2, 4])]
            )
            one = helper.make_node(
                op_type, ["x"], [f"{which}_y"], name=f"op_{which}", domain=domain, **attributes
            )
            body.node.append(one)
            bodies[f"{which}_branch"] = body
        branch = helper.make_node("If", ["which"], ["y"], name="if", **bodies)
        inputs = {"x": (kind, [2, 4]), "which": (TensorProto.BOOL, [])}
        model = make_model([branch], inputs, {"y": (kind, [2, 4])}, {}, 13)
    model.opset_import.append(helper.make_opsetid(domain, 1))
    return model


def swish(node, _opset):
    beta = helper.make_node(
        "Constant",
        [],
        ["beta"],
        value=numpy_helper.from_array(np.float32(attribute(node, "beta", 1.0))),
    )
    return [
        beta,
        helper.make_node("Mul", [node.input[0], "beta"], ["scaled"]),
        helper.make_node("Sigmoid", ["scaled"], ["gate"]),
        helper.make_node("Mul", [node.input[0], "gate"], [node.output[0]]),
    ]


def attribute(node, name, default):
    return next(
        (helper.get_attribute_value(each) for each in node.attribute if each.name == name), default
    )


def expected(beta=1.0):
    return X / (1 + np.exp(-beta * X)) + X


def run(model):
    y = np.zeros((2, 4), np.float32)
    made = Compiler.compile(model)
    (value,) = made.getPopefModel().metadata.anchors()[-1:]
    assert value.name() == "y"
    if value.tensorInfo().dataType().name == "F16":
        y = y.astype(np.float16)
    Runner(made).execute({"x": X.astype(y.dtype)}, {"y": y})
    return y


@pytest.mark.parametrize("beta", [None, 2.0])
def test_a_model_with_a_custom_operator_computes_its_body(beta):
    register_op_body("Swish", DOMAIN)(swish)
    model = custom(**({} if beta is None else {"beta": beta}))
    converted = Converter().convert(model)
    assert {node.domain for node in converted.graph.node} <= {""}
    np.testing.assert_allclose(run(converted), expected(beta or 1.0), rtol=1e-5)
    np.testing.assert_allclose(run(model), expected(beta or 1.0), rtol=1e-5)  # not converted


@pytest.mark.parametrize("kind", [F, F16])
def test_the_body_is_converted_to_half_with_the_model(kind):
    register_op_body("Swish", DOMAIN)(swish)
    converted = Converter(precision="fp16").convert(custom(kind=kind))
    assert converted.graph.input[0].type.tensor_type.elem_type == F16
    np.testing.assert_allclose(run(converted), expected(), rtol=4e-3, atol=2e-3)


def test_it_is_put_into_bodies_too_and_several_share_no_names():
    register_op_body("Swish", DOMAIN)(swish)
    model = Converter().convert(custom(inside=True))
    assert not any(node.domain for node in iter_nodes(model.graph))
    session = unoptimised_session(model)
    (y,) = session.run(None, {"x": X, "which": np.array(False)})
    np.testing.assert_allclose(y, expected() - X, rtol=1e-5)


def function(opset=13, inner="Sigmoid"):
    beta = onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    leaky = helper.make_node("LeakyRelu", ["a"], ["l"])
    leaky.attribute.append(beta)
    return helper.make_function(
        DOMAIN,
        "Bend",
        ["a"],
        ["b"],
        [leaky, helper.make_node(inner, ["l"], ["b"])],
        [helper.make_opsetid("", opset)],
        attribute_protos=[helper.make_attribute("slope", 0.5)],
    )


@pytest.mark.parametrize(("given", "slope"), [({}, 0.5), ({"slope": 0.25}, 0.25)])
def test_a_function_of_onnx_is_a_body_with_its_defaults(given, slope):
    register_op_function(function())
    leaked = np.where(X < 0, X * slope, X)
    np.testing.assert_allclose(
        run(custom("Bend", **given)), 1 / (1 + np.exp(-leaked)) + X, rtol=1e-5
    )


def test_a_function_of_another_opset_is_converted_to_that_of_the_model():
    register_op_function(function(opset=14))
    run(custom("Bend"))
    register_op_function(function(opset=12, inner="Softmax"))
    soft = np.exp(np.where(X < 0, X * 0.5, X))
    np.testing.assert_allclose(
        run(custom("Bend")), soft / soft.sum(1, keepdims=True) + X, rtol=1e-5
    )
    register_op_function(function(opset=20, inner="Gelu"))
    with pytest.raises(
        CompileError, match="its function is of opset 20, the model of opset 13, and its operators"
    ):
        run(custom("Bend"))


def make(op_type, *names):
    return helper.make_node(op_type, list(names[:-1]), [names[-1]])


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (lambda _n, _o: [], "its body does not make the output 's'"),
        (
            lambda _n, _o: [make("Neg", "z", "s")],
            "its body reads 'z', which is none of the node's inputs",
        ),
        (
            lambda n, _o: [make("Neg", n.input[0], n.input[0])],
            "its body makes 'x' twice, or an input",
        ),
        (lambda _n, _o: ["Neg"], "its body makes str, expected nodes"),
        (lambda _n, _o: None, "TypeError: 'NoneType'"),
        (lambda _n, _o: 1 / 0, "ZeroDivisionError: division by zero"),
        (lambda n, _o: [n], "its body has no end: it holds the operator itself"),
        (lambda n, _o: [make("Sparkle", n.input[0], n.output[0])], "Sparkle"),
    ],
)
def test_an_invalid_operator_body_is_rejected_with_the_node(body, reason):
    register_op_body("Swish", DOMAIN)(body)
    with pytest.raises(CompileError, match=rf"node 'op[/\d]*' (.*){reason}"):
        Converter().convert(custom())


@pytest.mark.slow
def test_a_body_that_doubles_has_an_end():
    register_op_body("Swish", DOMAIN)(
        lambda n, _o: (
            [helper.make_node("Swish", [n.input[0]], [f"h{i}"], domain=DOMAIN) for i in range(64)]
            + [helper.make_node("Swish", ["h0"], [n.output[0]], domain=DOMAIN)]
        )
    )
    with pytest.raises(CompileError, match="its body has no end"):
        Converter().convert(custom())


def test_operators_of_the_standard_cannot_be_replaced():
    with pytest.raises(
        CompileError, match="operator Relu: the domain is that of the ONNX standard"
    ):
        register_op_body("Relu", "")


def test_without_a_body_the_refusal_says_how_to_give_one():
    with pytest.raises(CompileError, match=r"node 'op' .*operator my.ops.Swish .*register_op_body"):
        Converter().convert(custom())


FILE = """
from onnx import helper
from poprt.passes import register_op_body

@register_op_body(["Twice"], "my.ops")
def twice(node, opset):
    return [helper.make_node("Add", [node.input[0], node.input[0]], [node.output[0]])]
"""


def test_the_command_takes_a_file_with_bodies_and_refuses_libraries(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(custom("Twice"), "model.onnx")
    (tmp_path / "my_bodies.py").write_text(textwrap.dedent(FILE))
    words = ["-i", "model.onnx", "--custom_shape_inference", "my_bodies.py", "--export_popef"]
    assert main(words) == 0
    y = np.zeros((2, 4), np.float32)
    Runner("executable.popef").execute({"x": X}, {"y": y})
    np.testing.assert_array_equal(y, 3 * X)
    with pytest.raises(SystemExit, match="2"):
        main([*words, "--custom_library_so_paths", "custom_ops.so"])
    assert "describe the operator in Python (register_op_body)" in capsys.readouterr().err


def test_names_inside_may_be_those_of_the_model():
    """The tensors of the model have the same names as those in the body of Swish."""
    register_op_body("Swish", DOMAIN)(swish)
    nodes = [
        helper.make_node("Identity", ["x"], ["scaled"], name="first"),
        helper.make_node("Swish", ["scaled"], ["gate"], name="op", domain=DOMAIN),
        helper.make_node("Swish", ["gate"], ["beta"], name="again", domain=DOMAIN),
        helper.make_node("Add", ["beta", "scaled"], ["y"], name="add"),
    ]
    model = make_model(nodes, {"x": (F, [2, 4])}, {"y": (F, [2, 4])}, {}, 13)
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    once = X / (1 + np.exp(-X))
    np.testing.assert_allclose(
        run(Converter().convert(model)), once / (1 + np.exp(-once)) + X, atol=1e-6
    )


def test_an_input_that_is_read_twice_is_one_tensor():
    @register_op_body("Product", DOMAIN)
    def product(node, _opset):
        return [helper.make_node("Mul", node.input, node.output)]

    nodes = [helper.make_node("Product", ["x", "x"], ["y"], name="op", domain=DOMAIN)]
    model = make_model(nodes, {"x": (F, [2, 4])}, {"y": (F, [2, 4])}, {}, 13)
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    np.testing.assert_allclose(run(Converter().convert(model)), X * X, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda i, o: helper.make_node("Gelu", i, o), "makes a Gelu that is invalid in opset 13"),
        (
            lambda i, o: helper.make_node("ReduceSum", i, o, axes=[1]),
            "makes a ReduceSum .*Unrecognized attr",
        ),
        (
            lambda i, o: helper.make_node("Relu", [*i, *i], o),
            "makes a Relu that is invalid in opset 13",
        ),
        (
            lambda i, o: helper.make_node("NoSuch", i, o),
            "makes a NoSuch that is invalid in opset 13",
        ),
    ],
)
@pytest.mark.parametrize(
    "compile_it", [lambda m: Converter().convert(m), lambda m: Compiler.compile(m)]
)
def test_a_body_that_is_invalid_in_the_models_opset_is_refused_when_compiled(
    make, message, compile_it
):
    register_op_body("Swish", DOMAIN)(lambda node, _opset: [make(node.input, node.output)])
    with pytest.raises(CompileError, match=f"node 'op' .my.ops.Swish.: its body {message}"):
        compile_it(custom())
