"""Requests: what a client sent, checked against the model, and its answer. This module does not
depend on Triton."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from model_runtime import ModelRuntimeError, StoppedError
from simipu import DeviceLostError, RunTimeoutError

from popef._tools.arrays import Array
from triton_poplar.errors import RequestError
from triton_poplar.model_state import ModelState
from triton_poplar.tensors import Tensor


class Request:
    """One request: checked inputs by anchor, memory for the requested outputs, or the error to
    answer.

    `inputs` maps friendly names to arrays, batch first if the model has one. `requested` are the
    requested outputs; none means all. `reply` belongs to the caller, who identifies the request by
    it when its answer is ready. `timeout_us` is how long the client lets it wait; 0 means no
    timeout of its own.
    """

    __slots__ = (
        "_outputs",
        "_state",
        "_wanted",
        "arrived_ns",
        "batch_size",
        "error",
        "error_kind",
        "expires_ns",
        "inputs",
        "is_partial",
        "memory",
        "reply",
        "started_ns",
        "wants_all",
    )

    def __init__(
        self,
        state: ModelState,
        inputs: Mapping[str, Array],
        requested: Collection[str],
        reply: Any = None,
        timeout_us: int = 0,
    ) -> None:
        self._state = state
        self.arrived_ns = time.perf_counter_ns()
        self.expires_ns = self.arrived_ns + (
            state.queue_policy.find_timeout_ns(timeout_us) if timeout_us else state.max_wait_ns
        )
        self.reply = reply
        self.error: RequestError | None = None
        self.error_kind = ""
        self.batch_size = 0 if state.inputs else 1
        self.inputs: dict[str, Array] = {}
        self.memory: Mapping[str, Array] | None = None
        """Memory for the outputs by anchor, which may be used."""
        self._wanted: Collection[str] = requested or state.outputs
        self.wants_all = not requested or set(state.outputs) <= {*requested}
        """Whether all outputs of the model are requested."""
        self.is_partial = not self.wants_all
        """Whether a request for all outputs would get more."""
        self._outputs: Mapping[str, Array] = {}
        self.started_ns = 0
        try:
            self._parse(inputs, requested)
        except RequestError as error:
            self.fail(error, "bad_request")

    def fail(self, error: RequestError, kind: str) -> None:
        """Answer with `error`, unless the request already has one. `kind` is the error kind in the
        metrics."""
        # Tracebacks refer to frames, and those to the request: its memory, and that of the reply,
        # would wait for the garbage collector. Triton's stub ends with a segmentation fault if an
        # InferenceRequest is still there then.
        error.__traceback__ = error.__context__ = error.__cause__ = None
        if self.error is None:
            self.error, self.error_kind = error, kind

    def expire(self) -> bool:
        """Answer with an error if it has waited too long; return whether it has an error."""
        if self.error is None and time.perf_counter_ns() > self.expires_ns:
            seconds = (self.expires_ns - self.arrived_ns) / 1e9
            text = (
                f"model {self._state.name!r}: the request waited longer than its timeout of "
                f"{seconds:g} s; try again, or use a longer timeout"
            )
            self.fail(RequestError(text, "UNAVAILABLE"), "expired")
        return self.error is not None

    def start_compute_timer(self) -> None:
        """Record that the first row is read. It is called again when the request must be run again,
        but the first time counts."""
        if not self.started_ns:
            self.started_ns = time.perf_counter_ns()

    def fail_run(self, error: Exception) -> None:
        """Answer with the error of a run."""
        code, kind = _classify(error)
        text = f"model {self._state.name!r} could not compute the request: {error}"
        self.fail(RequestError(text, code), kind)

    def wants(self, output: str) -> bool:
        """Return whether an output, given by its friendly name, is requested.

        A request to a fused model gets outputs only of the model that the request is for.
        """
        return output in self._wanted

    def finish(self, outputs: Mapping[str, Array]) -> None:
        """Answer with these rows, by anchor. They include at least the requested outputs."""
        self._outputs = outputs

    def outputs(self) -> dict[str, Array]:
        """Return the answer by friendly name. Raises RequestError if the request failed or its rows
        were never computed."""
        if self.error is not None:
            raise RequestError(str(self.error), self.error.code)
        answer = {}
        state = self._state
        for name, tensor in state.outputs.items():
            if name in self._wanted:
                array = self._outputs.get(tensor.anchor)
                if array is None:
                    raise RequestError(f"output {name!r} was not computed", "INTERNAL")
                if state.wraps_rows or tensor.batch_axis:
                    array = _from_rows(array, tensor, state)
                answer[name] = array
        return answer

    def _parse(self, inputs: Mapping[str, Array], requested: Collection[str]) -> None:
        state = self._state
        model_outputs: Collection[str] | None = None
        if state.models and inputs.keys() <= state.inputs.keys():
            inputs, model_outputs = self._complete_inputs(inputs)
        expected, checked, batch_size = state.inputs, self.inputs, self.batch_size
        if len(inputs) != len(expected) or inputs.keys() != expected.keys():
            raise _refuse_names(inputs, state)
        for name, tensor in expected.items():
            array = inputs[name]
            if state.wraps_rows or tensor.batch_axis:
                array = _to_rows(array, tensor, state)
            shape, dtype = array.shape, array.dtype
            is_other = dtype is not tensor.dtype and dtype != tensor.dtype
            if is_other or shape[1:] != tensor.shape or not shape:
                raise RequestError(
                    f"input {name!r}: expected {tensor.dtype.name} of shape "
                    f"{['batch', *tensor.shape]}, found {dtype.name} of shape {list(shape)}"
                )
            rows = shape[0]
            if batch_size not in (0, rows) or not rows:
                raise RequestError(
                    f"input {name!r} has batch size {rows}, expected {batch_size or 'at least 1'}"
                )
            batch_size = rows
            checked[tensor.anchor] = array
        self.batch_size = batch_size
        for name in requested:
            if name not in state.outputs:
                raise RequestError(
                    f"output {name!r} is not known; model {state.name!r} has "
                    f"{', '.join(state.outputs)}"
                )
        if model_outputs is not None:
            self._want_of(model_outputs)

    def _want_of(self, outputs: Collection[str]) -> None:
        """Drop the outputs of other models than the one that has `outputs`."""
        self._wanted = [name for name in outputs if name in self._wanted]
        self.wants_all = False
        self.is_partial = len(self._wanted) < len(outputs)
        if not self._wanted:
            raise RequestError(
                "the request contains inputs of one model and asks for outputs of another; "
                f"available outputs are {', '.join(outputs)}"
            )

    def _complete_inputs(
        self, inputs: Mapping[str, Array]
    ) -> tuple[dict[str, Array], Collection[str]]:
        """Return all inputs of a fused model, given the inputs of one of its models, and the
        outputs of that model."""
        state = self._state
        fused = state.fused_requests
        assert fused is not None
        try:
            number, complete = fused.complete(
                {state.inputs[name].anchor: a for name, a in inputs.items()}
            )
        except ModelRuntimeError as error:
            raise RequestError(f"model {state.name!r}: {error}") from error
        outputs_of_model = state.models[number].outputs
        outputs = [
            name for name, tensor in state.outputs.items() if tensor.anchor in outputs_of_model
        ]
        completed = {
            name: complete[tensor.anchor] if tensor.shape else complete[tensor.anchor].reshape(1)
            for name, tensor in state.inputs.items()
        }
        return completed, outputs


def _refuse_names(inputs: Mapping[str, Array], state: ModelState) -> RequestError:
    """Return the error of a request with other inputs than the model's."""
    missing = sorted(state.inputs.keys() - inputs.keys())
    extra = sorted(inputs.keys() - state.inputs.keys())
    what = f"has no input {missing[0]!r}" if missing else f"has unknown input {extra[0]!r}"
    return RequestError(
        f"the request {what}; model {state.name!r} expects {', '.join(state.inputs)}"
    )


