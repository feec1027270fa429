"""The structures of a PopEF file as Python objects with the real library's accessor methods.

An accessor `x()` returns the value itself: lists, dicts and nested structures are live and may be changed in
place, as through the C++ references. Nothing here knows about bytes; `schema.py` names the fields.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from . import schema
from .enums import ITEM_BYTES, BlobType, DataType, TensorType
from .record import Record

__all__ = [
    "Anchor",
    "BlobType",
    "DataType",
    "FeedDataInfo",
    "Metadata",
    "Option",
    "ProgramFlow",
    "TensorDataInfo",
    "TensorInfo",
    "TensorType",
]


def _sizes(value: Iterable[int]) -> tuple[int, ...]:
    sizes = tuple(int(size) for size in value)
    if any(size < 0 for size in sizes):
        raise ValueError(f"shape: expected sizes of 0 and above, got {sizes}; name every dimension")
    return sizes


def _indices(value: Iterable[int]) -> list[int]:
    return [int(index) for index in value]


class TensorInfo(Record):
    """Shape and element type of a tensor."""

    __slots__ = ("_dataType", "_shape")
    SCHEMA = schema.TENSOR_INFO

    def __init__(
        self,
        *,
        shape: Iterable[int] = (),
        dataType: DataType = DataType.F32,
    ) -> None:
        self.setShape(shape)
        self.setDataType(dataType)

    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions, outermost first; () is a scalar."""
        return self._shape

    def setShape(self, value: Iterable[int]) -> None:
        """Replace `shape`."""
        self._shape = _sizes(value)

    def dataType(self) -> DataType:
        """Element type."""
        return self._dataType

    def setDataType(self, value: DataType) -> None:
        """Replace `dataType`."""
        self._dataType = DataType(value)

    def numElements(self) -> int:
        """Product of the sizes; 1 for a scalar."""
        return math.prod(self._shape)

    def sizeInBytes(self) -> int:
        """Bytes of the raw data."""
        return self.numElements() * ITEM_BYTES[self._dataType]


class TensorDataInfo(Record):
    """What one tensor data blob holds; the name is that of the anchor it feeds."""

    __slots__ = ("_name", "_tensorInfo")
    SCHEMA = schema.TENSOR_DATA_INFO

    def __init__(
        self,
        *,
        name: str = "",
        tensorInfo: TensorInfo | None = None,
    ) -> None:
        self.setName(name)
        self.setTensorInfo(tensorInfo)

    def name(self) -> str:
        """Name of the anchor the data belongs to."""
        return self._name

    def setName(self, value: str) -> None:
        """Replace `name`."""
        self._name = str(value)

    def tensorInfo(self) -> TensorInfo:
        """Shape and type of the data."""
        return self._tensorInfo

    def setTensorInfo(self, value: TensorInfo | None) -> None:
        """Replace `tensorInfo`."""
        self._tensorInfo = TensorInfo() if value is None else value


class FeedDataInfo(Record):
    """What one feed data blob holds: `numTensors` tensors of one kind, back to back."""

    __slots__ = ("_name", "_numTensors", "_tensorInfo")
    SCHEMA = schema.FEED_DATA_INFO

    def __init__(
        self,
        *,
        name: str = "",
        tensorInfo: TensorInfo | None = None,
        numTensors: int = 0,
    ) -> None:
        self.setName(name)
        self.setTensorInfo(tensorInfo)
        self.setNumTensors(numTensors)

    def name(self) -> str:
        """Name of the input anchor the data belongs to."""
        return self._name

    def setName(self, value: str) -> None:
        """Replace `name`."""
        self._name = str(value)

    def tensorInfo(self) -> TensorInfo:
        """Shape and type of each tensor."""
        return self._tensorInfo

    def setTensorInfo(self, value: TensorInfo | None) -> None:
        """Replace `tensorInfo`."""
        self._tensorInfo = TensorInfo() if value is None else value

    def numTensors(self) -> int:
        """Number of tensors; a writer counts them itself when this is 0."""
        return self._numTensors

    def setNumTensors(self, value: int) -> None:
        """Replace `numTensors`."""
        self._numTensors = int(value)

    def sizeInBytes(self) -> int:
        """Bytes of all tensors together."""
        return self._numTensors * self._tensorInfo.sizeInBytes()


