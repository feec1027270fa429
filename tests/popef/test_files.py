"""Tests of files in each state that readers meet: mapped, copied, streamed, replaced, shrunk,
endless."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from popef_blobs import build, write_whole
from resident_files import count_resident_bytes
from waiting import PATIENCE_SECONDS

import popef
from popef.codec import encode
from popef.types import BlobHeader, BlobType


def test_all_five_kinds_of_blob_come_back(tmp_path):
    path = tmp_path / "m.popef"
    write_whole(path)
    with popef.Reader() as reader:
        reader.parseFile(path)
        (executable,) = reader.executables()
        assert (executable.name, bytes(executable.executable())) == ("e", b"code")
        (opaque,) = reader.opaqueBlobs()
        assert (opaque.name, opaque.executable, bytes(opaque.data())) == ("popart", "e", b"odd")
        (tensor,) = reader.tensors()
        np.testing.assert_array_equal(tensor.data(), np.arange(6, dtype=np.float32).reshape(2, 3))
        (feed,) = reader.feeds()
        np.testing.assert_array_equal(feed.data(), np.arange(6, dtype=np.uint8).reshape(3, 2))
        assert reader.metadata()[0].anchors()[0].name() == "w"


def test_payloads_are_views_that_cannot_be_written(tmp_path):
    path = tmp_path / "m.popef"
    write_whole(path)
    reader = popef.Reader()
    reader.parseFile(path)
    data = reader.tensors()[0].data()
    assert not data.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        data[0] = 1
    assert reader.executables()[0].executable().readonly


def test_a_file_that_does_not_exist_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        popef.Reader().parseFile(tmp_path / "none")


def test_errors_name_the_file(tmp_path):
    path = tmp_path / "bad.popef"
    path.write_bytes(b"x" * 100)
    with pytest.raises(popef.PopefError, match=r"bad\.popef"):
        popef.Reader().parseFile(path)


def test_importing_popef_brings_in_numpy_only():
    code = (
        "import sys, numpy; before = set(sys.modules); import popef; print([m for m in sys.modules "
        "if m not in before and m.split('.')[0] not in ('numpy', 'popef') and m.split('.')[0] not "
        "in sys.stdlib_module_names])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_empty_file_is_refused_by_name(tmp_path):
    path = tmp_path / "empty.popef"
    path.touch()
    with pytest.raises(
        popef.FormatError, match=r"empty\.popef, byte 0: expected at least one blob"
    ):
        popef.Reader().parseFile(path)


def test_payloads_are_streams_that_outlive_the_reader(tmp_path):
    path = tmp_path / "m.popef"
    with popef.Writer(path) as writer:
        with writer.createExecutable("raw") as blob:
            blob.write(b"code")
        with writer.createExecutable("packed", compress=True) as blob:
            blob.write(b"machine code " * 100_000)
        with writer.createOpaqueBlob("poptorch", "raw") as blob:
            pickle.dump({"inputs": 3}, blob.stream)
    with popef.Reader() as reader:
        reader.parseFile(path)
        raw, packed = (each.getStandaloneExecutableStream() for each in reader.executables())
        (opaque,) = reader.opaqueBlobs()
        assert opaque.getAvailableReadSize() == len(opaque.data())
        private = opaque.getStandaloneDataStream()
    assert raw.read(2) + raw.read() == b"code"
    assert raw.seek(-2, os.SEEK_END) == 2
    assert raw.read() == b"de"
    assert packed.read(13) == b"machine code "
    assert len(packed.read()) == 13 * 99_999
    assert pickle.load(private) == {"inputs": 3}


def test_a_file_that_shrinks_is_refused_and_not_a_fault(tmp_path):
    for mapped in (True, False):
        path = tmp_path / "m.popef"
        write_whole(path)
        with popef.Reader(mapped=mapped) as reader:
            reader.parseFile(path)
            os.truncate(path, 100)
            for read in (
                reader.tensors()[0].data,
                reader.opaqueBlobs()[0].data,
                reader.executables()[0].executable,
            ):
                with pytest.raises(
                    popef.FormatError, match="the file has shrunk since it was opened"
                ):
                    read()


@pytest.mark.parametrize("size", [0, 100, None], ids=["emptied", "truncated", "overwritten"])
def test_a_mapped_file_that_is_written_to_is_noticed_without_touching_it(tmp_path, size):
    path = tmp_path / "m.popef"
    write_whole(path)
    os.utime(path, (1, 1))  # before now, whatever the resolution of the system's times
    with popef.Reader() as reader:
        reader.parseFile(path)
        (source,) = popef.ModelBuilder(reader).createModel().sources()
        source.check()
        with path.open("r+b") as file:
            file.write(b"?") if size is None else file.truncate(size)
        words = (
            rf"^{re.escape(str(path))}: expected the file as it was opened .* "
            rf"replace files by renaming"
        )
        with pytest.raises(popef.PopefError, match=words):
            source.check()


def test_a_mapping_whose_pages_were_released_reads_them_again(tmp_path):
    path = tmp_path / "m.popef"
    values = np.arange(1 << 18, dtype=np.float32)
    shape = popef.TensorInfo(shape=values.shape, dataType=popef.DataType.F32)
    info = popef.TensorDataInfo(name="w", tensorInfo=shape)
    with popef.Writer(path) as writer, writer.createTensorData(info) as blob:
        blob.write(values)
    with popef.Reader() as reader:
        reader.parseFile(path)
        (tensor,) = reader.tensors()
        data = tensor.data()
        np.testing.assert_array_equal(data, values)
        assert count_resident_bytes(path) >= values.nbytes
        tensor.blob.source.release_pages()
        assert count_resident_bytes(path) == 0
        np.testing.assert_array_equal(data, values)


def test_an_unmapped_reader_copies_and_is_not_disturbed_by_later_writes(tmp_path):
    path = tmp_path / "m.popef"
    write_whole(path)
    with popef.Reader(mapped=False) as reader:
        reader.parseFile(path)
        data = reader.tensors()[0].data()
        path.write_bytes(bytes(path.stat().st_size))
        np.testing.assert_array_equal(data, np.arange(6, dtype=np.float32).reshape(2, 3))


def test_a_name_that_was_replaced_leaves_readers_the_old_file(tmp_path):
    path = tmp_path / "m.popef"
    write_whole(path)
    with popef.Reader() as reader:
        reader.parseFile(path)
        with popef.Writer(path) as writer:
            writer.writeMetadata(popef.Metadata())
        np.testing.assert_array_equal(
            reader.tensors()[0].data(), np.arange(6, dtype=np.float32).reshape(2, 3)
        )


def test_endless_input_is_refused(tmp_path):
    with pytest.raises(popef.FormatError, match="segment-table"):
        popef.Reader().parseFile("/dev/zero")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    limits = popef.Limits(max_stream_bytes=1 << 20)
    with subprocess.Popen(["sh", "-c", f"exec cat /dev/urandom > {fifo}"]) as feeder:
        with pytest.raises(popef.LimitError, match="max_stream_bytes"):
            popef.Reader(limits).parseFile(fifo)
        feeder.wait(PATIENCE_SECONDS)


def test_a_pipe_is_read_like_a_file(tmp_path):
    write_whole(tmp_path / "m.popef")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(["sh", "-c", f"exec cat {tmp_path}/m.popef > {fifo}"]):
        assert build(fifo).executable.name == "e"


def test_opening_does_not_depend_on_the_size_of_the_file(tmp_path):
    """The file is sparse and has 1 TB: the reader reads the header and the structure, but not the
    payload."""
    path = tmp_path / "m.popef"
    shape = popef.TensorInfo(shape=(1 << 40,), dataType=popef.DataType.U8)
    body = encode(popef.TensorDataInfo(name="w", tensorInfo=shape))
    with path.open("wb") as file:
        file.write(
            encode(BlobHeader(type=BlobType.DATA_TENSOR, size=48 + len(body) + (1 << 40))) + body
        )
        file.truncate(48 + len(body) + (1 << 40))
    tracemalloc.start()
    with popef.Reader() as reader:
        reader.parseFile(path)
        assert reader.tensors()[0].data().shape == (1 << 40,)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
