"""Tests of popart.GraphTransformer."""

import numpy as np
import onnx
import popart
import pytest
from onnx import TensorProto, numpy_helper


def make_model(array, *, constant=False):
    """Return a model that adds an input to an array, which is a weight or a constant."""
    builder = popart.Builder()
    data = builder.addInputTensor(popart.TensorInfo(array.dtype, array.shape), "x")
    other = (
        builder.aiOnnx.constant(array)
        if constant
        else builder.addInitializedInputTensor(array, "w")
    )
    builder.addInputTensor("FLOAT", [7], "unused")
    builder.addOutputTensor(builder.aiOnnx.add([data, other]))
    return builder.getModelProto()


def find_array(model, *, constant):
    """Return the array of such a model."""
    graph = model.graph
    return numpy_helper.to_array(graph.node[0].attribute[0].t if constant else graph.initializer[0])


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(
    ("method", "given", "wanted"),
    [
        ("convertFloatsToHalfs", np.float32, np.float16),
        ("convertUINT8ToINT32", np.uint8, np.int32),
        ("convertUINT16ToINT32", np.uint16, np.int32),
        ("convertINT8ToINT32", np.int8, np.int32),
        ("convertINT16ToINT32", np.int16, np.int32),
        ("convertINT64ToINT32", np.int64, np.int32),
    ],
)
def test_conversions_change_weights_constants_and_declared_types(method, given, wanted, constant):
    values = np.array([0, 1, 100], given)
    transformer = popart.GraphTransformer(make_model(values, constant=constant))
    getattr(transformer, method)()
    model = onnx.load_from_string(transformer.getModelProto())
    found = find_array(model, constant=constant)
    assert found.dtype == wanted
    assert np.array_equal(found, values.astype(wanted))
    types = {each.name: each.type.tensor_type.elem_type for each in model.graph.input}
    assert types["x"] == onnx.helper.np_dtype_to_tensor_dtype(np.dtype(wanted))
    onnx.shape_inference.infer_shapes(model, strict_mode=True)
    tensor = model.graph.node[0].attribute[0].t if constant else model.graph.initializer[0]
    fields = {"raw_data", "int32_data", "float_data", "int64_data", "double_data"}
    assert fields & {field.name for field, _ in tensor.ListFields()} == {
        "raw_data" if wanted == np.float16 else "int32_data"
    }


def test_numbers_that_int32_does_not_have_are_clipped_only_on_request():
    transformer = popart.GraphTransformer(make_model(np.array([2**40, -(2**40)], np.int64)))
    with pytest.raises(popart.popart_exception, match="cannot cast int64 to int32"):
        transformer.convertINT64ToINT32()
    transformer.convertINT64ToINT32(clip=True)
    model = onnx.load_from_string(transformer.getModelProto())
    assert find_array(model, constant=False).tolist() == [2**31 - 1, -(2**31)]


def test_unused_inputs_go():
    transformer = popart.GraphTransformer(make_model(np.ones(2, np.float32)))
    transformer.removeUnusedInputs()
    model = onnx.load_from_string(transformer.getModelProto())
    assert [each.name for each in model.graph.input] == ["x", "w"]
    assert [each.name for each in model.graph.initializer] == ["w"]


def test_weights_become_constants():
    transformer = popart.GraphTransformer(make_model(np.ones(2, np.int32)))
    transformer.convertAllFixedPointInitializersToConstants()
    model = onnx.load_from_string(transformer.getModelProto())
    assert not model.graph.initializer
    assert [each.name for each in model.graph.input] == ["x", "unused"]
    onnx.checker.check_model(model)
    with pytest.raises(popart.popart_exception, match="TensorId w not in the model initalizers"):
        transformer.convertInitializersToConstants(["w"])


def test_weights_are_saved_externally_once(tmp_path):
    transformer = popart.GraphTransformer(make_model(np.arange(3, dtype=np.float32)))
    transformer.saveInitializersExternally(["w"], tmp_path / "w.bin")
    assert np.fromfile(tmp_path / "w.bin", np.float32).tolist() == [0, 1, 2]
    model = onnx.load_from_string(transformer.getModelProto())
    assert model.graph.initializer[0].data_location == TensorProto.EXTERNAL
    with pytest.raises(popart.popart_exception, match="has its data in a file"):
        transformer.convertFloatsToHalfs()


def test_batch_normalizations_get_the_outputs_of_training():
    builder = popart.Builder()
    data = builder.addInputTensor("FLOAT", [1, 2, 3])
    weights = [builder.addInitializedInputTensor(np.ones(2, np.float32)) for _ in range(4)]
    builder.addOutputTensor(builder.aiOnnx.batchnormalization([data, *weights], 1)[0])
    transformer = popart.GraphTransformer(builder.getModelProto())
    transformer.prepareNodesForTraining()
    (node,) = onnx.load_from_string(transformer.getModelProto()).graph.node
    assert len(set(node.output)) == 5


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("convertDoublesToFloats", TensorProto.DOUBLE),
        ("convertBFloats16ToFloat32", TensorProto.BFLOAT16),
    ],
)
@pytest.mark.parametrize("raw", [False, True])
def test_floats_are_in_the_field_of_floats(method, given, raw):
    values = np.array([0.5, -2.0, np.inf, -0.0], np.float32)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(given)
    data = values.astype(dtype)
    weight = onnx.helper.make_tensor("w", given, [4], data.tobytes() if raw else data, raw=raw)
    value = onnx.helper.make_tensor_value_info("y", given, [4])
    node = onnx.helper.make_node("Identity", ["w"], ["y"])
    graph = onnx.helper.make_graph([node], "g", [], [value], [weight])
    opsets = [onnx.helper.make_opsetid("", 16)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    transformer = popart.GraphTransformer(model.SerializeToString())
    getattr(transformer, method)()
    (tensor,) = onnx.load_from_string(transformer.getModelProto()).graph.initializer
    assert not tensor.raw_data
    np.testing.assert_array_equal(np.array(tensor.float_data, np.float32), values)
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), values)
