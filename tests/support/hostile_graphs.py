"""Graphs of small files that need too many resources, and executables of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from simipu import TARGETS, Constant, Direction, Program, ProgramKind, SimulatedExecutable, Stream

X = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])


def make_model(
    nodes: Sequence[onnx.NodeProto], tensors: Sequence[TensorProto] = (), **fields: Any
) -> onnx.ModelProto:
    """Return a model from x to y, four floats each."""
    graph = helper.make_graph(nodes, "hostile", [X], [Y], list(tensors))
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8, **fields)


def make_executable(
    model: onnx.ModelProto | bytes,
    constants: Sequence[Constant] = (),
    *,
    cycles: int = 1000,
    shape: tuple[int, ...] = (4,),
) -> SimulatedExecutable:
    """Return an executable whose only program computes `model`."""
    graph = model if isinstance(model, bytes) else model.SerializeToString()
    streams = (
        Stream("h2d_x", "x", Direction.HOST_TO_DEVICE, np.dtype(np.float32), shape),
        Stream("anchor_d2h_y", "y", Direction.DEVICE_TO_HOST, np.dtype(np.float32), shape),
    )
    main = Program(5, "main", ProgramKind.MAIN, streams, graph, cycles=cycles)
    return SimulatedExecutable("hostile", TARGETS["ipu2"], (main,), constants=tuple(constants))


def whole(values: Sequence[int] | int, name: str) -> TensorProto:
    """Return an int64 tensor."""
    return numpy_helper.from_array(np.array(values, np.int64), name)


def added(name: str) -> list[onnx.NodeProto]:
    """Return nodes for y = x + the largest of a tensor."""
    return [
        helper.make_node("ReduceMax", [name], ["most"], keepdims=0),
        helper.make_node("Add", ["x", "most"], ["y"]),
    ]


def function_bomb(depth: int = 40) -> onnx.ModelProto:
    """Return a model with functions that each call the next twice."""
    functions = []
    for i in range(depth):
        op_type, domain = (f"f{i + 1}", "own") if i + 1 < depth else ("Relu", "")
        nodes = [
            helper.make_node(op_type, ["a"], ["t"], domain=domain),
            helper.make_node(op_type, ["t"], ["b"], domain=domain),
        ]
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
        functions.append(helper.make_function("own", f"f{i}", ["a"], ["b"], nodes, imports))
    return make_model([helper.make_node("f0", ["x"], ["y"], domain="own")], functions=functions)


def constant_chain(count: int = 400, size: int = 3000) -> onnx.ModelProto:
    """Return a model of products of constants, for the loader to fold."""
    value = numpy_helper.from_array(np.array([0.001], np.float32))
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["c0"], value=value)]
    nodes += [helper.make_node("MatMul", [f"c{i}", f"c{i}"], [f"c{i + 1}"]) for i in range(count)]
    return make_model(nodes + added(f"c{count}"), [whole([size, size], "s")])


def large_constant(elements: int = 1 << 40) -> onnx.ModelProto:
    """Return a model with a tensor that is larger than any memory, from a few bytes of file."""
    return make_model(
        [helper.make_node("ConstantOfShape", ["s"], ["c"]), *added("c")], [whole([elements], "s")]
    )


def hidden_large_tensor(elements: int = 1 << 34) -> onnx.ModelProto:
    """Return a model with a tensor larger than any memory, whose size is known at run time only."""
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["zero"]),
        helper.make_node("Cast", ["zero"], ["whole"], to=TensorProto.INT64),
        helper.make_node("Add", ["whole", "n"], ["s"]),
        helper.make_node("ConstantOfShape", ["s"], ["c"]),
    ]
    return make_model(nodes + added("c"), [whole([elements], "n")])


def endless_loop(trips: int = 1 << 62, condition: str = "Identity") -> onnx.ModelProto:
    """Return a model with a loop of x + x. Its body makes the condition to go on by the operator
    `condition`: with And it is the same one, which the graph does not say."""
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in ("v", "w")]
    on = [helper.make_tensor_value_info(name, TensorProto.BOOL, []) for name in ("on", "still")]
    nodes = [
        helper.make_node(condition, ["on"] * (1 + (condition == "And")), ["still"]),
        helper.make_node("Add", ["v", "v"], ["w"]),
    ]
    number = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    body = helper.make_graph(nodes, "body", [number, on[0], value[0]], [on[1], value[1]])
    tensors = [whole(trips, "n"), numpy_helper.from_array(np.array(True), "go")]
    return make_model([helper.make_node("Loop", ["n", "go", "x"], ["y"], body=body)], tensors)


def countless_loop() -> onnx.ModelProto:
    """Return a model with a loop without a trip count, which nothing ends."""
    model = endless_loop()
    model.graph.node[0].input[0] = ""
    return model


def counted_loop() -> onnx.ModelProto:
    """Return a loop of x + x whose trip count is the smallest number of x."""
    model = endless_loop(condition="And")
    graph = model.graph
    loop = graph.node[0]
    nodes = [
        helper.make_node("ReduceMin", ["x"], ["least"], keepdims=0),
        helper.make_node("Cast", ["least"], ["count"], to=TensorProto.INT64),
    ]
    loop.input[0] = "count"
    del graph.node[:]
    graph.node.extend([*nodes, loop])
    return model


def nested_loops(trips: int = 1 << 30) -> onnx.ModelProto:
    """Return a model with a loop in a loop, each of which alone ends in time."""
    model = endless_loop(trips)
    outer, inner = model.graph.node[0], onnx.NodeProto()
    inner.CopyFrom(outer)
    inner.input[:], inner.output[:] = ["n", "go", "v"], ["w"]
    body = outer.attribute[0].g
    (add,) = (node for node in body.node if node.op_type == "Add")
    body.node.remove(add)
    body.node.append(inner)
    graph = inner.attribute[0].g
    for value in (*graph.input, *graph.output):
        value.name += "_2"
    for node in graph.node:
        node.input[:] = [f"{name}_2" for name in node.input]
        node.output[:] = [f"{name}_2" for name in node.output]
    return model


def dear_product(size: int = 1 << 15) -> onnx.ModelProto:
    """Return a model of one convolution that takes days, of tensors that fit into memory."""
    nodes = [
        helper.make_node("Expand", ["x4", "large"], ["image"]),
        helper.make_node("ConstantOfShape", ["kernel"], ["w"]),
        helper.make_node("Conv", ["image", "w"], ["c"], pads=[size - 1] * 4),
    ]
    first = helper.make_node("Reshape", ["x", "four"], ["x4"])
    tensors = [
        whole([1, 1, 4, 1], "four"),
        whole([1, 1, 4, size], "large"),
        whole([1, 1, size, size], "kernel"),
    ]
    return make_model([first, *nodes, *added("c")], tensors)


def concat_bomb(count: int = 40) -> onnx.ModelProto:
    """Return a model with a shape that doubles `count` times; shape inference keeps each number as
    an object."""
    nodes = [
        helper.make_node("Concat", [f"s{i}", f"s{i}"], [f"s{i + 1}"], axis=0) for i in range(count)
    ]
    nodes += [helper.make_node("Cast", [f"s{count}"], ["f"], to=TensorProto.FLOAT)]
    return make_model(nodes + added("f"), [whole([1, 1], "s0")])


def endless_inference(count: int = 4_000) -> onnx.ModelProto:
    """Return loops that follow one another: their shapes are inferred again and again, for a
    minute, in little memory."""
    floats = partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT, shape=None)
    flag = partial(helper.make_tensor_value_info, elem_type=TensorProto.BOOL, shape=[])
    nodes = []
    for i in range(count):
        number = helper.make_tensor_value_info("i", TensorProto.INT64, [])
        inside = [
            helper.make_node("Identity", ["on"], ["still"]),
            helper.make_node("Relu", ["v"], ["w"]),
        ]
        body = helper.make_graph(
            inside, "body", [number, flag("on"), floats("v")], [flag("still"), floats("w")]
        )
        nodes.append(
            helper.make_node("Loop", ["n", "go", f"t{i}" if i else "x"], [f"t{i + 1}"], body=body)
        )
    nodes.append(helper.make_node("Relu", [f"t{count}"], ["y"]))
    return make_model(nodes, [whole(2, "n"), numpy_helper.from_array(np.array(True), "go")])


def elsewhere(name: str, location: str, dims: Sequence[int] = (4,)) -> TensorProto:
    """Return a float tensor whose data are in a file."""
    tensor = TensorProto(
        name=name, data_type=TensorProto.FLOAT, dims=dims, data_location=TensorProto.EXTERNAL
    )
    tensor.external_data.add(key="location", value=location)
    return tensor


def outside_constant(location: str) -> onnx.ModelProto:
    """Return a model with a Constant whose value is in a file."""
    nodes = [
        helper.make_node("Constant", [], ["c"], value=elsewhere("", location)),
        helper.make_node("Add", ["x", "c"], ["y"]),
    ]
    return make_model(nodes)


def outside_of_branch(location: str) -> onnx.ModelProto:
    """Return a model with an initializer of an If's branch that is in a file."""
    out = helper.make_tensor_value_info("o", TensorProto.FLOAT, [4])
    nodes = [helper.make_node("Add", ["x", "c"], ["o"])]
    branch = helper.make_graph(nodes, "branch", [], [out], [elsewhere("c", location)])
    go = numpy_helper.from_array(np.array(True), "go")
    return make_model(
        [helper.make_node("If", ["go"], ["y"], then_branch=branch, else_branch=branch)], [go]
    )