class Option(Record):
    """One engine or device option."""

    __slots__ = ("_name", "_value")
    SCHEMA = schema.OPTION

    def __init__(
        self,
        *,
        name: str = "",
        value: str = "",
    ) -> None:
        self.setName(name)
        self.setValue(value)

    def name(self) -> str:
        """Name of the option."""
        return self._name

    def setName(self, value: str) -> None:
        """Replace `name`."""
        self._name = str(value)

    def value(self) -> str:
        """Value of the option, as text."""
        return self._value

    def setValue(self, value: str) -> None:
        """Replace `value`."""
        self._value = str(value)


class ProgramFlow(Record):
    """Indices of the programs to run: once before, for every batch, and once after."""

    __slots__ = ("_load", "_main", "_save")
    SCHEMA = schema.PROGRAM_FLOW

    def __init__(
        self,
        *,
        load: Iterable[int] = (),
        main: Iterable[int] = (),
        save: Iterable[int] = (),
    ) -> None:
        self.setLoad(load)
        self.setMain(main)
        self.setSave(save)

    def load(self) -> list[int]:
        """Programs that load the model, such as its weights."""
        return self._load

    def setLoad(self, value: Iterable[int]) -> None:
        """Replace `load`."""
        self._load = _indices(value)

    def main(self) -> list[int]:
        """Programs that run it."""
        return self._main

    def setMain(self, value: Iterable[int]) -> None:
        """Replace `main`."""
        self._main = _indices(value)

    def save(self) -> list[int]:
        """Programs that fetch its state."""
        return self._save

    def setSave(self, value: Iterable[int]) -> None:
        """Replace `save`."""
        self._save = _indices(value)


class Anchor(Record):
    """One stream between host and program."""

    __slots__ = ("_handle", "_isPerReplica", "_name", "_programs", "_tensorInfo", "_type")
    SCHEMA = schema.ANCHOR

    def __init__(
        self,
        *,
        name: str = "",
        handle: str = "",
        tensorInfo: TensorInfo | None = None,
        type: TensorType = TensorType.UNKNOWN,
        isPerReplica: bool = False,
        programs: Iterable[int] = (),
    ) -> None:
        self.setName(name)
        self.setHandle(handle)
        self.setTensorInfo(tensorInfo)
        self.setType(type)
        self.setIsPerReplica(isPerReplica)
        self.setPrograms(programs)

    def name(self) -> str:
        """Name users see."""
        return self._name

    def setName(self, value: str) -> None:
        """Replace `name`."""
        self._name = str(value)

    def handle(self) -> str:
        """Name of the Poplar stream; "" when nothing is streamed."""
        return self._handle

    def setHandle(self, value: str) -> None:
        """Replace `handle`."""
        self._handle = str(value)

    def tensorInfo(self) -> TensorInfo:
        """Shape and type of one transfer, with a leading replica dimension where data is per replica."""
        return self._tensorInfo

    def setTensorInfo(self, value: TensorInfo | None) -> None:
        """Replace `tensorInfo`."""
        self._tensorInfo = TensorInfo() if value is None else value

    def type(self) -> TensorType:
        """Direction seen from the program."""
        return self._type

    def setType(self, value: TensorType) -> None:
        """Replace `type`."""
        self._type = TensorType(value)

    def isPerReplica(self) -> bool:
        """Whether each replica has data of its own."""
        return self._isPerReplica

    def setIsPerReplica(self, value: bool) -> None:
        """Replace `isPerReplica`."""
        self._isPerReplica = bool(value)

    def programs(self) -> list[int]:
        """Programs that use the stream; may be empty in older files."""
        return self._programs

    def setPrograms(self, value: Iterable[int]) -> None:
        """Replace `programs`."""
        self._programs = _indices(value)


