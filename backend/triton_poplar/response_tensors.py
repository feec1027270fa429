"""Response tensors that are used again, with the shared memory that they lie in.

To make and send a tensor, Triton's stub inspects the array, allocates shared memory and copies the
array there. A tensor that was sent stays in shared memory. The next response with as many rows uses
it again, and a request that runs alone is even computed there. This module does not depend on
Triton.

Only responses that `execute` returns may use such tensors. The stub calls `execute` again after the
server has copied the responses of the last call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from popef._tools.arrays import Array
from triton_poplar.model_state import ModelState

if TYPE_CHECKING:  # Triton completes configurations in a process that must not load ONNX Runtime
    from triton_poplar.request import Request

MAX_KEPT_BYTES = 8 << 20
"""Maximum size of the tensors that an instance keeps. Docker's default for the shared memory of all
instances in a container is 64 MiB."""
OVERHEAD_BYTES = 4 << 10
"""Approximate memory of a kept tensor beside its elements."""

MakeTensor = Callable[[str, Array], Any]
"""Function that makes a tensor of Triton of a name and an array."""
FindMemory = Callable[[Any, Array], Array]
"""Function that returns the memory of a tensor of Triton as an array that can be written to. It has
the dtype of the given array, of which the tensor was made."""


@dataclass(slots=True)
class ResponseTensors:
    """The tensors of a response with all outputs, and their memory by output."""

    tensors: list[Any]
    memory: dict[str, Array]
    is_shared: bool = False
    """Whether `memory` is shared memory, because the response was sent."""
    rows: dict[str, Array] | None = None
    """Shared memory by anchor, if it holds an output's rows as the session returns them."""

    def fill(self, outputs: Mapping[str, Array]) -> list[Any]:
        """Return the tensors with the values of `outputs`, which may be their own memory."""
        for name, array in outputs.items():
            memory = self.memory[name]
            if array is not memory:
                memory[...] = array
        return self.tensors


class TensorPool:
    """The response tensors of one instance, for one thread."""

    def __init__(self, state: ModelState, make: MakeTensor, find_memory: FindMemory) -> None:
        self._make, self._find_memory = make, find_memory
        self._anchors = {name: tensor.anchor for name, tensor in state.outputs.items()}
        self._holds_rows = not state.wraps_rows and not any(
            tensor.batch_axis for tensor in state.outputs.values()
        )
        self._kept: dict[int, list[ResponseTensors]] = {}
        """Tensors by the number of rows of their response."""
        self._num_bytes = 0

    def take(self, requests: Sequence[Request]) -> list[ResponseTensors | None]:
        """Return tensors for the responses to the requests of a call, or None for responses that
        have to be made of new ones. Give the requests their memory. Tensors of the calls before it
        are free."""
        taken_tensors: list[ResponseTensors | None] = []
        num_used: dict[int, int] = {}
        for request in requests:
            rows, tensors = request.batch_size, None
            number = num_used.get(rows, 0)
            kept_tensors = self._kept.get(rows, ())
            if request.wants_all and number < len(kept_tensors):
                tensors = kept_tensors[number]
                if not tensors.is_shared and not self._share(tensors):
                    self.clear()
                    return [None] * len(requests)
                num_used[rows] = number + 1
                request.memory = tensors.rows
            taken_tensors.append(tensors)
        return taken_tensors

    def make(self, request: Request, outputs: Mapping[str, Array]) -> list[Any]:
        """Return new tensors for a response. Those of all outputs are kept for the calls after this
        one, unless they are too large."""
        num_bytes = sum(array.nbytes + OVERHEAD_BYTES for array in outputs.values())
        has_room = num_bytes <= MAX_KEPT_BYTES and all(array.size for array in outputs.values())
        is_full = self._num_bytes + num_bytes > MAX_KEPT_BYTES
        # Tensors for other numbers of rows may no longer be needed.
        if not request.wants_all or not has_room or (is_full and request.batch_size in self._kept):
            return list(map(self._make, outputs, outputs.values()))
        if is_full:
            self.clear()
        self._num_bytes += num_bytes
        # A view of joined rows would keep them all.
        outputs = {
            name: array.copy() if isinstance(array.base, np.ndarray) else array
            for name, array in outputs.items()
        }
        tensors = list(map(self._make, outputs, outputs.values()))
        memory = {
            name: self._find_memory(tensor, array)
            for tensor, (name, array) in zip(tensors, outputs.items(), strict=True)
        }
        self._kept.setdefault(request.batch_size, []).append(ResponseTensors(tensors, memory))
        return tensors

    def clear(self) -> None:
        """Release all tensors."""
        self._kept.clear()
        self._num_bytes = 0

    def _share(self, tensors: ResponseTensors) -> bool:
        """Find the shared memory of tensors that were sent. A tensor that was not sent, because its
        response failed, still has its first memory, and Triton would move it later."""
        before = tensors.memory
        tensors.memory = {
            name: self._find_memory(tensor, array)
            for tensor, (name, array) in zip(tensors.tensors, before.items(), strict=True)
        }
        tensors.is_shared = all(
            _address(array) != _address(before[name]) for name, array in tensors.memory.items()
        )
        if self._holds_rows:
            tensors.rows = {self._anchors[name]: array for name, array in tensors.memory.items()}
        return tensors.is_shared


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