def outside_of_sparse(location: str) -> onnx.ModelProto:
    """Return a model with a sparse constant whose values are in a file."""
    sparse = onnx.SparseTensorProto(
        values=elsewhere("", location), indices=whole([0, 1, 2, 3], ""), dims=[4]
    )
    nodes = [
        helper.make_node("Constant", [], ["c"], sparse_value=sparse),
        helper.make_node("Add", ["x", "c"], ["y"]),
    ]
    return make_model(nodes)


def nested_graphs(depth: int = 30) -> onnx.ModelProto:
    """Return a model with an If in an If, and so on."""
    out = helper.make_tensor_value_info("o", TensorProto.FLOAT, [4])
    nodes = [helper.make_node("Identity", ["x"], ["o"])]
    for _ in range(depth):
        branch = helper.make_graph(nodes, "branch", [], [out])
        nodes = [
            helper.make_node(
                "If",
                ["go"],
                ["o"],
                then_branch=branch,
                else_branch=helper.make_graph(
                    [helper.make_node("Identity", ["x"], ["o"])], "other", [], [out]
                ),
            )
        ]
    nodes[0].output[0] = "y"
    return make_model(nodes, [numpy_helper.from_array(np.array(True), "go")])


def kernel_node() -> onnx.ModelProto:
    """Return a model with a node of the kernels' own domain inside a branch; only a load makes such
    nodes."""
    node = helper.make_node("Chain", ["x"], ["y"], domain="simipu", nan_on_overflow=0)
    body = helper.make_graph([node], "branch", [], [Y])
    branch = helper.make_node("If", ["yes"], ["y"], then_branch=body, else_branch=body)
    model = make_model([branch], [numpy_helper.from_array(np.array(True), "yes")])
    model.opset_import.append(helper.make_opsetid("simipu", 1))
    return model


