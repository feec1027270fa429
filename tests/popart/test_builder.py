"""Tests of popart.Builder: names, subgraphs, attributes, scopes, inference of shapes, errors."""

import subprocess
import sys

import numpy as np
import onnx
import popart
import pytest
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator


@pytest.fixture
def builder():
    return popart.Builder()


@pytest.fixture
def matrix(builder):
    return builder.addInputTensor(popart.TensorInfo("FLOAT", [2, 3]))


def load(builder):
    return onnx.load_from_string(builder.getModelProto())


def test_ids_are_the_operators_type_and_the_outputs_index(builder, matrix):
    first, second = builder.aiOnnx.topk([matrix, builder.aiOnnx.constant(np.array([1]))])
    assert (matrix, first, second) == ("input", "TopK:0", "TopK:1")


def test_taken_ids_get_a_number_also_from_parents_and_children(builder, matrix):
    child = builder.createSubgraphBuilder()
    inner = child.aiOnnx.relu([matrix])
    outer = builder.aiOnnx.relu([matrix])
    sibling = builder.createSubgraphBuilder().aiOnnx.relu([matrix])
    assert [inner, outer, sibling] == ["Relu:0", "Relu:0/1", "Relu:0"]
    assert builder.addInputTensor("FLOAT", [1]) == "input/1"


def test_siblings_may_share_ids(builder):
    names = [builder.createSubgraphBuilder().addInputTensor("FLOAT", [1]) for _ in range(2)]
    assert names == ["input", "input"]


def test_scopes_are_prefixes_of_ids_and_of_nodes_names(builder, matrix):
    with builder.nameScope("encoder"), builder.nameScope("layer"):
        weights = builder.addInitializedInputTensor(np.ones((3, 2), np.float32), "weights")
        product = builder.aiOnnx.matmul([matrix, weights], "project")
        assert builder.getNameScope("x") == "encoder/layer/x"
    builder.aiOnnx.relu([product])
    assert [weights, product] == ["encoder/layer/weights", "encoder/layer/MatMul:0"]
    assert [node.name for node in load(builder).graph.node] == ["encoder/layer/project", ""]


def test_weights_are_inputs_and_initializers(builder):
    values = np.arange(6, dtype=np.float16).reshape(2, 3)[:, ::-1]
    name = builder.addInitializedInputTensor(values, debugContext="w")
    model = load(builder)
    assert builder.getInputTensorIds() == builder.getTrainableTensorIds() == [name]
    assert np.array_equal(onnx.numpy_helper.to_array(model.graph.initializer[0]), values)


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_weights_keep_their_shape(builder, shape):
    name = builder.addInitializedInputTensor(np.zeros(shape, np.int32))
    assert tuple(builder.getTensorShape(name)) == shape
    assert builder.getTensorDtypeString(name) == "int32"


def test_weights_in_double_are_rejected(builder):
    with pytest.raises(popart.popart_exception, match="Unsupported data type for initialized"):
        builder.addInitializedInputTensor(np.zeros(2))


def test_the_model_is_valid_and_computes_what_was_built(builder, matrix):
    bias = builder.addInitializedInputTensor(np.float32([1, 2, 3]))
    shifted = builder.aiOnnx.add([builder.aiOnnx.neg([matrix]), bias])
    result = builder.reshape_const(builder.aiOnnx, [shifted], [3, -1])
    builder.addOutputTensor(result)
    model = load(builder)
    onnx.checker.check_model(model)
    for node in model.graph.node:
        kept = [each for each in node.attribute if each.name != "__debug_info_id"]
        del node.attribute[:]
        node.attribute.extend(kept)
    fed = np.arange(6, dtype=np.float32).reshape(2, 3)
    (found,) = ReferenceEvaluator(model).run(None, {matrix: fed})
    assert np.array_equal(found, (np.float32([1, 2, 3]) - fed).reshape(3, 2))
    assert builder.getTensorShape(result) == list(found.shape)


def test_shapes_of_popart_s_own_operators_are_inferred(builder, matrix):
    values, indices = builder.aiGraphcore.reducemedian([matrix], [1], 0)
    assert builder.getTensorShape(values) == builder.getTensorShape(indices) == [2]
    assert builder.getTensorDtypeString(indices) == "int32"


def test_shapes_are_inferred_in_subgraphs_from_the_parents_tensors(builder, matrix):
    child = builder.createSubgraphBuilder()
    assert child.getTensorShape(child.aiOnnx.transpose([matrix])) == [3, 2]
    assert child.getInputTensorIds() == []


