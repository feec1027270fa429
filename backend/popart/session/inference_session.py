"""InferenceSession: compiles a model, and runs it on a device.

The constructor checks and compiles the model. A step then runs `batchesPerStep` batches of each
replica, and writes the anchors of the iterations that the data flow names into the caller's arrays.
"""

from __future__ import annotations

import logging
import secrets
from os import PathLike

import numpy as np
import pva
from poprt.compile import Executable

from popart.dataflow import DataFlow, InputShapeInfo, anchor_shape
from popart.devices import DeviceInfo
from popart.enums import (
    DeviceConnectionType,
    DeviceType,
    Instrumentation,
    IrSerializationFormat,
    SyntheticDataMode,
)
from popart.errors import popart_exception, popart_runtime_error
from popart.models import read_model
from popart.options import checks as options_check
from popart.options.patterns import Patterns
from popart.options.session_options import SessionOptions
from popart.session import export, reports
from popart.session.ir import Ir
from popart.session.program import DeviceProgram
from popart.session.replication import JointProgram
from popart.session.steps import Step
from popart.session.weights import HostWeights
from popart.stepio import IStepIO, PyWeightsIO
from popart.tensorinfo import TensorInfo
from popef._tools.arrays import Array

_log = logging.getLogger("popart.session")
_MAIN = "Program"
"""Name under which `run` finds the main program."""
_MAX_RUNS = 2
"""Number of runs that reports have: the default of autoReport.executionProfileProgramRunCount."""
_NOT_COMPILED = (
    "Trying to load an engine but no compiled engine. Did you forget to call prepareDevice()?"
)


