"""Files: round trips, atomic writing, and any bytes parse or raise PopefError."""

import contextlib
import io
import os
import pickle
import struct
import subprocess
import time
import tracemalloc
import zlib

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import popef
from popef.codec import encode
from popef.types import BlobHeader, BlobType, Executable


def info(shape=(2, 3), data_type=popef.DataType.F32):
    return popef.TensorInfo(shape=shape, dataType=data_type)


def write_whole(target, metadata=None):
    """One blob of each kind; the tensor is 0..5."""
    with popef.Writer(target) as writer:
        writer.writeMetadata(metadata or popef.Metadata(executable="e", anchors=[popef.Anchor(name="w")]))
        with writer.createExecutable("e") as blob:
            blob.write(b"co")
            blob.write(bytearray(b"deXX"), 2)
        with writer.createOpaqueBlob("popart", "e") as blob:
            blob.write(b"odd")
        with writer.createTensorData(popef.TensorDataInfo(name="w", tensorInfo=info())) as blob:
            blob.write(np.arange(6, dtype=np.float32).data)
        feed = popef.FeedDataInfo(name="w", tensorInfo=info((2,), popef.DataType.U8), numTensors=3)
        with writer.createFeedData(feed) as blob:
            blob.write(bytes(range(6)))


def parse(data):
    """Everything a reader can say of some bytes."""
    reader = popef.Reader()
    reader.parseStream(io.BytesIO(data))
    for executable in reader.executables():
        executable.executable()
    for tensor in (*reader.tensors(), *reader.feeds()):
        tensor.data()
    for opaque in reader.opaqueBlobs():
        opaque.data()
    reader.metadata()
    return reader


def whole():
    sink = io.BytesIO()
    write_whole(sink)
    return sink.getvalue()


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


@pytest.mark.parametrize("compressor", [None, zlib.compress, lambda data: __import__("gzip").compress(data)])
def test_compressed_executables_are_inflated(tmp_path, compressor):
    path = tmp_path / "m.popef"
    code = b"machine code " * 1000
    if compressor is None:
        with popef.Writer(path) as writer, writer.createExecutable("e", compress=True) as blob:
            blob.write(code)
    else:
        path.write_bytes(raw_executable(compressor(code), len(code)))
    reader = popef.Reader()
    reader.parseFile(path)
    (executable,) = reader.executables()
    assert executable.compressed
    assert path.stat().st_size < len(code)
    assert bytes(executable.executable()) == code


def raw_executable(payload, uncompressed):
    body = encode(Executable(name="e", uncompressedSize=uncompressed))
    return (
        encode(BlobHeader(type=BlobType.POPLAR_EXECUTABLE, size=48 + len(body) + len(payload)))
        + body
        + payload
    )


@pytest.mark.parametrize(
    ("payload", "claimed", "error"),
    [
        (zlib.compress(bytes(10_000_000)), 100, popef.FormatError),
        (zlib.compress(bytes(100)), 10_000, popef.FormatError),
        (zlib.compress(bytes(100))[:-4], 100, popef.FormatError),
        (b"neither zlib nor gzip", 100, popef.UnsupportedError),
        (zlib.compress(bytes(100)), 2**63, popef.LimitError),
        (b"\x28\xb5\x2f\xfd....", 100, popef.PopefError),
    ],
)
def test_what_does_not_inflate_as_claimed_is_refused(payload, claimed, error):
    with pytest.raises(error, match="blob 0"):
        parse(raw_executable(payload, claimed))


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


def build(*paths, name=None):
    reader = popef.Reader()
    for path in paths:
        reader.parseFile(path)
    return popef.ModelBuilder(reader).createModel(name)


def test_blobs_are_bound_by_the_executables_name(tmp_path):
    write_whole(tmp_path / "m.popef")
    model = build(tmp_path / "m.popef")
    assert model.executable.name == "e"
    assert [len(part) for part in (model.tensors, model.feeds, model.opaqueBlobs)] == [1, 1, 1]


