"""Check of files against the rules of FORMAT.md; reports every violation, not only the first."""

from __future__ import annotations

import os
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..compression import Codec
from ..enums import BlobType, Enumerant, TensorType, enumerant
from ..errors import FormatError, LimitError, Limits, PopefError, Rule, Severity, UnsupportedError
from ..reader import ExecutableReader
from ..record import Record
from ..scan import HEAD_BYTES, Blob, read_blob, read_header
from ..source import CHUNK_BYTES, Source, open_source
from ..types import Executable, FeedDataInfo, Metadata, OpaqueBlob, TensorDataInfo


@dataclass(frozen=True, slots=True)
class Finding:
    """One broken rule. `rule` is None for a limit of this reader, which a valid file may exceed."""

    rule: Rule | None
    text: str
    """Text that says where the fault is, what was expected and what was found."""

    @property
    def severity(self) -> Severity:
        """Severity of the broken rule; ERROR for a limit."""
        return self.rule.severity if self.rule else Severity.ERROR

    def __str__(self) -> str:
        return f"{self.severity.value}: {self.rule or 'limit'}: {self.text}"


class Verification:
    """Findings on several files that are read as one, like the files of a model."""

    def __init__(
        self, paths: Iterable[str | os.PathLike[str]], limits: Limits | None = None
    ) -> None:
        """Read the files. Raises OSError for a file that cannot be opened; reports faults as
        findings."""
        self.findings: list[Finding] = []
        self.blobs: list[Blob] = []
        self._limits = Limits() if limits is None else limits
        for path in paths:
            self._read(
                open_source(path, mapped=False, max_stream_bytes=self._limits.max_stream_bytes)
            )
        for blob in self.blobs:
            self._check_values(blob)
        self._check_executables()
        self._check_metadata()
        self._check_data()

    def _add(self, rule: Rule, text: str) -> None:
        self.findings.append(Finding(rule, text))

    def _read(self, source: Source) -> None:
        if not source.size:
            self._add(
                Rule.BLOB_COUNT,
                f"{source.name}, byte 0: expected at least one blob, got an empty file",
            )
        start, index = 0, 0
        while start < source.size:
            try:
                header, _ = read_header(source, index, start, self._limits)
            except PopefError as error:
                self._add_error(error)
                return  # the start of the next blob is unknown
            try:
                head = source.read(start, HEAD_BYTES)
                self.blobs.append(read_blob(source, index, start, head, self._limits, self._add))
            except PopefError as error:
                self._add_error(error)
            start, index = start + header.size, index + 1

    def _add_error(self, error: PopefError) -> None:
        if isinstance(error, FormatError):
            self._add(
                error.rule,
                f"{error.blob}, byte {error.offset}: expected {error.expected}, got {error.got}",
            )
        else:
            self.findings.append(Finding(None, str(error)))

    def _check_values(self, blob: Blob) -> None:
        for name, value in _iter_values(blob.structure):
            if isinstance(value, Enumerant) and not value.known:
                self._add(
                    Rule.ENUMERANT,
                    f"{blob.label}: {name} is {enumerant(value)}, which is in no table",
                )
            if isinstance(value, str) and any(
                unicodedata.category(character) == "Cc" for character in value
            ):
                self._add(Rule.CONTROL_CHARACTERS, f"{blob.label}: {name} is {str(value)!r}")

    def _check_executables(self) -> None:
        seen: dict[tuple[str, str], Blob] = {}
        for blob in self._of(Executable):
            key = blob.source.name, blob.structure.name
            if key in seen:
                self._add(
                    Rule.EXECUTABLE_UNIQUE,
                    f"{blob.label}: {key[1]!r} is the name of blob {seen[key].index} too",
                )
            seen.setdefault(key, blob)
            try:
                executable = ExecutableReader(blob, self._limits)
                if executable.codec() is not Codec.RAW:
                    with executable.getStandaloneExecutableStream() as stream:
                        while stream.read(CHUNK_BYTES):
                            pass
            except UnsupportedError as error:
                self._add(Rule.EXECUTABLE_CODEC, str(error))
            except (FormatError, LimitError) as error:
                self._add_error(error)

    def _check_metadata(self) -> None:
        executables = {blob.structure.name for blob in self._of(Executable)}
        owners = Counter(str(blob.structure.executable) for blob in self._of(Metadata))
        for name, count in owners.items():
            if count > 1:
                self._add(Rule.METADATA_UNIQUE, f"executable {name!r}: has {count} metadata blobs")
        for blob in (*self._of(Metadata), *self._of(OpaqueBlob)):
            if blob.structure.executable not in executables:
                text = (
                    f"names the executable {blob.structure.executable!r}, which is in none of "
                    "the files"
                )
                self._add(Rule.METADATA_EXECUTABLE, f"{blob.label}: {text}")
        for blob in self._of(Metadata):
            self._check_anchors(blob)

    def _check_anchors(self, blob: Blob) -> None:
        metadata: Metadata = blob.structure
        programs: dict[str, set[int]] = {}
        for anchor in metadata.anchors:
            mine, others = set(anchor.programs), programs.get(anchor.name)
            if others is not None and (mine & others or not mine or not others):
                self._add(
                    Rule.ANCHOR_UNIQUE,
                    f"{blob.label}: anchor {anchor.name!r} occurs twice for the same programs",
                )
            programs[anchor.name] = mine | (others or set())
            if anchor.type in (TensorType.INPUT, TensorType.OUTPUT) and not anchor.handle:
                self._add(Rule.ANCHOR_HANDLE, f"{blob.label}: anchor {anchor.name!r} has no handle")
            replicas, shape = metadata.replicationFactor, anchor.tensorInfo.shape
            if anchor.isPerReplica and replicas > 1 and (not shape or shape[0] != replicas):
                text = (
                    f"anchor {anchor.name!r} has the shape {tuple(shape)} for {replicas} replicas"
                )
                self._add(Rule.ANCHOR_REPLICAS, f"{blob.label}: {text}")
        flow = metadata.programFlow
        programs_in_flow = {*flow.load, *flow.main, *flow.save}.union(*programs.values())
        nameless = (
            sorted(programs_in_flow.difference(metadata.programsMap))
            if metadata.programsMap
            else []
        )
        if nameless:
            self._add(
                Rule.PROGRAM_NAMES,
                f"{blob.label}: programsMap has no name for {', '.join(map(str, nameless))}",
            )

    def _check_data(self) -> None:
        anchors: dict[str, dict[str, None]] = {}
        for blob in self._of(Metadata):
            for anchor in blob.structure.anchors:
                anchors.setdefault(anchor.name, {})[_describe(anchor.tensorInfo)] = None
        seen: dict[tuple[BlobType, str], Blob] = {}
        for blob in (*self._of(TensorDataInfo), *self._of(FeedDataInfo)):
            name, description = blob.structure.name, _describe(blob.structure.tensorInfo)
            if anchors and name not in anchors:
                self._add(Rule.DATA_ANCHOR, f"{blob.label}: there is no anchor {name!r}")
            elif anchors and description not in anchors[name]:
                self._add(
                    Rule.DATA_ANCHOR,
                    f"{blob.label}: {name!r} is {description}, its anchor "
                    f"{next(iter(anchors[name]))}",
                )
            if (blob.type, name) in seen:
                self._add(
                    Rule.DATA_UNIQUE,
                    f"{blob.label}: data for {name!r} is also in {seen[blob.type, name].label}",
                )
            seen.setdefault((blob.type, name), blob)

    def _of(self, kind: type[Record]) -> Sequence[Blob]:
        return [blob for blob in self.blobs if isinstance(blob.structure, kind)]


def _describe(info: Any) -> str:
    return f"{enumerant(info.dataType)}{list(info.shape)}"


def _iter_values(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every plain value in a structure with its path."""
    if isinstance(value, Record):
        for field, item in vars(value).items():
            yield from _iter_values(item, f"{name}.{field}" if name else field)
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from _iter_values(item, f"{name}[{i}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _iter_values(item, f"{name}[{key}]")
    elif value is not None:
        yield name, value
