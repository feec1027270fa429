"""Runners: they run a model with dicts of input arrays and write into dicts of output arrays."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike

import model_runtime
import numpy as np
from model_runtime import ModelRuntimeError, OutputFutureMemory, RequestTracepoint, describe_tensors
from simipu import CompileError

import popef
from popef._tools.arrays import Array
from poprt._names import sHostConcatRunnerConfig
from poprt.compile.executable import Executable
from poprt.runtime.config import DataDesc, LightRunnerConfig, RuntimeConfig
from poprt.runtime.pack_algorithms import PackRunnerConfig
from poprt.runtime.pack_flow import PackFlow

Arrays = Mapping[str, Array]
AnyConfig = RuntimeConfig | PackRunnerConfig


Underneath = model_runtime.ModelRunner | PackFlow
"""Runner under a Runner."""


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

    def __repr__(self) -> str:
        source = "an Executable" if isinstance(self._model, Executable) else self._model
        inputs, outputs = self._runner.getExecuteInputs(), self._runner.getExecuteOutputs()
        return f"<{type(self).__name__} of {source}: {describe_tensors(inputs, outputs)}>"

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
    """Runner that packs samples, under the name of the C++ class.

    Args:
        popef: the PopEF file, or the executable that `Compiler` returned.
        config: how samples are packed; None means the defaults.
    """

    def __init__(
        self, popef: str | PathLike[str] | Executable, config: PackRunnerConfig | None = None
    ) -> None:
        super().__init__(popef, config or PackRunnerConfig())


class LightRunner(Runner):
    """Runner that can release its device and take it again, and whose streamed weights can be
    replaced.

    Weights are streamed if the model was compiled with constant_weights False.

    Args:
        popef: the PopEF file, or the executable that `Compiler` returned.
        config: the configuration; None means the defaults.

    Raises:
        CompileError: for a file that does not hold an executable of poprt.
    """

    def __init__(
        self, popef: str | PathLike[str] | Executable, config: LightRunnerConfig | None = None
    ) -> None:
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
        weights = self._executable.weights
        if name not in weights:
            listed = ", ".join(weights) or "none: compile with constant_weights=False"
            raise CompileError(f"weight {name!r} is not streamed; streamed are {listed}")
        weight, value = weights[name], np.asarray(array)
        if (value.dtype, value.shape) != (weight.dtype, weight.shape):
            raise CompileError(
                f"weight {name!r}: expected {weight.dtype} of shape {weight.shape}, found "
                f"{value.dtype} of shape {value.shape}"
            )
        self._anchors[name] = value

    def update_weights(self) -> None:
        """Load the weights that were set.

        Requests in flight use the old weights and are waited for.
        """
        old = self._executable
        weights = old.weights | {name: value.copy() for name, value in self._anchors.items()}
        changed = Executable.of(
            old.executable, old.metadata, weights, old.opaque_blobs, old.findings
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


@dataclass
class HostConcatConfig:
    """Configuration of one joint input.

    Args:
        tensor_name: name of the joint input.
        input_tensor_names: names of the original inputs, in order.
        shape: shape of the joint input: number of inputs, elements of each.
        data_size_bytes: size of the joint input in bytes.
        input_shape: shape of each original input; empty means that they are flat (ours).
    """

    tensor_name: str = ""
    input_tensor_names: Sequence[str] = ()
    shape: Sequence[int] = ()
    data_size_bytes: int = 0
    input_shape: Sequence[int] = ()


@dataclass(repr=False)
class HostConcatRunnerConfig(LightRunnerConfig):
    """Configuration of a HostConcatRunner.

    Args:
        host_concat_config: the joint inputs by name. If it is empty, they are read from the PopEF's
            opaque blob, which callers copy there from the converted model's metadata.
    """

    host_concat_config: Mapping[str, HostConcatConfig] = field(default_factory=dict)


class HostConcatRunner(LightRunner):
    """Runner that takes the inputs that the model had before apply_host_concat_split.

    Requests may have any number of rows, as for Runner. A model without joint inputs runs
    unchanged.

    Args:
        popef: the PopEF file, or the executable that `Compiler` returned.
        config: the joint inputs; None means those of the PopEF file.

    Raises:
        ModelRuntimeError: for a configuration that does not fit the model.
    """

    def __init__(
        self, popef: str | PathLike[str] | Executable, config: HostConcatRunnerConfig | None = None
    ) -> None:
        config = config or HostConcatRunnerConfig()
        super().__init__(popef, config)
        configs = config.host_concat_config or _read_blob(self._executable.opaque_blobs)
        inputs = {source.name: source for source in super().get_execute_inputs()}
        for joint in configs.values():
            _check(joint, inputs)
        self._joined = {joint.tensor_name: joint for joint in configs.values()}
        self._parts = {name for joint in self._joined.values() for name in joint.input_tensor_names}

    def execute_async(self, input: Arrays, output: Arrays) -> OutputFutureMemory:
        """Start a request with the original inputs, like `Runner.execute_async`."""
        rest = {name: array for name, array in input.items() if name not in self._parts}
        joined = {name: _join(joint, input) for name, joint in self._joined.items()}
        return super().execute_async({**rest, **joined}, output)

    executeAsync = execute_async

    def execute(self, input: Arrays, output: Arrays) -> None:
        """Execute a request with the original inputs, like `Runner.execute`."""
        self.execute_async(input, output).wait()

    def get_execute_inputs(self) -> list[DataDesc]:
        """Return the original inputs; merged ones are in the place of their joint input."""
        descriptions = []
        for described in super().get_execute_inputs():
            joined = self._joined.get(described.name)
            descriptions += [described] if joined is None else _part(described, joined)
        return descriptions


def _part(described: DataDesc, joined: HostConcatConfig) -> list[DataDesc]:
    """Return the original inputs of a joint input."""
    names = joined.input_tensor_names
    shape = list(joined.input_shape) or described.shape[1:]
    size = described.size_in_bytes // len(names)
    return [DataDesc(name, size, list(shape), described.data_type) for name in names]


def _join(joined: HostConcatConfig, given: Arrays) -> Array:
    names = joined.input_tensor_names
    missing = [name for name in names if name not in given]
    if missing:
        raise ModelRuntimeError(
            f"input {missing[0]!r} is not given, a part of {joined.tensor_name!r}"
        )
    arrays = [np.asarray(given[name]) for name in names]
    first = arrays[0]
    for name, array in zip(names, arrays, strict=True):
        if array.size != first.size or array.dtype != first.dtype:
            raise ModelRuntimeError(
                f"input {name!r}: expected {first.dtype} of {first.size} elements as {names[0]!r}, "
                f"found {array.dtype} of shape {array.shape}"
            )
    joint: Array = np.concatenate([array.ravel() for array in arrays])
    return joint.reshape(len(arrays), -1)


def _check(joined: HostConcatConfig, known: Mapping[str, DataDesc]) -> None:
    described = known.get(joined.tensor_name) if isinstance(joined.tensor_name, str) else None
    if described is None or not described.shape:
        raise ModelRuntimeError(
            f"host_concat_config: the model has no input {joined.tensor_name!r}, only "
            f"{', '.join(known)}; it "
            "belongs to another model, or the model did not go through apply_host_concat_split"
        )
    shape, names = joined.shape, joined.input_tensor_names
    fits = (
        isinstance(shape, Sequence) and isinstance(names, Sequence) and not isinstance(names, str)
    )
    if not fits or list(shape) != described.shape or len(names) != described.shape[0]:
        raise ModelRuntimeError(
            f"host_concat_config of {joined.tensor_name!r}: expected shape {described.shape} and "
            f"the names of as many inputs as it has rows, found {shape} and {names}"
        )
    if not all(isinstance(name, str) for name in names) or not isinstance(
        joined.input_shape, Sequence
    ):
        raise ModelRuntimeError(
            f"host_concat_config of {joined.tensor_name!r}: expected names of inputs and a list "
            f"for their shape, found {names} and {joined.input_shape}"
        )


def _read_blob(blobs: Mapping[str, bytes]) -> dict[str, HostConcatConfig]:
    """Read what apply_host_concat_split has written: JSON, joint inputs by name."""
    blob = blobs.get(sHostConcatRunnerConfig)
    if blob is None:
        return {}
    try:
        return {str(name): HostConcatConfig(**entry) for name, entry in json.loads(blob).items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ModelRuntimeError(
            f"opaque blob {sHostConcatRunnerConfig!r}: expected JSON of HostConcatConfig by input, "
            f"found {bytes(blob[:80])!r}: {error}"
        ) from error
