"""Passes on shapes, borders, names and initializers, checks and reports."""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import attribute, iter_graphs, iter_nodes
from sample_models import make_model

from pass_cases.case import Case, Feeds

F, F16, I32, I64 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT32, TensorProto.INT64
X, Y = {"x": (F, [2, 3])}, {"y": (F, [2, 3])}
INPUTS_ONLY = "inputs and outputs are the main graph's"


def array(values: Any, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return np.asarray(values, dtype)


def node(
    op_type: str, inputs: Sequence[str], outputs: Sequence[str], name: str = "", **attributes: Any
) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs, outputs, name=name or outputs[0], **attributes)


def chain() -> onnx.ModelProto:
    return make_model([node("Neg", ["x"], ["a"]), node("Abs", ["a"], ["y"])], X, Y, {})


def sharded() -> onnx.ModelProto:
    model = chain()
    model.graph.name = "sharded"
    return model


def outputs(model: onnx.ModelProto) -> list[str]:
    return [value.name for value in model.graph.output]


def weighted(*, as_input: bool, name: str = "w") -> onnx.ModelProto:
    model = make_model([node("Add", ["x", name], ["y"])], X, Y, {name: array([1, 2, 3])})
    if as_input:
        model.graph.input.append(helper.make_tensor_value_info(name, F, [3]))
    return model


def cast_input(*, to: int = I32, read_by_others: bool = False) -> onnx.ModelProto:
    nodes = [
        node("Cast", ["ids"], ["whole"], to=to),
        node("Gather", ["table", "whole"], ["y"]),
        node("Neg", ["ids"] if read_by_others else ["table"], ["z"]),
    ]
    table = {"table": np.arange(8, dtype=np.float32).reshape(4, 2)}
    z = (F16, [3]) if read_by_others else (F, [4, 2])
    return make_model(nodes, {"ids": (F16, [3])}, {"y": (F, [3, 2]), "z": z}, table)


def feed_ids(_model: onnx.ModelProto) -> Feeds:
    return {"ids": array([3, 0, 2], np.float16)}


def concat(empty: bool) -> onnx.ModelProto:
    nodes = [node("Abs", ["x"], ["a"]), node("Concat", ["x", "none", "a"], ["y"], axis=0)]
    rows = 0 if empty else 1
    weights = {"none": np.zeros((rows, 3), np.float32)}
    return make_model(nodes, X, {"y": (F, [4 + rows, 3])}, weights)


def doubles(second: Any) -> onnx.ModelProto:
    weights = {"one": array([1, 2, 3]), "two": array([1, 2, second])}
    nodes = [node("Add", ["x", "one"], ["a"]), node("Mul", ["a", "two"], ["y"])]
    return make_model(nodes, X, Y, weights)


def body_with(initializer: bool) -> onnx.ModelProto:
    def make(kind: str) -> onnx.GraphProto:
        made = node("Add", ["x", f"{kind}w" if initializer else "w"], [f"{kind}y"])
        output = helper.make_tensor_value_info(f"{kind}y", F, [2, 3])
        weights = (
            [numpy_helper.from_array(array([len(kind), 2, 3]), f"{kind}w")] if initializer else []
        )
        return helper.make_graph([made], kind, [], [output], weights)

    nodes = [node("If", ["sure"], ["y"], then_branch=make("yes"), else_branch=make("no"))]
    weights = {} if initializer else {"w": array([1, 2, 3])}
    return make_model(nodes, {**X, "sure": (TensorProto.BOOL, [])}, Y, weights)


def constants(held: Mapping[str, Any]) -> onnx.ModelProto:
    nodes = [node("Constant", [], ["c"], **held), node("Add", ["x", "c"], ["y"])]
    return make_model(nodes, X, Y, {})


def given_constant() -> onnx.ModelProto:
    model = make_model([node("Constant", [], ["y"], value_floats=[1.0])], X, {"y": (F, [1])}, {})
    model.graph.node.append(node("Neg", ["x"], ["z"]))
    model.graph.output.append(helper.make_tensor_value_info("z", F, [2, 3]))
    return model


def named(first: str, second: Any) -> onnx.ModelProto:
    model = make_model([node("Neg", ["x"], ["a"]), node("Abs", ["a"], ["y"])], X, Y, {})
    model.graph.node[0].name, model.graph.node[1].name = first, second
    return model


def in_order(*names: str) -> onnx.ModelProto:
    made = {
        "first": node("Neg", ["x"], ["a"], "first"),
        "second": node("Abs", ["a"], ["y"], "second"),
    }
    return make_model([made[name] for name in names], X, Y, {})


def sized(size: Any) -> onnx.ModelProto:
    return make_model([node("Abs", ["x"], ["y"])], {"x": (F, [size, 3])}, {"y": (F, [size, 3])}, {})


def feed_rows(_model: onnx.ModelProto) -> Feeds:
    return {"x": array([[1, -2, 3]])}


def squeezed(axes: bool) -> onnx.ModelProto:
    inputs, weights = (["x", "axes"], {"axes": array([0], np.int64)}) if axes else (["x"], {})
    return make_model(
        [node("Squeeze", inputs, ["y"])], {"x": (F, [1, 3])}, {"y": (F, [3])}, weights
    )


def all_axes_given(model: onnx.ModelProto) -> bool:
    return all(
        len(each.input) == 2 for each in iter_nodes(model.graph) if each.op_type == "Squeeze"
    )


def product(op_type: str = "MatMul") -> onnx.ModelProto:
    return make_model([node(op_type, ["x", "w"], ["y"])], X, Y, {"w": np.eye(3, dtype=np.float32)})


