"""ResNet-50 and BERT as their exporters wrote them, with random weights, to compute on the chip and
beside it.

Weights are drawn so that a product's results vary as much as its inputs: added to a residual they
neither grow beyond half nor vanish.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import TensorProto, numpy_helper
from published import published_models

_CONSTANTS = "c_"
"""Names of the exporters' own constants, which are kept."""
_BIAS_SIZE = 0.05
SEQUENCE = 128


def write_resnet50(folder: Path, batch: int = 1) -> Path:
    """Write ResNet-50 on pictures of 224 x 224."""
    return _write(folder, published_models.resnet50, batch)


def write_bert_base(folder: Path, batch: int = 1) -> Path:
    """Write BERT-base on sentences of SEQUENCE word pieces."""
    return _write(folder, published_models.bert, batch, S=SEQUENCE)


def write_bert_large(folder: Path, batch: int = 1) -> Path:
    """Write BERT-large on sentences of SEQUENCE word pieces."""
    return _write(folder, published_models.bert, batch, S=SEQUENCE, L=24, H=1024, h=16)


def _write(folder: Path, build: Any, batch: int, **sizes: int) -> Path:
    graph = published_models.Graph()
    build(graph, batch, **sizes)
    generator = np.random.default_rng(0)
    for name, tensor in graph.inits.items():
        if tensor.data_type == TensorProto.FLOAT and not name.startswith(_CONSTANTS):
            values = _draw(generator, name, tuple(tensor.dims))
            graph.inits[name] = numpy_helper.from_array(values, name)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "model.onnx"
    graph.save(file)
    return file


def _draw(
    generator: np.random.Generator, name: str, shape: tuple[int, ...]
) -> npt.NDArray[np.float32]:
    if name.endswith(".weight") and len(shape) == 1:  # of a norm
        return np.ones(shape, np.float32)
    values = generator.standard_normal(shape, np.float32)
    if name.endswith(".bias"):
        return values * np.float32(_BIAS_SIZE)
    return values / np.float32(math.sqrt(_find_depth(name, shape)))


def _find_depth(name: str, shape: tuple[int, ...]) -> int:
    """Return the number of products that are added up for each result; 1 for a table."""
    if name.endswith(".weight_t"):
        return shape[0]
    return math.prod(shape[1:]) if name.endswith(".weight") else 1
