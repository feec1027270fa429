"""Passes that fold and eliminate."""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper
from onnxgraph import iter_graphs, iter_nodes
from sample_models import Values, make_model

from pass_cases.case import Case

F, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
ROW: tuple[int, list[int]] = (F, [2, 3])


def node(text: str, **attributes: Any) -> onnx.NodeProto:
    """Return a node from a text such as `Op a b -> c`."""
    read, made = text.split("->")
    op_type, *inputs = read.split()
    outputs = made.split()
    return helper.make_node(
        op_type,
        ["" if i == "_" else i for i in inputs],
        outputs,
        name=f"{outputs[0]}_node",
        **attributes,
    )


def model_of(
    *nodes: onnx.NodeProto,
    inputs: Values | None = None,
    outputs: Values | None = None,
    weights: Mapping[str, Any] | None = None,
    opset: int = 17,
) -> Callable[[], onnx.ModelProto]:
    """Return a maker of a model from x to y, by default rows of three floats."""
    return lambda: make_model(
        list(nodes), inputs or {"x": ROW}, outputs or {"y": ROW}, weights or {}, opset=opset
    )


def whole(*numbers: int) -> npt.NDArray[np.int64]:
    """Return sizes or axes."""
    return np.array(numbers, np.int64)


def reals(*numbers: float) -> npt.NDArray[np.float32]:
    """Return a vector."""
    return np.array(numbers, np.float32)


def fewer(op_type: str, most: int) -> Callable[[onnx.ModelProto], bool]:
    """Return a check that no graph has more than `most` nodes of that operator."""

    def holds(model: onnx.ModelProto) -> bool:
        return all(
            Counter(each.op_type for each in graph.node)[op_type] <= most
            for graph in iter_graphs(model.graph)
        )

    return holds


def has_initializers(count: int) -> Callable[[onnx.ModelProto], bool]:
    """Return a check that the graphs with initializers have `count` of them."""

    def holds(model: onnx.ModelProto) -> bool:
        return {len(graph.initializer) for graph in iter_graphs(model.graph)} <= {0, count}

    return holds


ONE, TWO = np.float32(1), np.float32(2)
RELU, NEG = node("Relu x -> a"), node("Neg a -> y")
W = np.arange(6, dtype=np.float32).reshape(2, 3)


def choose(*, known: bool) -> Callable[[], onnx.ModelProto]:
    """Return a maker of an If between Neg and Abs, whose condition is known or an input."""
    bodies = [
        helper.make_graph(
            [node(f"{op} x -> {op}_y")], op, [], [helper.make_tensor_value_info(f"{op}_y", *ROW)]
        )
        for op in ("Neg", "Abs")
    ]
    chosen = node("If c -> y", then_branch=bodies[0], else_branch=bodies[1])
    inputs: Values = {"x": ROW} if known else {"x": ROW, "c": (BOOL, [])}
    return model_of(chosen, inputs=inputs, weights={"c": np.array(True)} if known else {})


