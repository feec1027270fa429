"""Tests of a model's inputs and outputs: 64-bit integers, shapes, and the version of the model's
format."""

import numpy as np
import pytest
import simipu
from onnx import TensorProto, helper
from oracles import unoptimised_session
from poprt import Compiler, Converter
from sample_models import make_model

F, I32, I64 = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64


def element_types(values):
    return [value.type.tensor_type.elem_type for value in values]


def answer(compiled, **inputs):
    """Compute a compiled model and return its results by output name."""
    engine = simipu.Engine(compiled.executable, simipu.Device(compiled.executable.target))
    taken, given = (
        [s.tensor for s in compiled.executable.program(5).streams if s.direction is direction]
        for direction in (simipu.Direction.HOST_TO_DEVICE, simipu.Direction.DEVICE_TO_HOST)
    )
    return dict(zip(given, engine.compute(5, [inputs[name] for name in taken]), strict=True))


def test_a_model_of_a_newer_ir_than_onnx_runtime_reads_compiles():
    spec = (F, [4, 3])
    model = make_model([helper.make_node("Neg", ["x"], ["y"])], {"x": spec}, {"y": spec}, {})
    model.ir_version = 14
    x = np.ones((4, 3), np.float32)
    np.testing.assert_array_equal(answer(Compiler.compile(model), x=x)["y"], -x)
    assert model.ir_version == 14


@pytest.mark.parametrize("declared", [[4, 7], [4], ["n", "m"], [4, 3]])
def test_shapes_that_a_model_declares_of_what_it_computes_are_not_trusted(declared):
    nodes = [
        helper.make_node("Neg", ["x"], ["negative"]),
        helper.make_node("Relu", ["negative"], ["y"]),
    ]
    model = make_model(nodes, {"x": (F, [4, 3])}, {"y": (F, declared)}, {})
    model.graph.value_info.append(helper.make_tensor_value_info("negative", F, declared))
    x = np.full((4, 3), -1, np.float32)
    np.testing.assert_array_equal(answer(Compiler.compile(model), x=x)["y"], -x)


def test_an_int64_output_that_is_folded_to_a_constant_becomes_int32():
    nodes = [helper.make_node("Shape", ["x"], ["shape"]), helper.make_node("Neg", ["x"], ["y"])]
    model = make_model(nodes, {"x": (F, ["n", 3])}, {"shape": (I64, [2]), "y": (F, ["n", 3])}, {})
    converted = Converter(batch_size=4).convert(model)
    assert element_types(converted.graph.output) == [I32, F]
    found = answer(Compiler.compile(converted), x=np.ones((1, 4, 3), np.float32))["shape"]
    assert found.dtype == np.int32
    assert found.tolist() == [[4, 3]]


def test_an_int64_output_that_is_an_input_becomes_int32():
    model = make_model(
        [helper.make_node("Neg", ["ids"], ["y"])],
        {"ids": (I64, [4])},
        {"ids": (I64, [4]), "y": (I64, [4])},
        {},
    )
    ids = np.arange(4, dtype=np.int32)
    found = answer(Compiler.compile(Converter().convert(model)), ids=ids)
    np.testing.assert_array_equal(found["y"], -ids)
    np.testing.assert_array_equal(found["ids"], ids)


def test_bodies_see_the_widened_inputs_around_them():
    outputs = [helper.make_tensor_value_info("twice", I64, [4])]
    twice = helper.make_graph(
        [helper.make_node("Add", ["ids", "ids"], ["twice"])], "twice", [], outputs
    )
    outputs = [helper.make_tensor_value_info("opposite", I64, [4])]
    opposite = helper.make_graph(
        [helper.make_node("Neg", ["ids"], ["opposite"])], "opposite", [], outputs
    )
    model = make_model(
        [helper.make_node("If", ["flag"], ["y"], then_branch=twice, else_branch=opposite)],
        {"ids": (I64, [4]), "flag": (TensorProto.BOOL, [])},
        {"y": (I64, [4])},
        {},
    )
    converted = Converter().convert(model)
    session = unoptimised_session(converted)
    feeds = {"ids": np.arange(4, dtype=np.int32), "flag": np.array(True)}
    np.testing.assert_array_equal(session.run(None, feeds)[0], [0, 2, 4, 6])
