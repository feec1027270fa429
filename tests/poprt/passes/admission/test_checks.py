"""Tests of passes that check and report, and of the names under which scripts look at graphs."""

import logging
import pickle

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from poprt import Compiler, CompilerOptions, Converter
from poprt.passes import (
    ShapeFunc,
    get_dtype,
    get_pass,
    get_shape,
    layer_precision_compare,
    register_shape_func,
)
from poprt.passes.onnx_helper import clean_info, get_constant
from poprt.passes.remove_duplicated_initializer import RemoveDuplicatedInitializer
from poprt.passes.shape_inference import infer_shapes
from sample_models import linear_model, make_model
from simipu import CompileError

F, F16, I64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64


def node(op_type, inputs, output="y", **attributes):
    return helper.make_node(op_type, inputs.split(), [output], name=output, **attributes)


def messages(caplog):
    return [record.getMessage() for record in caplog.records]


def data_dependent():
    nodes = [node("NonZero", "x", "at"), node("Cast", "at", to=F)]
    return make_model(nodes, {"x": (F, [2, 3])}, {"y": (F, None)}, {})


def test_shapes_that_depend_on_data_are_warned_of_by_the_converter_and_refused_by_the_compiler(
    caplog,
):
    with caplog.at_level(logging.WARNING):
        converted = Converter().convert(data_dependent())
    assert any("tensor 'at' has type INT64 and shape [2, 0]" in each for each in messages(caplog))
    with pytest.raises(CompileError, match="output 'at' depends on the data"):
        Compiler.compile(converted)


def test_a_converted_model_says_the_shapes_of_its_tensors_and_names_every_node():
    model = linear_model()
    model.graph.value_info.append(helper.make_tensor_value_info("product", F, [7, 7]))
    converted = Converter(batch_size=2).convert(model)
    known = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim]
        for v in converted.graph.value_info
    }
    assert [2, 3] in known.values()
    assert [7, 7] not in known.values()
    assert len({each.name for each in converted.graph.node}) == len(converted.graph.node)


def test_equal_weights_are_one_whatever_their_fields_are_and_outputs_and_inputs_keep_theirs():
    nodes = [
        node("Add", "x a", "s"),
        node("Add", "s b", "t"),
        node("Add", "t c", "u"),
        node("Add", "u d"),
    ]
    same = np.float32([1, -0.0])
    model = make_model(
        nodes, {"x": (F, [2])}, {"y": (F, [2])}, {"a": same, "c": same, "d": np.float32([1, 0])}
    )
    model.graph.initializer.append(helper.make_tensor("b", F, [2], [1.0, -0.0]))
    model.graph.initializer.append(numpy_helper.from_array(same, "e"))
    model.graph.output.append(helper.make_tensor_value_info("e", F, [2]))
    changed = RemoveDuplicatedInitializer().run(model)
    assert [tensor.name for tensor in changed.graph.initializer] == ["a", "d", "e"], "-0 is not 0"
    assert [each.input[1] for each in changed.graph.node] == ["a", "a", "a", "d"]


def test_weights_without_data_are_equal_to_none():
    tensors = [TensorProto(name=name, data_type=F, dims=[2]) for name in "ab"]
    graph = helper.make_graph(
        [node("Add", "a b")], "g", [], [helper.make_tensor_value_info("y", F, [2])], tensors
    )
    assert len(RemoveDuplicatedInitializer().run(helper.make_model(graph)).graph.initializer) == 2


@pytest.mark.parametrize(
    ("made", "attribute"),
    [
        (node("AveragePool", "x", kernel_shape=[1, 1], count_include_pad=1), "count_include_pad"),
        (node("MaxPool", "x", kernel_shape=[1, 1], dilations=[1, 2]), "dilations"),
        (
            node("Resize", "x  s", coordinate_transformation_mode="tf_crop_and_resize"),
            "coordinate_transformation_mode",
        ),
        (node("RandomUniformLike", "x", seed=1.0), "seed"),
    ],
)
def test_attributes_that_the_ipus_compiler_does_not_take_are_warned_of(made, attribute, caplog):
    model = make_model([made, made], {"x": (F, [1, 1, 2, 2])}, {"y": (F, None)}, {})
    with caplog.at_level(logging.WARNING):
        get_pass("check_unsupported_attribute")(model)
    (found,) = messages(caplog)
    assert f"{made.op_type}'s attribute '{attribute}' (node 'y' and 1 more)" in found


def test_attributes_that_it_takes_are_not(caplog):
    made = node("AveragePool", "x", kernel_shape=[1, 1], count_include_pad=0, ceil_mode=1)
    model = make_model([made], {"x": (F, [1, 1, 2, 2])}, {"y": (F, None)}, {})
    with caplog.at_level(logging.WARNING):
        get_pass("check_unsupported_attribute")(model)
    assert not caplog.records


def test_check_computes_both_models_and_says_how_far_they_part(caplog):
    with caplog.at_level(logging.INFO):
        Converter(batch_size=2, precision="fp16", check=True).convert(linear_model())
    assert any(
        each.startswith("check: beside the original model, on made-up inputs (x: ")
        for each in messages(caplog)
    )


