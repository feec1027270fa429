"""Passes that change types."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnxgraph import iter_graphs, iter_nodes
from sample_models import make_model

from pass_cases.case import Case

F, F16, F64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE
I32, I64 = TensorProto.INT32, TensorProto.INT64
X, Y = {"x": (F, [2, 4])}, {"y": (F, [2, 4])}
RETYPED = "inputs and outputs are of the type"
HALF = 1e-3
"""Half has 11 bits."""
QUARTER = 0.1
"""F143 has 4 bits."""


def node(
    op_type: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs, outputs, name=outputs[0], **attributes)


def types(model: onnx.ModelProto) -> set[int]:
    """Return the element types of weights, constants, inputs and outputs, including those of
    bodies."""
    found = set()
    for graph in iter_graphs(model.graph):
        found |= {value.type.tensor_type.elem_type for value in (*graph.input, *graph.output)}
        found |= {tensor.data_type for tensor in graph.initializer}
    return found


def border_types(model: onnx.ModelProto) -> set[int]:
    """Return the element types of the model's inputs and outputs."""
    values = (*model.graph.input, *model.graph.output)
    return {value.type.tensor_type.elem_type for value in values}


def weights(dtype: Any = np.float32) -> Any:
    return np.random.default_rng(0).normal(size=(4, 4)).astype(dtype)


def product(element: int = F, dtype: Any = np.float32) -> onnx.ModelProto:
    nodes = [node("MatMul", ["x", "w"], ["a"]), node("Relu", ["a"], ["y"])]
    shape = [2, 4]
    return make_model(
        nodes, {"x": (element, shape)}, {"y": (element, shape)}, {"w": weights(dtype)}
    )


def integers() -> onnx.ModelProto:
    """Return a model with indices, arithmetic, a computed shape, and an end of an axis."""
    nodes = [
        node("Add", ["ids", "one"], ["next"]),
        node("Gather", ["table", "next"], ["rows"]),
        node("Reshape", ["rows", "shape"], ["flat"]),
        node("Slice", ["flat", "start", "end", "axis"], ["y"]),
        node("ArgMax", ["y"], ["best"], axis=1, keepdims=0),
    ]
    held = {
        "one": np.asarray(1, np.int64),
        "table": weights(),
        "shape": np.asarray([2, 6], np.int64),
        "start": np.asarray([1], np.int64),
        "end": np.asarray([2**31 - 1], np.int64),
        "axis": np.asarray([1], np.int64),
    }
    return make_model(nodes, {"ids": (I64, [3])}, {"y": (F, [2, 5]), "best": (I64, [2])}, held)


def no_integers() -> onnx.ModelProto:
    held = {"shape": np.asarray([4, 2], np.int64)}
    return make_model([node("Reshape", ["x", "shape"], ["y"])], X, {"y": (F, [4, 2])}, held)


def activations() -> onnx.ModelProto:
    """Return a product of two activations."""
    return make_model([node("MatMul", ["x", "z"], ["y"])], {"x": (F16, [2, 4]), "z": (F16, [4, 2])},
                      {"y": (F16, [2, 2])}, {})  # fmt: skip


INT8 = {"value": np.arange(16, dtype=np.int8).reshape(4, 4), "offset": 3, "scale": 0.5}


def whole_weights() -> onnx.ModelProto:
    """Return a product with weights that 8 bits represent exactly."""
    held = (np.arange(16, dtype=np.float32).reshape(4, 4) - 3) / 2
    return make_model([node("MatMul", ["x", "w"], ["y"])], X, Y, {"w": held})


def names(model: onnx.ModelProto) -> set[str]:
    """Return the names of weights and of the first results of nodes, such as DequantizeLinears."""
    made = {each.output[0] for each in iter_nodes(model.graph)}
    return made | {t.name for g in iter_graphs(model.graph) for t in g.initializer}


def picture() -> onnx.ModelProto:
    shape = [1, 3, 2, 2]
    return make_model([node("Relu", ["x"], ["y"])], {"x": (F, shape)}, {"y": (F, shape)}, {})


def casts(model: onnx.ModelProto) -> bool:
    return any(each.op_type == "Cast" for each in iter_nodes(model.graph))


CASES: dict[str, Case] = {
    "float_to_half": Case(
        product,
        lambda: make_model(
            [node("Relu", ["x"], ["y"])], {"x": (F16, [2, 4])}, {"y": (F16, [2, 4])}, {}
        ),
        holds=lambda model: F not in types(model),
        tolerance=HALF,
        changes_types=True,
        changes_borders=f"{RETYPED} half",
    ),
    "double_to_float": Case(
        lambda: product(F64, np.float64),
        product,
        holds=lambda model: F64 not in types(model),
        tolerance=1e-6,
        changes_types=True,
        changes_borders=f"{RETYPED} float",
    ),
    "int64_to_int32": Case(
        integers,
        no_integers,
        holds=lambda model: I64 not in {v.type.tensor_type.elem_type for v in model.graph.input},
        changes_types=True,
        changes_borders=f"{RETYPED} int32",
    ),
    "float_to_int8": Case(
        whole_weights,
        lambda: make_model([node("Relu", ["x"], ["y"])], X, Y, {}),
        lambda model: {
            "int8_offset_scale": {name: INT8 for name in names(model) if name.split("/")[-1] == "w"}
        },
        made=frozenset(["DequantizeLinear"]),
    ),
    "io_precision": Case(
        lambda: product(F16, np.float16),
        product,
        holds=lambda model: F16 not in border_types(model),
        made=frozenset(["Cast"]),
        changes_types=True,
        changes_borders=f"{RETYPED} float",
        main_only="inputs and outputs are the main graph's",
    ),
    "eight_bits_io": Case(
        picture,
        product,
        made=frozenset(["Cast", "Mul", "Sub"]),
        changes_borders="pictures are bytes",
        asked_otherwise="pictures are fed as they are",
        main_only="inputs are the main graph's",
    ),
    "float_to_fp8": Case(
        lambda: product(F16, np.float16),
        activations,
        holds=casts,
        tolerance=QUARTER,
        makes_own="its Casts have a scale",
    ),
}
