"""HostConcatRunner: concatenates inputs that apply_host_concat_split has merged into joint
inputs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike

import numpy as np
from model_runtime import ModelRuntimeError, OutputFutureMemory

from popef._tools.arrays import Array
from poprt._names import sHostConcatRunnerConfig
from poprt.compile.executable import Executable
from poprt.runtime.config import LightRunnerConfig
from poprt.runtime.descriptions import DataDesc
from poprt.runtime.runners import Arrays, LightRunner


@dataclass
class HostConcatConfig:
    """Configuration of one joint input: its name, its original inputs in order, its shape (inputs,
    elements of each) and size.

    `input_shape`, the shape of each original input, is ours: without it they are described as flat.
    """

    tensor_name: str = ""
    input_tensor_names: Sequence[str] = ()
    shape: Sequence[int] = ()
    data_size_bytes: int = 0
    input_shape: Sequence[int] = ()


@dataclass(repr=False)
class HostConcatRunnerConfig(LightRunnerConfig):
    """Configuration of a HostConcatRunner.

    `host_concat_config` has the joint inputs by name. If it is empty, they are read from the
    PopEF's opaque blob, which callers copy there from the converted model's metadata.
    """

    host_concat_config: Mapping[str, HostConcatConfig] = field(default_factory=dict)


class HostConcatRunner(LightRunner):
    """Runner that takes the inputs that the model had before apply_host_concat_split.

    Requests may have any number of rows, as for Runner. A model without joint inputs runs
    unchanged. Raises ModelRuntimeError for a configuration that does not fit the model.
    """

    def __init__(
        self, popef: str | PathLike[str] | Executable, config: HostConcatRunnerConfig | None = None
    ) -> None:
        config = config or HostConcatRunnerConfig()
        super().__init__(popef, config)
        asked = config.host_concat_config or _read_blob(self._executable.opaque_blobs)
        known = {each.name: each for each in super().get_execute_inputs()}
        for each in asked.values():
            _check(each, known)
        self._joined = {each.tensor_name: each for each in asked.values()}
        self._parts = {name for each in self._joined.values() for name in each.input_tensor_names}

    def execute_async(self, input: Arrays, output: Arrays) -> OutputFutureMemory:
        """Start a request with the original inputs, like `Runner.execute_async`."""
        rest = {name: array for name, array in input.items() if name not in self._parts}
        joined = {name: _join(each, input) for name, each in self._joined.items()}
        return super().execute_async({**rest, **joined}, output)

    executeAsync = execute_async

    def execute(self, input: Arrays, output: Arrays) -> None:
        """Execute a request with the original inputs, like `Runner.execute`."""
        self.execute_async(input, output).wait()

    def get_execute_inputs(self) -> list[DataDesc]:
        """Return the original inputs; merged ones are in the place of their joint input."""
        found = []
        for described in super().get_execute_inputs():
            joined = self._joined.get(described.name)
            found += [described] if joined is None else _part(described, joined)
        return found


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
