"""The structures only reader and writer handle, and the way from decoded values to objects."""

from __future__ import annotations

from typing import Any

from . import schema
from .enums import BlobType
from .record import Record
from .schema import Kind, Struct
from .types import Anchor, FeedDataInfo, Metadata, Option, ProgramFlow, TensorDataInfo, TensorInfo


class BlobHeader(Record):
    """What stands in front of every blob; `size` counts header, structure and payload."""

    __slots__ = ("_size", "_type", "_version")
    SCHEMA = schema.BLOB_HEADER

    def __init__(
        self,
        *,
        version: str = "",
        type: BlobType = BlobType.POPLAR_EXECUTABLE,
        size: int = 0,
    ) -> None:
        self.setVersion(version)
        self.setType(type)
        self.setSize(size)

    def version(self) -> str:
        """Version of the writer; empty in known files."""
        return self._version

    def setVersion(self, value: str) -> None:
        """Replace `version`."""
        self._version = str(value)

    def type(self) -> BlobType:
        """Type of the blob."""
        return self._type

    def setType(self, value: BlobType) -> None:
        """Replace `type`."""
        self._type = BlobType(value)

    def size(self) -> int:
        """Bytes of the whole blob."""
        return self._size

    def setSize(self, value: int) -> None:
        """Replace `size`."""
        self._size = int(value)


class Executable(Record):
    """Structure of an executable blob."""

    __slots__ = ("_name", "_uncompressedSize")
    SCHEMA = schema.EXECUTABLE

    def __init__(
        self,
        *,
        name: str = "",
        uncompressedSize: int = 0,
    ) -> None:
        self.setName(name)
        self.setUncompressedSize(uncompressedSize)

    def name(self) -> str:
        """Name that metadata and opaque blobs refer to."""
        return self._name

    def setName(self, value: str) -> None:
        """Replace `name`."""
        self._name = str(value)

    def uncompressedSize(self) -> int:
        """Bytes after decompression, 0 when stored raw."""
        return self._uncompressedSize

    def setUncompressedSize(self, value: int) -> None:
        """Replace `uncompressedSize`."""
        self._uncompressedSize = int(value)


class OpaqueBlob(Record):
    """Structure of an opaque blob."""

    __slots__ = ("_executable", "_name")
    SCHEMA = schema.OPAQUE_BLOB

    def __init__(
        self,
        *,
        name: str = "",
        executable: str = "",
    ) -> None:
        self.setName(name)
        self.setExecutable(executable)

    def name(self) -> str:
        """Name that tells which framework wrote the data."""
        return self._name

    def setName(self, value: str) -> None:
        """Replace `name`."""
        self._name = str(value)

    def executable(self) -> str:
        """Name of the executable it belongs to."""
        return self._executable

    def setExecutable(self, value: str) -> None:
        """Replace `executable`."""
        self._executable = str(value)


RECORDS: dict[str, type[Record]] = {
    record.SCHEMA.name: record
    for record in (
        TensorInfo,
        TensorDataInfo,
        FeedDataInfo,
        Option,
        ProgramFlow,
        Anchor,
        Metadata,
        BlobHeader,
        Executable,
        OpaqueBlob,
    )
}


def from_values(structure: Struct, values: dict[str, Any]) -> Any:
    """The object for decoded values; the inverse of `Record.values`."""
    arguments = dict(values)
    for field in structure.fields:
        if field.kind is Kind.STRUCT and field.struct is not None:
            arguments[field.name] = from_values(field.struct, values[field.name])
        elif field.kind is Kind.STRUCTS and field.struct is not None:
            arguments[field.name] = [from_values(field.struct, item) for item in values[field.name]]
    return RECORDS[structure.name](**arguments)
