"""The user's samples: read, checked, and cut into batches of a static model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxgraph import find_inputs
from simipu import CompileError, Stream

from popef._tools.arrays import Array
from poprt.calibration.inputs import iter_given
from poprt.calibration.reading import read_calibration_data
from poprt.calibration.sides import Feeds
from poprt.frontend.streams import make_streams

Data = Mapping[str, Any] | str | Path
"""Samples by input name, along the first axis, or their path: see `read_calibration_data`."""

_NUMBERS = "biuf"


def read_samples(data: Data) -> dict[str, Array]:
    """Return the samples as arrays of finite numbers.

    Raises CompileError for anything else, and OSError for a file that cannot be read.
    """
    if isinstance(data, (str, Path)):
        samples = read_calibration_data(data)
    elif isinstance(data, Mapping):
        samples = {str(name): np.asarray(values) for name, values in data.items()}
    else:
        raise CompileError(
            "data_preprocess: expected a file, or arrays by input name, samples along the first "
            f"axis; found {type(data).__name__}"
        )
    for name, values in samples.items():
        if values.dtype.kind not in _NUMBERS:
            raise CompileError(
                f"data_preprocess, input {name!r}: expected numbers, found {values.dtype}"
            )
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise CompileError(
                f"data_preprocess, input {name!r}: expected finite numbers, found NaN or infinity; "
                "leave such samples out"
            )
    return samples


def iter_batches(model: onnx.ModelProto, samples: Mapping[str, Array]) -> Iterator[Feeds]:
    """Yield the samples in batches of the model's size; the last is filled up from the beginning.

    Raises CompileError for samples that do not fit the inputs.
    """
    streams = find_input_streams(model)
    sizes = {stream.shape[0] if stream.shape else 0 for stream in streams}
    yield from (
        iter_given(streams, samples, sizes.pop() if len(sizes) == 1 else 0) if streams else [{}]
    )


def find_input_streams(model: onnx.ModelProto) -> tuple[Stream, ...]:
    """Return the streams of the inputs.

    Raises CompileError for an input whose shape is not static.
    """
    inputs = find_inputs(model.graph)
    for value in inputs:
        tensor = value.type.tensor_type
        if not tensor.HasField("shape") or any(dim.dim_value < 1 for dim in tensor.shape.dim):
            raise CompileError(
                f"input {value.name!r} has no static shape, so that no data fit it and none can be "
                "made up for it; give it one with input_shape or batch_size"
            )
    return make_streams(model.graph)[: len(inputs)]
