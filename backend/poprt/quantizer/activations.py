"""Computes a model on the user's samples and yields the inputs of its products, batch by batch.

Nothing is stored here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import onnx
from onnxgraph import find_inputs, graph_values, infer_shapes
from simipu import CompileError, LoadError, RunError
from simipu.errors import DeviceLostError, LoadTimeoutError

from popef._tools.arrays import Array
from poprt.calibration.divergence import iter_chunks
from poprt.calibration.samples import iter_batches
from poprt.calibration.sides import Side
from poprt.rewrite.weights import MIN_CONSTANT_BYTES, extract_weights

_FAILURES = (LoadError, RunError, DeviceLostError, LoadTimeoutError, ValueError)


def iter_activations(
    model: onnx.ModelProto, samples: Mapping[str, Array], names: Iterable[str]
) -> Iterator[tuple[str, Array]]:
    """Yield the named tensors of the main graph for all samples, as the model computes them in
    float.

    The tensors are computed in groups that fit into memory together, each batch by batch. Raises
    CompileError for a model that cannot be computed on the samples.
    """
    light, weights = extract_weights(model, MIN_CONSTANT_BYTES)
    inputs = {value.name for value in find_inputs(light.graph)}
    wanted = list(dict.fromkeys(names))
    given = [name for name in wanted if name in inputs]
    for feeds in iter_batches(light, samples) if given else ():
        yield from ((name, np.asarray(feeds[name])) for name in given)
    values = graph_values(infer_shapes(light).graph)
    made = [name for name in wanted if name not in inputs]
    side = Side(light, weights, None)
    try:
        for chunk in iter_chunks(made, values):
            for found in side.run(iter_batches(light, samples), chunk, enough_seconds=math.inf):
                yield from zip(chunk, found, strict=True)
    except _FAILURES as error:
        raise CompileError(f"the model cannot be computed on data_preprocess: {error}") from error