CASES: dict[str, Case] = {
    "constant_folding": Case(
        positive=model_of(
            node("Shape x -> s"),
            node("ConstantOfShape s -> z"),
            node("Transpose w -> t", perm=[1, 0]),
            node("MatMul w t -> p"),
            node("MatMul p x -> q"),
            node("Add q z -> r"),
            node("Identity w -> v"),
            node("Sub r v -> y"),
            weights={"w": W},
        ),
        negative=model_of(
            node("RandomNormal -> d", shape=[2, 3]),
            node("Mul d zero -> nothing"),
            node("Add x nothing -> y"),
            weights={"zero": np.float32(0)},
        ),
        gone=frozenset({"Shape", "ConstantOfShape", "Transpose"}),
        saves=True,
    ),
    "eliminate_nop_if": Case(
        positive=choose(known=True),
        negative=choose(known=False),
        holds=lambda model: all(
            each.op_type != "If" or each.input[0] == "which" for each in iter_nodes(model.graph)
        ),
    ),
    "eliminate_identity": Case(
        positive=model_of(
            RELU,
            node("Identity a -> b"),
            node("Dropout b -> c"),
            node("Neg c -> d"),
            node("Identity d -> e"),
            node("Identity e -> y"),
        ),
        negative=model_of(node("Identity x -> y")),
        gone=frozenset({"Identity", "Dropout"}),
        saves=True,
    ),
    "eliminate_nop_cast": Case(
        positive=model_of(RELU, node("Cast a -> b", to=F), node("Neg b -> y")),
        negative=model_of(node("Cast x -> y", to=I64), outputs={"y": (I64, [2, 3])}),
        gone=frozenset({"Cast"}),
        saves=True,
    ),
    "eliminate_nop_arithmetic": Case(
        positive=model_of(
            RELU,
            node("Mul one a -> b"),
            node("Sub b none -> c"),
            node("Div c one -> d"),
            node("Add d none -> e"),
            node("Neg e -> y"),
            weights={"one": ONE, "none": np.zeros((), np.float32)},
        ),
        negative=model_of(
            node("Add x more -> a"),
            node("Sub none a -> b"),
            node("Mul b two -> c"),
            node("Add c none -> y"),
            outputs={"y": (F, [4, 2, 3])},
            weights={
                "more": np.zeros((4, 1, 1), np.float32),
                "none": np.zeros(3, np.float32),
                "two": TWO,
            },
        ),
        gone=frozenset({"Mul", "Sub", "Div", "Add"}),
        saves=True,
    ),
    "eliminate_nop_where": Case(
        positive=model_of(
            RELU,
            node("Where mixed a a -> b"),
            node("Where all b x -> c"),
            node("Where none x c -> d"),
            node("Neg d -> y"),
            weights={
                "mixed": np.array([[True], [False]]),
                "all": np.array(True),
                "none": np.zeros((2, 1), np.bool_),
            },
        ),
        negative=model_of(
            node("Where mixed x more -> a"),
            node("Where all a a -> y"),
            outputs={"y": (F, [4, 2, 3])},
            weights={
                "mixed": np.array([[True], [False]]),
                "more": np.zeros(3, np.float32),
                "all": np.ones((4, 1, 1), np.bool_),
            },
        ),
        gone=frozenset({"Where"}),
        saves=True,
    ),
    "eliminate_nop_expand": Case(
        positive=model_of(
            RELU, node("Expand a s -> b"), node("Neg b -> y"), weights={"s": whole(1, 3)}
        ),
        negative=model_of(
            node("Expand x s -> y"), outputs={"y": (F, [4, 2, 3])}, weights={"s": whole(4, 1, 1)}
        ),
        gone=frozenset({"Expand"}),
        saves=True,
    ),
    "eliminate_nop_flatten": Case(
        positive=model_of(RELU, node("Flatten a -> b", axis=1), node("Neg b -> y")),
        negative=model_of(node("Flatten x -> y", axis=0), outputs={"y": (F, [1, 6])}),
        gone=frozenset({"Flatten"}),
        saves=True,
    ),
    "eliminate_nop_reshape": Case(
        positive=model_of(
            RELU, node("Reshape a s -> b"), node("Neg b -> y"), weights={"s": whole(-1, 3)}
        ),
        negative=model_of(
            node("Reshape x s -> y"), outputs={"y": (F, [3, 2])}, weights={"s": whole(3, -1)}
        ),
        gone=frozenset({"Reshape"}),
        saves=True,
    ),
    "eliminate_nop_pad": Case(
        positive=model_of(
            RELU, node("Pad a p -> b"), node("Neg b -> y"), weights={"p": np.zeros(4, np.int64)}
        ),
        negative=model_of(node("Pad x p -> y"), weights={"p": whole(0, 1, 0, -1)}),
        gone=frozenset({"Pad"}),
        saves=True,
    ),
    "eliminate_nop_transpose": Case(
        positive=model_of(RELU, node("Transpose a -> b", perm=[0, 1]), node("Neg b -> y")),
        negative=model_of(node("Transpose x -> y"), outputs={"y": (F, [3, 2])}),
        gone=frozenset({"Transpose"}),
        saves=True,
    ),
    "eliminate_deadend": Case(
        positive=model_of(RELU, NEG, node("Abs x -> b"), node("Exp b -> c"), node("Add b c -> d")),
        negative=model_of(
            RELU,
            NEG,
            node("Split x -> f g", axis=0),
            outputs={"y": ROW, "g": (F, [1, 3])},
            opset=13,
        ),
        gone=frozenset({"Abs", "Exp", "Add"}),
        saves=True,
    ),
    "eliminate_unused_initializer": Case(
        positive=model_of(node("Add x w -> y"), weights={"w": W, "v": W, "u": TWO}),
        negative=model_of(node("Add x w -> y"), weights={"w": W}),
        holds=has_initializers(1),
    ),
    "eliminate_duplicate_initializer": Case(
        positive=model_of(
            node("Add x w -> a"),
            node("Mul a v -> b"),
            node("Sub b u -> y"),
            weights={"w": W, "v": W.copy(), "u": W + 1},
        ),
        negative=model_of(
            node("Add x w -> a"),
            node("Sub a v -> b"),
            node("Mul b u -> y"),
            weights={"w": W, "v": W.T.reshape(2, 3), "u": W[:1]},
        ),
        holds=has_initializers(2),
    ),
    "eliminate_duplicate_nodes": Case(
        positive=model_of(
            node("Exp x -> a"),
            node("Exp x -> b"),
            node("Neg a -> c"),
            node("Neg b -> d"),
            node("Sub c d -> y"),
            node("Abs x -> e"),
            node("Abs x -> z"),
            node("Neg e -> t"),
            outputs={"y": ROW, "z": ROW, "t": ROW},
        ),
        negative=model_of(
            node("LeakyRelu x -> a", alpha=0.1),
            node("LeakyRelu x -> b", alpha=0.2),
            node("RandomNormal -> c", shape=[2, 3]),
            node("RandomNormal -> d", shape=[2, 3]),
            node("Mul c zero -> e"),
            node("Mul d zero -> f"),
            node("Sum a b e f -> y"),
            node("Neg x -> z"),
            node("Neg x -> t"),
            outputs={"y": ROW, "z": ROW, "t": ROW},
            weights={"zero": np.float32(0)},
        ),
        holds=lambda model: (
            all(fewer(op, 1)(model) for op in ("Exp", "Abs")) and fewer("Neg", 2)(model)
        ),
        saves=True,
    ),
    "apply_ir_pass": Case(
        positive=model_of(RELU, node("Identity a -> b"), node("Exp b -> c"), node("Neg b -> y")),
        negative=model_of(RELU, node("Cast a -> b", to=F), node("Neg b -> y")),
        arguments={"passes": ["eliminate_identity", "eliminate_deadend"]},
        gone=frozenset({"Identity", "Exp"}),
        saves=True,
    ),
}
