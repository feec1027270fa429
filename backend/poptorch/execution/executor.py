"""PoplarExecutor: a module that runs on the simulated IPU.

The first call captures and compiles the module. From then on a call converts tensors to arrays,
runs the device's steps, and rebuilds what `forward` returned.
"""

from __future__ import annotations

import datetime
import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from os import PathLike
from typing import Any, Final, NoReturn

import torch
from popart import __version__
from poprt.compile import Executable

from poptorch._logging import logger
from poptorch._poptorch_data import CallInputs, PoptorchData
from poptorch.arguments import Arguments
from poptorch.capture import popart_ir
from poptorch.capture.replicas import GroupedParameter, Grouping
from poptorch.enums import ConnectionType
from poptorch.errors import Error
from poptorch.execution import counters, devices, files
from poptorch.execution.counters import Counters, Latency
from poptorch.execution.preparation import bind_arguments, prepare
from poptorch.execution.program import LoadedModel
from poptorch.hooks import POST_COMPILE, PRE_COMPILE
from poptorch.operators import placement
from poptorch.options.model_options import Options

_NOT_COMPILED: Final = "Model has not been compiled or has been destroyed."
_NO_RUN: Final = "Please run the model at least once before obtaining cycle count."
_NO_CYCLES: Final = (
    "Cycle count logging is disabled. Please set option logCycleCount to True to enable."
)
_NO_BACKWARD: Final = (
    "backward() cannot be called explicitly on outputs of a PopTorch model. If you're using a "
    "trainingModel, the backwards pass is performed automatically when invoking the model. If "
    "you're using an inferenceModel, you should use a trainingModel instead."
)
_MAX_SEED_BITS: Final = 63


