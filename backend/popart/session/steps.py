"""A step: the batches of all replicas, from the caller's arrays into the caller's arrays."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final, NoReturn

import numpy as np
from simipu import Stream

from popart.dataflow import AnchorReturnType, DataFlow
from popart.enums import AnchorReturnTypeId, SyntheticDataMode
from popart.errors import popart_exception, popart_runtime_error
from popart.lowering import LoweredModel
from popart.session.program import DeviceProgram
from popart.session.replication import JointProgram
from popart.session.runner import Output, run_step
from popart.stepio import IStepIO, PyStepIO, PyStepIOCallback
from popart.tensorinfo import TensorInfo, from_numpy_type, to_numpy_type
from popef._tools.arrays import Array

_log = logging.getLogger("popart.devicex")
_CONVERTED: Final = {(np.dtype(np.int64), np.dtype(np.int32))}
"""Types of arrays that are converted to another type of input."""


@dataclass(frozen=True, slots=True)
class _Input:
    """An input stream, and how the caller gives it."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """Type on the device."""
    host_dtype: np.dtype[Any]
    """Type that the caller gives."""
    copies: int
    """Number of values of a batch: one for each replica, or one for all."""
    num_elements: int
    """Number of elements that the caller gives for a step."""


@dataclass(frozen=True, slots=True)
class _Anchor:
    """An output stream, and the iterations that are returned."""

    name: str
    kind: AnchorReturnType
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    """Type of the caller's arrays."""
    rows: int
    """Number of iterations that are returned."""
    num_elements: int
    """Number of elements of the caller's array."""