class Metadata(Record):
    """What a host needs to run an executable."""

    __slots__ = (
        "_anchors",
        "_deviceIterations",
        "_deviceOptions",
        "_engineOptions",
        "_executable",
        "_ipuVersion",
        "_isInference",
        "_isPOD",
        "_numIpus",
        "_numProcesses",
        "_programFlow",
        "_programsMap",
        "_replicationFactor",
        "_seedHandle",
    )
    SCHEMA = schema.METADATA

    def __init__(
        self,
        *,
        replicationFactor: int = 1,
        numIpus: int = 1,
        seedHandle: str = "",
        anchors: Iterable[Anchor] = (),
        executable: str = "",
        numProcesses: int = 1,
        ipuVersion: int = 2,
        isPOD: bool = False,
        isInference: bool = True,
        engineOptions: Iterable[Option] = (),
        deviceOptions: Iterable[Option] = (),
        programFlow: ProgramFlow | None = None,
        programsMap: Mapping[int, str] | None = None,
        deviceIterations: int = 0,
    ) -> None:
        self.setReplicationFactor(replicationFactor)
        self.setNumIpus(numIpus)
        self.setSeedHandle(seedHandle)
        self.setAnchors(anchors)
        self.setExecutable(executable)
        self.setNumProcesses(numProcesses)
        self.setIpuVersion(ipuVersion)
        self.setIsPOD(isPOD)
        self.setIsInference(isInference)
        self.setEngineOptions(engineOptions)
        self.setDeviceOptions(deviceOptions)
        self.setProgramFlow(programFlow)
        self.setProgramsMap(programsMap)
        self.setDeviceIterations(deviceIterations)

    def replicationFactor(self) -> int:
        """Number of replicas."""
        return self._replicationFactor

    def setReplicationFactor(self, value: int) -> None:
        """Replace `replicationFactor`."""
        self._replicationFactor = int(value)

    def numIpus(self) -> int:
        """Number of IPUs."""
        return self._numIpus

    def setNumIpus(self, value: int) -> None:
        """Replace `numIpus`."""
        self._numIpus = int(value)

    def seedHandle(self) -> str:
        """Handle of the stream for the random seed, "" for none."""
        return self._seedHandle

    def setSeedHandle(self, value: str) -> None:
        """Replace `seedHandle`."""
        self._seedHandle = str(value)

    def anchors(self) -> list[Anchor]:
        """Streams of the program."""
        return self._anchors

    def setAnchors(self, value: Iterable[Anchor]) -> None:
        """Replace `anchors`."""
        self._anchors = list(value)

    def executable(self) -> str:
        """Name of the executable this belongs to."""
        return self._executable

    def setExecutable(self, value: str) -> None:
        """Replace `executable`."""
        self._executable = str(value)

    def numProcesses(self) -> int:
        """Number of host processes."""
        return self._numProcesses

    def setNumProcesses(self, value: int) -> None:
        """Replace `numProcesses`."""
        self._numProcesses = int(value)

    def ipuVersion(self) -> int:
        """Generation of the IPU."""
        return self._ipuVersion

    def setIpuVersion(self, value: int) -> None:
        """Replace `ipuVersion`."""
        self._ipuVersion = int(value)

    def isPOD(self) -> bool:
        """Whether the model was compiled for a Pod."""
        return self._isPOD

    def setIsPOD(self, value: bool) -> None:
        """Replace `isPOD`."""
        self._isPOD = bool(value)

    def isInference(self) -> bool:
        """Whether the model was compiled for inference."""
        return self._isInference

    def setIsInference(self, value: bool) -> None:
        """Replace `isInference`."""
        self._isInference = bool(value)

    def engineOptions(self) -> list[Option]:
        """Options of the Poplar engine."""
        return self._engineOptions

    def setEngineOptions(self, value: Iterable[Option]) -> None:
        """Replace `engineOptions`."""
        self._engineOptions = list(value)

    def deviceOptions(self) -> list[Option]:
        """Options of the device."""
        return self._deviceOptions

    def setDeviceOptions(self, value: Iterable[Option]) -> None:
        """Replace `deviceOptions`."""
        self._deviceOptions = list(value)

    def programFlow(self) -> ProgramFlow:
        """Programs to run, by phase."""
        return self._programFlow

    def setProgramFlow(self, value: ProgramFlow | None) -> None:
        """Replace `programFlow`."""
        self._programFlow = ProgramFlow() if value is None else value

    def programsMap(self) -> dict[int, str]:
        """Names of the programs by index; empty in older files."""
        return self._programsMap

    def setProgramsMap(self, value: Mapping[int, str] | None) -> None:
        """Replace `programsMap`."""
        self._programsMap = dict(value or {})

    def deviceIterations(self) -> int:
        """Batches per run of the main program; 0 when the file does not say."""
        return self._deviceIterations

    def setDeviceIterations(self, value: int) -> None:
        """Replace `deviceIterations`."""
        self._deviceIterations = int(value)
