"""The structures of a PopEF file, by the real library's names: the one table for reader, writer,
dump and FORMAT.md.

A class is a structure and an attribute a field, in ordinal order, with its place: `bit` counts into
the data words, `pointer` into the pointers behind them. The places follow from Cap'n Proto's layout
algorithm for `tests/popef/popef.capnp`; FORMAT.md says which are confirmed and which inferred.

`x.name` and `x.name()` are the same value; `x.name = value` and `x.setName(value)` replace it.
Lists, dicts and nested structures are live and may be changed in place, as through the C++
references.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from . import values
from .enums import ITEM_BYTES, BlobType, DataType, TensorType
from .errors import UnsupportedError
from .record import (
    Field,
    Record,
    enumeration,
    flag,
    integers,
    names,
    number,
    record,
    records,
    setter,
    sizes,
    text,
)

# Types of attributes: the type on reading, and the type on assignment.
Flag = Field[values.Flag, bool]
Number = Field[values.Number, int]
Text = Field[values.Text, str]
Integers = Field[values.Numbers, Iterable[int]]
Sizes = Field[values.Sizes, Iterable[int]]
Names = Field[values.Names, Mapping[int, str] | None]
Info = Field["TensorInfo", "TensorInfo | None"]
Options = Field[values.Records["Option"], Iterable["Option"]]


class BlobHeader(Record):
    """Header in front of every blob; `size` counts header, structure and payload.

    Args:
        version: version of the writer; empty in known files.
        type: what the blob holds.
        size: bytes of the whole blob, this header included.
    """

    version: Text = text("Version of the writer; empty in known files.", pointer=0)
    setVersion = setter(version)
    type: Field[BlobType, BlobType] = enumeration(
        "What the blob holds.", BlobType.POPLAR_EXECUTABLE, bit=0
    )
    setType = setter(type)
    size: Number = number("Bytes of the whole blob, this header included.", bit=64)
    setSize = setter(size)


class TensorInfo(Record):
    """Shape and element type of a tensor.

    Args:
        shape: sizes of the dimensions, outermost first; () is a scalar.
        dataType: element type.
    """

    shape: Sizes = sizes("Sizes of the dimensions, outermost first; () is a scalar.", pointer=0)
    setShape = setter(shape)
    dataType: Field[DataType, DataType] = enumeration("Element type.", DataType.F32, bit=0)
    setDataType = setter(dataType)

    def numElements(self) -> int:
        """Return the product of the sizes; 1 for a scalar."""
        return math.prod(self.shape)

    def sizeInBytes(self) -> int:
        """Return the number of bytes of the raw data.

        Returns:
            The number of elements times the bytes of one.

        Raises:
            UnsupportedError: for an unknown element type.
        """
        if self.dataType not in ITEM_BYTES:
            raise UnsupportedError(
                f"data type {int(self.dataType)}: expected 0 to {len(ITEM_BYTES) - 1}, got one "
                "from a newer SDK; read the blob's payload instead"
            )
        return math.prod(self.shape) * ITEM_BYTES[self.dataType]


class TensorDataInfo(Record):
    """Description of one tensor data blob; the name is that of the anchor that it feeds.

    Args:
        name: name of the anchor the data belongs to.
        tensorInfo: shape and type of the data.
    """

    name: Text = text("Name of the anchor the data belongs to.", pointer=0)
    setName = setter(name)
    tensorInfo: Info = record("Shape and type of the data.", TensorInfo, pointer=1)
    setTensorInfo = setter(tensorInfo)


class FeedDataInfo(Record):
    """Description of one feed data blob: `numTensors` tensors of one kind, back to back.

    Args:
        name: name of the input anchor the data belongs to.
        tensorInfo: shape and type of each tensor.
        numTensors: number of tensors; a writer counts them itself when this is 0.
    """

    name: Text = text("Name of the input anchor the data belongs to.", pointer=0)
    setName = setter(name)
    tensorInfo: Info = record("Shape and type of each tensor.", TensorInfo, pointer=1)
    setTensorInfo = setter(tensorInfo)
    numTensors: Number = number(
        "Number of tensors; a writer counts them itself when this is 0.", bit=0
    )
    setNumTensors = setter(numTensors)

    def sizeInBytes(self) -> int:
        """Return the number of bytes of all tensors together.

        Raises:
            UnsupportedError: for an unknown element type.
        """
        return self.numTensors * self.tensorInfo.sizeInBytes()


class Option(Record):
    """One engine or device option.

    Args:
        name: name of the option.
        value: value of the option, as text.
    """

    name: Text = text("Name of the option.", pointer=0)
    setName = setter(name)
    value: Text = text("Value of the option, as text.", pointer=1)
    setValue = setter(value)


class ProgramFlow(Record):
    """Indices of the programs to run: once before, for every batch, and once after.

    Args:
        load: programs that load the model, such as its weights.
        main: programs that run it.
        save: programs that fetch its state.
    """

    load: Integers = integers("Programs that load the model, such as its weights.", pointer=0)
    setLoad = setter(load)
    main: Integers = integers("Programs that run it.", pointer=1)
    setMain = setter(main)
    save: Integers = integers("Programs that fetch its state.", pointer=2)
    setSave = setter(save)


class Anchor(Record):
    """One stream between host and program.

    Args:
        name: name users see.
        handle: name of the Poplar stream; "" when nothing is streamed.
        tensorInfo: shape and type of one transfer, with a leading replica dimension where data is
            per replica.
        type: direction seen from the program.
        isPerReplica: whether each replica has data of its own.
        programs: programs that use the stream; may be empty in older files.
    """

    name: Text = text("Name users see.", pointer=0)
    setName = setter(name)
    handle: Text = text('Name of the Poplar stream; "" when nothing is streamed.', pointer=1)
    setHandle = setter(handle)
    tensorInfo: Info = record(
        "Shape and type of one transfer, with a leading replica dimension where data is per "
        "replica.",
        TensorInfo,
        pointer=2,
    )
    setTensorInfo = setter(tensorInfo)
    type: Field[TensorType, TensorType] = enumeration(
        "Direction seen from the program.", TensorType.UNKNOWN, bit=0
    )
    setType = setter(type)
    isPerReplica: Flag = flag("Whether each replica has data of its own.", bit=16)
    setIsPerReplica = setter(isPerReplica)
    programs: Integers = integers(
        "Programs that use the stream; may be empty in older files.", pointer=3, inferred=True
    )
    setPrograms = setter(programs)


class ProgramName(Record):
    """One entry of `Metadata.programsMap`, as files hold it."""

    index: Number = number("Index of the program.", bit=0, signed=True)
    setIndex = setter(index)
    name: Text = text("Its name.", pointer=0)
    setName = setter(name)


class Metadata(Record):
    """Everything that a host needs to know to run an executable.

    Args:
        replicationFactor: number of replicas.
        numIpus: number of IPUs.
        seedHandle: handle of the stream for the random seed, "" for none.
        anchors: streams of the program.
        executable: name of the executable this belongs to.
        numProcesses: number of host processes.
        ipuVersion: generation of the IPU.
        isPOD: whether the model was compiled for a Pod.
        isInference: whether the model was compiled for inference.
        engineOptions: options of the Poplar engine.
        deviceOptions: options of the device.
        programFlow: programs to run, by phase.
        programsMap: names of the programs by index; empty in older files.
        deviceIterations: batches per run of the main program; 0 when the file does not say.
    """

    replicationFactor: Number = number("Number of replicas.", 1, bit=0, signed=True)
    setReplicationFactor = setter(replicationFactor)
    numIpus: Number = number("Number of IPUs.", 1, bit=64, signed=True)
    setNumIpus = setter(numIpus)
    seedHandle: Text = text('Handle of the stream for the random seed, "" for none.', pointer=0)
    setSeedHandle = setter(seedHandle)
    anchors: Field[values.Records[Anchor], Iterable[Anchor]] = records(
        "Streams of the program.", Anchor, pointer=1
    )
    setAnchors = setter(anchors)
    executable: Text = text("Name of the executable this belongs to.", pointer=2)
    setExecutable = setter(executable)
    numProcesses: Number = number("Number of host processes.", 1, bit=128, signed=True)
    setNumProcesses = setter(numProcesses)
    ipuVersion: Number = number("Generation of the IPU.", 2, bit=192, signed=True)
    setIpuVersion = setter(ipuVersion)
    isPOD: Flag = flag("Whether the model was compiled for a Pod.", bit=256)
    setIsPOD = setter(isPOD)
    isInference: Flag = flag("Whether the model was compiled for inference.", bit=257, default=True)
    setIsInference = setter(isInference)
    engineOptions: Options = records("Options of the Poplar engine.", Option, pointer=3)
    setEngineOptions = setter(engineOptions)
    deviceOptions: Options = records("Options of the device.", Option, pointer=4)
    setDeviceOptions = setter(deviceOptions)
    programFlow: Field[ProgramFlow, ProgramFlow | None] = record(
        "Programs to run, by phase.", ProgramFlow, pointer=5
    )
    setProgramFlow = setter(programFlow)
    programsMap: Names = names(
        "Names of the programs by index; empty in older files.", ProgramName, pointer=6
    )
    setProgramsMap = setter(programsMap)
    deviceIterations: Number = number(
        "Batches per run of the main program; 0 when the file does not say.",
        bit=320,
        signed=True,
        inferred=True,
    )
    setDeviceIterations = setter(deviceIterations)


class Executable(Record):
    """Structure of an executable blob."""

    name: Text = text("Name that metadata and opaque blobs refer to.", pointer=0)
    setName = setter(name)
    uncompressedSize: Number = number(
        "Bytes after decompression; 0 when the payload is not compressed.", bit=0
    )
    setUncompressedSize = setter(uncompressedSize)


class OpaqueBlob(Record):
    """Structure of an opaque blob."""

    name: Text = text("Name that tells which framework wrote the data.", pointer=0)
    setName = setter(name)
    executable: Text = text("Name of the executable it belongs to.", pointer=1)
    setExecutable = setter(executable)


STRUCTURE_OF_BLOB: dict[BlobType, type[Record]] = {
    BlobType.POPLAR_EXECUTABLE: Executable,
    BlobType.METADATA: Metadata,
    BlobType.DATA_TENSOR: TensorDataInfo,
    BlobType.DATA_FEED: FeedDataInfo,
    BlobType.OPAQUE: OpaqueBlob,
}
"""Structure that follows the header of each type of blob."""

STRUCTURES: tuple[type[Record], ...] = (
    BlobHeader,
    *STRUCTURE_OF_BLOB.values(),
    TensorInfo,
    Anchor,
    ProgramFlow,
    Option,
    ProgramName,
)
"""Structures in the order of FORMAT.md: the header, what may follow it, and what those hold."""