@dataclass(slots=True)
class Step:
    """Inputs and anchors of a session's steps, and the program that runs them."""

    program: DeviceProgram | JointProgram
    flow: DataFlow
    batches: int
    replicas: int
    lowered: LoweredModel
    broadcast: frozenset[str]
    """Inputs that are given once for all replicas."""
    model_inputs: Sequence[str]
    """Inputs of the model, read or not, and its weights."""
    _inputs: list[_Input] = field(init=False)
    _anchors: list[_Anchor] = field(init=False)
    _is_checked: bool = field(init=False, default=False)
    _warned: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._inputs = [self._describe_input(stream) for stream in self.program.inputs]
        self._anchors = [self._describe_anchor(stream) for stream in self.program.outputs]

    def _describe_input(self, stream: Stream) -> _Input:
        copies = 1 if stream.tensor in self.broadcast else self.replicas
        host_dtype = _host_dtype(self.lowered.tensors[stream.tensor])
        count = self.batches * copies * prod(stream.shape)
        return _Input(stream.tensor, stream.shape, stream.dtype, host_dtype, copies, count)

    def _describe_anchor(self, stream: Stream) -> _Anchor:
        kind = self.flow.art(stream.tensor)
        rows = kind.count(self.batches) or 1
        return _Anchor(
            stream.tensor,
            kind,
            stream.shape,
            _host_dtype(self.lowered.tensors[stream.tensor]),
            rows,
            rows * self.replicas * prod(stream.shape),
        )

    def run(self, stepio: IStepIO) -> None:
        """Run the step.

        Args:
            stepio: Arrays or callbacks.

        Raises:
            TypeError: If it is neither.
        """
        if isinstance(stepio, PyStepIO):
            self._run_arrays(stepio)
        elif isinstance(stepio, PyStepIOCallback):
            self._run_callbacks(stepio)
        else:
            raise TypeError(f"expected PyStepIO or PyStepIOCallback, found {type(stepio)}")

    def run_synthetic(self, mode: SyntheticDataMode, seed: int) -> None:
        """Run the step's batches once on generated inputs, without results."""
        draw = np.random.default_rng(seed)
        values = [_generate(source, mode, draw) for source in self._inputs]
        self.program.run_replicas([values] * self.replicas)

    def _run_arrays(self, stepio: PyStepIO) -> None:
        if not self._is_checked and stepio.runtime_asserts:
            self._check_names(stepio)
        feeds = [self._view_input(source, stepio) for source in self._inputs]
        outputs = [
            Output(anchor.kind, self.batches, self.replicas, self._view_anchor(anchor, stepio))
            for anchor in self._anchors
        ]
        self._is_checked = True

        def read(iteration: int, replica: int) -> list[Array]:
            # A broadcast input has one value for all replicas.
            return [feed[iteration, min(replica, feed.shape[1] - 1)] for feed in feeds]

        def write(iteration: int, replica: int, results: Sequence[Array]) -> None:
            for output, result in zip(outputs, results, strict=True):
                output.add(result, iteration, replica)

        run_step(self.program, self.batches, self.replicas, read, write)

    def _run_callbacks(self, stepio: PyStepIOCallback) -> None:
        shared: dict[str, Array] = {}
        sums = {
            anchor.name: Output(anchor.kind, self.batches, self.replicas)
            for anchor in self._anchors
            if anchor.kind.id() is AnchorReturnTypeId.Sum
        }

        def read(_iteration: int, replica: int) -> list[Array]:
            if not replica:
                shared.clear()
            return [self._pull(source, stepio, shared) for source in self._inputs]

        def write(iteration: int, replica: int, results: Sequence[Array]) -> None:
            for anchor, result in zip(self._anchors, results, strict=True):
                is_due = anchor.kind.find_row(iteration, self.batches) is not None
                total, value = sums.get(anchor.name), result
                if total is not None:
                    total.add(result, iteration, replica)
                    is_due = iteration + 1 == self.batches
                    assert total.values is not None  # a value was added
                    value = total.values[0, replica]
                if is_due:
                    stepio.write(anchor.name, value.astype(anchor.dtype, copy=False))

        run_step(self.program, self.batches, self.replicas, read, write)

    def _pull(self, source: _Input, stepio: PyStepIOCallback, shared: dict[str, Array]) -> Array:
        """Return a batch of an input from its callback, which is called once for all replicas if
        the input is broadcast."""
        if source.name in shared:
            return shared[source.name]
        value = self._convert(source, stepio.read(source.name))
        if value.size != prod(source.shape):
            self._refuse_size("input", source.name, value.size, prod(source.shape))
        value = value.reshape(source.shape)
        if source.name in self.broadcast:
            shared[source.name] = value
        return value

    def _view_input(self, source: _Input, stepio: PyStepIO) -> Array:
        """Return an input as (batches, copies, *shape), not copied unless its type differs."""
        array = stepio.inputs.get(source.name)
        if array is None:
            raise popart_exception(f"No tensor {source.name} provided in PyStepIO's inputs")
        value = self._convert(source, array)
        if value.size != source.num_elements:
            if stepio.runtime_asserts or value.size < source.num_elements:
                self._refuse_size("input", source.name, value.size, source.num_elements)
            value = value.reshape(-1)[: source.num_elements]
        return value.reshape(self.batches, source.copies, *source.shape)

    def _convert(self, source: _Input, given: Array) -> Array:
        """Return an array in the type of the device; raises popart_runtime_error for a type that
        is not the input's."""
        if given.dtype != source.host_dtype:
            if (given.dtype, source.host_dtype) not in _CONVERTED:
                _check_type(source, given)
            elif not self._warned:
                self._warned = True
                _log.warning(
                    "Copying (host) tensor %s from INT64 to INT32. Will only warn once", source.name
                )
        return given if given.dtype == source.dtype else given.astype(source.dtype)

    def _view_anchor(self, anchor: _Anchor, stepio: PyStepIO) -> Array:
        """Return an anchor's array as (rows, replicas, *shape), not copied."""
        target = stepio.outputs.get(anchor.name)
        if target is None:
            raise popart_exception(f"No tensor {anchor.name} provided in PyStepIO's outputs")
        if target.size != anchor.num_elements:
            self._refuse_size("output", anchor.name, target.size, anchor.num_elements, anchor.kind)
        if target.itemsize != anchor.dtype.itemsize:
            raise popart_runtime_error(
                f"Type discrepancy for tensor {anchor.name}. User provided : "
                f"{from_numpy_type(target.dtype).name} and expected : "
                f"{from_numpy_type(anchor.dtype).name}. "
                "Use session.initAnchorArrays()"
            )
        return target.reshape(anchor.rows, self.replicas, *anchor.shape)

    def _check_names(self, stepio: PyStepIO) -> None:
        """Check that each array belongs to a tensor of the model."""
        names = {source.name for source in self._inputs}
        for name in sorted(stepio.inputs.keys() - names):
            if name in self.model_inputs:
                _log.warning(
                    "The input Tensor %s to the ONNX Model does not appear in the optimized "
                    "PopART Ir, possibly due to constant folding. Therefore, the input buffer "
                    "provided will not be used. ",
                    name,
                )
            elif name in self.lowered.tensors:
                raise popart_runtime_error(
                    f"The tensor '{name}' has been provided as one of the inputs to the stepIO, "
                    "but it is not registered as one of the inputs to the model. Please check "
                    "this tensor and your stepIO."
                )
            else:
                raise popart_runtime_error(_missing("input", name))
        for name in sorted(stepio.outputs):
            if name not in self.lowered.tensors:
                raise popart_runtime_error(_missing("output", name))
            self.flow.art(name)

    def _refuse_size(
        self,
        what: str,
        name: str,
        found: int,
        expected: int,
        kind: AnchorReturnType | None = None,
    ) -> NoReturn:
        text = (
            f"Unexpected number of {what} elements for Tensor {name}. Expected {expected}, but "
            f"received {found}.\nTo disable this check at your own risk, use "
            "IStepIO::enableRuntimeAsserts.\nThis with, "
            f"\n   replication  factor = {self.replicas}"
            "\n   accumulation factor = 1"
            f"\n   batches per step    = {self.batches}"
            f"\n   Tensor nelms        = {self.lowered.tensors[name].nelms()}"
        )
        if kind is not None:
            text += f"\nThe anchor return type is  {kind.id().name}"
            if kind.id() is AnchorReturnTypeId.EveryN:
                text += f"\nThe return period is {kind.rp()}"
        raise popart_runtime_error(text)