def test_the_shape_of_an_unknown_tensor_is_refused_with_the_known_ones(builder, matrix):
    with pytest.raises(popart.popart_exception, match=r"(?s)x is not an known.*inputs:input"):
        builder.getTensorShape("x")


def test_a_custom_operator_has_no_known_shape(builder, matrix):
    attributes = {"alpha": 0.5, "sizes": [1, 2], "mode": "fast", "on": True}
    (made,) = builder.customOp("Mine", 1, "my.domain", [matrix], attributes)
    assert builder.getTensorShape(made) == []
    assert builder.getTensorDtypeString(made) == "undefined"
    assert builder.getInt64VectorNodeAttribute("sizes", [made]) == [1, 2]


def test_a_mixed_list_is_no_attribute_of_a_custom_operator(builder, matrix):
    with pytest.raises(popart.popart_exception, match=r"mismatched python list .* 'sizes'"):
        builder.customOp("Mine", 1, "my.domain", [matrix], {"sizes": [1, 2.5]})


def test_subgraphs_become_attributes_of_loops(builder, matrix):
    body = builder.createSubgraphBuilder()
    body.addInputTensor("INT64", [], "step")
    going = body.addInputTensor("BOOL", [], "going")
    state = body.addInputTensorFromParentGraph(matrix) or matrix
    body.addOutputTensor(going)
    body.addOutputTensor(body.aiOnnx.add([state, state]))
    trips = builder.aiOnnx.constant(np.array(3, np.int64))
    start = builder.aiOnnx.constant(np.array(True))
    (result,) = builder.aiOnnx.loop([trips, start, matrix], 1, body)
    builder.addOutputTensor(result)
    model = load(builder)
    assert model.graph.node[-1].attribute[0].g.input[2].name == matrix
    assert builder.getTensorShape(result) == [2, 3]


def test_a_call_must_fit_its_subgraph(builder, matrix):
    callee = builder.createSubgraphBuilder()
    callee.addOutputTensor(callee.aiOnnx.relu([callee.addInputTensor("FLOAT", [2, 3])]))
    assert builder.aiGraphcore.call([matrix], 1, callee) == ["Call:0"]
    with pytest.raises(popart.popart_exception, match=r"number of inputs \(2\) does not match"):
        builder.aiGraphcore.call([matrix, matrix], 1, callee)


def test_untyped_inputs_are_for_subgraphs(builder):
    assert builder.createSubgraphBuilder().addUntypedInputTensor("x") == "x"
    with pytest.raises(popart.popart_exception, match="Can not add untyped tensors to the top"):
        builder.addUntypedInputTensor()


def test_tensors_of_no_parent_are_no_inputs(builder):
    with pytest.raises(popart.popart_exception, match="unrecognised Tensor x from higher scope"):
        builder.createSubgraphBuilder().addInputTensorFromParentGraph("x")


def test_a_context_places_the_nodes_that_are_made_in_it(builder, matrix):
    with builder.virtualGraph(1), builder.pipelineStage(2):
        with builder.virtualGraph(0):
            inner = builder.aiOnnx.relu([matrix])
        outer = builder.aiOnnx.relu([inner])
    free = builder.aiOnnx.relu([outer])
    assert [builder.getVirtualGraph(name) for name in (inner, outer)] == [0, 1]
    assert not builder.nodeHasAttribute("__ipu_number", [free])
    assert builder.getInt64NodeAttribute("__pipeline_stage", [inner]) == 2


def test_a_context_ends_when_its_body_fails(builder):
    with pytest.raises(ZeroDivisionError), builder.virtualGraph(1), builder.nameScope("a"):
        1 / 0  # noqa: B018
    assert not builder.hasVirtualGraph()
    assert builder.getNameScope() == ""


def test_nodes_are_placed_by_their_outputs(builder, matrix):
    one, other = builder.aiOnnx.split([matrix], 2, axis=1, split=[1, 2])
    builder.virtualGraph({one, other}, 3)
    assert builder.getVirtualGraph([one, other]) == 3
    with pytest.raises(popart.popart_exception, match="Must specify all outputs of a node"):
        builder.pipelineStage(one, 1)


def test_outer_attributes_of_outlining_win_and_join(builder, matrix):
    with builder.outlineAttributes({"layer": 1}), builder.outlineAttributes({"part": "q"}):
        made = builder.aiOnnx.relu([matrix])
    found = builder.getStringVectorNodeAttribute("__outline", [made])
    assert found == ["layer", "1", "part", "q"]


