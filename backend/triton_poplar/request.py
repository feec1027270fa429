"""Request: what a client sent, checked against the model, and the answer it gets. Nothing of Triton in here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy.typing as npt
from model_runtime import TensorMemory

from triton_poplar.errors import RequestError
from triton_poplar.model_state import ModelState

Array = npt.NDArray[Any]


class Request:
    """One request on its way: checked inputs by anchor, memory for the outputs asked for, or the error to answer.

    `inputs` maps friendly names to arrays, batch first where the model has one. `requested` are the outputs asked for;
    none means all.
    """

    __slots__ = ("_places", "_state", "batch_size", "error", "inputs", "memories")

    def __init__(self, state: ModelState, inputs: Mapping[str, Array], requested: Collection[str]) -> None:
        self._state = state
        self.error: RequestError | None = None
        self.batch_size = 0
        self.inputs: dict[str, Array] = {}
        self._places: dict[str, TensorMemory] = {}
        self.memories: dict[str, TensorMemory | None] = {}
        try:
            self._parse(inputs, requested)
        except RequestError as error:
            self.error = error

    def fail(self, error: RequestError) -> None:
        """Answer with `error`, unless an error was decided before."""
        self.error = self.error or error

    def renew(self) -> None:
        """Forget what was computed so far, so that the request can run again."""
        for memory in self._places.values():
            memory.array = None

    def outputs(self) -> dict[str, Array]:
        """The answer by friendly name. RequestError if the request failed or its rows were never computed."""
        if self.error is not None:
            raise self.error
        answer = {}
        for name, memory in self._places.items():
            if memory.array is None:
                raise RequestError(f"output {name!r} was not computed", "INTERNAL")
            wrapped = self._state.wraps_rows and self._state.outputs[name].shape
            answer[name] = memory.array[0] if wrapped else memory.array
        return answer

    def _parse(self, inputs: Mapping[str, Array], requested: Collection[str]) -> None:
        state = self._state
        if inputs.keys() != state.inputs.keys():
            missing = sorted(state.inputs.keys() - inputs.keys())
            extra = sorted(inputs.keys() - state.inputs.keys())
            what = f"lacks input {missing[0]!r}" if missing else f"has unknown input {extra[0]!r}"
            raise RequestError(f"the request {what}; model {state.name!r} takes {', '.join(state.inputs)}")
        for name, tensor in state.inputs.items():
            # Without a batch the whole tensor is one row; a scalar comes as one element, which is a row already.
            array = inputs[name][None] if state.wraps_rows and tensor.shape else inputs[name]
            if array.dtype != tensor.dtype or array.shape[1:] != tensor.shape or not array.ndim:
                raise RequestError(
                    f"input {name!r}: expected {tensor.dtype.name} of shape {['batch', *tensor.shape]}, found "
                    f"{array.dtype.name} of shape {list(array.shape)}"
                )
            rows = len(array)
            if self.batch_size not in (0, rows) or not rows:
                raise RequestError(f"input {name!r} has batch size {rows}, expected {self.batch_size or 'at least 1'}")
            self.batch_size = rows
            self.inputs[tensor.anchor] = array
        self._place_outputs(requested)

    def _place_outputs(self, requested: Collection[str]) -> None:
        known = self._state.outputs
        for name in requested:
            if name not in known:
                raise RequestError(f"output {name!r} is not known; model {self._state.name!r} gives {', '.join(known)}")
        for name, tensor in known.items():
            if not requested or name in requested:
                self._places[name] = self.memories[tensor.anchor] = TensorMemory()
            else:
                self.memories[tensor.anchor] = None