def test_ambiguity_is_an_error_that_lists_the_candidates(tmp_path):
    def write(file, executable, metadata):
        with popef.Writer(tmp_path / file) as writer:
            if metadata:
                writer.writeMetadata(popef.Metadata(executable=metadata))
            if executable:
                writer.createExecutable(executable).write(b"x")
        return tmp_path / file

    a, b = write("a", "first", "first"), write("b", "second", "second")
    with pytest.raises(popef.PopefError, match="got 2 among 'first', 'second'"):
        build(a, b)
    assert build(a, b, name="second").metadata.executable() == "second"
    with pytest.raises(popef.PopefError, match="called 'third', got 0 among 'first', 'second'"):
        build(a, b, name="third")
    with pytest.raises(
        popef.PopefError, match="'lonely': expected one metadata blob for it, got 0 among those for none"
    ):
        build(write("c", "lonely", None))
    with pytest.raises(popef.PopefError, match="expected one executable, got 0 among none"):
        build(write("d", None, "first"))


def test_every_truncation_is_refused():
    data = whole()
    ends = {blob.end for blob in parse(data).blobs()}
    for size in range(1, len(data)):
        if size in ends:
            parse(data[:size])
        else:
            with pytest.raises(popef.PopefError):
                parse(data[:size])


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=6))
def test_any_changed_bytes_parse_or_raise_popef_error(changes):
    data = bytearray(whole())
    for place, value in changes:
        data[place % len(data)] = value
    with contextlib.suppress(popef.PopefError):
        parse(bytes(data))


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_parse_or_raise_popef_error(data):
    with contextlib.suppress(popef.PopefError):
        parse(data)


def header_message(*words):
    """A header message of these words, the first being the root pointer."""
    return struct.pack("<II", 0, len(words)) + struct.pack(f"<{len(words)}Q", *words)