class PoplarExecutor:
    """A module on the simulated IPU; `inferenceModel` makes it.

    Attributes that it lacks are those of the wrapped module.
    """

    def __init__(self, model: Any, options: Options) -> None:
        """Wrap a module.

        Args:
            model: The module, or a function of tensors.
            options: Options, which belong to this executor.
        """
        self._user_model = model
        self._options = options
        self.per_replica_params: dict[str, Grouping] = {}
        self._arguments: Arguments | None = None
        self._loaded: LoadedModel | None = None
        self._count: Callable[[], Counters] = counters.make_empty
        self._compile_seconds: float | None = None
        self._seed = options.random_seed if options.exists("random_seed") else None
        self._has_run = False
        self._has_drawn = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_user_model":
            raise AttributeError(name)
        value = getattr(self._user_model, name)
        if isinstance(value, torch.nn.Parameter):
            return GroupedParameter.view(value, name, self.per_replica_params)
        return value

    def __repr__(self) -> str:
        model = self._user_model
        inner = placement.module_repr(model) if isinstance(model, torch.nn.Module) else repr(model)
        return f"{type(self).__name__}({inner})"

    @property
    def model(self) -> Any:
        """The wrapped module."""
        return self._user_model

    @property
    def _executable_inputs(self) -> Arguments | None:
        """Arguments that the module is compiled for; optimum-graphcore reads this name."""
        return self._arguments

    @property
    def options(self) -> Options:
        """The options."""
        return self._options

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module; the first call compiles it.

        Args:
            *args: Arguments of `forward`; dim 0 of tensors holds the parts of all iterations.
            **kwargs: Keyword arguments of `forward`.

        Returns:
            What `forward` returned when it was captured, with this call's tensors.
        """
        assert self._options.connection_type is not ConnectionType.Never, (
            "Trying to run a model on an offline device (ConnectionType.Never): use "
            "model.compile(inputs) instead of model(inputs)"
        )
        arguments = self._bind(args, kwargs)
        if self._loaded is None:
            self._compile(arguments)
        loaded = self._require_compiled()
        assert self._arguments is not None
        tensors = list(self._arguments.iter_matching(arguments))
        if not loaded.is_attached:
            self.attachToDevice()
        outputs, changed = loaded.run(tensors)
        self._note_run(loaded)
        _write_back(tensors, changed)
        return loaded.captured.rebuild([_forbid_backward(result) for result in outputs])

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile the module without running it.

        Args:
            *args: Arguments of `forward`, as for a call.
            **kwargs: Keyword arguments of `forward`.
        """
        arguments = self._bind(args, kwargs)
        if self._loaded is not None:
            logger.warning("Call to compile() ignored: the executable is already compiled")
            return
        self._compile(arguments)

    def compileAndExport(
        self, filename: str | PathLike[str], *args: Any, export_model: bool = True, **kwargs: Any
    ) -> None:
        """Compile the module, and write it to a file.

        Args:
            filename: Path of the file, or of a folder that gets `model.poptorch`.
            *args: Arguments of `forward`, as for a call.
            export_model: Whether poptorch.load can make the module again from the file.
            **kwargs: Keyword arguments of `forward`.
        """
        self.compile(*args, **kwargs)
        self.save(filename, export_model)

    def save(
        self,
        filename: str | PathLike[str],
        export_model: bool = True,
        save_rng_state: bool = True,
    ) -> None:
        """Write the compiled module to a file.

        Args:
            filename: Path of the file, or of a folder that gets `model.poptorch`.
            export_model: Whether poptorch.load can make the module again from the file.
            save_rng_state: Whether to write the state of the random numbers.

        Raises:
            Error: If the module is not compiled, or the file cannot be written.
        """
        loaded = self._require_compiled()
        data = PoptorchData(__version__, self._arguments, self._options)
        data.random_seed = self.rng_state[0] if save_rng_state else None
        if export_model:
            data.training, data.model = False, self._user_model
        files.save(loaded, data, filename)

    def loadExecutable(self, filename: str | PathLike[str]) -> None:
        """Use the executable of a file; the module is captured again, but not compiled.

        The file's arguments are unpickled, which runs code of the file: load only files that you
        trust. For a file of a real SDK the module is compiled again: machine code does not run.

        Args:
            filename: Path of a file that compileAndExport or save has written.

        Raises:
            Error: If the file cannot be read, or holds another model's executable.
        """
        file = files.read_file(filename)
        self._load(file, files.unpickle(file))

    def _load(self, file: files.PoptorchFile, data: PoptorchData) -> None:
        """Use the executable of a file, which has been unpickled."""
        if data.random_seed is not None:
            self._seed = data.random_seed
        arguments = data.executable_inputs
        if isinstance(arguments, CallInputs):
            arguments = self._bind(arguments.args, arguments.kwargs)
        self._compile(arguments, file.executable)

    def _bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Arguments:
        return bind_arguments(self._user_model, args, kwargs)

    def _compile(self, given: Arguments, executable: Executable | None = None) -> None:
        """Capture, compile and load the module for arguments like these."""
        start = time.monotonic()
        PRE_COMPILE.call()
        loaded = prepare(
            self._user_model, given, self._options, self.per_replica_params, executable
        )
        if self._options.connection_type is not ConnectionType.Never and loaded.device.isAttached:
            loaded.load(self._find_seed())
        self._arguments, self._loaded = given, loaded
        self._has_run = self._has_drawn = False
        self._compile_seconds = time.monotonic() - start
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("Popart IR: %s", self._debugGetPopartIR())
        POST_COMPILE.call()

    def _find_seed(self) -> int:
        if self._seed is None:
            self._seed = secrets.randbits(_MAX_SEED_BITS)
        return int(self._seed)

    @property
    def rng_state(self) -> list[int]:
        """State of the random numbers: a seed.

        Reading it after a run begins the numbers anew from the next seed. Those that follow are
        therefore drawn again whenever the state is set to what was read.
        """
        self._require_compiled()
        if self._has_drawn:
            digest = hashlib.sha256(str(self._find_seed()).encode()).digest()
            self.rng_state = [int.from_bytes(digest[:8], "little") >> (64 - _MAX_SEED_BITS)]
        return [self._find_seed()]

    @rng_state.setter
    def rng_state(self, state: Sequence[int]) -> None:
        loaded = self._require_compiled()
        self._seed, self._has_drawn = int(state[0]), False
        loaded.restart_random(self._seed)

    def _note_run(self, loaded: LoadedModel) -> None:
        """Note the modelled time of a call that has ended."""
        self._has_run = self._has_drawn = True
        num_inputs = len(loaded.captured.inputs)
        if loaded.is_synthetic:
            self._count = partial(counters.make_empty, num_inputs, len(loaded.steps.kinds))
        else:
            kinds = tuple(loaded.steps.kinds.values())
            self._count = partial(
                counters.count, loaded.clock, loaded.steps.batching, kinds, num_inputs
            )
        if self._logs_cycles():
            logger.debug("Total number of IPU cycles: %d", loaded.cycles)

    def _logs_cycles(self) -> bool:
        return bool(self._options._Popart.options.get("instrumentWithHardwareCycleCounter"))  # noqa: SLF001

    def _require_compiled(self) -> LoadedModel:
        if self._loaded is None:
            raise Error(_NOT_COMPILED)
        return self._loaded

    def isCompiled(self) -> bool:
        """Return whether the module is compiled and not destroyed."""
        return self._loaded is not None

    def isAttachedToDevice(self) -> bool:
        """Return whether the compiled module holds its device."""
        return self._loaded is not None and self._loaded.is_attached

    def attachToDevice(self) -> None:
        """Attach to the device, and copy the module's weights to it.

        Raises:
            Error: If the module is not compiled, or is attached already.
        """
        loaded = self._require_compiled()
        assert self._options.connection_type is not ConnectionType.Never, (
            "Trying to attach to an offline device (ConnectionType.Never)"
        )
        if loaded.is_attached:
            raise Error("Device is already attached")
        devices.attach(loaded.device)
        self._reload(loaded)

    def detachFromDevice(self) -> None:
        """Release the device; a call attaches again.

        Raises:
            Error: If the module is not compiled, or is not attached.
        """
        loaded = self._require_compiled()
        if not loaded.is_attached:
            raise Error("Device is not attached")
        loaded.detach()
        logger.debug("Detached from device")

    def destroy(self) -> None:
        """Release the device and the executable; the next call compiles again."""
        if self._loaded is not None:
            self._loaded.detach()
        self._loaded = self._arguments = None
        self._has_run = False

    def load_state_dict(self, state_dict: dict[str, Any], strict: bool = True) -> Any:
        """Load parameters and buffers into the module, and onto the device if it is attached.

        Args:
            state_dict: Tensors by name.
            strict: Whether the names must be those of the module.

        Returns:
            Missing and unexpected names.
        """
        keys = self._user_model.load_state_dict(state_dict, strict)
        if self.isAttachedToDevice():
            logger.debug("load_state_dict: implicit copyWeightsToDevice()")
            self.copyWeightsToDevice()
        return keys

    def copyWeightsToDevice(self) -> None:
        """Copy the module's parameters and buffers to the device."""
        loaded = self._require_compiled()
        if loaded.is_stale():
            self._reload(loaded)
        else:
            loaded.copy_to_device()

    def _reload(self, loaded: LoadedModel) -> None:
        """Load the program anew; it is compiled again if it holds constants that have changed."""
        if loaded.is_stale():
            assert self._arguments is not None
            loaded.detach()
            self._loaded = loaded = prepare(
                self._user_model, self._arguments, self._options, self.per_replica_params
            )
        loaded.load(self._find_seed())

    def copyWeightsToHost(self) -> None:
        """Copy buffers that runs have changed from the device into the module."""
        self._require_compiled().copy_to_host()

    def copyNamedBuffersToDevice(self) -> None:
        """Copy the buffers of Options.updatableNamedBuffers from the module to the device.

        Raises:
            Error: If the module is not compiled, or the option names no buffers.
        """
        loaded = self._require_compiled()
        names = self._options.updatable_named_buffers
        if not names:
            raise Error(
                "copyNamedBuffersToDevice() needs the option "
                "poptorch.Options().updatableNamedBuffers([...]), which is empty",
                type="poptorch_cpp_error",
            )
        loaded.copy_to_device(frozenset(names))

    def cycleCount(self) -> int:
        """Return the modelled cycles of the last call, on one replica.

        Returns:
            The number of cycles.

        Raises:
            Error: Before a call, without logCycleCount(True), and on an IPU model.
        """
        if not self._logs_cycles():
            raise Error(_NO_CYCLES)
        if self._loaded is None or not self._has_run:
            raise Error(_NO_RUN)
        if devices.uses_ipu_model(self._options):
            raise Error("Cycle count logging is only supported on actual IPU hardware.")
        return self._loaded.cycles

    def compilationTime(self) -> datetime.timedelta:
        """Return the time that capturing and compiling took.

        Returns:
            The time.

        Raises:
            Error: Before the compilation, and without the option showCompilationProgressBar.
        """
        if self._compile_seconds is None or self._loaded is None:
            raise Error("Please compile the model before obtaining compilation time.")
        if not self._options.shows_progress_bar:
            raise Error("Please set showCompilationProgressBar option to obtain compilation time.")
        return datetime.timedelta(seconds=self._compile_seconds)

    def getPerfCounters(self) -> Counters:
        """Return the times of the last call's transfers, as modelled.

        Returns:
            Seconds by event ("input", "input_complete", "output", "output_complete"), tensor and
            iteration.
        """
        return {event: [list(time) for time in times] for event, times in self._count().items()}

    def getHostIpuLatency(self) -> Latency:
        """Return least, most and mean seconds of the inputs' transfers, as modelled."""
        return self._find_latency((counters.INPUT, min), (counters.INPUT_COMPLETE, max))

    def getComputeLatency(self) -> Latency:
        """Return least, most and mean seconds of computing, as modelled."""
        return self._find_latency((counters.INPUT_COMPLETE, max), (counters.OUTPUT, max))

    def getIpuHostLatency(self) -> Latency:
        """Return least, most and mean seconds of the outputs' transfers, as modelled."""
        return self._find_latency((counters.OUTPUT, min), (counters.OUTPUT_COMPLETE, max))

    def getLatency(self) -> Latency:
        """Return least, most and mean seconds of an iteration, as modelled."""
        return self._find_latency((counters.INPUT, min), (counters.OUTPUT_COMPLETE, max))

    def _find_latency(self, start: counters.Side, end: counters.Side) -> Latency:
        return counters.find_latency(self._count(), start, end)

    def getTensorNames(self) -> list[str]:
        """Return the names of all tensors of the compiled graph."""
        assert self._loaded is not None, "Model must be compiled before calling getTensorNames"
        graph = self._loaded.captured.model.graph
        names = {name for node in graph.node for name in (*node.input, *node.output) if name}
        return sorted(names)

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """Return the values of an anchored tensor in the last call.

        Args:
            short_name: Name that Options.anchorTensor gave it.

        Returns:
            The values.
        """
        anchors = {} if self._loaded is None else self._loaded.anchors
        assert short_name in anchors, f"No tensor with name {short_name} found."
        return anchors[short_name]

    def _debugGetPopartIR(self) -> str:
        """Return the operators of the captured graph in PopART's types by graph, as JSON."""
        options = self._options._Popart.options  # noqa: SLF001
        loaded = self._require_compiled()
        ir = popart_ir.add_partials(loaded.captured.ir, options)
        return popart_ir.add_places(ir, loaded.compilation.model.graph)


def _write_back(tensors: Sequence[torch.Tensor], written: dict[int, torch.Tensor]) -> None:
    """Copy new values into the caller's tensors that `forward` changes in place."""
    with torch.no_grad():
        for index, value in written.items():
            tensors[index].copy_(value)


def _forbid_backward(tensor: torch.Tensor) -> torch.Tensor:
    tensor.backward = _raise_no_backward
    return tensor


def _raise_no_backward(*_: Any, **__: Any) -> NoReturn:
    raise Error(_NO_BACKWARD)