@pytest.mark.parametrize(
    ("value", "getter"),
    [
        (3, "getInt64NodeAttribute"),
        (0.5, "getFloatNodeAttribute"),
        ("x", "getStringNodeAttribute"),
        ([1, 2], "getInt64VectorNodeAttribute"),
        ([0.5, 2.0], "getFloatVectorNodeAttribute"),
        (["a", "b"], "getStringVectorNodeAttribute"),
    ],
)
def test_attributes_are_read_back_by_their_type_only(builder, matrix, value, getter):
    made = builder.aiOnnx.relu([matrix])
    builder.addNodeAttribute("mine", value, {made})
    assert getattr(builder, getter)("mine", {made}) == value
    others = [name for name in dir(builder) if name.startswith("get") and "NodeAttr" in name]
    for other in set(others) - {getter, "getAllNodeAttributeNames"}:
        with pytest.raises(popart.popart_exception, match="Attribute mine is not a"):
            getattr(builder, other)("mine", {made})


def test_an_attribute_that_no_node_can_have_is_a_type_error(builder, matrix):
    made = builder.aiOnnx.relu([matrix])
    with pytest.raises(TypeError, match="incompatible function arguments"):
        builder.addNodeAttribute("mine", object(), {made})


@pytest.mark.parametrize("proportion", [0, -0.1, 1.1])
def test_proportions_of_memory_are_above_0_and_up_to_1(builder, matrix, proportion):
    made = builder.aiOnnx.matmul([matrix, builder.aiOnnx.transpose([matrix])])
    builder.setAvailableMemoryProportion(made, 0.25)
    builder.setAvailableMemoryProportion({made}, 0.5)
    assert builder.getFloatNodeAttribute("__available_memory", {made}) == 0.5
    with pytest.raises(popart.popart_exception, match="availableMemoryProportion must be in"):
        builder.setAvailableMemoryProportion(made, proportion)


def test_modes_of_serialized_products_are_known(builder, matrix):
    made = builder.aiOnnx.matmul([matrix, builder.aiOnnx.transpose([matrix])])
    builder.setSerializeMatMul({made}, "reducing_dim", 3, True)
    assert builder.getInt64NodeAttribute("__serialize_matmul_factor", {made}) == 3
    with pytest.raises(popart.popart_exception, match="serialization mode 'rows'"):
        builder.setSerializeMatMul({made}, "rows")


def test_the_first_opset_that_is_used_is_the_model_s(builder, matrix):
    builder.aiOnnxOpset9.relu([matrix])
    builder.aiOnnx.relu([matrix])
    assert [each.version for each in load(builder).opset_import] == [9]
    with pytest.raises(RuntimeError, match=r"'aiOnnxOpset11' selected.* already defined as 9"):
        builder.aiOnnxOpset11.relu([matrix])


def test_opsets_that_no_builder_has_are_no_attributes(builder):
    for name in ("aiOnnxOpset5", "aiOnnxOpset12", "aiOnnxMl", "relu"):
        assert not hasattr(builder, name)
    with pytest.raises(popart.popart_exception, match="versions 6 to 11"):
        popart.Builder(opsets={"ai.onnx": 12, "ai.graphcore": 1})


def test_opsets_are_completed_by_interactive_shells(builder):
    assert {"aiOnnx", "aiOnnxOpset6", "aiOnnxOpset11", "aiGraphcore"} <= set(dir(builder))


def test_outputs_are_named_by_texts(builder):
    with pytest.raises(TypeError, match=r"addOutputTensor\(\): incompatible function arguments"):
        builder.addOutputTensor(5)


def test_a_builder_continues_a_model(builder, matrix, tmp_path):
    builder.addOutputTensor(builder.aiOnnxOpset11.relu([matrix]))
    file = tmp_path / "model.onnx"
    builder.saveModelProto(str(file))
    for given in (builder.getModelProto(), str(file), file):
        other = popart.Builder(given)
        assert other.getModelProto() == builder.getModelProto()
        assert other.aiOnnxOpset11.relu(["Relu:0"]) == "Relu:0/1"
        assert other.getTensorShape("Relu:0/1") == [2, 3]


@pytest.mark.parametrize("model", [b"", b"no model", "no/such/file.onnx", b"\0" * 40])
def test_bytes_that_are_no_model_are_rejected(model):
    with pytest.raises(popart.popart_exception, match="Failed to load a ModelProto"):
        popart.Builder(model)


