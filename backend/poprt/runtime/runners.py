"""Runners: they run a model with dicts of input arrays and write into dicts of output arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping
from os import PathLike
from typing import Protocol

import model_runtime
import numpy as np
from model_runtime import OutputFutureMemory, OutputMemory, RequestTracepoint
from simipu import CompileError

import popef
from popef._tools.arrays import Array
from poprt.compile.executable import Executable
from poprt.runtime.config import LightRunnerConfig, RuntimeConfig
from poprt.runtime.descriptions import DataDesc
from poprt.runtime.pack_algorithms import PackRunnerConfig
from poprt.runtime.pack_flow import PackFlow

Arrays = Mapping[str, Array]
AnyConfig = RuntimeConfig | PackRunnerConfig


class Underneath(Protocol):
    """Interface of the runner under a Runner: model_runtime's ModelRunner, or a similar class."""

    def execute(self, inputs: Arrays, outputs: Arrays | None = None) -> OutputMemory:
        """Compute and wait for the results."""

    def executeAsync(self, inputs: Arrays, outputs: Arrays | None = None) -> OutputFutureMemory:
        """Start computing."""

    def getExecuteInputs(self) -> list[model_runtime.DataDesc]:
        """Return the inputs of a request."""

    def getExecuteOutputs(self) -> list[model_runtime.DataDesc]:
        """Return the outputs of a request."""

    def getRequestTracepoints(self) -> list[RequestTracepoint]:
        """Return the tracepoints of the last requests."""

    def close(self) -> None:
        """Stop the runner."""


def open_runner(model: popef.Model | str | PathLike[str], config: AnyConfig) -> Underneath:
    """Return the runner that the configuration requests."""
    runner = model_runtime.ModelRunner(model, config.for_model_runner())
    return PackFlow(runner, config) if isinstance(config, PackRunnerConfig) else runner


class Runner:
    """Runs a model, from a PopEF file or as it was compiled, for any number of threads.

    Args:
        popef: the PopEF file, or the executable that `Compiler` returned.
        config: selects how requests run. With a RuntimeConfig (the default) they have whole batches
            or any number of rows. A PackRunnerConfig packs samples of different lengths.

    Raises:
        ModelRuntimeError: for a model that cannot be loaded, and for requests that do not fit.
        LoadError: for an executable that cannot be loaded.
        PopefError: for a file that is damaged.

    Example:
        >>> import numpy as np
        >>> from poprt import runtime
        >>> runner = runtime.Runner("model.popef")
        >>> outputs = {"y": np.zeros((2, 4), np.float32)}
        >>> runner.execute({"x": np.ones((2, 4), np.float32)}, outputs)
        >>> float(outputs["y"].sum())
        16.0
        >>> runner.close()
    """

    def __init__(
        self, popef: str | PathLike[str] | Executable, config: AnyConfig | None = None
    ) -> None:
        self._config = config or RuntimeConfig()
        self._model: str | Executable = (
            popef if isinstance(popef, Executable) else os.path.abspath(popef)
        )
        self._runner = open_runner(_read(popef), self._config)

    def __reduce__(self) -> tuple[type[Runner], tuple[str | Executable, AnyConfig]]:
        """Pickle what the runner was made from, a path or an Executable, and the configuration."""
        return type(self), (self._model, self._config)

    def execute(self, input: Arrays, output: Arrays) -> None:
        """Compute a request and wait for it.

        Args:
            input: arrays by input name.
            output: arrays by output name, in the outputs' shapes and types, to write the results
                into.
        """
        self._runner.execute(input, output)

    def execute_async(self, input: Arrays, output: Arrays) -> OutputFutureMemory:
        """Start computing. No array may change until the result is available.

        Args:
            input: arrays by input name.
            output: arrays by output name to write the results into.

        Returns:
            A future with `wait()`.
        """
        return self._runner.executeAsync(input, output)

    executeAsync = execute_async
    """Alias with the older spelling."""

    def get_execute_inputs(self) -> list[DataDesc]:
        """Return the inputs of every request; shapes are those of one compiled batch."""
        return list(map(DataDesc.of, self._runner.getExecuteInputs()))

    def get_execute_outputs(self) -> list[DataDesc]:
        """Return the outputs of every request; shapes are those of one compiled batch."""
        return list(map(DataDesc.of, self._runner.getExecuteOutputs()))

    def get_model_inputs(self) -> list[DataDesc]:
        """Return the same as get_execute_inputs."""
        return self.get_execute_inputs()

    def get_model_outputs(self) -> list[DataDesc]:
        """Return the same as get_execute_outputs."""
        return self.get_execute_outputs()

    def get_request_tracepoints(self) -> list[RequestTracepoint]:
        """Return the tracepoints of the last requests, see
        model_runtime.ModelRunner.getRequestTracepoints (ours)."""
        return self._runner.getRequestTracepoints()

    def close(self) -> None:
        """Stop, and release the device; requests without results get a StoppedError.

        This method is ours: a runner without references ends by itself.
        """
        self._runner.close()


