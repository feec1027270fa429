"""Tests of the findings of the fuzzers in this folder: one small file for each."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import popef
from popef.commands.compare import iter_differences
from popef.commands.verify import Verification


def file_of(write: Callable[[popef.Writer], None]) -> bytes:
    """Return the file that the calls of a writer make."""
    sink = io.BytesIO()
    with popef.Writer(sink) as writer:
        write(writer)
    return sink.getvalue()


def parsed(data: bytes) -> popef.Reader:
    reader = popef.Reader()
    reader.parseStream(io.BytesIO(data))
    return reader


class ShortReads(io.BytesIO):
    """Stream that returns one byte at a time, as an unbuffered pipe may."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(min(size or 0, 1))


def test_a_stream_may_hand_out_its_first_bytes_one_by_one() -> None:
    data = file_of(lambda writer: writer.writeMetadata(popef.Metadata()))
    reader = popef.Reader()
    reader.parseStream(ShortReads(data))
    assert reader.metadata() == [popef.Metadata()]


def steps(function: Callable[[], Any]) -> int:
    """Return the number of bytecode instructions of a call: it is the same on every machine, unlike
    time."""
    count = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()  # coverage's tracer, if it is active
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def many_models(count: int) -> bytes:
    def write(writer: popef.Writer) -> None:
        for name in map(str, range(count)):
            writer.createExecutable(name)
            writer.writeMetadata(popef.Metadata(executable=name))

    return file_of(write)


def many_data_of_one_name(count: int) -> bytes:
    def write(writer: popef.Writer) -> None:
        anchors = [popef.Anchor(name="w", programs=[i]) for i in range(count)]
        writer.writeMetadata(popef.Metadata(executable="e", anchors=anchors))
        writer.createExecutable("e")
        for _ in range(count):
            writer.createTensorData(
                popef.TensorDataInfo(name="w", tensorInfo=popef.TensorInfo(shape=[0]))
            )

    return file_of(write)


def create_models(path: Path) -> None:
    popef.ModelBuilder(parsed(path.read_bytes())).createModels()


def compare_with_itself(path: Path) -> None:
    reader = parsed(path.read_bytes())
    assert not list(iter_differences(reader, reader))


def verify(path: Path) -> None:
    assert Verification([path]).blobs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "function"),
    [
        (many_models, create_models),
        (many_data_of_one_name, compare_with_itself),
        (many_data_of_one_name, verify),
        (many_models, compare_with_itself),
        (many_models, verify),
    ],
)
def test_twice_the_blobs_take_twice_the_steps(
    file: Callable[[int], bytes], function: Callable[[Path], None], tmp_path: Path
) -> None:
    """A file of a megabyte with thousands of small blobs could keep a reader busy for minutes."""
    counts = []
    for count in (40, 80, 160):
        path = tmp_path / str(count)
        path.write_bytes(file(count))
        counts.append(steps(lambda path=path: function(path)))
    assert counts[2] - counts[1] < 2.5 * (counts[1] - counts[0])
