"""Tests of one tiny file for each rule of FORMAT.md: readers reject or warn, and `popef verify`
cites the rule by name."""

from __future__ import annotations

import io
import logging
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from popef_blobs import message

import popef
from popef import (
    Anchor,
    BlobHeader,
    BlobType,
    DataType,
    FeedDataInfo,
    Metadata,
    Rule,
    TensorDataInfo,
    TensorInfo,
    TensorType,
)
from popef.codec import encode
from popef.commands.verify import Verification
from popef.errors import Severity
from popef.record import Record
from popef.types import Executable, OpaqueBlob

STRUCT_2_1 = 2 << 32 | 1 << 48
BYTES, COMPOSITE = 2, 7


def blob(kind: int, structure: bytes | Record, payload: bytes = b"") -> bytes:
    body = encode(structure) if isinstance(structure, Record) else structure
    return (
        encode(BlobHeader(type=BlobType(kind), size=48 + len(body) + len(payload))) + body + payload
    )


def opaque(*words: int) -> bytes:
    """Return an opaque blob whose structure has these two pointers, followed by the other words."""
    return blob(4, message(2 << 48, *words))


def text(offset: int, count: int, code: int = BYTES) -> int:
    """Return a list pointer."""
    return 1 | offset << 2 | code << 32 | count << 35


def executable(payload: bytes, uncompressed: int) -> bytes:
    return blob(0, Executable(name="e", uncompressedSize=uncompressed), payload)


INFO = TensorInfo(shape=(2,), dataType=DataType.U8)
MODEL = blob(0, Executable(name="e"), b"x")

REFUSED: dict[Rule, list[bytes]] = {
    Rule.BLOB_COUNT: [b""],
    Rule.BLOB_SIZE: [
        message(STRUCT_2_1, 1, 8, 0),
        message(STRUCT_2_1, 1, 0, 0),
        message(STRUCT_2_1, 1, 2**63, 0),
        message(STRUCT_2_1, 1, 2**64 - 1, 0),
        MODEL[:-1],
    ],
    Rule.SEGMENT_TABLE: [
        b"\0" * 15,
        struct.pack("<II", 0xFFFFFFFE, 1) + bytes(100),
        struct.pack("<I", 512) + bytes(4 * 513 + 4),
        struct.pack("<II", 0, 0) + bytes(8),
        struct.pack("<IIII", 9, 1, 1, 1),
    ],
    Rule.SEGMENT_BOUNDS: [
        struct.pack("<II", 0, 0xFFFFFFFF) + bytes(64),
        struct.pack("<II", 0, 2) + bytes(8),
    ],
    Rule.POINTER_BOUNDS: [
        message(100 << 2 | STRUCT_2_1, 0, 0, 0),
        message((2**30 - 5) << 2 | STRUCT_2_1, 0, 0, 0),
        message(0xFFFF << 32 | 0xFFFF << 48),
        opaque(text(1, 9), 0, 0),
        opaque(text(0, 2**29 - 1), 0),
    ],
    Rule.POINTER_KIND: [
        message(1 | 2 << 32 | 8 << 35, 0, 0, 0),
        message(3, 0, 0, 0),
        opaque(STRUCT_2_1, 0, 0, 0, 0),
    ],
    Rule.FAR_POINTER: [
        message(2 | 7 << 32, 0, 0, 0),
        message(2 | 100 << 3, 0, 0, 0),
        message(2, 0, 0, 0),
        message(2 | 4 | 1 << 3, STRUCT_2_1, 0, 0),
        message(2 | 4 | 1 << 3, 2 | 4 | 3 << 3, STRUCT_2_1, 0),
        message(2 | 4 | 1 << 3, 2 | 3 << 3, 2, 0),
        message(2 | 4 | 3 << 3, 0, 0, 0),
    ],
    Rule.STRUCT_LIST: [
        blob(1, message(2 << 48, 0, text(0, 1, COMPOSITE), 2 << 2 | 1 << 32, 0)),
        blob(1, message(2 << 48, 0, text(0, 1, COMPOSITE), 1 | 1 << 2 | 1 << 32, 0)),
        blob(1, message(2 << 48, 0, text(0, 8, 1), 0)),
    ],
    Rule.TEXT: [
        opaque(text(1, 1, code=5), 0, 0),
        opaque(text(1, 0), 0),
        opaque(text(1, 8), 0, 0x4141414141414141),
        opaque(text(1, 2), 0, 0xFF),
    ],
    Rule.INTEGERS: [
        blob(2, message(2 << 48, 0, 1 << 32 | 1 << 48, 3, text(0, 8, 1), 0)),
        blob(2, message(2 << 48, 0, 1 << 32 | 1 << 48, 3, text(0, 1, 6), 0)),
        blob(
            2, message(2 << 48, 0, 1 << 32 | 1 << 48, 3, text(0, 1, COMPOSITE), 1 << 2 | 1 << 48, 0)
        ),
    ],
    Rule.SHAPE: [blob(2, message(2 << 48, 0, 1 << 32 | 1 << 48, 3, text(0, 1, 5), 2**64 - 1))],
    Rule.METADATA_PAYLOAD: [blob(1, Metadata(), b"x")],
    Rule.TENSOR_PAYLOAD: [
        blob(2, TensorDataInfo(name="w", tensorInfo=INFO), b"x"),
        blob(2, TensorDataInfo(name="w", tensorInfo=TensorInfo(shape=(2**62, 2**62))), b"x"),
    ],
    Rule.FEED_PAYLOAD: [
        blob(3, FeedDataInfo(name="w", tensorInfo=INFO, numTensors=2), b"abc"),
        blob(3, FeedDataInfo(name="w", tensorInfo=INFO, numTensors=2**64 - 1), b"abc"),
    ],
    Rule.EXECUTABLE_NAME: [blob(0, Executable(), b"x")],
    Rule.EXECUTABLE_SIZE: [
        executable(zlib.compress(bytes(1000)), 100),
        executable(zlib.compress(bytes(100)), 1000),
        executable(zlib.compress(bytes(100))[:-4], 100),
        executable(zlib.compress(bytes(100)) + b"more", 100),
        executable(zlib.compress(bytes(100))[:2] + b"\xff" * 9, 100),
    ],
    Rule.EXECUTABLE_CODEC: [executable(b"neither this nor that", 100), executable(b"", 100)],
    Rule.EXECUTABLE_UNIQUE: [MODEL + MODEL],
}