def _read(model: str | PathLike[str] | Executable) -> popef.Model | str | PathLike[str]:
    return model.getPopefModel() if isinstance(model, Executable) else model


ModelRunner = Runner
"""Alias with the older name."""


class PackRunner(Runner):
    """Runner that packs samples, under the name of the C++ class."""

    def __init__(
        self, popef: str | PathLike[str] | Executable, config: PackRunnerConfig | None = None
    ) -> None:
        super().__init__(popef, config or PackRunnerConfig())


class LightRunner(Runner):
    """Runner that can release its device and take it again, and whose streamed weights can be
    replaced.

    Weights are streamed if the model was compiled with constant_weights False.
    """

    def __init__(
        self, popef: str | PathLike[str] | Executable, config: LightRunnerConfig | None = None
    ) -> None:
        """Open the runner like Runner.

        Raises CompileError for a file that holds no executable of poprt's.
        """
        self._executable = popef if isinstance(popef, Executable) else Executable(str(popef))
        self._anchors: dict[str, Array] = {}
        super().__init__(self._executable, config or LightRunnerConfig())
        self._model = self._executable if popef is self._executable else os.path.abspath(str(popef))

    def get_model_inputs(self) -> list[DataDesc]:
        """Return the inputs of every request, and the streamed weights."""
        weights = self._executable.weights.items()
        return [
            *self.get_execute_inputs(),
            *(DataDesc.of_weight(name, value) for name, value in weights),
        ]

    def set_input_anchor(self, name: str, array: Array) -> None:
        """Set the values of a streamed weight from the next update_weights on.

        Args:
            name: name of the weight.
            array: its values, in its shape and dtype.

        Raises:
            CompileError: for another name, type or shape.
        """
        known = self._executable.weights
        if name not in known:
            listed = ", ".join(known) or "none: compile with constant_weights=False"
            raise CompileError(f"weight {name!r} is not streamed; streamed are {listed}")
        wanted, found = known[name], np.asarray(array)
        if (found.dtype, found.shape) != (wanted.dtype, wanted.shape):
            raise CompileError(
                f"weight {name!r}: expected {wanted.dtype} of shape {wanted.shape}, found "
                f"{found.dtype} of shape {found.shape}"
            )
        self._anchors[name] = found

    def update_weights(self) -> None:
        """Load the weights that were set.

        Requests in flight use the old weights and are waited for.
        """
        changed = Executable.of(
            self._executable.executable,
            self._executable.metadata,
            {
                **self._executable.weights,
                **{name: value.copy() for name, value in self._anchors.items()},
            },
            self._executable.opaque_blobs,
            self._executable.findings,
        )
        self._executable = self._model = changed
        self._anchors.clear()
        self.reload()

    def stop(self) -> None:
        """Release the device; requests without results get an error."""
        self._runner.close()

    def reload(self) -> None:
        """Take a device again."""
        self.stop()
        self._runner = open_runner(_read(self._executable), self._config)
