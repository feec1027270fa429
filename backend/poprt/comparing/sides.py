"""A model that is ready to be computed in the calibration run: in half as it will be served, or in
float for comparison."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import helper
from onnxgraph import drop_unread_nodes, find_inputs, infer_shapes, replace_outputs
from simipu import (
    DeviceLostError,
    GraphOptions,
    LoadError,
    Lowered,
    RunError,
    count_all_operations,
    lower_model,
    open_lowered,
)
from simipu.kernels import find_kernels
from simipu.numerics import KernelUse, Numerics, find_unsafe_optimisers

from popef._tools.arrays import Array
from poprt.rewrite.weights import MIN_CONSTANT_BYTES, extract_weights

Feeds = Mapping[str, Array]
FAILURES = (LoadError, RunError, DeviceLostError, ValueError)
"""Exceptions that a side raises if it cannot be computed."""

ENOUGH_OPERATIONS = 6 * 10**10
"""Multiply-adds of the batches that are compared, if they are more than one: 2 s on two cores.
Their number does not depend on how busy a machine is, so the figures do not, either."""
ENOUGH_SECONDS = 5.0
"""Time in seconds that the batches after the first may take on slow machines: one that would end
later is not begun."""
MIN_LIMIT_SECONDS, MAX_LIMIT_SECONDS = 120.0, 3600.0
"""Bounds of the time limit of one batch, in seconds."""
_MIN_OPERATIONS_PER_CORE_SECOND = 5 * 10**8
"""Multiply-adds per second and core in the slowest case. A product of 512 by 1024 by 1024 with sums
in half does 0.6e9 without kernels and 1.6e9 with the portable kernels, on a core that other
processes share."""
READY_SECONDS = 90.0
"""Maximum time in seconds until a compiled model is ready: what a server allows by default."""


@dataclass(frozen=True, slots=True)
class Side:
    """A static model, the values of its initializers without data, and its rounding.

    If `numerics` is None, nothing is rounded.
    """

    model: onnx.ModelProto
    weights: Mapping[str, Array]
    numerics: Numerics | None
    _lowered: dict[KernelUse, tuple[onnx.ModelProto, dict[str, Array], float]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """The lowered model, its weights and the time limit of one batch in seconds: to find them takes
    as long as a short run."""

    @classmethod
    def of(cls, model: onnx.ModelProto, numerics: Numerics | None) -> Side:
        """Return the side of a model, whose large weights are not copied."""
        return cls(*extract_weights(model, MIN_CONSTANT_BYTES), numerics)

    def count_batches(self) -> int:
        """Return the maximum number of batches to compare, at least 1."""
        return max(1, ENOUGH_OPERATIONS // max(1, count_all_operations(infer_shapes(self.model))))

    def answer(self, feeds: Feeds, names: Sequence[str] | None = None) -> dict[str, Array]:
        """Return the values of `names` (default: the outputs) for one batch. Raises LoadError and
        RunError."""
        names = [value.name for value in self.model.graph.output] if names is None else names
        (values,) = self.run([feeds], names)
        return dict(zip(names, values, strict=True))

    def run(
        self,
        batches: Iterable[Feeds],
        names: Sequence[str] | None = None,
        *,
        change: Callable[[onnx.GraphProto], None] = lambda _graph: None,
        enough_seconds: float = ENOUGH_SECONDS,
    ) -> Iterator[list[Array]]:
        """Yield the values of `names` (default: the outputs) for each batch; after the first,
        those that end within `enough_seconds` if each takes as long as the one before.

        `change` may add outputs to the lowered graph. Raises LoadError and RunError.
        """
        output_names: list[str] = []
        # All tensors must be available to callers, and are read before they are rounded.
        kernels = KernelUse.APART if find_kernels().are_there else KernelUse.NONE

        def make(kernels: KernelUse) -> Lowered:
            original, values, _ = self._lower(kernels)
            lowered = onnx.ModelProto()
            lowered.CopyFrom(original)
            change(lowered.graph)
            outputs = {value.name: value for value in lowered.graph.output}
            output_names[:] = outputs if names is None else names
            # A run for a few tensors of a large graph computes only what they need.
            replace_outputs(
                lowered.graph,
                [
                    outputs.get(name) or helper.make_empty_tensor_value_info(name)
                    for name in output_names
                ],
            )
            drop_unread_nodes(lowered.graph)
            left_out = find_unsafe_optimisers(lowered, values)
            return Lowered(lowered.SerializeToString(), values, left_out=left_out)

        *_, limit_seconds = self._lower(kernels)
        options = GraphOptions(
            prepack=False,
            limit_seconds=limit_seconds,
            ready_seconds=READY_SECONDS,
            in_order=True,
            # The side in float is the reference, so it is not optimised.
            optimise=self.numerics is not None,
        )
        with closing(open_lowered(make, options, "of the calibration run", kernels)) as graph:
            start = last = time.monotonic()
            for feeds in batches:
                yield graph.run(output_names, self.cast(feeds))
                now = time.monotonic()
                if now - start + (now - last) > enough_seconds:
                    return
                last = now

    def _lower(self, kernels: KernelUse) -> tuple[onnx.ModelProto, dict[str, Array], float]:
        if kernels not in self._lowered:
            self._lowered[kernels] = (
                *lower_model(self.model, self.weights, self.numerics, kernels=kernels),
                self._limit_seconds(),
            )
        return self._lowered[kernels]

    def _limit_seconds(self) -> float:
        """Return the time limit of one batch, which grows with the work of the model."""
        seconds = count_all_operations(infer_shapes(self.model)) / _MIN_OPERATIONS_PER_CORE_SECOND
        return min(MAX_LIMIT_SECONDS, MIN_LIMIT_SECONDS + seconds / (os.cpu_count() or 1))

    def cast(self, feeds: Feeds) -> dict[str, Array]:
        """Return the inputs in the types of the model."""
        types = {
            value.name: value.type.tensor_type.elem_type for value in find_inputs(self.model.graph)
        }
        with np.errstate(over="ignore"):
            return {
                name: np.asarray(feeds[name]).astype(helper.tensor_dtype_to_np_dtype(kind))
                for name, kind in types.items()
            }


Renarrow = Callable[[frozenset[str]], Side]
"""Function that makes the half side again, with operators of those types kept in float."""