ONLY_VERIFY_SEES = {Rule.EXECUTABLE_CODEC: popef.UnsupportedError, Rule.EXECUTABLE_UNIQUE: None}


def anchored(anchor: Anchor, **fields: object) -> bytes:
    return MODEL + blob(1, Metadata(executable="e", anchors=[anchor], **fields))  # type: ignore[arg-type]


TENSOR = blob(2, TensorDataInfo(name="w", tensorInfo=INFO), b"ab")
INPUT = Anchor(name="w", handle="h", type=TensorType.INPUT, tensorInfo=INFO)

WARNED: dict[Rule, list[bytes]] = {
    Rule.OPTIONAL_FIELD: [
        blob(1, message(6 << 32 | 7 << 48, 0, 0, 0, 0, 0, 2**63, *[0] * 7)),
        blob(1, message(7 << 48, 0, 0, 0, 0, 0, 0, text(50, 1))),
        anchored(Anchor(name="w", handle="h", programs=[2**40])),
    ],
    Rule.ENUMERANT: [
        blob(9, b"", b"something new"),
        blob(2, TensorDataInfo(name="w", tensorInfo=TensorInfo(dataType=DataType(99))), b"?"),
        anchored(Anchor(name="w", type=TensorType(5))),
    ],
    Rule.CONTROL_CHARACTERS: [blob(0, Executable(name="\x1b[31mred"), b"x")],
    Rule.METADATA_EXECUTABLE: [
        blob(1, Metadata(executable="lost")),
        blob(4, OpaqueBlob(name="popart", executable="lost")),
    ],
    Rule.METADATA_UNIQUE: [MODEL + 2 * blob(1, Metadata(executable="e"))],
    Rule.ANCHOR_UNIQUE: [MODEL + blob(1, Metadata(executable="e", anchors=[INPUT, INPUT]))],
    Rule.ANCHOR_HANDLE: [anchored(Anchor(name="w", type=TensorType.OUTPUT))],
    Rule.ANCHOR_REPLICAS: [
        anchored(Anchor(name="w", isPerReplica=True, tensorInfo=INFO), replicationFactor=4)
    ],
    Rule.DATA_ANCHOR: [
        anchored(Anchor(name="v")) + TENSOR,
        anchored(Anchor(name="w", tensorInfo=TensorInfo(shape=(3,), dataType=DataType.U8)))
        + TENSOR,
    ],
    Rule.DATA_UNIQUE: [TENSOR + TENSOR],
    Rule.PROGRAM_NAMES: [
        anchored(INPUT, programFlow=popef.ProgramFlow(main=[5]), programsMap={0: "load"})
    ],
}