def odd_equation(equation: str, *, hidden: bool = False) -> onnx.ModelProto:
    """Return an Einsum of two vectors; if `hidden`, the type of its equation is INT."""
    node = helper.make_node("Einsum", ["x", "x"], ["c"], equation=equation)
    if hidden:
        node.attribute[0].type = onnx.AttributeProto.INT
    return make_model([node, *added("c")])


def string_doublings(count: int = 30) -> onnx.ModelProto:
    """Return a model with a string that doubles `count` times."""
    nodes = [helper.make_node("Cast", ["x"], ["s0"], to=TensorProto.STRING)]
    nodes += [
        helper.make_node("StringConcat", [f"s{i}", f"s{i}"], [f"s{i + 1}"]) for i in range(count)
    ]
    nodes += [helper.make_node("Cast", [f"s{count}"], ["y"], to=TensorProto.FLOAT)]
    return make_model(nodes)


def in_branch(
    nodes: Sequence[onnx.NodeProto], tensors: Sequence[TensorProto] = ()
) -> onnx.ModelProto:
    """Return a model with nodes that make "o" of "x", inside both branches of an If."""
    out = helper.make_tensor_value_info("o", TensorProto.FLOAT, [4])
    branch = helper.make_graph(list(nodes), "branch", [], [out], list(tensors))
    node = helper.make_node("If", ["go"], ["y"], then_branch=branch, else_branch=branch)
    return make_model([node], [numpy_helper.from_array(np.array(True), "go")])


def constant_strings() -> onnx.ModelProto:
    """Return a model with strings in a branch."""
    text = helper.make_node("Constant", [], ["s"], value_strings=["a"] * 4)
    return in_branch([text, helper.make_node("Cast", ["s"], ["o"], to=TensorProto.FLOAT)])


def string_weight() -> onnx.ModelProto:
    """Return a model with strings among the initializers of a branch."""
    strings = numpy_helper.from_array(np.array(["1"] * 4, object), "s")
    return in_branch([helper.make_node("Cast", ["s"], ["o"], to=TensorProto.FLOAT)], [strings])


def declared_sequence() -> onnx.ModelProto:
    """Return a model with a tensor that is declared as a sequence."""
    model = make_model([helper.make_node("Relu", ["x"], ["y"])])
    model.graph.value_info.append(
        helper.make_tensor_sequence_value_info("z", TensorProto.FLOAT, None)
    )
    return model


def sequence() -> onnx.ModelProto:
    """Return a model that puts x into a sequence, and takes it out."""
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["q"]),
        helper.make_node("SequenceAt", ["q", "one"], ["o"]),
    ]
    return in_branch(nodes, [whole(1, "one")])


def optional() -> onnx.ModelProto:
    """Return a model that puts x into an optional value, and takes it out."""
    nodes = [
        helper.make_node("Optional", ["x"], ["q"]),
        helper.make_node("OptionalGetElement", ["q"], ["o"]),
    ]
    return in_branch(nodes)


def label_strings() -> onnx.ModelProto:
    """Return a model with strings made by ai.onnx.ml."""
    made = helper.make_node(
        "LabelEncoder", ["x"], ["s"], domain="ai.onnx.ml", keys_floats=[1.0], values_strings=["1"]
    )
    model = make_model([made, helper.make_node("Cast", ["s"], ["y"], to=TensorProto.FLOAT)])
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 2))
    return model
