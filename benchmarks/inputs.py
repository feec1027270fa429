"""The requests that the models of a comparison get: the same rows for each, in its own types and
names."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig
from tritonclient.utils import triton_to_np_dtype

Array = npt.NDArray[Any]
Row = tuple[Array, ...]
"""One row for each input of a model, in the order of its configuration."""

INTEGER_RANGES = {
    "content": (0, 257),
    "input_ids": (1000, 30522),
    "attention_mask": (1, 2),
    "token_type_ids": (0, 2),
}
"""Ranges of integer inputs: bytes and "no byte", word pieces, sentences that fill the row, two of
them."""
OTHER_INTEGERS = (0, 100)
TOLERANCE = 0.02
"""Tolerance relative to max(1, largest value): larger differences mean answers to different
questions.

The tests check the precision.
"""


def make_rows(config: ModelConfig, num_rows: int) -> list[Row]:
    """Return random rows, the same in every run; floats from -1 to 1, integers as INTEGER_RANGES
    has them."""
    generator = np.random.default_rng(0)

    def make(tensor: Any) -> Array:
        dtype = _dtype(tensor)
        if dtype.kind == "f":
            return generator.uniform(-1, 1, tuple(tensor.dims)).astype(dtype)
        return generator.integers(
            *INTEGER_RANGES.get(tensor.name, OTHER_INTEGERS), tuple(tensor.dims)
        ).astype(dtype)

    return [tuple(make(tensor) for tensor in config.input) for _ in range(num_rows)]


def write_inputs(folder: Path, config: ModelConfig, rows: Sequence[Row]) -> Path:
    """Write the rows as perf_analyzer's --input-data for the model with `config`, each a separate
    request."""
    data = [
        {
            tensor.name: _describe(tensor, array)
            for tensor, array in zip(config.input, row, strict=True)
        }
        for row in rows
    ]
    file = folder / f"{config.name}.json"
    file.write_text(json.dumps({"data": data}))
    return file


def whole_shapes(config: ModelConfig) -> dict[str, list[int]]:
    """Return the shapes of a request of one row, with the batch if the model has one."""
    batch = [1] if config.max_batch_size else []
    return {tensor.name: [*batch, *tensor.dims] for tensor in config.input}


def check_answers(url: str, row: Row, configs: Sequence[ModelConfig]) -> None:
    """Send every model the same row; raises SystemExit if one answers otherwise than the first.

    Different answers make the measurements incomparable.
    """
    with InferenceServerClient(url) as client:
        expected = _ask(client, row, configs[0])
        for config in configs[1:]:
            for right, answer in zip(expected, _ask(client, row, config), strict=True):
                error, largest = np.abs(right - answer).max(), np.abs(right).max()
                if not error <= TOLERANCE * max(1, largest):
                    raise SystemExit(
                        f"benchmarks: {config.name} answers otherwise than {configs[0].name}: "
                        f"{error:.2g} "
                        f"apart, largest value {largest:.2g}; see the tests of the model"
                    )


def _ask(client: InferenceServerClient, row: Row, config: ModelConfig) -> list[Array]:
    """Return the outputs in the order of `config`, as doubles."""
    inputs = []
    for tensor, array in zip(config.input, row, strict=True):
        # Without a batch the row is the whole tensor.
        shape = [1, *tensor.dims] if config.max_batch_size else list(array.shape)
        infer_input = InferInput(tensor.name, shape, _type_name(tensor))
        infer_input.set_data_from_numpy(array.astype(_dtype(tensor)).reshape(shape))
        inputs.append(infer_input)
    answer = client.infer(config.name, inputs)
    return [answer.as_numpy(tensor.name).astype(np.float64) for tensor in config.output]


def _describe(tensor: Any, array: Array) -> dict[str, Any]:
    data = {"b64": base64.b64encode(array.astype(_dtype(tensor)).tobytes()).decode()}
    # perf_analyzer reads no shape beside "b64" itself.
    return {"content": data, "shape": list(array.shape)} if -1 in tensor.dims else data


def _dtype(tensor: Any) -> np.dtype[Any]:
    return np.dtype(triton_to_np_dtype(_type_name(tensor)))


def _type_name(tensor: Any) -> str:
    name: str = DataType.Name(tensor.data_type)
    return name.removeprefix("TYPE_")