STRUCT_2_1 = 0 | 2 << 32 | 1 << 48
HOSTILE = {
    "a segment count beyond the file": struct.pack("<II", 0xFFFFFFFE, 1),
    "too many segments": struct.pack("<I", 600) + bytes(4 * 601 + 4),
    "a segment longer than the file": struct.pack("<II", 0, 0xFFFFFFFF) + bytes(64),
    "an empty first segment": struct.pack("<II", 0, 0) + bytes(8),
    "a root outside its segment": header_message(100 << 2 | STRUCT_2_1, 0, 0, 0),
    "a root that points backwards": header_message((2**30 - 5) << 2 | STRUCT_2_1, 0, 0, 0),
    "a root that is a list": header_message(1 | 2 << 32 | 8 << 35, 0, 0, 0),
    "a far root into no segment": header_message(2 | 7 << 32, 0, 0, 0),
    "a far root onto itself": header_message(2, 0, 0, 0),
    "a blob that ends before its structure": header_message(STRUCT_2_1, 1, 8, 0),
    "a blob of no size": header_message(STRUCT_2_1, 1, 0, 0),
    "a blob of 2^64 - 1 bytes": header_message(STRUCT_2_1, 1, 2**64 - 1, 0),
    "a text of another element size": header_message(STRUCT_2_1, 1, 64, 1 | 5 << 32 | 1 << 35, 0),
    "a text of no bytes": header_message(STRUCT_2_1, 1, 64, 1 | 2 << 32, 0),
    "a text without its end": header_message(STRUCT_2_1, 1, 64, 1 | 2 << 32 | 8 << 35, 0x4141414141414141),
    "a text that is not UTF-8": header_message(STRUCT_2_1, 1, 64, 1 | 2 << 32 | 2 << 35, 0xFF),
    "a text past its segment": header_message(STRUCT_2_1, 1, 64, 1 | 2 << 32 | 999 << 35, 0),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_one_broken_rule_is_refused_with_its_place(name):
    with pytest.raises(popef.PopefError, match="blob 0"):
        parse(HOSTILE[name] + bytes(200 if "text" in name else 0))


def metadata_blob(words):
    body = struct.pack("<II", 0, len(words)) + struct.pack(f"<{len(words)}Q", *words)
    size = 48 + len(body)
    return encode(BlobHeader(type=BlobType.METADATA, size=size)) + body


def test_a_list_of_a_billion_empty_anchors_costs_nothing():
    """Amplification: a composite list whose elements have no words."""
    root = [0 | 5 << 32 | 6 << 48, *([0] * 5), *([0] * 6)]
    root[7] = 1 | (12 - 7 - 1) << 2 | 7 << 32
    tag = ((1 << 29) - 1) << 2
    with pytest.raises(popef.PopefError):
        parse(metadata_blob([*root, tag]))


def test_a_quarter_of_a_million_empty_anchors_are_refused_for_what_they_cost():
    root = [0 | 5 << 32 | 6 << 48, *([0] * 5), *([0] * 6)]
    root[7] = 1 | (12 - 7 - 1) << 2 | 7 << 32
    with pytest.raises(popef.LimitError, match="visits a word"):
        parse(metadata_blob([*root, (popef.Limits().max_list_items - 1) << 2]))


def test_a_file_that_does_not_exist_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        popef.Reader().parseFile(tmp_path / "none")


def test_errors_name_the_file(tmp_path):
    path = tmp_path / "bad.popef"
    path.write_bytes(b"x" * 100)
    with pytest.raises(popef.PopefError, match=r"bad\.popef"):
        popef.Reader().parseFile(path)


def test_importing_popef_brings_in_numpy_only():
    import subprocess
    import sys

    code = (
        "import sys, numpy; before = set(sys.modules); import popef; "
        "print([m for m in sys.modules if m not in before and m.split('.')[0] not in ('numpy', 'popef') "
        "and m.split('.')[0] not in sys.stdlib_module_names])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_an_empty_file_is_refused_by_name(tmp_path):
    path = tmp_path / "empty.popef"
    path.touch()
    with pytest.raises(popef.FormatError, match=r"empty\.popef, byte 0: expected at least one blob"):
        popef.Reader().parseFile(path)


class Pipe(io.BytesIO):
    """A sink that cannot seek."""

    def seekable(self):
        return False

    def seek(self, *_):
        raise OSError("a pipe cannot seek")


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


def test_zstd_executables_are_inflated():
    code = b"machine code " * 1000
    reader = parse(raw_executable(zstandard.compress(code), len(code)))
    assert bytes(reader.executables()[0].executable()) == code


@pytest.mark.parametrize(("code", "width"), [(2, 1), (3, 2), (4, 4), (5, 8)])
def test_lists_of_integers_of_any_width_are_read(code, width):
    """The newer API says uint32_t, the listing prints 64 bits: a list pointer carries its own width."""
    from popef.codec import decode_message
    from popef.errors import Limits
    from popef.types import ProgramFlow

    numbers = [1, 0, 127]
    data = b"".join(number.to_bytes(width, "little") for number in numbers)
    data += bytes(-len(data) % 8)
    words = [
        3 << 48,
        1 | 2 << 2 | code << 32 | len(numbers) << 35,
        0,
        0,
        *struct.unpack(f"<{len(data) // 8}Q", data),
    ]
    message = header_message(*words)
    values, _ = decode_message(
        lambda at, size: message[at : at + size], 0, len(message), "test", Limits(), ProgramFlow
    )
    assert values == popef.ProgramFlow(load=numbers)


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


def test_a_broken_stream_raises_while_it_is_read():
    reader = popef.Reader()
    reader.parseStream(io.BytesIO(raw_executable(zlib.compress(bytes(100))[:-4], 100)))
    with pytest.raises(popef.FormatError, match="executable-size"):
        reader.executables()[0].getStandaloneExecutableStream().read()


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
    with pytest.raises(popef.PopefError, match="'label': expected 2 bytes a tensor, got 3"):
        feeds.write(b"ab", b"abc")
    feeds.write(b"ab", b"ab")
    with pytest.raises(popef.PopefError, match="'image': expected 4 bytes of data, got 2"):
        writer.close()
    with pytest.raises(popef.PopefError, match="write to one blob at a time"):
        feeds.write(b"ab", b"ab")


def test_all_models_of_a_file_are_found(tmp_path):
    path = tmp_path / "two.popef"
    with popef.Writer(path) as writer:
        for name in ("first", "second"):
            writer.writeMetadata(popef.Metadata(executable=name, anchors=[popef.Anchor(name=f"{name} w")]))
            writer.createExecutable(name).write(b"x")
            with writer.createTensorData(
                popef.TensorDataInfo(name=f"{name} w", tensorInfo=info((1,)))
            ) as blob:
                blob.write(bytes(4))
    with popef.Reader() as reader:
        reader.parseFile(path)
        models = popef.ModelBuilder(reader).createModels()
    assert [(model.executable.name, [tensor.info.name for tensor in model.tensors]) for model in models] == [
        ("first", ["first w"]),
        ("second", ["second w"]),
    ]


def test_one_model_may_stand_in_several_files(tmp_path):
    def write(name, fill):
        with popef.Writer(tmp_path / name) as writer:
            fill(writer)
        return tmp_path / name

    def weights(writer):
        with writer.createTensorData(popef.TensorDataInfo(name="w", tensorInfo=info())) as blob:
            blob.write(bytes(24))

    metadata = popef.Metadata(executable="e", anchors=[popef.Anchor(name="w")])
    files = [
        write("code", lambda writer: writer.createExecutable("e").write(b"x")),
        write("metadata", lambda writer: writer.writeMetadata(metadata)),
        write("weights", weights),
    ]
    assert [tensor.info.name for tensor in build(*files).tensors] == ["w"]
    with pytest.raises(
        popef.PopefError, match=r"expected one tensor 'w', got .*weights: blob 0 .* and .*more: blob 0"
    ):
        build(*files, write("more", weights))


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
                with pytest.raises(popef.FormatError, match="the file has shrunk since it was opened"):
                    read()


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
        feeder.wait(10)


def test_a_pipe_is_read_like_a_file(tmp_path):
    write_whole(tmp_path / "m.popef")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with subprocess.Popen(["sh", "-c", f"exec cat {tmp_path}/m.popef > {fifo}"]):
        assert build(fifo).executable.name == "e"


def test_opening_does_not_depend_on_the_size_of_the_file(tmp_path):
    """A sparse file of 1 TB: header and structure are read, the payload is not."""
    path = tmp_path / "m.popef"
    shape = popef.TensorInfo(shape=(1 << 40,), dataType=popef.DataType.U8)
    body = encode(popef.TensorDataInfo(name="w", tensorInfo=shape))
    with path.open("wb") as file:
        file.write(encode(BlobHeader(type=BlobType.DATA_TENSOR, size=48 + len(body) + (1 << 40))) + body)
        file.truncate(48 + len(body) + (1 << 40))
    tracemalloc.start()
    with popef.Reader() as reader:
        reader.parseFile(path)
        assert reader.tensors()[0].data().shape == (1 << 40,)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_a_decompression_bomb_costs_what_it_announces_and_no_more():
    """Ten megabytes of zeros that claim to be a thousand bytes; and a gigabyte that is announced but not
    there."""
    reader = parse_lazily(raw_executable(zlib.compress(bytes(10_000_000)), 1000))
    hollow = parse_lazily(raw_executable(zlib.compress(b"x"), 1 << 30))
    tracemalloc.start()
    for each in (reader, hollow):
        with pytest.raises(popef.FormatError, match="executable-size"):
            each.executables()[0].executable()
    assert tracemalloc.get_traced_memory()[1] < 3 << 20
    tracemalloc.stop()


def parse_lazily(data):
    reader = popef.Reader()
    reader.parseStream(io.BytesIO(data))
    return reader


def test_structures_that_overlap_cannot_multiply_the_work():
    """A thousand anchors whose names are all the same megabyte of text."""
    count, text_words = 1000, 1 << 17
    root = [5 << 32 | 6 << 48, *([0] * 11), count << 2 | 1 << 48]
    root[7] = 1 | (12 - 7 - 1) << 2 | 7 << 32 | count << 35
    names = [1 | (count - i - 1) << 2 | 2 << 32 | (text_words * 8) << 35 for i in range(count)]
    words = root + names + [0x4141414141414141] * (text_words - 1) + [0x41]
    started = time.monotonic()
    with pytest.raises(popef.LimitError, match="do not trust this file"):
        parse(metadata_blob(words))
    assert time.monotonic() - started < 5
