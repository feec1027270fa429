"""InferenceSession: compiles a model, and runs it on a device.

The constructor checks and compiles the model. A step then runs `batchesPerStep` batches of each
replica, and writes the anchors of the iterations that the data flow names into the caller's arrays.
"""

from __future__ import annotations

import logging
import secrets
from os import PathLike

import numpy as np
from poprt.compile import Executable

from popart import export, options_check, reports, virtual_graphs
from popart.compilation import compile_model, confirm, count_program_ipus, find_num_ipus
from popart.dataflow import DataFlow, InputShapeInfo, anchor_shape
from popart.devices import DeviceInfo
from popart.enums import (
    DeviceConnectionType,
    DeviceType,
    Instrumentation,
    IrSerializationFormat,
    SyntheticDataMode,
)
from popart.errors import OutOfMemoryException, popart_exception, popart_runtime_error
from popart.lowering import EffectKind, LoweringOptions, lower
from popart.models import read_model
from popart.options import SessionOptions
from popart.patterns import Patterns, check_replaced
from popart.program import DeviceProgram, draws
from popart.stepio import IStepIO, PyWeightsIO
from popart.steps import Step
from popart.tensorinfo import TensorInfo
from popart.weights import HostWeights, bring_weights_in, locate_weights
from popef._tools.arrays import Array

