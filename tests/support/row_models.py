"""Random models about rows: every other axis may have the batch size too, so that a rule that
confuses them is found.

Each model depends on its seed alone. A model grows by steps of one operator or a few each. A step
takes tensors that exist; if it does not fit them, nothing is added. Shapes are ONNX's own
inference.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
FLOAT = TensorProto.FLOAT
MAX_ELEMENTS = 2000
IR_VERSION = 10


class Unfit(Exception):
    """The step does not fit the existing tensors."""


@dataclass
class RowModel:
    """A model that grows. `shapes` has the shapes of float tensors, those of `carriers` depend on
    inputs."""

    random: np.random.Generator
    batch: int
    opset: int
    inputs: dict[str, Shape] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    others: dict[str, tuple[int, Shape]] = field(default_factory=dict)
    """Element types and shapes of tensors that are not float."""
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def chance(self, share: float = 0.5) -> bool:
        return bool(self.random.random() < share)

    def choose(self, values: Sequence[Any]) -> Any:
        if not values:
            raise Unfit
        return values[int(self.random.integers(len(values)))]

    def size(self) -> int:
        """Return a size, often that of the batch."""
        return self.batch if self.chance(0.4) else int(self.random.integers(1, 5))

    def pick(self, *ranks: int) -> str:
        """Return a tensor of one of these ranks (default: any), mostly a late one."""
        fitting = [name for name, shape in self.shapes.items() if not ranks or len(shape) in ranks]
        return str(self.choose(fitting[-4:]))

    def numbers(self, shape: Sequence[int]) -> Array:
        """Return values of a constant; often the same all along one axis, as exporters write out
        batches."""
        values = self.random.standard_normal(tuple(shape)).astype(np.float32)
        if values.ndim and self.chance(0.6):
            axis = int(self.random.integers(values.ndim))
            values = np.repeat(values.take([0], axis), values.shape[axis], axis)
        return values

    def constant(self, values: npt.ArrayLike) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def weight(self, *shape: int) -> str:
        return self.constant(self.numbers(shape))

    def whole(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def add(
        self, op_type: str, *inputs: str, outputs: int = 1, kind: int = FLOAT, **attributes: Any
    ) -> str:
        """Add a node, if ONNX can infer its shape; its first output."""
        names = [f"t{len(self.nodes)}", *(f"t{len(self.nodes)}_{i}" for i in range(1, outputs))]
        node = helper.make_node(op_type, inputs, names, name=f"n{len(self.nodes)}", **attributes)
        found = self._infer(node)
        if not found or any(
            math.prod(shape) > MAX_ELEMENTS or 0 in shape for shape in found.values()
        ):
            raise Unfit
        self.nodes.append(node)
        if kind == FLOAT:
            self.shapes.update(found)
        else:
            self.others.update({name: (kind, shape) for name, shape in found.items()})
        return names[0]

    def _infer(self, node: onnx.NodeProto) -> dict[str, Shape]:
        others = self.others
        taken = [
            helper.make_tensor_value_info(
                name, *(others[name] if name in others else (FLOAT, self.shapes[name]))
            )
            for name in dict.fromkeys(node.input)
            if name in self.shapes or name in others
        ]
        weights = [tensor for tensor in self.weights if tensor.name in node.input]
        made = [onnx.ValueInfoProto(name=name) for name in node.output]
        graph = helper.make_graph([node], "step", taken, made, weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        try:
            inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
            raise Unfit from None
        found = {}
        for value in inferred.graph.output:
            tensor = value.type.tensor_type
            if not tensor.HasField("shape") or not all(
                d.HasField("dim_value") for d in tensor.shape.dim
            ):
                return {}
            found[value.name] = tuple(dim.dim_value for dim in tensor.shape.dim)
        return found

    def finish(self, outputs: Sequence[str], axis: int, *, is_dynamic: bool) -> onnx.ModelProto:
        """Return the model; with `is_dynamic` the batch, at `axis`, is a named dimension of its
        inputs."""

        def shape_of(shape: Shape) -> list[Any]:
            return [*shape[:axis], "n" if is_dynamic else shape[axis], *shape[axis + 1 :]]

        graph = helper.make_graph(
            self.nodes,
            "rows",
            [
                helper.make_tensor_value_info(name, FLOAT, shape_of(s))
                for name, s in self.inputs.items()
            ],
            [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
            self.weights,
        )
        imports = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)