class InferenceSession:
    """A model that is compiled for a device, and runs on it.

    Example:
        >>> import numpy as np
        >>> import popart
        >>> builder = popart.Builder()
        >>> x = builder.addInputTensor(popart.TensorInfo("FLOAT", [2]))
        >>> y = builder.aiOnnx.add([x, x])
        >>> device = popart.DeviceManager().createCpuDevice()
        >>> flow = popart.DataFlow(1, [y])
        >>> session = popart.InferenceSession(builder.getModelProto(), flow, device)
        >>> session.prepareDevice()
        >>> anchors = session.initAnchorArrays()
        >>> session.run(popart.PyStepIO({x: np.array([1, 2], np.float32)}, anchors))
        >>> anchors[y]
        array([2., 4.], dtype=float32)
    """

    def __init__(
        self,
        fnModel: bytes | str | PathLike[str],
        dataFlow: DataFlow,
        deviceInfo: DeviceInfo,
        inputShapeInfo: InputShapeInfo | None = None,
        patterns: Patterns | None = None,
        userOptions: SessionOptions | None = None,
        name: str = "inference",
    ) -> None:
        """Check and compile a model.

        Args:
            fnModel: The model: an ONNX file, or its bytes.
            dataFlow: Number of batches of a step, and the anchors.
            deviceInfo: The device.
            inputShapeInfo: Types and shapes of inputs that the model leaves open.
            patterns: Patterns; operators that need a disabled one are rejected.
            userOptions: Options; None means the defaults.
            name: Name of the session.

        Raises:
            popart_exception: If the model, the options or the anchors are wrong.
        """
        if not isinstance(dataFlow, DataFlow):
            raise popart_exception(
                f"dataFlow: expected popart.DataFlow, found {type(dataFlow).__name__}"
            )
        self.name = name
        self._ir = Ir.make(
            fnModel,
            dataFlow,
            deviceInfo,
            inputShapeInfo or InputShapeInfo(),
            patterns or Patterns(),
            (userOptions or SessionOptions()).copy(),
        )
        self._weights = HostWeights(self._ir.model, self._ir.lowered.weights)
        self._program: DeviceProgram | JointProgram | None = None
        self._step: Step | None = None
        self._seed = secrets.randbits(63)
        self._runs: list[str] = []
        """Names of the first runs."""

    @property
    def dataFlow(self) -> DataFlow:
        """Number of batches of a step, and the anchors."""
        return self._ir.flow

    @property
    def replicationFactor(self) -> int:
        """Number of replicas."""
        return self._ir.replicas

    @property
    def accumulationFactor(self) -> int:
        """Number of accumulated micro-batches: 1 in inference."""
        return 1

    def getInfo(self, id: str) -> TensorInfo:
        """Return the type and shape of a tensor.

        Args:
            id: Id of any tensor of the main graph.

        Returns:
            Its type and shape.

        Raises:
            popart_exception: If there is no such tensor.
        """
        return self._ir.get_info(id)

    def hasInfo(self, id: str) -> bool:
        """Return whether there is a tensor with an id."""
        return id in self._ir.lowered.tensors

    def getAllTensorIds(self) -> set[str]:
        """Return the ids of all tensors of the main graph."""
        return set(self._ir.lowered.tensors)

    def initAnchorArrays(self) -> dict[str, Array]:
        """Return an array for each anchor, which a run writes into.

        Its shape has the returned iterations and the replicas in front, where there are several.
        """
        return {
            name: np.empty(
                anchor_shape(self.getInfo(name), kind, self._ir.batches, self.replicationFactor),
                self.getInfo(name).data_type_lcase(),
            )
            for name, kind in self._ir.flow.iter_anchors()
        }

    def prepareDevice(self, loadEngine: bool = True) -> None:
        """Make the program ready to run.

        Args:
            loadEngine: Whether to load it now, and to attach to the device.

        Raises:
            OutOfMemoryException: If the model does not fit into the device's memory.
            popart_runtime_error: If a profile that the options ask for cannot be written.
        """
        self._ir.get_executable()
        self._ir.check_device()
        self._program = self._ir.make_program()
        self._step = Step(
            self._program,
            self._ir.flow,
            self._ir.batches,
            self.replicationFactor,
            self._ir.lowered,
            broadcast=options_check.find_broadcast_inputs(self._ir.model),
            model_inputs=[value.name for value in self._ir.model.graph.input],
        )
        ir = self._ir
        reports.write_profile(
            ir.options.engineOptions,
            ir.get_executable(),
            ir.compiled.options,
            self.name,
            ir.lowered.model,
        )
        offline = self._ir.device.type is DeviceType.OfflineIpu
        if loadEngine and self._ir.options.compileEngine and not offline:
            self.loadEngineAndConnectStreams()

    def loadEngineAndConnectStreams(self) -> None:
        """Load the prepared program onto the device.

        Raises:
            popart_runtime_error: If prepareDevice was not called, the device is offline, or other
                devices hold its IPUs.
        """
        if self._ir.device.type is DeviceType.OfflineIpu:
            raise popart_runtime_error("Trying to load an engine on an offline device")
        if self._program is None:
            raise popart_runtime_error(_NOT_COMPILED)
        if not self._ir.device.isAttached and not self._ir.device.tryAttachUntilTimeout():
            raise popart_runtime_error("Failed to attach to device")
        self._program.set_weights(self._weights.device_values(self._program.weights))
        self._program.load(self._seed)

    def run(
        self, stepio: IStepIO | str, debugName: IStepIO | str = "", _debugName: str = ""
    ) -> None:
        """Run a step: `run(stepio, debugName="")` or `run(programHandle, stepio, debugName="")`.

        Args:
            stepio: Arrays or callbacks of the step, or the name of a program.
            debugName: Name of the run in reports, or the arrays or callbacks if a program is named.

        Raises:
            popart_runtime_error: If the session is not prepared, or the arrays do not fit.
            popart_exception: If there is no such program.
        """
        name = debugName
        if isinstance(stepio, str):
            if stepio != _MAIN:
                raise popart_exception(f"[Devicex::run] Program {stepio} not found.")
            stepio, name = debugName, _debugName
        if not isinstance(stepio, IStepIO):
            raise TypeError(
                "run(): incompatible function arguments: expected a popart.PyStepIO or "
                f"PyStepIOCallback, found {type(stepio).__name__}"
            )
        if self._ir.device.connectionType is DeviceConnectionType.Never:
            raise popart_runtime_error("Offline IPU device is not configured for execution")
        if self._step is None or self._program is None:
            raise popart_runtime_error(
                "Devicex::prepare() must be called before Devicex::run(const IStepIO &) is called."
            )
        if not self._program.is_loaded:
            self.loadEngineAndConnectStreams()
        mode = self._ir.options.syntheticDataMode
        if mode is SyntheticDataMode.Off:
            self._step.run(stepio)
        else:
            self._step.run_synthetic(mode, self._seed)
        if len(self._runs) < _MAX_RUNS:
            self._runs.append(str(name))

    def weightsFromHost(self) -> None:
        """Copy the host's weights to the device; constant weights are there already.

        Raises:
            popart_runtime_error: If the session is not prepared.
        """
        if self._program is None:
            raise popart_runtime_error(_NOT_COMPILED)
        self._program.set_weights(self._weights.device_values(self._program.weights))

    def weightsToHost(self) -> None:
        """Copy the device's weights to the host.

        Raises:
            popart_runtime_error: If the session is not prepared.
        """
        program = self._require_program(
            "weightsToHost(const std::map<TensorId, MutableVoidData> &)"
        )
        self._weights.take(program.weights)

    def readWeights(self, weightsIo: PyWeightsIO) -> None:
        """Write the host's weights into the caller's arrays.

        Args:
            weightsIo: Arrays by id of the weight.

        Raises:
            popart_runtime_error: For a weight that the model lacks, or an array of another size.
        """
        self._weights.read_into(weightsIo.weights)

    def writeWeights(self, weightsIo: PyWeightsIO) -> None:
        """Replace the host's weights; weightsFromHost copies them to the device.

        Args:
            weightsIo: Arrays by id of the weight.

        Raises:
            popart_runtime_error: With `constantWeights`, for a weight that the model lacks, or an
                array of another size.
        """
        if self._ir.options.constantWeights:
            raise popart_runtime_error(
                "Cannot call writeWeights when constantWeights is set. Set `constantWeights` to "
                "False in the `SessionOption`s when initialising the session to enable this "
                "behaviour."
            )
        self._weights.write_from(weightsIo.weights)

    def resetHostWeights(
        self,
        modelProtoOrFilename: bytes | str | PathLike[str],
        ignoreWeightsInModelWithoutCorrespondingHostWeight: bool = False,
    ) -> None:
        """Replace the host's weights by those of a model.

        Args:
            modelProtoOrFilename: The model: an ONNX file, or its bytes.
            ignoreWeightsInModelWithoutCorrespondingHostWeight: Whether to ignore weights of the
                model that the session lacks.

        Raises:
            popart_runtime_error: With `constantWeights`, and for weights that do not fit.
        """
        if self._ir.options.constantWeights:
            raise popart_runtime_error("Cannot call resetHostWeights when constantWeights is set")
        model = read_model(modelProtoOrFilename)
        self._weights.reset(model, ignoreWeightsInModelWithoutCorrespondingHostWeight)

    def modelToHost(self, fn: str | PathLike[str]) -> None:
        """Write the model with the device's weights to an ONNX file.

        Weights that are in files of their own are written there.

        Args:
            fn: Path of the file.
        """
        if self._program is not None:
            self._weights.take(self._program.weights)
        self._weights.save(fn)

    def updateExternallySavedTensorLocations(self, fromLocation: str, toLocation: str) -> None:
        """Move the weights that a file holds to another file, which modelToHost then updates.

        Args:
            fromLocation: Path of the present file.
            toLocation: Path of the new file.

        Raises:
            popart_runtime_error: If the new file exists, or the present one does not hold weights
                of this model.
        """
        self._weights.move(fromLocation, toLocation)

    def setRandomSeed(self, seedValue: int) -> None:
        """Begin the random streams of all operators anew.

        The same seed gives the same draws. They differ from the real chip's.

        Args:
            seedValue: The seed.

        Raises:
            popart_runtime_error: If the session is not prepared.
        """
        if not self._ir.is_random:
            _log.warning(
                "Trying to set the random seed, but this session has no random behaviour. Doing "
                "nothing."
            )
            return
        program = self._require_program("setRandomSeedFromHost(uint64_t)")
        self._seed = int(seedValue)
        if program.is_loaded:
            program.load(self._seed)

    def getRandomSeed(self) -> int:
        """Return the random seed; 0 if the model does not draw.

        Returns:
            The seed.

        Raises:
            popart_runtime_error: If the session is not prepared.
        """
        if not self._ir.is_random:
            return 0
        self._require_program("getRandomSeedToHost()")
        return self._seed

    def getCycleCount(self, id: str = "") -> int:
        """Return the modelled cycles of the last run: of all its batches.

        Args:
            id: "" for the whole run, "inner_ipu_0" for a batch on an IPU, as
                `hardwareInstrumentations` says.

        Returns:
            The number of cycles.

        Raises:
            popart_runtime_error: Before a run, without `instrumentWithHardwareCycleCounter`, and
                for another id.
        """
        if not self._runs:
            raise popart_runtime_error("Must call run before getCycleCount.")
        if not self._ir.options.instrumentWithHardwareCycleCounter:
            raise popart_runtime_error(
                "SessionOption 'instrumentWithHardwareCycleCounter' must be set to true in order "
                "to measure cycle count"
            )
        counts = reports.count_cycles(self._ir.get_executable(), self._ir.batches)
        enabled = self._ir.options.hardwareInstrumentations
        cycles = {"": counts.outer} if Instrumentation.Outer in enabled else {}
        if Instrumentation.Inner in enabled:
            cycles |= {f"inner_ipu_{ipu}": counts.inner for ipu in range(self._ir.num_ipus)}
        if id not in cycles:
            raise popart_runtime_error(
                f"Invalid id for cycle counter, '{id}'. Make sure you have set "
                "SessionOption::hardwareInstrumentations correctly."
            )
        return cycles[id]

    def getSummaryReport(self, resetProfile: bool = True) -> str:  # noqa: ARG002
        """Return a text about the modelled time and memory.

        Args:
            resetProfile: No effect.

        Returns:
            The text.

        Raises:
            popart_runtime_error: If the session is not prepared, or the executable was cached.
        """
        executable = self._require_report()
        ir = self._ir
        return reports.summarize(executable, ir.compiled.options, self.name, ir.lowered.model)

    def getReport(self) -> pva.Report:
        """Return the modelled time and memory as an object.

        Returns:
            The report of a batch. Its `execution` has the first two runs, which is what Poplar
            records by default.

        Raises:
            popart_runtime_error: If the session is not prepared, or the executable was cached.
        """
        executable = self._require_report()
        ir = self._ir
        return reports.make_report(
            executable,
            ir.compiled.options,
            self.name,
            ir.lowered.model,
            self.replicationFactor,
            self._runs,
        )

    def getSerializedGraph(self) -> bytes:
        """Return the program's graph as bytes.

        Returns:
            An ONNX model.

        Raises:
            popart_runtime_error: If the session is not prepared, or the executable was cached.
        """
        return reports.get_graph(self._require_report())

    def compileAndExport(self, filename: str | PathLike[str]) -> None:
        """Compile, and write the executable with its weights to a PopEF file.

        Args:
            filename: Path of the file, or a folder that gets `executable.popef`.

        Raises:
            popart_exception: If the device's executables cannot be saved.
            OutOfMemoryException: If the model does not fit into the device's memory.
        """
        export.check_can_save(self._ir)
        self.prepareDevice(loadEngine=False)
        self.saveExecutable(filename)

    def saveExecutable(
        self,
        path: str | PathLike[str],
        savePopartMetadata: bool = True,
        saveVariables: bool = True,
    ) -> None:
        """Write the executable to a PopEF file.

        Args:
            path: Path of the file, or a folder that gets `executable.popef`.
            savePopartMetadata: Whether to write facts about the session beside it.
            saveVariables: Whether to write streamed weights too.

        Raises:
            popart_exception: If the device's executables cannot be saved.
        """
        export.check_can_save(self._ir)
        exported = export.Exported.of(self._ir, self._weights)
        export.save_executable(exported, path, savePopartMetadata, saveVariables)

    def saveVariables(self, path: str | PathLike[str]) -> None:
        """Write the streamed weights to a PopEF file.

        Args:
            path: Path of the file, or a folder that gets `variables.popef`.

        Raises:
            popart_exception: If the device's executables cannot be saved.
        """
        export.check_can_save(self._ir)
        export.save_variables(export.Exported.of(self._ir, self._weights), path)

    def loadExecutable(self, filename: str | PathLike[str]) -> None:
        """Use the executable of a PopEF file instead of the compiled one.

        Args:
            filename: Path of a file that a session with the same model wrote.

        Raises:
            popart_exception: If the file holds no executable of this model.
        """
        export.load_executable(filename, self._ir)

    def _serializeIr(self, format: IrSerializationFormat) -> str:
        """Return the model's operators by graph, as JSON."""
        del format
        return reports.serialize_ir(self._ir.model)

    def _require_program(self, call: str) -> DeviceProgram | JointProgram:
        if self._program is None:
            raise popart_runtime_error(
                f"Devicex::prepare() must be called before Devicex::{call} is called."
            )
        return self._program

    def _require_report(self) -> Executable:
        if self._program is None:
            raise popart_runtime_error(
                "Session must have been prepared before a report can be fetched"
            )
        executable = self._ir.get_executable()
        if executable.from_file:
            raise popart_runtime_error(
                "Unable to get reports when using a cached executable.\nEither remove the cache "
                f"file ({self._ir.options.cachePath}), or \ndisable engine caching "
                "(userOptions.enableEngineCaching = false)"
            )
        return executable
