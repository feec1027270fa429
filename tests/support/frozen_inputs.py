"""Models some of whose inputs have their data in the PopEF files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from sample_models import make_model

import popef


def scale_model(batch: int = 4, scales: tuple[int, ...] = (3,)) -> onnx.ModelProto:
    """Return y = x * scale + x, of x [batch, 3]; the scale is an input."""
    rows = (TensorProto.FLOAT, [batch, 3])
    return make_model(
        [
            helper.make_node("Mul", ["x", "scale"], ["p"]),
            helper.make_node("Add", ["p", "x"], ["y"]),
        ],
        {"x": rows, "scale": (TensorProto.FLOAT, list(scales))},
        {"y": rows},
        {},
    )


def write_data(path: Path, arrays: Mapping[str, Any]) -> Path:
    """Write a PopEF file of these tensors' data."""
    with popef.Writer(path) as writer:
        for name, array in arrays.items():
            info = popef.TensorInfo(
                shape=array.shape, dataType=popef.numpyDTypeToPopefType(array.dtype)
            )
            with writer.createTensorData(popef.TensorDataInfo(name=name, tensorInfo=info)) as blob:
                blob.write(np.ascontiguousarray(array).data)
    return path
