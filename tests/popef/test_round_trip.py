"""Round-trip tests of every kind of blob and value."""

from __future__ import annotations

import io
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import popef
from popef import (
    Anchor,
    DataType,
    FeedDataInfo,
    Metadata,
    Option,
    ProgramFlow,
    TensorDataInfo,
    TensorInfo,
    TensorType,
)

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
PROGRAMS = st.lists(st.integers(0, (1 << 32) - 1), max_size=4)
TENSOR_INFOS = st.builds(
    TensorInfo,
    shape=st.lists(st.integers(0, 4), max_size=4),
    dataType=st.sampled_from(list(DataType)),
)
OPTIONS = st.lists(st.builds(Option, name=TEXT, value=TEXT), max_size=3)
ANCHORS = st.builds(
    Anchor,
    name=TEXT,
    handle=TEXT,
    tensorInfo=TENSOR_INFOS,
    type=st.sampled_from(list(TensorType)),
    isPerReplica=st.booleans(),
    programs=PROGRAMS,
)
METADATA = st.builds(
    Metadata,
    replicationFactor=INT64,
    numIpus=INT64,
    seedHandle=TEXT,
    anchors=st.lists(ANCHORS, max_size=3),
    executable=TEXT,
    numProcesses=INT64,
    ipuVersion=INT64,
    isPOD=st.booleans(),
    isInference=st.booleans(),
    engineOptions=OPTIONS,
    deviceOptions=OPTIONS,
    programFlow=st.builds(
        ProgramFlow,
        load=st.lists(INT64, max_size=4),
        main=st.lists(INT64, max_size=4),
        save=st.lists(INT64, max_size=4),
    ),
    programsMap=st.dictionaries(st.integers(0, (1 << 32) - 1), TEXT, max_size=3),
    deviceIterations=st.integers(0, (1 << 63) - 1),
)


def read(sink: io.BytesIO) -> popef.Reader:
    reader = popef.Reader()
    reader.parseStream(io.BytesIO(sink.getvalue()))
    return reader


@settings(max_examples=examples(150), deadline=None)
@given(METADATA)
def test_metadata_comes_back_equal(metadata: Metadata) -> None:
    sink = io.BytesIO()
    with popef.Writer(sink) as writer:
        writer.writeMetadata(metadata)
    assert read(sink).metadata() == [metadata]


@settings(max_examples=examples(100), deadline=None)
@given(TEXT.filter(bool), st.lists(st.binary(max_size=300), max_size=3), st.booleans())
def test_executables_come_back_whatever_the_pieces(
    name: str, pieces: list[bytes], compress: bool
) -> None:
    sink = io.BytesIO()
    with popef.Writer(sink) as writer, writer.createExecutable(name, compress) as blob:
        for piece in pieces:
            blob.write(piece)
    (executable,) = read(sink).executables()
    assert executable.name == name
    assert bytes(executable.executable()) == b"".join(pieces)
    assert executable.compressed == (compress and any(pieces))
    assert executable.uncompressedSize == (len(b"".join(pieces)) if compress else 0)


@settings(max_examples=examples(100), deadline=None)
@given(TEXT, TEXT, st.binary(max_size=100))
def test_opaque_blobs_come_back(name: str, executable: str, data: bytes) -> None:
    sink = io.BytesIO()
    with popef.Writer(sink) as writer, writer.createOpaqueBlob(name, executable) as blob:
        blob.write(data)
    (opaque,) = read(sink).opaqueBlobs()
    assert (opaque.name, opaque.executable, bytes(opaque.data())) == (name, executable, data)


@settings(max_examples=examples(100), deadline=None)
@given(TEXT, TENSOR_INFOS, st.integers(0, 3), st.randoms(use_true_random=False))
def test_tensors_and_feeds_come_back(name: str, info: TensorInfo, count: int, random: Any) -> None:
    data = random.randbytes(info.sizeInBytes())
    feed_data = random.randbytes(info.sizeInBytes() * count)
    sink = io.BytesIO()
    with popef.Writer(sink) as writer:
        with writer.createTensorData(TensorDataInfo(name=name, tensorInfo=info)) as blob:
            blob.write(data)
        with writer.createFeedData(
            FeedDataInfo(name=name, tensorInfo=info, numTensors=count)
        ) as blob:
            blob.write(feed_data)
    reader = read(sink)
    (tensor,), (feed,) = reader.tensors(), reader.feeds()
    assert (tensor.info.name(), tensor.info.tensorInfo()) == (name, info)
    assert (tensor.data().shape, tensor.data().tobytes()) == (info.shape(), data)
    assert (feed.info.name(), feed.info.tensorInfo(), feed.info.numTensors()) == (name, info, count)
    assert (feed.data().shape, feed.data().tobytes()) == ((count, *info.shape()), feed_data)


@pytest.mark.parametrize("data_type", [t for t in DataType if t is not DataType.F8])
def test_each_element_type_maps_to_one_numpy_dtype_and_back(data_type: DataType) -> None:
    dtype = popef.popefTypeToNumpyDType(data_type)
    assert popef.numpyDTypeToPopefType(dtype) is data_type
    assert dtype.itemsize == TensorInfo(shape=(), dataType=data_type).sizeInBytes()


def test_eight_bit_floats_are_the_fnuz_formats() -> None:
    assert popef.popefTypeToNumpyDType(DataType.F8143) == np.dtype(ml_dtypes.float8_e4m3fnuz)
    assert popef.popefTypeToNumpyDType(DataType.F8152) == np.dtype(ml_dtypes.float8_e5m2fnuz)
    with pytest.raises(popef.UnsupportedError, match="F8"):
        popef.popefTypeToNumpyDType(DataType.F8)


@pytest.mark.parametrize("dtype", ["complex64", ">f4", "U3", "datetime64[s]", object])
def test_dtypes_popef_lacks_are_refused(dtype: Any) -> None:
    with pytest.raises(popef.UnsupportedError, match="expected a little-endian one"):
        popef.numpyDTypeToPopefType(dtype)


def test_two_writes_of_the_same_give_the_same_bytes(listing_metadata: Metadata) -> None:
    sinks = [io.BytesIO(), io.BytesIO()]
    for sink in sinks:
        with popef.Writer(sink) as writer:
            writer.writeMetadata(listing_metadata)
            with writer.createExecutable("e", compress=True) as blob:
                blob.write(b"code" * 1000)
    assert sinks[0].getvalue() == sinks[1].getvalue()
