"""Descriptions of the tensors that users feed or receive, and completion of requests to a fused
model: each has the inputs of one of its models, and gets the outputs of that model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import popef
from model_runtime.errors import ModelRuntimeError
from popef._tools.arrays import Array


@dataclass(frozen=True, slots=True)
class DataDesc:
    """Description of a tensor of one compiled batch.

    Args:
        name: the anchor's name.
        size_in_bytes: size in bytes.
        shape: the shape, which includes the batch if the model has one.
        data_type: the PopEF element type.
    """

    name: str
    size_in_bytes: int
    shape: tuple[int, ...]
    data_type: popef.DataType

    def numpy_data_type(self) -> np.dtype[Any]:
        """Return the element type as a numpy dtype."""
        return np.dtype(popef.popefTypeToNumpyDType(self.data_type))


def describe_tensors(inputs: Iterable[DataDesc], outputs: Iterable[DataDesc]) -> str:
    """Return names, types and shapes in one line, inputs first."""
    return " -> ".join(
        ", ".join(
            f"{tensor.name} {tensor.numpy_data_type()} {list(tensor.shape)}" for tensor in side
        )
        for side in (inputs, outputs)
    )


class InputDesc(DataDesc):
    """A tensor that every request must provide."""


class OutputDesc(DataDesc):
    """A tensor that every response holds."""


def describe_anchor(metadata: popef.Metadata, anchor: popef.Anchor) -> DataDesc:
    """Return the description of an anchor for one batch of one replica: InputDesc or OutputDesc, by
    its type."""
    kind = InputDesc if anchor.type() == popef.TensorType.INPUT else OutputDesc
    data_type, shape = anchor.tensorInfo().dataType(), popef.replica_shape(metadata, anchor)
    dtype = np.dtype(popef.popefTypeToNumpyDType(data_type))
    return kind(anchor.name(), math.prod(shape) * dtype.itemsize, shape, data_type)


class FusedRequests:
    """Completion of requests to the fused model of `metadata`; `models` lists the anchors of each
    member model."""

    def __init__(self, metadata: popef.Metadata, models: Sequence[popef.FusedModel]) -> None:
        self.models = tuple(models)
        anchors = popef.user_anchors(metadata, popef.TensorType.INPUT)
        self._owners = {
            name: number for number, model in enumerate(models) for name in model.inputs
        }
        self._shapes = {anchor.name(): popef.replica_shape(metadata, anchor) for anchor in anchors}
        types = {
            anchor.name(): np.dtype(popef.popefTypeToNumpyDType(anchor.tensorInfo().dataType()))
            for anchor in anchors
        }
        self._index_type = types[popef.INDEX]
        # Arrays of one element in memory, for tensors of any size: the run ignores the other
        # models' inputs.
        self._zeros = {
            name: np.broadcast_to(np.zeros((), types[name]), self._shapes[name])
            for name in self._owners
        }

    @staticmethod
    def of(metadata: popef.Metadata) -> FusedRequests | None:
        """Make the completion for a model; return None for a file that holds a single model."""
        models = popef.fused_models(metadata)
        return FusedRequests(metadata, models) if models else None

    def complete(self, given: Mapping[str, Array]) -> tuple[int, dict[str, Array]]:
        """Return the number of the model that a request is for, and the completed inputs.

        A missing `index` is derived from the inputs that are given. The inputs of other models
        become zeros.

        Args:
            given: the inputs of the request, by anchor.

        Returns:
            The number of the model, and all inputs of the fused model.

        Raises:
            ModelRuntimeError: for inputs of no model, for inputs of several models without `index`,
                and if an input of the model is missing.
        """
        unknown = next((name for name in given if name not in self._shapes), None)
        if unknown is not None:
            raise ModelRuntimeError(
                f"input {unknown!r} is not known; the model's inputs are {', '.join(self._shapes)}"
            )
        number = self._find_number(given)
        missing = [name for name in self.models[number].inputs if name not in given]
        if missing:
            raise ModelRuntimeError(
                f"input {missing[0]!r} is not given; the inputs of model {number} of the fused "
                f"model are {', '.join(self.models[number].inputs)}"
            )
        index = np.full(self._shapes[popef.INDEX], number, self._index_type)
        return number, {**self._zeros, **given, popef.INDEX: index}

    def _find_number(self, given: Mapping[str, Array]) -> int:
        if popef.INDEX in given:
            value = np.asarray(given[popef.INDEX])
            if value.size != 1 or value.dtype.kind not in "iu":
                raise ModelRuntimeError(
                    f"input {popef.INDEX!r}: expected one whole number, found {value.dtype.name} "
                    f"of shape {value.shape}"
                )
            number = int(value.ravel()[0])
            if not 0 <= number < len(self.models):
                raise ModelRuntimeError(
                    f"input {popef.INDEX!r}: expected the number of a model, 0 to "
                    f"{len(self.models) - 1}, found {number}"
                )
            return number
        numbers = sorted({self._owners[name] for name in given})
        if len(numbers) != 1:
            found = " and ".join(map(str, numbers)) or "none"
            raise ModelRuntimeError(
                f"expected the inputs of one of the {len(self.models)} fused models, found those "
                f"of model {found}; send the inputs of one model, or its number as {popef.INDEX!r}"
            )
        return numbers[0]