def test_models_of_newer_opsets_are_refused_with_advice():
    made = onnx.helper.make_model(
        onnx.helper.make_graph([], "g", [], []),
        opset_imports=[onnx.helper.make_opsetid("", 17)],
        ir_version=8,
    )
    with pytest.raises(popart.popart_exception, match=r"opset version 17.*poprt"):
        popart.Builder(made.SerializeToString())


def test_wrong_numbers_of_tensors_are_refused(builder, matrix):
    with pytest.raises(popart.popart_exception, match=r"invalid number of inputs 0.*2\.\.2"):
        builder.aiOnnx.add([])
    with pytest.raises(popart.popart_exception, match=r"inputs 0. Must be between 1\.\.inf"):
        builder.aiOnnx.sum([])
    with pytest.raises(popart.popart_exception, match="invalid number of outputs 3"):
        builder.aiOnnx.dropout([matrix], 3)


def test_unknown_tensors_are_refused_with_the_valid_ones(builder):
    with pytest.raises(popart.popart_exception, match=r"'x' \(there are no valid tensors yet\)"):
        builder.aiOnnx.relu(["x"])
    builder.addInputTensor("FLOAT", [1], "b")
    builder.addInputTensor("FLOAT", [1], "a")
    with pytest.raises(popart.popart_exception, match=r"'x' \(valid tensors are a, b\)\."):
        builder.aiOnnx.relu(["x"])


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"strides": [1]}, "Length of strides vector 1 != number of spatial dimensions 2"),
        ({"dilations": [1] * 3}, "Length of dilations vector 3 != number of spatial dimensions 2"),
        ({"pads": [0] * 3}, r"Padding vector \(length 3\) does not have 2 values"),
        ({"kernel_shape": [3, 4]}, r"kernel_shape, \[3 4\], does not match .* \[3 3\]"),
        ({"dilations": [5, 5]}, r"invalid spatial output shape: \[-2 -2\]"),
    ],
)
def test_windows_are_checked_when_the_node_is_made(builder, attributes, text):
    image = builder.addInputTensor("FLOAT", [1, 2, 8, 8])
    weights = builder.addInputTensor("FLOAT", [4, 2, 3, 3])
    with pytest.raises(popart.popart_exception, match=text):
        builder.aiOnnx.conv([image, weights], **attributes)


def test_weights_move_to_a_file_and_back(builder, tmp_path):
    arrays = {"a": np.arange(5, dtype=np.int64), "b": np.ones((2, 2), np.float16)}
    for name, array in arrays.items():
        builder.addInitializedInputTensor(array, name)
    file = tmp_path / "weights.bin"
    builder.saveInitializersExternally(["b", "a"], str(file))
    assert file.read_bytes() == arrays["b"].tobytes() + arrays["a"].tobytes()
    for tensor in load(builder).graph.initializer:
        told = {entry.key: entry.value for entry in tensor.external_data}
        offset, length = int(told["offset"]), int(told["length"])
        data = file.read_bytes()[offset : offset + length]
        assert data == arrays[tensor.name].tobytes()
        assert told["location"] == str(file)
        assert tensor.data_location == TensorProto.EXTERNAL
    with pytest.raises(popart.popart_exception, match="'a' already has an external data_location"):
        builder.saveInitializersExternally(["a"], str(file))


@pytest.mark.parametrize(
    ("name", "file", "text"),
    [
        ("x", "w.bin", "'x' is not an initializer"),
        ("empty", "w.bin", "'empty' has no data to save externally"),
        ("a", "no/such/w.bin", "parent directory does not exist"),
    ],
)
def test_tensors_that_cannot_be_saved_externally_are_named(builder, tmp_path, name, file, text):
    builder.addInitializedInputTensor(np.ones(2, np.float32), "a")
    builder.addInitializedInputTensor(np.ones(0, np.float32), "empty")
    with pytest.raises(popart.popart_exception, match=text):
        builder.saveInitializersExternally([name], str(tmp_path / file))


def test_inputs_record_how_they_are_transferred(builder):
    settings = popart.InputSettings(popart.ReplicatedStreamMode.Broadcast)
    name = builder.addInputTensor(popart.TensorInfo("INT32", [4]), settings, "ids")
    recorded = {entry.key: entry.value for entry in load(builder).metadata_props}
    assert recorded[f"__replicated_stream_mode/{name}"] == "0"
    assert recorded[f"__tile_set/{name}"] == "0"


def test_importing_popart_does_not_import_torch():
    program = "import sys, popart; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