def _to_rows(array: Array, tensor: Tensor, state: ModelState) -> Array:
    """Return an input as rows stacked along the leading axis, without a copy."""
    if state.wraps_rows:
        # Without a batch the whole tensor is one row. A scalar is sent as one element: a row.
        return array[None] if tensor.shape else array
    moved = tensor.batch_axis and state.holds_batch and array.ndim == 1 + len(tensor.shape)
    return np.moveaxis(array, tensor.batch_axis, 0) if moved else array


def _from_rows(array: Array, tensor: Tensor, state: ModelState) -> Array:
    """Return an output in the client's layout, made from its rows. It is copied only if rows do not
    lie along the leading axis."""
    if state.wraps_rows:
        return array[0] if tensor.shape else array
    if tensor.batch_axis and state.holds_batch:
        return np.ascontiguousarray(np.moveaxis(array, 0, tensor.batch_axis))
    return array


class CancelledError(Exception):
    """The client cancelled the request before it was run."""


def _classify(error: Exception) -> tuple[str, str]:
    """Return the Triton error code and the metrics' error kind for the error of a run."""
    if isinstance(error, RunTimeoutError):
        return "UNAVAILABLE", "timeout"
    if isinstance(error, DeviceLostError):
        return "UNAVAILABLE", "device_lost"
    if isinstance(error, CancelledError):
        return "CANCELLED", "cancelled"
    if isinstance(error, StoppedError):
        return "UNAVAILABLE", "stopped"
    return "INTERNAL", "run"
