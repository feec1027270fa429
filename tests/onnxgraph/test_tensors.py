"""Tests of tensors in all parts of a model, and of their number of bytes."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnxgraph.nodes import count_bytes, is_packed, iter_tensors


def tensor(name, data_type=TensorProto.FLOAT, dims=(1,)):
    return TensorProto(name=name, data_type=data_type, dims=dims)


def sparse(name):
    return onnx.SparseTensorProto(values=tensor(name), indices=tensor(f"{name}/indices"))


def test_every_tensor_is_seen_wherever_it_stands_and_the_weights_of_the_main_graph_are_told_apart():
    node = helper.make_node("Constant", [], ["k"], value=tensor("attribute"))
    node.attribute.add(name="several").tensors.append(tensor("several"))
    node.attribute.add(name="thin").sparse_tensor.CopyFrom(sparse("thin"))
    node.attribute.add(name="thins").sparse_tensors.append(sparse("thins"))
    node.attribute.add(name="body").g.initializer.append(tensor("inner"))
    node.attribute.add(name="bodies").graphs.add().initializer.append(tensor("inners"))
    graph = helper.make_graph([node], "main", [], [], [tensor("weight")])
    graph.sparse_initializer.append(sparse("matrix"))
    found = {tensor.name: is_main for tensor, is_main in iter_tensors(graph)}
    of_pairs = {each for name in ("matrix", "thin", "thins") for each in (name, f"{name}/indices")}
    assert found.keys() == {"weight", "attribute", "several", "inner", "inners"} | of_pairs
    assert [name for name, is_main in found.items() if is_main] == ["weight"]


@pytest.mark.parametrize(
    ("data_type", "dims", "expected"),
    [
        (TensorProto.FLOAT, (2, 3), 24),
        (TensorProto.FLOAT, (), 4),
        (TensorProto.DOUBLE, (3,), 24),
        (TensorProto.BFLOAT16, (3,), 6),
        (TensorProto.FLOAT8E4M3FNUZ, (3,), 3),
        (TensorProto.BOOL, (0, 7), 0),
        (TensorProto.STRING, (3,), -1),
        (TensorProto.UNDEFINED, (3,), -1),
        (TensorProto.FLOAT, (3, -1), -1),
    ],
)
def test_bytes_are_those_of_the_raw_data_where_there_are_any(data_type, dims, expected):
    assert count_bytes(tensor("t", data_type, dims)) == expected


def test_bfloat16_has_two_bytes_where_onnx_takes_it_for_a_float(monkeypatch):
    """Versions of onnx before 1.17 do so."""
    monkeypatch.setattr(helper, "tensor_dtype_to_np_dtype", lambda data_type: np.dtype(np.float32))
    assert count_bytes(tensor("t", TensorProto.BFLOAT16, (3,))) == 6
    assert count_bytes(tensor("t", TensorProto.FLOAT, (3,))) == 12


def test_types_of_few_bits_share_bytes():
    packed = {name for name, number in TensorProto.DataType.items() if is_packed(number)}
    assert packed & {"INT4", "UINT4", "FLOAT8E5M2", "INT8", "FLOAT"} == {"INT4", "UINT4"}
    assert "FLOAT4E2M1" in packed or "FLOAT4E2M1" not in TensorProto.DataType.keys()  # noqa: SIM118 - no dict
