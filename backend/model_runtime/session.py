"""Session: a model bound to a device, its weights loaded, its programs ready to run."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from simipu import Device, Direction, Engine, Executable, Program, ProgramKind, Stream
from simipu.engine import ReadCallback, batch_size

import popef
from model_runtime.devices import DeviceManager, DeviceWaitConfig
from model_runtime.errors import ModelRuntimeError
from model_runtime.queues import QueueManager


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """check_package_hash: refuse an executable of another generation of the simulator. wait_config: see
    DeviceWaitConfig. num_threads (ours): threads that one operator may use, 0 for all cores."""

    check_package_hash: bool = True
    wait_config: DeviceWaitConfig = field(default_factory=DeviceWaitConfig)
    num_threads: int = 0


class Session:
    """Runs one model. Not thread safe: one thread runs programs.

    Raises LoadError or ModelRuntimeError when the executable, its metadata and its weights do not fit together.
    """

    def __init__(self, model: popef.Model, config: SessionConfig | None = None) -> None:
        config = config or SessionConfig()
        self._model = model
        payload = model.executable.executable()
        self._executable = Executable.deserialize(payload, check_package_hash=config.check_package_hash)
        _check_anchors(model.metadata, self._executable)
        device = DeviceManager().getDevice(model, config.wait_config)
        self._engine = Engine(self._executable, device, num_threads=config.num_threads)
        flow = model.metadata.programFlow()
        self._load, self._main, self._save = (list(flow.load()), list(flow.main()), list(flow.save()))
        if not self._main:
            raise ModelRuntimeError(f"model {self._executable.name!r} has no main program in its program flow")

    def model(self) -> popef.Model:
        return self._model

    @property
    def executable(self) -> Executable:
        return self._executable

    @property
    def device(self) -> Device:
        return self._engine.device

    @property
    def batch_size(self) -> int:
        """Rows of the compiled batch; 0 for a model whose tensors share no leading dimension."""
        return batch_size(self._executable.program(self._main[0]))

    @property
    def cycles(self) -> int:
        """Modelled cycles of one run of the main programs."""
        return sum(self._executable.cycles(index) for index in self._main)

    def getUserInputAnchors(self) -> list[popef.Anchor]:
        """Anchors that every run of the main programs reads from the user."""
        return user_anchors(self._model.metadata, popef.TensorType.INPUT)

    def getUserOutputAnchors(self) -> list[popef.Anchor]:
        """Anchors that every run of the main programs writes for the user."""
        return user_anchors(self._model.metadata, popef.TensorType.OUTPUT)

    def createQueueManager(self) -> QueueManager:
        """Connect every user anchor to a queue."""
        inputs, outputs = self.getUserInputAnchors(), self.getUserOutputAnchors()
        queues = QueueManager(inputs, outputs, self.batch_size)
        for anchor in inputs:
            self._engine.connect_input(anchor.handle(), queues.inputQueue(anchor.name()).read)
        for anchor in outputs:
            self._engine.connect_output(anchor.handle(), queues.outputQueue(anchor.name()).write)
        return queues

    def runLoadPrograms(self) -> None:
        """Bring the weights onto the device and make the main programs ready.

        Raises ModelRuntimeError naming the weights for which no file holds tensor data.
        """
        data = {tensor.info.name(): tensor for tensor in self._model.tensors}
        for index in self._load:
            for stream in self._executable.program(index).streams:
                if stream.tensor not in data:
                    missing = sorted(s.tensor for s in self._executable.program(index).streams if s.tensor not in data)
                    raise ModelRuntimeError(
                        f"model {self._executable.name!r} loads {len(missing)} weights that no PopEF file holds, the first "
                        f"being {missing[0]!r}; give weights.popef (parameter weights_path)"
                    )
                self._engine.connect_input(stream.handle, _deliver(data[stream.tensor]))
            self._engine.run(index)
        for index in self._main:
            self._engine.load(index)

    def runMainPrograms(self) -> int:
        """Run the main programs once: up to one compiled batch of the rows that wait. The rows computed."""
        rows = 0
        for index in self._main:
            rows = self._engine.run(index)
        return rows

    def runSavePrograms(self) -> None:
        """Run the save programs once."""
        for index in self._save:
            self._engine.run(index)


def _deliver(tensor: popef.TensorReader) -> ReadCallback:
    """A stream that holds one tensor."""
    return lambda most: np.asarray(tensor.data())[None]


def user_anchors(metadata: popef.Metadata, kind: popef.TensorType) -> list[popef.Anchor]:
    """The anchors of that type of the main programs, or without program information (older files)."""
    mains = set(metadata.programFlow().main())
    return [
        anchor
        for anchor in metadata.anchors()
        if anchor.type() == kind and (not anchor.programs() or mains.intersection(anchor.programs()))
    ]


def _check_anchors(metadata: popef.Metadata, executable: Executable) -> None:
    """Every user anchor must be a stream of the executable, in shape and type; every main stream an anchor."""
    if metadata.replicationFactor() > 1:
        raise ModelRuntimeError(
            f"model {executable.name!r} has replication factor {metadata.replicationFactor()}; only 1 is supported"
        )
    programs = _main_programs(metadata, executable)
    streams = {(stream.handle, stream.direction): stream for program in programs for stream in program.streams}
    directions = {
        popef.TensorType.INPUT: Direction.HOST_TO_DEVICE,
        popef.TensorType.OUTPUT: Direction.DEVICE_TO_HOST,
    }
    for kind, direction in directions.items():
        for anchor in user_anchors(metadata, kind):
            stream = streams.pop((anchor.handle(), direction), None)
            if stream is None:
                raise ModelRuntimeError(
                    f"anchor {anchor.name()!r} has handle {anchor.handle()!r}, which is no {direction.name.lower()} stream "
                    f"of executable {executable.name!r}; its metadata belongs to another executable"
                )
            _check_anchor(anchor, stream, executable.name)
    if streams:
        handle = next(iter(streams))[0]
        raise ModelRuntimeError(f"stream {handle!r} of executable {executable.name!r} has no anchor in the metadata")


def _check_anchor(anchor: popef.Anchor, stream: Stream, executable: str) -> None:
    info = anchor.tensorInfo()
    shape, dtype = tuple(info.shape()), np.dtype(popef.popefTypeToNumpyDType(info.dataType()))
    if (shape, dtype) != (stream.shape, stream.dtype):
        raise ModelRuntimeError(
            f"anchor {anchor.name()!r} is {dtype.name} of shape {shape} in the metadata, but {stream.dtype.name} of shape "
            f"{stream.shape} in executable {executable!r}; its metadata belongs to another executable"
        )


def _main_programs(metadata: popef.Metadata, executable: Executable) -> list[Program]:
    mains = [executable.program(index) for index in metadata.programFlow().main()]
    wrong = [program.name for program in mains if program.kind is not ProgramKind.MAIN]
    if wrong:
        raise ModelRuntimeError(f"the program flow's main part names program {wrong[0]!r}, which is no main program")
    return mains
