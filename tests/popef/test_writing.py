"""Tests of writing: whole files or none, sinks of every kind, and data that match their
declaration."""

from __future__ import annotations

import io
import os

import numpy as np
import pytest
from popef_blobs import Pipe, build, info, parse, whole, write_whole

import popef


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "m.popef"
    path.write_bytes(b"old")

    def fail():
        with popef.Writer(path) as writer:
            writer.createOpaqueBlob("a", "e").write(b"new")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["m.popef"]


def test_a_tensor_of_the_wrong_size_is_not_written(tmp_path):
    writer = popef.Writer(tmp_path / "m.popef")
    writer.createTensorData(popef.TensorDataInfo(name="w", tensorInfo=info())).write(b"short")
    with pytest.raises(popef.PopefError, match="'w': expected 24 bytes of data, got 5"):
        writer.close()
    assert not os.listdir(tmp_path)


def test_only_the_newest_blob_writer_is_live():
    writer = popef.Writer(io.BytesIO())
    first = writer.createOpaqueBlob("a", "e")
    first.write(b"1")
    writer.createOpaqueBlob("b", "e").write(b"2")
    with pytest.raises(popef.PopefError, match="write to one blob at a time"):
        first.write(b"3")


def test_an_executable_needs_a_name():
    with pytest.raises(popef.PopefError, match="expected a name, got an empty one"):
        popef.Writer(io.BytesIO()).createExecutable("")


def test_a_sink_that_cannot_seek_gets_the_same_bytes():
    sink = Pipe()
    write_whole(sink)
    assert sink.getvalue() == whole()


def test_a_file_in_append_mode_gets_whole_blobs(tmp_path):
    path = tmp_path / "m.popef"
    with path.open("ab") as file:
        write_whole(file)
    assert path.read_bytes() == whole()


def test_file_writers_append_to_what_is_there(tmp_path):
    path = tmp_path / "m.popef"
    write_whole(path)
    with popef.FileWriter(path, popef.FileWriter.Mode.APPEND) as writer:
        with pytest.raises(popef.PopefError, match="expected a new name, got 'e' again"):
            writer.createExecutable("e")
        with writer.createOpaqueBlob("poptorch", "e") as blob:
            blob.write(b"pickle")
    assert path.read_bytes()[: len(whole())] == whole()
    assert [opaque.name for opaque in build(path).opaqueBlobs] == ["popart", "poptorch"]
    with popef.FileWriter(path) as writer:
        writer.writeMetadata(popef.Metadata())
    assert len(parse(path.read_bytes()).blobs()) == 1


def feed_info(name, count=0):
    return popef.FeedDataInfo(name=name, tensorInfo=info((2,), popef.DataType.U8), numTensors=count)


@pytest.mark.parametrize("sink", [io.BytesIO, Pipe])
def test_feeds_are_written_side_by_side(sink):
    target = sink()
    with popef.Writer(target) as writer:
        with writer.createMultiFeedData([feed_info("image", 3), feed_info("label")]) as feeds:
            for i in range(3):
                feeds.write(bytes([i, i]), np.array([9, i], np.uint8))
        writer.createOpaqueBlob("a", "e").close()
    image, label = parse(target.getvalue()).feeds()
    assert (image.info.name, image.data().tolist()) == ("image", [[0, 0], [1, 1], [2, 2]])
    assert (label.info.numTensors, label.data().tolist()) == (3, [[9, 0], [9, 1], [9, 2]])


def test_feeds_that_do_not_fit_their_infos_are_refused():
    writer = popef.Writer(io.BytesIO())
    feeds = writer.createMultiFeedData([feed_info("image", 2), feed_info("label", 1)])
    with pytest.raises(popef.PopefError, match="expected 2 tensors, one for each feed, got 1"):
        feeds.write(b"ab")
    with pytest.raises(popef.PopefError, match="'label': expected 2 bytes per tensor, got 3"):
        feeds.write(b"ab", b"abc")
    feeds.write(b"ab", b"ab")
    with pytest.raises(popef.PopefError, match="'image': expected 4 bytes of data, got 2"):
        writer.close()
    with pytest.raises(popef.PopefError, match="write to one blob at a time"):
        feeds.write(b"ab", b"ab")
