"""Tests of structures: the real library's accessors and plain attributes are the same thing."""

from __future__ import annotations

import copy
import pickle

import pytest

import popef
from popef import Anchor, DataType, Metadata, Option, ProgramFlow, TensorInfo, TensorType
from popef.record import Record
from popef.types import STRUCTURES


@pytest.mark.parametrize("kind", STRUCTURES)
def test_every_field_is_an_attribute_an_accessor_and_a_setter(kind: type[Record]) -> None:
    record = kind()
    for field in record.SCHEMA.fields:
        value = getattr(record, field.name)
        assert value() == value
        setter = getattr(record, "set" + field.name[0].upper() + field.name[1:])
        setter(copy.deepcopy(value))
        assert getattr(record, field.name) == value
        assert setter.__doc__
        assert getattr(type(record), field.name).__doc__


@pytest.mark.parametrize("kind", STRUCTURES)
def test_no_two_fields_of_a_structure_share_a_place_and_no_pointer_is_left_out(
    kind: type[Record],
) -> None:
    fields = kind.SCHEMA.fields
    bits = [bit for field in fields for bit in range(field.slot, field.slot + field.kind.bits)]
    assert len(set(bits)) == len(bits)
    assert all(field.slot % field.kind.bits == 0 for field in fields if field.kind.bits)
    pointers = [field.slot for field in fields if not field.kind.bits]
    assert sorted(pointers) == list(range(len(pointers)))


def test_values_are_those_of_plain_python() -> None:
    anchor = Anchor(
        name="a", tensorInfo=TensorInfo(shape=[2, 3], dataType=DataType.F16), isPerReplica=True
    )
    assert anchor.name == anchor.name() == "a"
    assert isinstance(anchor.name, str)
    assert anchor.tensorInfo.shape == anchor.tensorInfo().shape() == (2, 3)
    assert anchor.tensorInfo.dataType is anchor.tensorInfo().dataType() is DataType.F16
    assert (anchor.isPerReplica, anchor.isPerReplica()) == (True, True)
    assert repr(anchor.isPerReplica) == "True"
    assert not Anchor().isPerReplica
    assert anchor.type is TensorType.UNKNOWN


def test_assignment_and_setters_are_the_same() -> None:
    metadata = Metadata()
    metadata.numIpus = 4
    metadata.setIsPOD(True)
    metadata.anchors().append(Anchor(name="a"))
    metadata.programFlow.main.append(5)
    metadata.programsMap[5] = "main"
    expected = Metadata(
        numIpus=4,
        isPOD=True,
        anchors=[Anchor(name="a")],
        programFlow=ProgramFlow(main=[5]),
        programsMap={5: "main"},
    )
    assert metadata == expected
    assert metadata != Metadata()
    assert metadata != "metadata"


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (
            lambda: TensorInfo(shape=(-1,)),
            ValueError,
            "TensorInfo.shape: expected sizes of 0 and above",
        ),
        (lambda: TensorInfo(shape=(1.5,)), TypeError, "TensorInfo.shape"),
        (lambda: Anchor(name=3), TypeError, "Anchor.name: expected a str, got 3"),
        (lambda: Anchor(tensorInfo=(2, 3)), TypeError, "Anchor.tensorInfo: expected TensorInfo"),
        (lambda: Metadata(anchors=["a"]), TypeError, "Metadata.anchors: expected Anchor, got 'a'"),
        (lambda: Metadata(numIpus="4"), TypeError, "Metadata.numIpus"),
        (
            lambda: Metadata(numIPUs=4),
            AttributeError,
            "Metadata.numIPUs: expected one of replicationFactor, numIpus",
        ),
        (lambda: Anchor(type=-1), ValueError, "Anchor.type"),
        (lambda: Anchor().__delattr__("name"), AttributeError, "cannot be deleted;"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_of_its_field(
    change: object, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        change()  # type: ignore[operator]


def test_repr_names_every_field_and_str_is_the_dump() -> None:
    option = Option(name="a", value="b")
    assert repr(option) == "Option(name='a', value='b')"
    assert str(option) == '{"name": "a", "value": "b"}'


def test_structures_can_be_copied_and_pickled() -> None:
    metadata = Metadata(
        anchors=[Anchor(name="a", type=TensorType(77))], engineOptions=[Option(name="x", value="y")]
    )
    for twin in (copy.deepcopy(metadata), pickle.loads(pickle.dumps(metadata))):
        assert twin == metadata
        twin.anchors[0].name = "b"
        assert twin != metadata


def test_ordinals_of_newer_sdks_are_kept() -> None:
    assert DataType(99).name == "UNKNOWN_99"
    assert DataType(99) is DataType(99)
    assert not DataType(99).known
    assert list(popef.BlobType) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="70000"):
        DataType(70000)
    with pytest.raises(popef.UnsupportedError, match="data type 99"):
        TensorInfo(dataType=DataType(99)).sizeInBytes()
