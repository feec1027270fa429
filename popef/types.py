"""The structures of a PopEF file as Python objects, by the real library's names.

`x.name` and `x.name()` are the same value; `x.name = value` and `x.setName(value)` replace it. Lists, dicts
and nested structures are live and may be changed in place, as through the C++ references. Nothing here knows
about bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from . import schema, values
from .enums import ITEM_BYTES, BlobType, DataType, TensorType
from .errors import UnsupportedError
from .record import Field, Record, enumeration, flag, number, record, records, setter, text

Integers = Field[values.Numbers, Iterable[int]]


def _integers(doc: str) -> Integers:
    return Field(doc, values.numbers, values.Numbers)


class TensorInfo(Record):
    """Shape and element type of a tensor."""

    SCHEMA = schema.TENSOR_INFO

    shape: Field[values.Sizes, Iterable[int]] = Field(
        "Sizes of the dimensions, outermost first; () is a scalar.", values.sizes, values.Sizes
    )
    setShape = setter(shape)
    dataType: Field[DataType, DataType] = enumeration("Element type.", DataType.F32)
    setDataType = setter(dataType)

    def numElements(self) -> int:
        """Product of the sizes; 1 for a scalar."""
        return math.prod(self.shape)

    def sizeInBytes(self) -> int:
        """Bytes of the raw data; raises UnsupportedError for an element type this package does not know."""
        if self.dataType not in ITEM_BYTES:
            raise UnsupportedError(
                f"data type {int(self.dataType)}: expected 0 to {len(ITEM_BYTES) - 1}, got one from a newer "
                "SDK; read the blob's payload instead"
            )
        return math.prod(self.shape) * ITEM_BYTES[self.dataType]


class TensorDataInfo(Record):
    """What one tensor data blob holds; the name is that of the anchor it feeds."""

    SCHEMA = schema.TENSOR_DATA_INFO

    name: Field[values.Text, str] = text("Name of the anchor the data belongs to.")
    setName = setter(name)
    tensorInfo: Field[TensorInfo, TensorInfo | None] = record("Shape and type of the data.", TensorInfo)
    setTensorInfo = setter(tensorInfo)


class FeedDataInfo(Record):
    """What one feed data blob holds: `numTensors` tensors of one kind, back to back."""

    SCHEMA = schema.FEED_DATA_INFO

    name: Field[values.Text, str] = text("Name of the input anchor the data belongs to.")
    setName = setter(name)
    tensorInfo: Field[TensorInfo, TensorInfo | None] = record("Shape and type of each tensor.", TensorInfo)
    setTensorInfo = setter(tensorInfo)
    numTensors: Field[values.Number, int] = number(
        "Number of tensors; a writer counts them itself when this is 0."
    )
    setNumTensors = setter(numTensors)

    def sizeInBytes(self) -> int:
        """Bytes of all tensors together."""
        return self.numTensors * self.tensorInfo.sizeInBytes()


class Option(Record):
    """One engine or device option."""

    SCHEMA = schema.OPTION

    name: Field[values.Text, str] = text("Name of the option.")
    setName = setter(name)
    value: Field[values.Text, str] = text("Value of the option, as text.")
    setValue = setter(value)


class ProgramFlow(Record):
    """Indices of the programs to run: once before, for every batch, and once after."""

    SCHEMA = schema.PROGRAM_FLOW

    load: Integers = _integers("Programs that load the model, such as its weights.")
    setLoad = setter(load)
    main: Integers = _integers("Programs that run it.")
    setMain = setter(main)
    save: Integers = _integers("Programs that fetch its state.")
    setSave = setter(save)


class Anchor(Record):
    """One stream between host and program."""

    SCHEMA = schema.ANCHOR

    name: Field[values.Text, str] = text("Name users see.")
    setName = setter(name)
    handle: Field[values.Text, str] = text('Name of the Poplar stream; "" when nothing is streamed.')
    setHandle = setter(handle)
    tensorInfo: Field[TensorInfo, TensorInfo | None] = record(
        "Shape and type of one transfer, with a leading replica dimension where data is per replica.",
        TensorInfo,
    )
    setTensorInfo = setter(tensorInfo)
    type: Field[TensorType, TensorType] = enumeration("Direction seen from the program.", TensorType.UNKNOWN)
    setType = setter(type)
    isPerReplica: Field[values.Flag, bool] = flag("Whether each replica has data of its own.")
    setIsPerReplica = setter(isPerReplica)
    programs: Integers = _integers("Programs that use the stream; may be empty in older files.")
    setPrograms = setter(programs)


class ProgramName(Record):
    """One entry of `Metadata.programsMap`, as files hold it."""

    SCHEMA = schema.PROGRAM_NAME

    index: Field[values.Number, int] = number("Index of the program.")
    setIndex = setter(index)
    name: Field[values.Text, str] = text("Its name.")
    setName = setter(name)


class Metadata(Record):
    """What a host needs to run an executable."""

    SCHEMA = schema.METADATA

    replicationFactor: Field[values.Number, int] = number("Number of replicas.", 1)
    setReplicationFactor = setter(replicationFactor)
    numIpus: Field[values.Number, int] = number("Number of IPUs.", 1)
    setNumIpus = setter(numIpus)
    seedHandle: Field[values.Text, str] = text('Handle of the stream for the random seed, "" for none.')
    setSeedHandle = setter(seedHandle)
    anchors: Field[values.Records[Anchor], Iterable[Anchor]] = records("Streams of the program.", Anchor)
    setAnchors = setter(anchors)
    executable: Field[values.Text, str] = text("Name of the executable this belongs to.")
    setExecutable = setter(executable)
    numProcesses: Field[values.Number, int] = number("Number of host processes.", 1)
    setNumProcesses = setter(numProcesses)
    ipuVersion: Field[values.Number, int] = number("Generation of the IPU.", 2)
    setIpuVersion = setter(ipuVersion)
    isPOD: Field[values.Flag, bool] = flag("Whether the model was compiled for a Pod.")
    setIsPOD = setter(isPOD)
    isInference: Field[values.Flag, bool] = flag(
        "Whether the model was compiled for inference.", default=True
    )
    setIsInference = setter(isInference)
    engineOptions: Field[values.Records[Option], Iterable[Option]] = records(
        "Options of the Poplar engine.", Option
    )
    setEngineOptions = setter(engineOptions)
    deviceOptions: Field[values.Records[Option], Iterable[Option]] = records("Options of the device.", Option)
    setDeviceOptions = setter(deviceOptions)
    programFlow: Field[ProgramFlow, ProgramFlow | None] = record("Programs to run, by phase.", ProgramFlow)
    setProgramFlow = setter(programFlow)
    programsMap: Field[values.Names, Mapping[int, str] | None] = Field(
        "Names of the programs by index; empty in older files.",
        lambda names: values.Names(names or {}),
        values.Names,
    )
    setProgramsMap = setter(programsMap)
    deviceIterations: Field[values.Number, int] = number(
        "Batches per run of the main program; 0 when the file does not say."
    )
    setDeviceIterations = setter(deviceIterations)


class BlobHeader(Record):
    """What stands in front of every blob; `size` counts header, structure and payload."""

    SCHEMA = schema.BLOB_HEADER

    version: Field[values.Text, str] = text("Version of the writer; empty in known files.")
    setVersion = setter(version)
    type: Field[BlobType, BlobType] = enumeration("What the blob holds.", BlobType.POPLAR_EXECUTABLE)
    setType = setter(type)
    size: Field[values.Number, int] = number("Bytes of the whole blob, this header included.")
    setSize = setter(size)


class Executable(Record):
    """Structure of an executable blob."""

    SCHEMA = schema.EXECUTABLE

    name: Field[values.Text, str] = text("Name that metadata and opaque blobs refer to.")
    setName = setter(name)
    uncompressedSize: Field[values.Number, int] = number(
        "Bytes after decompression; 0 when the payload is not compressed."
    )
    setUncompressedSize = setter(uncompressedSize)


class OpaqueBlob(Record):
    """Structure of an opaque blob."""

    SCHEMA = schema.OPAQUE_BLOB

    name: Field[values.Text, str] = text("Name that tells which framework wrote the data.")
    setName = setter(name)
    executable: Field[values.Text, str] = text("Name of the executable it belongs to.")
    setExecutable = setter(executable)


STRUCTURE_OF_BLOB: dict[BlobType, type[Record]] = {
    BlobType.POPLAR_EXECUTABLE: Executable,
    BlobType.METADATA: Metadata,
    BlobType.DATA_TENSOR: TensorDataInfo,
    BlobType.DATA_FEED: FeedDataInfo,
    BlobType.OPAQUE: OpaqueBlob,
}
"""The structure that follows the header of each type of blob."""
