"""Runners: a model that is fed dicts of arrays and writes into dicts of arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping
from os import PathLike
from typing import Any, Protocol

import model_runtime
import numpy as np
import numpy.typing as npt
from model_runtime import OutputFutureMemory, OutputMemory, RequestTracepoint
from simipu import CompileError

import popef
from poprt.executable import Executable
from poprt.runtime.config import LightRunnerConfig, RuntimeConfig
from poprt.runtime.descriptions import DataDesc
from poprt.runtime.pack_flow import PackFlow
from poprt.runtime.packing import PackRunnerConfig

Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
AnyConfig = RuntimeConfig | PackRunnerConfig


class Underneath(Protocol):
    """What a Runner runs with: model_runtime's ModelRunner, or something that looks like one."""

    def execute(self, inputs: Arrays, outputs: Arrays | None = None) -> OutputMemory:
        """Compute and wait."""

    def executeAsync(self, inputs: Arrays, outputs: Arrays | None = None) -> OutputFutureMemory:
        """Compute."""

    def getExecuteInputs(self) -> list[model_runtime.DataDesc]:
        """What a request brings."""

    def getExecuteOutputs(self) -> list[model_runtime.DataDesc]:
        """What a request gets."""

    def getRequestTracepoints(self) -> list[RequestTracepoint]:
        """What became of the last requests."""

    def close(self) -> None:
        """Stop."""


def open_runner(model: popef.Model | str | PathLike[str], config: AnyConfig) -> Underneath:
    """The runner that the configuration asks for and the file needs."""
    runner = model_runtime.ModelRunner(model, config.for_model_runner())
    return PackFlow(runner, config) if isinstance(config, PackRunnerConfig) else runner


class Runner:
    """Runs a model, from a PopEF file or as it was compiled, for any number of threads. `config` chooses how:
    a RuntimeConfig has requests of whole batches, or of any number of rows, a PackRunnerConfig packs samples
    of different lengths.

    Raises ModelRuntimeError, LoadError or PopefError for a model that cannot be loaded, and for requests that
    do not fit.
    """

    def __init__(self, popef: str | PathLike[str] | Executable, config: AnyConfig | None = None) -> None:
        self._config = config or RuntimeConfig()
        self._model: str | Executable = popef if isinstance(popef, Executable) else os.path.abspath(popef)
        self._runner = open_runner(_read(popef), self._config)

    def __reduce__(self) -> tuple[type[Runner], tuple[str | Executable, AnyConfig]]:
        """Pickle by path, or with the Executable that it was made from, and configuration."""
        return type(self), (self._model, self._config)

    def execute(self, input: Arrays, output: Arrays) -> None:
        """Compute, and write the results into the arrays of `output`, which are of their shapes and types."""
        self._runner.execute(input, output)

    def execute_async(self, input: Arrays, output: Arrays) -> OutputFutureMemory:
        """The same without waiting: what is returned has `wait()`. All arrays stay as they are until then."""
        return self._runner.executeAsync(input, output)

    executeAsync = execute_async
    """The older spelling."""

    def get_execute_inputs(self) -> list[DataDesc]:
        """What every request brings; shapes are those of one compiled batch."""
        return list(map(DataDesc.of, self._runner.getExecuteInputs()))

    def get_execute_outputs(self) -> list[DataDesc]:
        """What every request gets; shapes are those of one compiled batch."""
        return list(map(DataDesc.of, self._runner.getExecuteOutputs()))

    def get_model_inputs(self) -> list[DataDesc]:
        """The same as get_execute_inputs."""
        return self.get_execute_inputs()

    def get_model_outputs(self) -> list[DataDesc]:
        """The same as get_execute_outputs."""
        return self.get_execute_outputs()

    def get_request_tracepoints(self) -> list[RequestTracepoint]:
        """What became of the last requests, see model_runtime.ModelRunner.getRequestTracepoints (ours)."""
        return self._runner.getRequestTracepoints()

    def close(self) -> None:
        """Stop, and give the device up; requests that have no results yet get a StoppedError (ours: a runner
        that is dropped ends by itself)."""
        self._runner.close()


def _read(model: str | PathLike[str] | Executable) -> popef.Model | str | PathLike[str]:
    return model.getPopefModel() if isinstance(model, Executable) else model


ModelRunner = Runner
"""The older name."""


class PackRunner(Runner):
    """A Runner that packs, by the name of the C++ class."""

    def __init__(
        self, popef: str | PathLike[str] | Executable, config: PackRunnerConfig | None = None
    ) -> None:
        super().__init__(popef, config or PackRunnerConfig())


class LightRunner(Runner):
    """A Runner that gives its device up and takes it again, and whose streamed weights (constant_weights
    False) can be set anew."""

    def __init__(
        self, popef: str | PathLike[str] | Executable, config: LightRunnerConfig | None = None
    ) -> None:
        """As Runner; CompileError for a file that holds no executable of poprt's."""
        self._executable = popef if isinstance(popef, Executable) else Executable(str(popef))
        self._anchors: dict[str, Array] = {}
        super().__init__(self._executable, config or LightRunnerConfig())
        self._model = self._executable if popef is self._executable else os.path.abspath(str(popef))

    def get_model_inputs(self) -> list[DataDesc]:
        """What every request brings, and the streamed weights."""
        weights = self._executable.weights.items()
        return [*self.get_execute_inputs(), *(DataDesc.of_weight(name, value) for name, value in weights)]

    def set_input_anchor(self, name: str, array: Array) -> None:
        """Take `array` as the values of a streamed weight from the next update_weights on.

        Raises CompileError for another name, type or shape."""
        known = self._executable.weights
        if name not in known:
            listed = ", ".join(known) or "none: compile with constant_weights=False"
            raise CompileError(f"weight {name!r} is not streamed; streamed are {listed}")
        wanted, found = known[name], np.asarray(array)
        if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
            raise CompileError(
                f"weight {name!r}: expected {wanted.dtype} of shape {wanted.shape}, found {found.dtype} of "
                f"shape {found.shape}"
            )
        self._anchors[name] = found

    def update_weights(self) -> None:
        """Load the weights that were set; requests in flight have the old ones and are waited for."""
        changed = Executable.of(
            self._executable.executable,
            self._executable.metadata,
            {**self._executable.weights, **{name: value.copy() for name, value in self._anchors.items()}},
            self._executable.opaque_blobs,
            self._executable.findings,
        )
        self._executable = self._model = changed
        self._anchors.clear()
        self.reload()

    def stop(self) -> None:
        """Give the device up; requests that have no results yet get an error."""
        self._runner.close()

    def reload(self) -> None:
        """Take a device again."""
        self.stop()
        self._runner = open_runner(_read(self._executable), self._config)
