"""Tests of models written one weight after the other."""

import io

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import GraphTooLargeError, ModelWriter, write_with_data
from onnxgraph.weights import LARGE, outline


def model_of(tensors):
    node = helper.make_node("Neg", ["x"], ["y"], name="n")
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([node], "g", infos[:1], infos[1:], tensors, "of the graph")
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.metadata_props.add(key="k", value="v")
    return made


def tensors():
    large = np.arange(LARGE + 3, dtype=np.float32)
    return [
        numpy_helper.from_array(np.float32([1, 2]), "small"),
        numpy_helper.from_array(large, "large"),
        helper.make_tensor("listed", TensorProto.INT64, [2], [3, 4]),
        numpy_helper.from_array((large % 1_000).astype(np.float16), "half"),
    ]


def written(model):
    file = io.BytesIO()
    writer = ModelWriter(model)
    writer.write(file)
    assert len(file.getvalue()) == writer.size
    return onnx.load_model_from_string(file.getvalue())


def test_a_written_model_reads_back_equal():
    model = model_of(tensors())
    assert written(model) == model


def test_large_weights_of_any_length_are_read_again():
    lengths = range(LARGE, LARGE + 16)
    model = model_of([numpy_helper.from_array(np.ones(n, np.float32), f"w{n}") for n in lengths])
    assert written(model) == model


def test_outlined_weights_are_brought_in_and_stay_outlined(tmp_path):
    whole, model = model_of(tensors()), model_of(tensors())
    file = tmp_path / "data"
    file.write_bytes(b"head" + whole.graph.initializer[1].raw_data)
    outline(model.graph.initializer[1], file, 4)
    before = model.SerializeToString()
    assert written(model) == whole
    assert model.SerializeToString() == before


def test_a_model_beyond_what_protobuf_holds_is_refused_unwritten(monkeypatch):
    monkeypatch.setattr(onnx.checker, "MAXIMUM_PROTOBUF", 1000)
    file = io.BytesIO()
    with pytest.raises(GraphTooLargeError, match=r"the model has \d+ bytes, expected at most 1000"):
        ModelWriter(model_of(tensors())).write(file)
    assert not file.getvalue()


def test_weights_may_stand_in_a_file_beside_the_model(tmp_path):
    model = model_of(tensors())
    with (tmp_path / "m.onnx").open("wb") as file, (tmp_path / "m.data").open("wb") as data:
        write_with_data(model, file, data, "m.data")
    assert (tmp_path / "m.data").read_bytes() == model.graph.initializer[1].raw_data
    onnx.checker.check_model(tmp_path / "m.onnx")
    found = onnx.load(tmp_path / "m.onnx")
    for before, after in zip(model.graph.initializer, found.graph.initializer, strict=True):
        np.testing.assert_array_equal(numpy_helper.to_array(after), numpy_helper.to_array(before))


def test_data_of_another_size_than_the_shape_says_are_refused():
    model = model_of(tensors())
    model.graph.initializer[1].dims[0] += 1
    with pytest.raises(
        ValueError, match="weight 'large': expected 1048592 bytes of data, found 1048588"
    ):
        ModelWriter(model).write(io.BytesIO())
