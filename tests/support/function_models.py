"""Random models whose functions (FunctionProto) call each other: several opsets, attributes with
and without defaults, overloads, calls inside the branches of an If, optional inputs left out.

Each comes with a function of numpy that computes the same: onnx's reference evaluator knows neither
overloads nor calls inside branches, and ONNX Runtime no functions of other opsets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

DOMAIN = "my.modules"
SHAPE = (3, 4)
_AXES_ARE_INPUTS, _MEANS_TAKE_AXES = 13, 18
OPSETS = (13, 17, 18, 21)

make = helper.make_node
Array = npt.NDArray[Any]
Compute = Callable[[Array, float], Array]
"""Function from the input and the slope of a function to its output."""


def refer(node: onnx.NodeProto, name: str, attribute: str) -> onnx.NodeProto:
    """Let an attribute of a node be that of its function, and return the node."""
    node.attribute.append(
        AttributeProto(name=name, type=AttributeProto.FLOAT, ref_attr_name=attribute)
    )
    return node


class _Body:
    """Body of a function that grows from its input `a`; `known` are functions that it may call."""

    def __init__(
        self,
        random: np.random.Generator,
        opset: int,
        known: list[tuple[onnx.FunctionProto, Compute]],
    ) -> None:
        self.random, self.opset, self.known = random, opset, known
        self.nodes: list[onnx.NodeProto] = []
        self.last = "a"
        self.steps: list[Compute] = []

    def compute(self, value: Array, slope: float) -> Array:
        for step in self.steps:
            value = step(value, slope)
        return value

    def grow(self) -> None:
        steps: list[Callable[[str], Compute]] = [
            self.leak, self.scale, self.call, self.stretch, self.centre, self.branch, self.plain
        ]  # fmt: skip
        # Functions share names of tensors, which inlining has to tell apart.
        result = f"{self.random.choice(['t', 'x', 'c'])}{len(self.nodes)}"
        self.steps.append(steps[int(self.random.integers(len(steps)))](result))
        self.last = result

    def add(self, op_type: str, names: list[str], result: str, **attributes: Any) -> str:
        self.nodes.append(make(op_type, names, [result], **attributes))
        return result

    def constant(self, value: npt.ArrayLike, name: str, dtype: npt.DTypeLike) -> str:
        array = numpy_helper.from_array(np.asarray(value, dtype))
        return self.add("Constant", [], name, value=array)

    def leak(self, result: str) -> Compute:
        self.nodes.append(refer(make("LeakyRelu", [self.last], [result]), "alpha", "slope"))
        return lambda x, slope: np.where(x < 0, x * slope, x)

    def scale(self, result: str) -> Compute:
        self.add("Mul", [self.last, self.constant(1.5, f"{result}k", np.float32)], result)
        return lambda x, _slope: x * 1.5

    def call_of(self, result: str) -> tuple[onnx.NodeProto, Compute]:
        if not self.known:
            return make("Neg", [self.last], [result]), lambda x, _slope: -x
        function, compute = self.known[int(self.random.integers(len(self.known)))]
        is_given = bool(self.random.random() < 0.5)
        given: dict[str, Any] = {"slope": 0.75} if is_given else {}
        node = make(
            function.name, [self.last], [result], domain=DOMAIN, overload=function.overload, **given
        )
        if not is_given:
            refer(node, "slope", "slope")
        return node, lambda x, slope: compute(x, 0.75 if is_given else slope)

    def call(self, result: str) -> Compute:
        node, compute = self.call_of(result)
        self.nodes.append(node)
        return compute

    def stretch(self, result: str) -> Compute:
        if self.opset < _AXES_ARE_INPUTS:
            wide = self.add("Unsqueeze", [self.last], f"{result}w", axes=[1])
            self.add("Squeeze", [wide], result, axes=[1])
        else:
            axes = self.constant([1], f"{result}k", np.int64)
            wide = self.add("Unsqueeze", [self.last, axes], f"{result}w")
            self.add("Squeeze", [wide, axes], result)
        return lambda x, _slope: x

    def centre(self, result: str) -> Compute:
        if self.opset < _MEANS_TAKE_AXES:
            mean = self.add("ReduceMean", [self.last], f"{result}m", axes=[1])
        else:
            axes = self.constant([1], f"{result}k", np.int64)
            mean = self.add("ReduceMean", [self.last, axes], f"{result}m")
        self.add("Sub", [self.last, mean], result)
        return lambda x, _slope: x - x.mean(1, keepdims=True)

    def branch(self, result: str) -> Compute:
        bodies, computed = {}, []
        for which in ("then", "else"):
            made = f"{result}{which}"
            node, compute = self.call_of(made)
            outputs = [helper.make_tensor_value_info(made, TensorProto.FLOAT, None)]
            bodies[f"{which}_branch"] = helper.make_graph([node], which, [], outputs)
            computed.append(compute)
        holds = bool(self.random.random() < 0.5)
        self.add("If", [self.constant(holds, f"{result}k", np.bool_)], result, **bodies)
        return computed[0 if holds else 1]

    def plain(self, result: str) -> Compute:
        op_type = str(self.random.choice(list(_PLAIN)))
        names = [self.last, "", ""] if op_type == "Clip" else [self.last]
        axis = {"axis": 1} if op_type == "Softmax" else {}
        self.add(op_type, names, result, **axis)
        return lambda x, _slope: _PLAIN[op_type](x)


def _softmax(x: Array) -> Array:
    powers: Array = np.exp(x - x.max(1, keepdims=True))
    result: Array = powers / powers.sum(1, keepdims=True)
    return result


_PLAIN: dict[str, Callable[[Array], Array]] = {
    "Neg": lambda x: -x,
    "Relu": lambda x: np.maximum(x, 0),
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Softmax": _softmax,
    "Clip": lambda x: x,
}


def make_function_model(seed: int) -> tuple[onnx.ModelProto, Callable[[Array], Array]]:
    """Return the model of a seed, y = F(G(x)) of some functions, and what computes it.

    In every second model all functions have one name, and differ by their overloads.
    """
    random = np.random.default_rng(seed)
    opset = int(random.choice(OPSETS))
    functions: list[tuple[onnx.FunctionProto, Compute]] = []
    for number in range(int(random.integers(1, 5))):
        own = int(random.choice([11, opset, opset, 18]))
        body = _Body(random, own, list(functions))
        for _ in range(int(random.integers(1, 4))):
            body.grow()
        imports = [helper.make_opsetid("", own), helper.make_opsetid(DOMAIN, 1)]
        name, overload = ("Module", f"v{number}") if seed % 2 else (f"Module{number}", "")
        function = helper.make_function(
            DOMAIN, name, ["a"], [body.last], body.nodes, imports,
            attribute_protos=[helper.make_attribute("slope", 0.25)], overload=overload,
        )  # fmt: skip
        functions.append((function, body.compute))
    caller = _Body(random, opset, functions)
    caller.last = "x"
    for number in range(int(random.integers(1, 4))):
        caller.steps.append(caller.call(f"t{number}"))
        caller.last = f"t{number}"
    nodes = [*caller.nodes, make("Identity", [caller.last], ["y"])]
    for node in nodes:  # the graph has no attributes to refer to
        for attribute in [each for each in node.attribute if each.ref_attr_name]:
            node.attribute.remove(attribute)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, list(SHAPE)) for n in "xy")
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    graph = helper.make_graph(nodes, "modules", [x], [y])
    model = helper.make_model(
        graph, opset_imports=imports, functions=[each for each, _ in functions], ir_version=10
    )
    return model, lambda x: caller.compute(x, 0.25)