def test_check_works_where_inputs_became_constants():
    nodes = [node("Add", "x k")]
    model = make_model(nodes, {"x": (F, ["n", 2]), "k": (F, [])}, {"y": (F, ["n", 2])}, {})
    Converter(batch_size=2, fix_inputs={"k": 3.0}, check=True).convert(model)


def test_check_warns_of_a_model_that_answers_otherwise(caplog):
    wrong = linear_model()
    wrong.graph.node[0].op_type = "MatMul"
    wrong.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones((4, 3), np.float32), "w"))
    converted = Converter(batch_size=2).convert(wrong)
    with caplog.at_level(logging.WARNING):
        get_pass("check_with_fake_data", linear_model())(converted)
    assert "largest error" in messages(caplog)[0]


def test_check_refuses_what_cannot_be_computed():
    # ONNX Runtime has no kernel for it.
    model = make_model([node("ImageDecoder", "x")], {"x": (TensorProto.UINT8, [4])},
                       {"y": (TensorProto.UINT8, [1, 1, 3])}, {}, 20)  # fmt: skip
    with pytest.raises(CompileError, match="the converted model cannot be computed: "):
        get_pass("check_with_fake_data")(model)
    with pytest.raises(
        CompileError, match="the original model has an input 'x', which the converted one"
    ):
        get_pass("check_with_fake_data", linear_model())(
            make_model([node("Neg", "q")], {"q": (F, [2])}, {"y": (F, [2])}, {})
        )


def layers(folder):
    """Return the cosine distance of each layer by name."""
    lines = (folder / "precision_compare.log").read_text().splitlines()
    names = [line.split(" output ")[0] for line in lines if not line.startswith(" ")]
    distances = [float(line.rsplit(" ", 1)[1]) for line in lines if "cos_dist" in line]
    return dict(zip(names, distances, strict=True))


def test_layers_are_compared_on_random_data_and_on_those_of_a_pickle(tmp_path):
    converted = Converter(batch_size=2, precision="fp16").convert(linear_model())
    onnx.save(linear_model(), tmp_path / "m.onnx")
    data = tmp_path / "data.pickle"
    data.write_bytes(
        pickle.dumps({"x": np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)})
    )
    for given in (None, data, str(data), {"x": np.ones((1, 4), np.float32)}):
        layer_precision_compare(
            origin_model_path=str(tmp_path / "m.onnx"),
            converted_model=converted,
            data_preprocess=given,
            output_dir=tmp_path / "logs",
        )
        assert all(0 <= distance < 1e-5 for distance in layers(tmp_path / "logs").values())


def test_a_layer_that_has_parted_is_seen(tmp_path):
    nodes = [node("MatMul", "x w", "a"), node("Relu", "a", "b"), node("MatMul", "b w")]
    random = np.random.default_rng(0)
    models = [
        make_model(
            nodes,
            {"x": (F, [2, 4])},
            {"y": (F, [2, 4])},
            {"w": random.normal(size=(4, 4)).astype("f")},
        )
        for _ in range(2)
    ]
    get_pass("layer_precision_compare", models[0], output_dir=tmp_path, options=CompilerOptions())(
        models[1]
    )
    assert layers(tmp_path).keys() == {"MatMul 'a'", "MatMul 'y'"}
    assert min(layers(tmp_path).values()) > 0.01


def test_comparing_layers_needs_a_model_and_data_that_fit(tmp_path):
    with pytest.raises(CompileError, match="compares with origin_model; give it one"):
        get_pass("layer_precision_compare")(linear_model())
    converted = Converter(batch_size=2).convert(linear_model())
    with pytest.raises(CompileError, match=r"data for input 'x': expected rows of shape \[4\]"):
        layer_precision_compare(linear_model(), converted, {"x": np.ones((2, 5))}, tmp_path)


def test_an_overview_says_what_a_model_consists_of(capsys):
    get_pass("model_overview")(linear_model())
    assert capsys.readouterr().out.splitlines() == [
        "Model 'test': IR version 8, opset ai.onnx 17",
        "Input x: float [batch, 4]",
        "Output y: float [batch, 3]",
        "Output z: float [batch, 4]",
        "Initializers: 3, 64 bytes",
        "Nodes: 4",
        "  Add: 1",
        "  MatMul: 1",
        "  Mul: 1",
        "  Relu: 1",
    ]


def test_inputs_and_outputs_are_counted_by_type_and_shape(caplog):
    inputs = {name: (F, [2]) for name in "abc"} | {"d": (I64, [1, 2])}
    model = make_model(
        [node("Sum", "a b c"), node("Neg", "d", "z")],
        inputs,
        {"y": (F, [2]), "z": (I64, [1, 2])},
        {},
    )
    with caplog.at_level(logging.INFO):
        get_pass("model_io_info_stat", use_print=False)(model)
    assert messages(caplog) == [
        "Inputs: 4",
        "  3 x dtype - float, shape - [2]",
        "  1 x dtype - int64, shape - [1, 2]",
        "Outputs: 2",
        "  1 x dtype - float, shape - [2]",
        "  1 x dtype - int64, shape - [1, 2]",
    ]