def cases(table: dict[Rule, list[bytes]]) -> list[object]:
    return [
        pytest.param(rule, data, id=f"{rule} {i}")
        for rule, files in table.items()
        for i, data in enumerate(files)
    ]


@pytest.fixture
def verify(tmp_path: Path) -> Callable[[bytes], list[str]]:
    def run(data: bytes) -> list[str]:
        path = tmp_path / "file.popef"
        path.write_bytes(data)
        return [str(finding.rule) for finding in Verification([path]).findings]

    return run


def read(data: bytes) -> None:
    reader = popef.Reader()
    reader.parseStream(io.BytesIO(data))
    for each in reader.executables():
        each.executable()


def test_every_rule_has_a_file() -> None:
    assert set(REFUSED) == {rule for rule in Rule if rule.severity is Severity.ERROR}
    assert set(WARNED) == {rule for rule in Rule if rule.severity is Severity.WARNING}


@pytest.mark.parametrize(("rule", "data"), cases(REFUSED))
def test_a_file_that_breaks_a_rule_is_refused_by_its_name(
    rule: Rule, data: bytes, verify: Callable[[bytes], list[str]]
) -> None:
    assert verify(data) == [str(rule)]
    if rule not in ONLY_VERIFY_SEES:
        with pytest.raises(popef.FormatError, match=rf"\({rule}\)$") as caught:
            read(data)
        assert caught.value.rule is rule
        assert 0 <= caught.value.offset <= len(data)
    elif error := ONLY_VERIFY_SEES[rule]:
        with pytest.raises(error):
            read(data)


@pytest.mark.parametrize(("rule", "data"), cases(WARNED))
def test_a_file_that_breaks_a_recommendation_is_read_and_warned_of(
    rule: Rule, data: bytes, verify: Callable[[bytes], list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "popef"):
        read(data)
    assert str(rule) in verify(data)
    assert all(
        Rule[found.upper().replace("-", "_")].severity is Severity.WARNING for found in verify(data)
    )
    if rule is Rule.OPTIONAL_FIELD:
        assert "optional-field" in caplog.text


def test_a_sound_model_has_no_findings(
    verify: Callable[[bytes], list[str]], small_file: bytes
) -> None:
    assert verify(anchored(INPUT, programFlow=popef.ProgramFlow(main=[5])) + TENSOR) == []
    assert verify(small_file) == []


def test_every_finding_of_a_file_is_reported(verify: Callable[[bytes], list[str]]) -> None:
    bad = [
        REFUSED[Rule.SHAPE][0],
        REFUSED[Rule.METADATA_PAYLOAD][0],
        REFUSED[Rule.TENSOR_PAYLOAD][0],
    ]
    assert verify(MODEL + b"".join(bad)) == ["shape", "metadata-payload", "tensor-payload"]


def test_limits_are_findings_without_a_rule(tmp_path: Path) -> None:
    path = tmp_path / "file.popef"
    path.write_bytes(executable(zlib.compress(bytes(100)), 2**63))
    (finding,) = Verification([path]).findings
    assert str(finding).startswith("error: limit: ")