def _missing(kind: str, name: str) -> str:
    where = (
        "the Ir's main Graph, and it does not exist in the original ONNX Model."
        if kind == "input"
        else "the Ir's tensors. "
    )
    return (
        f"Testing that the buffer provided by user for {kind} Tensor {name} has the correct number "
        f"of elements, But there is no Tensor named {name} in {where}"
    )


def _check_type(source: _Input, given: Array) -> None:
    if given.dtype == np.float64:
        raise popart_exception("No numpy type float64 registered in map to DataType")
    raise popart_runtime_error(
        f"Type discrepancy for tensor {source.name}. User provided : "
        f"{from_numpy_type(given.dtype).name} and expected : "
        f"{from_numpy_type(source.host_dtype).name}. Consider a custom copy here (as memcpy cannot "
        "be used)"
    )


def _host_dtype(info: TensorInfo) -> np.dtype[Any]:
    """Return the type of the caller's arrays; those of 8-bit floats hold the codes."""
    if info.data_type().startswith("FLOAT8"):
        return np.dtype(np.uint8)
    return to_numpy_type(info.dataType())


def _generate(source: _Input, mode: SyntheticDataMode, draw: np.random.Generator) -> Array:
    if mode is SyntheticDataMode.Zeros or source.dtype.kind != "f":
        return np.zeros(source.shape, source.dtype)
    if mode is SyntheticDataMode.RandomNormal:
        return draw.standard_normal(source.shape).astype(source.dtype)
    return draw.random(source.shape).astype(source.dtype)
