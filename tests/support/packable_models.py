"""Models that see which samples share a row, or a run: sums over each sample alone."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper
from sample_models import make_model

ROWS, PLACES, MAX_SAMPLES = 3, 8, 6


def row_sums_model(dtype: int = TensorProto.INT32) -> onnx.ModelProto:
    """Return a model with the outputs sums and doubled, both [rows, places].

    sums has, at each place, the sum of the ids of the sample that the mask has there; doubled has
    the ids twice.
    """
    shape = [ROWS, PLACES]
    nodes = [
        helper.make_node("Unsqueeze", ["mask", "last"], ["down"]),
        helper.make_node("Unsqueeze", ["mask", "middle"], ["across"]),
        helper.make_node("Equal", ["down", "across"], ["same"]),
        helper.make_node("Cast", ["same"], ["weights"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["ids"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["floats", "last"], ["column"]),
        helper.make_node("MatMul", ["weights", "column"], ["products"]),
        helper.make_node("Squeeze", ["products", "last"], ["sums"]),
        helper.make_node("Add", ["ids", "ids"], ["doubled"]),
    ]
    return make_model(
        nodes,
        {"ids": (dtype, shape), "mask": (dtype, shape)},
        {"sums": (TensorProto.FLOAT, shape), "doubled": (dtype, shape)},
        {"last": np.array([2]), "middle": np.array([1])},
    )


def unpacked_sums_model() -> onnx.ModelProto:
    """Return a model of sums [samples, 1]: the sum of the ids of each sample.

    unpack_info has the lengths of the samples, which are added up from the first on.
    """
    nodes = [
        helper.make_node("CumSum", ["unpack_info", "zero"], ["ends"]),
        helper.make_node("Sub", ["ends", "unpack_info"], ["starts"]),
        helper.make_node("Less", ["places", "starts"], ["before"]),
        helper.make_node("Not", ["before"], ["begun"]),
        helper.make_node("Less", ["places", "ends"], ["not_ended"]),
        helper.make_node("And", ["begun", "not_ended"], ["inside"]),
        helper.make_node("Cast", ["inside"], ["weights"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["ids"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["floats", "flat"], ["column"]),
        helper.make_node("MatMul", ["weights", "column"], ["sums"]),
    ]
    return make_model(
        nodes,
        {
            "ids": (TensorProto.INT32, [ROWS, PLACES]),
            "unpack_info": (TensorProto.INT32, [MAX_SAMPLES, 1]),
        },
        {"sums": (TensorProto.FLOAT, [MAX_SAMPLES, 1])},
        {
            "zero": np.array(0),
            "flat": np.array([-1, 1]),
            "places": np.arange(ROWS * PLACES, dtype=np.int32)[None],
        },
    )


def table_model() -> onnx.ModelProto:
    """Return found [rows, places] = table[ids] * mask; ids beyond 9 are rejected."""
    shape = [ROWS, PLACES]
    return make_model(
        [
            helper.make_node("Gather", ["table", "ids"], ["entries"]),
            helper.make_node("Cast", ["mask"], ["weights"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["entries", "weights"], ["found"]),
        ],
        {"ids": (TensorProto.INT32, shape), "mask": (TensorProto.INT32, shape)},
        {"found": (TensorProto.FLOAT, shape)},
        {"table": np.arange(100, 110, dtype=np.float32)},
    )