def test_scripts_look_at_a_graph_by_the_names_of_tensors():
    held = {"w": np.ones((3, 2), np.float32)}
    constant = helper.make_node(
        "Constant", [], ["c"], value=numpy_helper.from_array(np.int64([1, 2]))
    )
    model = make_model(
        [constant, node("MatMul", "x w")], {"x": (F, ["n", 3])}, {"y": (F, None)}, held
    )
    graph = clean_info(model).graph
    assert (get_dtype(graph, "x"), get_shape(graph, "x")) == (F, [0, 3])
    assert (get_dtype(graph, "w"), get_shape(graph, "w")) == (F, [3, 2])
    assert (get_dtype(graph, "y"), get_shape(graph, "y")) == (F, [0, 2])
    assert (get_dtype(graph, "c"), get_shape(graph, "c")) == (I64, [2])
    assert (get_dtype(graph, "q"), get_shape(graph, "q"), get_constant(graph, "x")) == (
        None,
        None,
        None,
    )
    get_constant(graph, "c").CopyFrom(numpy_helper.from_array(np.int64([7]), "c"))
    assert numpy_helper.to_array(get_constant(graph, "c")).tolist() == [7], "the graph's own"


def test_a_shape_function_makes_what_an_operator_of_ones_own_makes_known():
    @register_shape_func(["OfMyOwn"])
    class OfMyOwn(ShapeFunc):
        def __call__(self, model, node):
            shape, kind = (
                get_shape(model.graph, node.input[0]),
                get_dtype(model.graph, node.input[0]),
            )
            made = helper.make_tensor_value_info(node.output[0], kind, shape[::-1])
            return onnx.shape_inference.infer_shapes(self.update_value_info(model, made)), True

    own = helper.make_node("OfMyOwn", ["x"], ["a"], name="a", domain="custom.ops")
    model = make_model([own, node("Relu", "a")], {"x": (F, [2, 3])}, {"y": (F, None)}, {})
    model.opset_import.append(helper.make_opsetid("custom.ops", 1))
    graph = infer_shapes(model).graph
    assert (get_shape(graph, "a"), get_shape(graph, "y")) == ([3, 2], [3, 2])


def test_names_of_inputs_that_a_model_lacks_are_warned_of(caplog):
    with caplog.at_level(logging.WARNING):
        Converter(input_shape={"x": [2, 4], "q": [2]}).convert(linear_model())
    assert "input_shape names 'q', which is ignored; the model's inputs are x" in messages(caplog)


def test_shapes_written_are_those_inside_bodies_too():
    made = [node("Neg", "x", "i"), node("Abs", "i", "j")]
    body = helper.make_graph(made, "b", [], [helper.make_tensor_value_info("j", F, [2, 3])])
    branch = helper.make_node("If", ["c"], ["y"], "if", then_branch=body, else_branch=body)
    model = make_model(
        [branch], {"x": (F, [2, 3]), "c": (TensorProto.BOOL, [])}, {"y": (F, None)}, {}
    )
    changed = get_pass("shape_inference")(model)
    assert get_shape(changed.graph.node[0].attribute[0].g, "i") == [2, 3]
    assert get_shape(changed.graph, "y") == [2, 3]


FILTERS = {"w": np.ones((3, 1, 5), np.float32), "up": np.ones((1, 3, 5), np.float32)}
SHORT = {
    "Conv": ("x w", {}, "its window has 5 elements along axis 2, its input only 4"),
    "Conv with pads": (
        "x w",
        {"pads": [1, 1], "dilations": [2]},
        "its window has 9 elements along axis 2, its input only 4, and 6 with pads",
    ),
    "MaxPool": ("x", {"kernel_shape": [5]}, "its window has 5 elements"),
    "AveragePool": ("x", {"kernel_shape": [5]}, "its window has 5 elements"),
    "LpPool": ("x", {"kernel_shape": [5]}, "its window has 5 elements"),
    "ConvTranspose": ("x up", {"pads": [9, 9]}, r"output 'y' would have shape \[2, 3, -10\]"),
    "Pad": ("x cut", {}, r"output 'y' would have shape \[2, 1, -2\]"),
}
"""Nodes whose input of 4 elements is too short: inputs, attributes, and what is said."""


def short_model(case, length=4):
    inputs, attributes, _ = SHORT[case]
    weights = {**FILTERS, "cut": np.array([0, 0, -3, 0, 0, -3], np.int64)}
    held = {name: value for name, value in weights.items() if name in inputs.split()}
    model = make_model(
        [node(case.split()[0], inputs, **attributes)],
        {"x": (F, [2, 1, length])},
        {"y": (F, ["a", "b", "c"])},
        held,
    )
    return Converter().convert(model)


@pytest.mark.parametrize("case", SHORT)
def test_an_input_that_is_too_short_for_its_node_is_named(case):
    with pytest.raises(CompileError, match=rf"node 'y' \({case.split()[0]}\): .*{SHORT[case][2]}"):
        Compiler.compile(short_model(case), None, CompilerOptions())
    Compiler.compile(short_model(case, 20), None, CompilerOptions())