_log = logging.getLogger("popart.session")
_MAIN = "Program"
"""Name under which `run` finds the main program."""
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
        self._patterns = patterns or Patterns()
        self._options: SessionOptions = (userOptions or SessionOptions()).copy()
        self._device = deviceInfo
        self._flow = dataFlow
        self._batches = dataFlow.batchesPerStep()
        if not dataFlow.nAnchors():
            raise popart_exception("User must specify an anchor tensor when doing inference.")
        self._model = read_model(fnModel)
        locate_weights(self._model, fnModel)
        options_check.check_options(self._options, self._model)
        check_replaced(self._patterns, self._model)
        self._num_ipus = find_num_ipus(self._options, deviceInfo, self._model)
        virtual_graphs.check_placement(self._model, self._options, self._num_ipus)
        shapes = (inputShapeInfo or InputShapeInfo()).all()
        self._lowered = lower(
            bring_weights_in(self._model),
            dataFlow.anchors(),
            shapes,
            LoweringOptions(
                constant_weights=self._options.constantWeights,
                replication_factor=self.replicationFactor,
                strided_channel_grouping=self._options.groupNormStridedChannelGrouping,
            ),
        )
        if self.replicationFactor > 1 and self._find_updated():
            raise popart_exception(
                f"Weight '{self._find_updated()}' is updated by runs (CopyVarUpdate), which needs "
                "a copy of it for each replica: replicatedGraphCount must be 1"
            )
        virtual_graphs.check_depth(self._model, self._options, self._batches)
        self._compiled = compile_model(
            self._lowered.model,
            [*dataFlow.anchors(), *self._lowered.effects],
            self._options,
            deviceInfo,
            self._count_compiled_batches(),
            count_program_ipus(self._model, self._options, self._num_ipus),
        )
        self._weights = HostWeights(self._model, self._lowered.weights)
        self._program: DeviceProgram | None = None
        self._step: Step | None = None
        self._seed = secrets.randbits(63)
        self._is_random = draws(self._lowered.model.graph)
        self._has_run = False
        self._is_loaded = False

    @property
    def dataFlow(self) -> DataFlow:
        """Number of batches of a step, and the anchors."""
        return self._flow

    @property
    def replicationFactor(self) -> int:
        """Number of replicas."""
        return self._options.num_replicas

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
        if id not in self._lowered.tensors:
            raise popart_exception(f"No Ir tensor with id {id}")
        return self._lowered.tensors[id]

    def hasInfo(self, id: str) -> bool:
        """Return whether there is a tensor with an id."""
        return id in self._lowered.tensors

    def getAllTensorIds(self) -> set[str]:
        """Return the ids of all tensors of the main graph."""
        return set(self._lowered.tensors)

    def initAnchorArrays(self) -> dict[str, Array]:
        """Return an array for each anchor, which a run writes into.

        Its shape has the returned iterations and the replicas in front, where there are several.
        """
        return {
            name: np.empty(
                anchor_shape(self.getInfo(name), kind, self._batches, self.replicationFactor),
                self.getInfo(name).data_type_lcase(),
            )
            for name, kind in self._flow.iter_anchors()
        }

    def prepareDevice(self, loadEngine: bool = True) -> None:
        """Make the program ready to run.

        Args:
            loadEngine: Whether to load it now, and to attach to the device.

        Raises:
            OutOfMemoryException: If the model does not fit into the device's memory.
        """
        executable = self._require_executable()
        virtual_graphs.check_virtual_graph_numbers(self._model, self._options, self._num_ipus)
        options_check.check_poplar_options(self._options, self._lowered)
        options_check.check_device_types(self._lowered, self._options)
        self._program = DeviceProgram(executable, {} if self._is_loaded else self._lowered.effects)
        self._step = Step(
            self._program,
            self._flow,
            self._batches,
            self.replicationFactor,
            self._lowered,
            broadcast=options_check.find_broadcast_inputs(self._model),
            model_inputs=[each.name for each in self._model.graph.input],
        )
        offline = self._device.type is DeviceType.OfflineIpu
        if loadEngine and self._options.compileEngine and not offline:
            self.loadEngineAndConnectStreams()

    def loadEngineAndConnectStreams(self) -> None:
        """Load the prepared program onto the device.

        Raises:
            popart_runtime_error: If prepareDevice was not called, the device is offline, or other
                devices hold its IPUs.
        """
        if self._device.type is DeviceType.OfflineIpu:
            raise popart_runtime_error("Trying to load an engine on an offline device")
        if self._program is None:
            raise popart_runtime_error(_NOT_COMPILED)
        if not self._device.isAttached and not self._device.tryAttachUntilTimeout():
            raise popart_runtime_error("Failed to attach to device")
        self._program.set_weights(self._weights.device_values(self._program.weights))
        self._program.load(self._seed)

    def run(
        self, stepio: IStepIO | str, debugName: IStepIO | str = "", _debugName: str = ""
    ) -> None:
        """Run a step: `run(stepio, debugName="")` or `run(programHandle, stepio, debugName="")`.

        Args:
            stepio: Arrays or callbacks of the step, or the name of a program.
            debugName: No effect, or the arrays or callbacks if a program is named.

        Raises:
            popart_runtime_error: If the session is not prepared, or the arrays do not fit.
            popart_exception: If there is no such program.
        """
        if isinstance(stepio, str):
            if stepio != _MAIN:
                raise popart_exception(f"[Devicex::run] Program {stepio} not found.")
            stepio = debugName
        if not isinstance(stepio, IStepIO):
            raise TypeError(
                "run(): incompatible function arguments: expected a popart.PyStepIO or "
                f"PyStepIOCallback, found {type(stepio).__name__}"
            )
        if self._device.connectionType is DeviceConnectionType.Never:
            raise popart_runtime_error("Offline IPU device is not configured for execution")
        if self._step is None or self._program is None:
            raise popart_runtime_error(
                "Devicex::prepare() must be called before Devicex::run(const IStepIO &) is called."
            )
        if not self._program.is_loaded:
            self.loadEngineAndConnectStreams()
        mode = self._options.syntheticDataMode
        if mode is SyntheticDataMode.Off:
            self._step.run(stepio)
        else:
            self._step.run_synthetic(mode, self._seed)
        self._has_run = True

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
        if self._options.constantWeights:
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
        if self._options.constantWeights:
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
        if not self._is_random:
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
        if not self._is_random:
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
        if not self._has_run:
            raise popart_runtime_error("Must call run before getCycleCount.")
        if not self._options.instrumentWithHardwareCycleCounter:
            raise popart_runtime_error(
                "SessionOption 'instrumentWithHardwareCycleCounter' must be set to true in order "
                "to measure cycle count"
            )
        counts = reports.count_cycles(self._require_executable(), self._batches)
        enabled = self._options.hardwareInstrumentations
        known = {"": counts.outer} if Instrumentation.Outer in enabled else {}
        if Instrumentation.Inner in enabled:
            known |= {f"inner_ipu_{ipu}": counts.inner for ipu in range(self._num_ipus)}
        if id not in known:
            raise popart_runtime_error(
                f"Invalid id for cycle counter, '{id}'. Make sure you have set "
                "SessionOption::hardwareInstrumentations correctly."
            )
        return known[id]

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
        return reports.summarize(executable, self._compiled.options, self.name)

    def getReport(self) -> reports.Report:
        """Return the modelled time and memory as an object.

        Returns:
            The report, in the form of libpva's where it has the figures.

        Raises:
            popart_runtime_error: If the session is not prepared, or the executable was cached.
        """
        return reports.make_report(self._require_report(), self._batches, self.replicationFactor)

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
        self._check_can_save()
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
        self._check_can_save()
        export.save_executable(self._exported(), path, savePopartMetadata, saveVariables)

    def saveVariables(self, path: str | PathLike[str]) -> None:
        """Write the streamed weights to a PopEF file.

        Args:
            path: Path of the file, or a folder that gets `variables.popef`.

        Raises:
            popart_exception: If the device's executables cannot be saved.
        """
        self._check_can_save()
        export.save_variables(self._exported(), path)

    def loadExecutable(self, filename: str | PathLike[str]) -> None:
        """Use the executable of a PopEF file instead of the compiled one.

        Args:
            filename: Path of a file that a session with the same model wrote.

        Raises:
            popart_exception: If the file holds no executable of this model.
        """
        inputs = [value.name for value in self._lowered.model.graph.input]
        anchors = self._flow.anchors()
        self._compiled = export.load_executable(filename, self._compiled, inputs, anchors)
        self._is_loaded = True

    def _serializeIr(self, format: IrSerializationFormat) -> str:
        """Return the model's operators by graph, as JSON."""
        del format
        return reports.serialize_ir(self._model)

    def _count_compiled_batches(self) -> int:
        """Return the number of batches that the compiler gets, which wants whole pipelines."""
        stages = virtual_graphs.count_stages(self._model) if self._options.enablePipelining else 1
        return -(-self._batches // max(1, stages)) * max(1, stages)

    def _exported(self) -> export.Exported:
        executable = self._require_executable()
        if not self._is_loaded:
            # A server joins requests, so that rows must be confirmed to be independent.
            executable = confirm(self._lowered.model, self._flow.anchors(), self._compiled)
        return export.Exported(
            executable=executable,
            options=self._options,
            device=self._device,
            batches_per_step=self._batches,
            replicas=self.replicationFactor,
            weights=self._weights.device_values(executable.weights),
        )

    def _check_can_save(self) -> None:
        updated = self._find_updated()
        if updated:
            raise popart_exception(
                f"Weight '{updated}' is updated by runs (CopyVarUpdate), which a file cannot say; "
                "such sessions cannot be saved"
            )
        if not self._device.canCompileOffline:
            raise popart_exception(
                f"Executables for device type {self._device.type} cannot be saved"
            )

    def _find_updated(self) -> str:
        """Return a weight that runs update; "" if there is none."""
        effects = self._lowered.effects.values()
        return next((each.target for each in effects if each.kind is EffectKind.UPDATE), "")

    def _require_executable(self) -> Executable:
        if self._compiled.executable is None:
            error = self._compiled.out_of_memory
            raise OutOfMemoryException(str(error), summaryReport=str(error)) from error
        return self._compiled.executable

    def _require_program(self, call: str) -> DeviceProgram:
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
        executable = self._require_executable()
        if executable.from_file:
            raise popart_runtime_error(
                "Unable to get reports when using a cached executable.\nEither remove the cache "
                f"file ({self._options.cachePath}), or \ndisable engine caching "
                "(userOptions.enableEngineCaching = false)"
            )
        return executable