def pool(**attributes: Any) -> onnx.ModelProto:
    made = node("AveragePool", ["x"], ["y"], kernel_shape=[1, 1], **attributes)
    return make_model([made], {"x": (F, [1, 1, 2, 2])}, {"y": (F, [1, 1, 2, 2])}, {})


def is_declared(model: onnx.ModelProto) -> bool:
    return "a" in {
        value.name.split("/")[-1] for g in iter_graphs(model.graph) for value in g.value_info
    }


def says_nothing(positive: Callable[[], onnx.ModelProto]) -> Case:
    """Return the case of a pass that only reads: every model stays unchanged."""
    return Case(positive, positive)


def names_are_unique(model: onnx.ModelProto) -> bool:
    found = [each.name for each in iter_nodes(model.graph)]
    return all(found) and len(found) == len(set(found))


CASES: dict[str, Case] = {
    "add_checkpoints": Case(
        chain,
        lambda: make_model([node("Neg", ["x"], ["a"])], X, {"a": (F, [2, 3])}, {}),
        {"checkpoints": ["a"]},
        holds=lambda model: outputs(model) == ["y", "a"],
        main_only=INPUTS_ONLY,
        changes_borders="outputs are added",
    ),
    "remove_outputs": Case(
        lambda: make_model(
            [node("Abs", ["x"], ["y"]), node("Neg", ["x"], ["z"])], X, {**Y, "z": (F, [2, 3])}, {}
        ),
        lambda: make_model([node("Abs", ["x"], ["y"])], X, Y, {}),
        holds=lambda model: outputs(model) == ["y"],
        arguments=lambda model: {"outputs": [name for name in outputs(model) if name == "z"]},
        main_only=INPUTS_ONLY,
        changes_borders="outputs are removed",
    ),
    "remove_initializer_from_input": Case(
        lambda: weighted(as_input=True),
        lambda: weighted(as_input=False),
        holds=lambda model: len(model.graph.input) == 1,
        main_only=INPUTS_ONLY,
        changes_borders="weights are inputs no longer",
    ),
    "remove_input_cast": Case(
        cast_input,
        lambda: cast_input(read_by_others=True),
        gone=frozenset(["Cast"]),
        feeds=feed_ids,
        main_only=INPUTS_ONLY,
        changes_borders="the input is of int32",
    ),
    "remove_empty_concat_inputs": Case(
        lambda: concat(True),
        lambda: concat(False),
        holds=lambda model: all(len(n.input) < 3 for n in iter_nodes(model.graph)),
        saves=True,
    ),
    "remove_duplicated_initializer": Case(
        lambda: doubles(3),
        lambda: doubles(4),
        holds=lambda model: all(
            len({t.raw_data for t in graph.initializer}) == len(graph.initializer)
            for graph in iter_graphs(model.graph)
        ),
        saves=True,
    ),
    "move_subgraph_initializer": Case(
        lambda: body_with(True),
        lambda: body_with(False),
        holds=lambda model: (
            not [
                t
                for n in model.graph.node
                for a in n.attribute
                for g in iter_graphs(a.g)
                for t in g.initializer
            ]
        ),
    ),
    "extract_constant_to_initializer": Case(
        lambda: constants({"value_floats": [1.0, 2.0, 3.0]}),
        given_constant,
        gone=frozenset(["Constant"]),
        saves=True,
    ),
    "overlap_io": Case(
        lambda: sized(1),
        lambda: sized("n"),
        holds=lambda model: [entry.value for entry in model.metadata_props] == ["32"],
        feeds=feed_rows,
        main_only=INPUTS_ONLY,
    ),
    "manual_sharding": Case(
        sharded,
        chain,
        arguments=lambda model: (
            {"sharding_info": {"a": 0}} if model.graph.name == "sharded" else {}
        ),
        holds=lambda model: (
            [attribute(each, "__ipu_number") for each in model.graph.node] == [0, 1]
        ),
        main_only="points are nodes of the main graph",
    ),
    "unique_name_for_nodes": Case(
        lambda: named("", "a"), lambda: named("one", "other"), holds=names_are_unique
    ),
    "const_batch_size": Case(
        lambda: sized("n"),
        lambda: sized(1),
        holds=lambda model: model.graph.output[0].type.tensor_type.shape.dim[0].dim_value == 1,
        feeds=feed_rows,
        main_only=INPUTS_ONLY,
    ),
    "const_input_shape": Case(
        lambda: sized("n"),
        lambda: sized(1),
        {"const_input_shape": {"x": [1, 3]}},
        holds=lambda model: model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 1,
        feeds=feed_rows,
        main_only=INPUTS_ONLY,
    ),
    "shape_inference": Case(chain, lambda: sized(1), holds=is_declared),
    "fill_squeeze_axes": Case(
        lambda: squeezed(False), lambda: squeezed(True), holds=all_axes_given
    ),
    "check_with_fake_data": Case(chain, product, lambda model: {"origin_model": model}),
    "layer_precision_compare": Case(
        product, chain, lambda model: {"origin_model": model, "output_dir": tempfile.mkdtemp()}
    ),
    "check_unsupported_attribute": says_nothing(lambda: pool(count_include_pad=1)),
    "final_check": Case(chain, lambda: sized(1), holds=is_declared),
    "model_overview": says_nothing(chain),
    "model_io_info_stat": says_nothing(chain),
    "sort_graph": Case(
        lambda: in_order("second", "first"),
        lambda: in_order("first", "second"),
        holds=lambda model: (
            next(n for n in iter_nodes(model.graph) if n.op_type != "If").op_type == "Neg"
        ),
        invalid="its nodes are not sorted",
    ),
}
