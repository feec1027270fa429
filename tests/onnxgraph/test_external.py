"""Tests of files of external data: beside the model, regular, and whole."""

import os

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import GraphError
from onnxgraph.weights import bring_all_in, bring_in, find_data

VALUES = np.arange(4, dtype=np.float32)


def tensor(location="data", **told):
    made = TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL
    )
    for key, value in {"location": location, **told}.items():
        made.external_data.add(key=key, value=str(value))
    return made


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/data").write_bytes(b"1234" + VALUES.tobytes())
    (tmp_path / "outside").write_bytes(bytes(64))
    return tmp_path / "model"


def test_data_are_found_where_the_model_says(folder):
    assert find_data(tensor(offset=4), folder) == (folder / "data", 4)
    assert (
        find_data(tensor(), folder) == find_data(tensor(offset=0), folder) == (folder / "data", 0)
    )
    found = tensor(offset=4, length=16)
    bring_in(found, folder)
    np.testing.assert_array_equal(numpy_helper.to_array(found), VALUES)
    assert not found.external_data


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"location": "../outside"}, "expected a file inside the model's folder"),
        ({"location": "/etc/passwd"}, "expected a file inside the model's folder"),
        ({"location": ""}, "expected a file inside the model's folder"),
        ({"location": "link"}, "expected a file inside the model's folder"),
        ({"location": "a" * 300}, "found one that the system rejects"),
        ({"location": "a\0b"}, "found one that the system rejects"),
        ({"location": "."}, "expected a regular file"),
        ({"location": "pipe"}, "expected a regular file"),
        ({"offset": "x"}, "expected numbers for offset and length"),
        ({"offset": -1}, "found length 16 at offset -1"),
        ({"offset": 8}, "found length 16 at offset 8 of 20 bytes"),
        ({"length": 12}, "expected 16 bytes .* found length 12"),
    ],
)
def test_data_elsewhere_or_of_another_size_are_refused(folder, told, reason):
    os.symlink("../outside", folder / "link")
    os.mkfifo(folder / "pipe")
    with pytest.raises(GraphError, match=reason):
        find_data(tensor(**told), folder)


def test_a_file_that_is_not_there_is_named(folder):
    with pytest.raises(FileNotFoundError, match="location 'absent': there is no such file"):
        find_data(tensor("absent"), folder)


def test_data_of_tensors_in_bodies_come_too(folder):
    node = helper.make_node("Constant", [], ["c"], value=tensor(offset=4))
    body = helper.make_graph([node], "body", [], [])
    model = helper.make_model(
        helper.make_graph([helper.make_node("If", ["x"], ["y"], then_branch=body)], "main", [], [])
    )
    bring_all_in(model, folder)
    constant = model.graph.node[0].attribute[0].g.node[0].attribute[0].t
    np.testing.assert_array_equal(numpy_helper.to_array(constant), VALUES)


def test_long_names_from_files_are_shortened_in_errors(folder):
    long = tensor("a" * 101)
    long.name = "w" * 101
    with pytest.raises(FileNotFoundError) as caught:
        find_data(long, folder)
    for letter in "wa":
        assert f"'{letter * 50} [1 characters] {letter * 50}'" in str(caught.value)
