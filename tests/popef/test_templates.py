"""Tests that tensor blobs recognised by a template decode as the general decoder decodes them."""

from __future__ import annotations

import io
import struct
from itertools import product

import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import popef
from popef import DataType, Limits, TensorDataInfo, TensorInfo
from popef.codec import encode
from popef.scan import HEAD_BYTES, Blob, TensorTemplates, read_blob, tensor_data_info, tensor_head
from popef.source import MemorySource

SHAPES = st.lists(st.integers(0, 4), max_size=5)
INFOS = st.builds(
    TensorDataInfo,
    name=st.text(st.characters(exclude_categories=["Cs"]), max_size=40),
    tensorInfo=st.builds(TensorInfo, shape=SHAPES, dataType=st.sampled_from(list(DataType))),
)


def tensor_file(info: TensorDataInfo) -> bytes:
    sink = io.BytesIO()
    with popef.Writer(sink) as writer, writer.createTensorData(info) as blob:
        blob.write(bytes(info.tensorInfo.sizeInBytes()))
    return sink.getvalue()


def generally(data: bytes) -> Blob | None:
    """Return the blob that the general decoder finds; None if it rejects the data."""
    source = MemorySource("file", data)
    try:
        return read_blob(source, 0, 0, source.read(0, HEAD_BYTES), Limits())
    except popef.PopefError:
        return None


def agrees(data: bytes, templates: TensorTemplates | None = None) -> bool:
    """Return whether a template recognised the blob. If so, check that both decoders find the
    same."""
    templates = templates or TensorTemplates(Limits())
    seen = templates.match(data[:HEAD_BYTES], len(data))
    if seen is None:
        return False
    blob = generally(data)
    assert blob is not None
    payload, size, tensor = seen
    assert (tensor_data_info(tensor), payload, size) == (
        blob.structure,
        blob.payload_start,
        blob.end,
    )
    return True


@pytest.mark.parametrize("name_bytes", [0, 1, 6, 7, 8, 9, 255])
@pytest.mark.parametrize("rank", [0, 1, 4, 32])
def test_a_template_is_what_the_writer_writes(name_bytes: int, rank: int) -> None:
    info = TensorDataInfo(
        name="\0" * name_bytes, tensorInfo=TensorInfo(shape=[0] * rank, dataType=DataType.BOOL)
    )
    assert tensor_head(name_bytes, rank)[48:] == encode(info)


@settings(max_examples=examples(200), deadline=None)
@given(INFOS)
def test_files_of_the_writer_match_a_template(info: TensorDataInfo) -> None:
    assert agrees(tensor_file(info)) == (info.tensorInfo.sizeInBytes() > 0)


@settings(max_examples=examples(500), deadline=None)
@given(INFOS, st.integers(0, 10**6), st.integers(0, 255))
def test_a_blob_with_a_changed_byte_is_not_taken_for_something_else(
    info: TensorDataInfo, place: int, value: int
) -> None:
    data = bytearray(tensor_file(info))
    data[place % min(len(data), HEAD_BYTES)] = value
    agrees(bytes(data))


@settings(max_examples=examples(500), deadline=None)
@given(INFOS, st.integers(0, 10**6), st.integers(0, 255))
def test_a_changed_byte_beside_the_name_makes_no_twin(
    info: TensorDataInfo, place: int, value: int
) -> None:
    data, templates = bytearray(tensor_file(info)), TensorTemplates(Limits())
    agrees(bytes(data), templates)
    data[place % min(len(data), HEAD_BYTES)] = value
    agrees(bytes(data), templates)
    assert not agrees(bytes(data[:-1]), templates)


@pytest.mark.parametrize("shapes", [[(2, 3), (3, 2)], [(6,), (6,)], [(0,), (6,)]])
def test_tensors_of_one_size_keep_their_shapes_types_and_names(
    shapes: list[tuple[int, ...]],
) -> None:
    infos = [
        TensorDataInfo(name=name, tensorInfo=TensorInfo(shape=shape, dataType=data_type))
        for name, shape, data_type in product(
            "ab", shapes, (DataType.F16, DataType.S16, DataType.F16)
        )
    ]
    reader = popef.Reader()
    reader.parseStream(io.BytesIO(b"".join(map(tensor_file, infos))))
    tensors = [tensor.info for tensor in reader.tensors()]
    assert tensors == infos
    assert len({id(tensor.tensorInfo) for tensor in tensors}) == len(infos)


@pytest.mark.parametrize("shape", [(2**63, 2), (2**64 - 1, 0), (2**32, 2**32)])
def test_sizes_beyond_63_bits_are_left_to_the_general_decoder(shape: tuple[int, int]) -> None:
    data = bytearray(
        tensor_file(
            TensorDataInfo(name="w", tensorInfo=TensorInfo(shape=(1, 1), dataType=DataType.U8))
        )
    )
    data[-17:-1] = struct.pack("<QQ", *shape)
    assert not agrees(bytes(data))
    assert generally(bytes(data)) is None


def test_a_file_of_many_layouts_is_read_all_the_same() -> None:
    infos = [
        TensorDataInfo(name="n" * (i % 300), tensorInfo=TensorInfo(shape=[1] * (i % 20)))
        for i in range(3000)
    ]
    reader = popef.Reader()
    reader.parseStream(io.BytesIO(b"".join(map(tensor_file, infos))))
    assert [tensor.info for tensor in reader.tensors()] == infos
