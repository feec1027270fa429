"""Tests of weights that stay in their file: they are mapped, changed when they are read, and never
lead to another file."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from onnxgraph import weights
from onnxgraph.weights import (
    change_values,
    has_data,
    holding_few_pages,
    inline,
    is_outlined,
    outline,
    read_array,
    register_change,
)
from resident_files import count_resident_bytes
from waiting import wait_until

F, F16, I8 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT8
VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture(autouse=True)
def changes(monkeypatch):
    """Register changes of values and return a list of the changes made."""
    made = []
    monkeypatch.setattr(weights, "_CHANGES", {})

    @register_change("narrow", undoes="widen")
    def narrow(values):
        made.append("narrow")
        return values.astype(np.float16)

    @register_change("widen")
    def widen(values):
        made.append("widen")
        return values.astype(np.float32)

    @register_change("scale")
    def scale(values, factor, offset):
        made.append("scale")
        return (values * factor + offset).astype(np.int8)

    return made


@pytest.fixture
def stored(tmp_path):
    """Return a function that makes a weight stored in a file after 8 other bytes."""

    def make(values=VALUES):
        (tmp_path / "data").write_bytes(b"12345678" + values.tobytes())
        tensor = numpy_helper.from_array(values, "w")
        outline(tensor, tmp_path / "data", 8)
        return tensor

    return make


def test_a_file_is_mapped_once_for_all_who_hold_its_values(stored):
    tensor = stored()
    first, second = read_array(tensor), read_array(tensor)
    assert np.shares_memory(first, second)
    other = read_array(stored(np.ones((4, 4), np.float32)))
    assert not np.shares_memory(first, other)
    assert (other == 1).all()


def test_changed_values_are_made_once_while_somebody_holds_them(stored, changes):
    tensor = stored()
    change_values(tensor, "narrow", F16)
    first = read_array(tensor)
    assert read_array(tensor) is first
    assert not first.flags.writeable
    del first
    read_array(tensor)
    assert changes == ["narrow", "narrow"]


def test_values_in_a_file_are_mapped_and_not_copied(stored):
    values = read_array(stored())
    np.testing.assert_array_equal(values, VALUES)
    assert isinstance(values.base, np.memmap)
    assert not values.flags.writeable


def test_a_change_is_made_when_values_are_read_and_goes_with_the_tensor(stored, changes):
    tensor, copy = stored(), TensorProto()
    change_values(tensor, "scale", I8, 2, -1)
    copy.CopyFrom(tensor)
    assert tensor.data_type == I8
    assert changes == []
    np.testing.assert_array_equal(read_array(copy), VALUES * 2 - 1)
    assert changes == ["scale"]


def test_changes_follow_one_another(stored, changes):
    tensor = stored()
    change_values(tensor, "narrow", F16)
    change_values(tensor, "scale", I8, 3, 1)
    assert read_array(tensor).dtype == np.int8
    assert changes == ["narrow", "scale"]


@pytest.mark.parametrize("outlined", [False, True])
def test_a_change_may_give_another_shape(stored, outlined):
    register_change("turn")(lambda values: values.T)
    tensor = stored() if outlined else numpy_helper.from_array(VALUES, "w")
    change_values(tensor, "turn", F, shape=(3, 2))
    change_values(tensor, "narrow", F16)
    assert list(tensor.dims) == [3, 2]
    np.testing.assert_array_equal(read_array(tensor), VALUES.T.astype(np.float16))
    inline(tensor)
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), VALUES.T.astype(np.float16))


@pytest.mark.parametrize("raw", [False, True])
def test_8_bit_floats_are_read_as_their_codes(raw):
    codes = np.arange(6, dtype=np.uint8).reshape(2, 3)
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT8E4M3FNUZ, dims=[2, 3])
    if raw:
        tensor.raw_data = codes.tobytes()
    else:
        tensor.int32_data.extend(codes.ravel().tolist())
    np.testing.assert_array_equal(read_array(tensor), codes)


def test_a_change_and_what_takes_it_back_leave_the_mapping(stored, changes):
    tensor = stored(VALUES.astype(np.float16))
    change_values(tensor, "widen", F)
    change_values(tensor, "narrow", F16)
    assert isinstance(read_array(tensor).base, np.memmap)
    assert changes == []


def test_a_change_that_loses_something_is_not_taken_back(stored):
    tensor = stored(VALUES + np.float32(1e-4))
    change_values(tensor, "narrow", F16)
    change_values(tensor, "widen", F)
    np.testing.assert_array_equal(
        read_array(tensor), (VALUES + np.float32(1e-4)).astype(np.float16)
    )


def test_values_in_the_model_are_changed_at_once():
    tensor = numpy_helper.from_array(VALUES, "w")
    change_values(tensor, "scale", I8, 2, 0)
    assert tensor == numpy_helper.from_array((VALUES * 2).astype(np.int8), "w")


def test_a_tensor_without_data_only_takes_the_type(changes):
    tensor = TensorProto(name="w", data_type=F, dims=[2, 3])
    change_values(tensor, "narrow", F16)
    assert (tensor.data_type, has_data(tensor), changes) == (F16, False, [])


def test_inlined_values_are_the_changed_ones(stored):
    tensor = stored()
    change_values(tensor, "narrow", F16)
    inline(tensor)
    assert not is_outlined(tensor)
    assert tensor == numpy_helper.from_array(VALUES.astype(np.float16), "w")


def test_a_model_from_elsewhere_cannot_have_a_file_read(stored, tmp_path):
    tensor = stored()
    token = next(entry for entry in tensor.external_data if entry.key == "token")
    token.value = "0" * len(token.value)
    assert not is_outlined(tensor)
    assert not has_data(tensor)
    inline(tensor)
    assert tensor.data_location == TensorProto.EXTERNAL


def test_an_unnamed_tensor_stays_unnamed():
    tensor = onnx.helper.make_tensor("", F, [1], [2])
    change_values(tensor, "narrow", F16)
    assert not tensor.HasField("name")


def test_large_weights_are_lent():
    sizes = (weights.LARGE - 1, weights.LARGE, weights.LARGE + 1)
    model = onnx.ModelProto()
    for size in sizes:
        values = np.arange(size, dtype=np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, f"w{size}"))
    before = model.SerializeToString()
    with weights.lend_weights(model) as lent:
        assert [weights.is_outlined(each) for each in lent.graph.initializer] == [False, True, True]
        for size, each in zip(sizes, lent.graph.initializer, strict=True):
            np.testing.assert_array_equal(weights.read_array(each), np.arange(size))
    assert model.SerializeToString() == before


def test_pages_of_a_file_that_was_read_are_let_go_of_and_read_again(stored, tmp_path):
    written = np.arange(1 << 20, dtype=np.float32)
    values = read_array(stored(written))
    assert float(values.sum()) == float(written.sum())
    assert count_resident_bytes(tmp_path / "data") > written.nbytes // 2
    with holding_few_pages():
        wait_until(lambda: not count_resident_bytes(tmp_path / "data"), "the pages are gone")
    np.testing.assert_array_equal(values, written)
