"""Where a run's inputs come from and its results go to: arrays, or callbacks for each batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from popart.errors import popart_exception
from popef._tools.arrays import Array

_COPY_HINT = (
    "as it is not c-contiguous (a data conversion here could have a significant impact on "
    "performance and hence is not allowed)"
)


class IStepIO:
    """Base of the classes that a run takes."""

    runtime_asserts = True

    def enableRuntimeAsserts(self, enable: bool) -> None:
        """Turn the check of the number of elements on or off."""
        self.runtime_asserts = bool(enable)


class PyStepIO(IStepIO):
    """Arrays of a run: `batchesPerStep` batches of each input, and arrays to write anchors into.

    Only the number of elements counts, not the shape.
    """

    def __init__(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> None:
        """Keep the arrays, which are read and written in place.

        Args:
            inputs: Arrays by id of the input.
            outputs: Arrays by id of the anchor.

        Raises:
            popart_exception: For an array that is not C-contiguous.
        """
        self.inputs = {name: check_contiguous("input", name, a) for name, a in inputs.items()}
        self.outputs = {name: check_contiguous("output", name, a) for name, a in outputs.items()}


class PyStepIOCallback(IStepIO):
    """Callbacks of a run, which are called for each tensor, batch and replica."""

    def __init__(
        self,
        input_callback: Callable[[str, bool], Any],
        input_complete_callback: Callable[[str], Any],
        output_callback: Callable[[str], Any],
        output_complete_callback: Callable[[str], Any],
    ) -> None:
        """Keep the callbacks.

        Args:
            input_callback: Gets an input's id and whether it may decline by returning None;
                returns the array of one batch.
            input_complete_callback: Gets the id once the array was read.
            output_callback: Gets an anchor's id; returns the array to write one batch into.
            output_complete_callback: Gets the id once the array was written.
        """
        self._input, self._input_complete = input_callback, input_complete_callback
        self._output, self._output_complete = output_callback, output_complete_callback

    def read(self, name: str) -> Array:
        """Return the next batch of an input.

        Args:
            name: Id of the input.

        Returns:
            A copy of the callback's array.

        Raises:
            popart_exception: For an array that is not C-contiguous, or None.
        """
        read = self._input(name, True)
        if read is None:
            read = self._input(name, False)
        if read is None:
            raise popart_exception(f"The input callback returned no array for tensor {name}")
        array: Array = check_contiguous("input", name, read).copy()
        self._input_complete(name)
        return array

    def write(self, name: str, value: Array) -> None:
        """Write a batch of an anchor into the callback's array.

        Args:
            name: Id of the anchor.
            value: The batch.

        Raises:
            popart_exception: For an array that is not C-contiguous.
        """
        target = check_contiguous("output", name, self._output(name))
        target.reshape(value.shape)[...] = value
        self._output_complete(name)


class IWeightsIO:
    """Base of the classes that hold weights."""


class PyWeightsIO(IWeightsIO):
    """Arrays by id of the weight, which readWeights writes and writeWeights reads."""

    def __init__(self, weights: Mapping[str, Any]) -> None:
        """Keep the arrays.

        Args:
            weights: Arrays by id of the weight.

        Raises:
            popart_exception: For an array that is not C-contiguous.
        """
        self.weights: dict[str, Array] = {}
        for name, value in weights.items():
            array = np.asarray(value)
            if not array.flags.c_contiguous:
                raise popart_exception(
                    "PyWeightsIO is unable to use the provided numpy output array for tensor "
                    f"'{name}' as it is not c-contiguous. Please use a function like "
                    "`numpy.ascontiguousarray()` to make contiguous before passing to PyWeightsIO"
                )
            self.weights[name] = array


def check_contiguous(kind: str, name: str, value: Any) -> Array:
    """Return an array of the caller's, not copied.

    Args:
        kind: "input" or "output", for the message.
        name: Id of the tensor.
        value: The array, or a number.

    Returns:
        The array.

    Raises:
        popart_exception: For an array that is not C-contiguous.
    """
    array = np.asarray(value)
    if not array.flags.c_contiguous:
        raise popart_exception(
            f"PyStepIO is unable to use the numpy {kind} array for tensor '{name}' {_COPY_HINT}"
        )
    return array
