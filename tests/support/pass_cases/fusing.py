"""Passes that fuse."""

import numpy as np
import numpy.typing as npt
from onnx import TensorProto
from onnxgraph import iter_graphs

from pass_cases.case import Case
from pass_cases.folding import I64, ROW, TWO, F, fewer, model_of, node, reals, whole

I32, H = TensorProto.INT32, TensorProto.FLOAT16
ROUNDING = 1e-6
RNG = np.random.default_rng(0)


def floats(*shape: int) -> npt.NDArray[np.float32]:
    return RNG.normal(size=shape).astype(np.float32)


def statistics(width: int) -> dict[str, npt.NDArray[np.float32]]:
    """Return the weights of a BatchNormalization: gain g, bias b, mean m, variance v."""
    gain, bias, mean, spread = (floats(width) for _ in range(4))
    variance: npt.NDArray[np.float32] = np.abs(spread) + np.float32(0.1)
    return {"g": gain, "b": bias, "m": mean, "v": variance}


PICTURE, RESULT = (F, [2, 4, 5, 5]), (F, [2, 6, 3, 3])
NORM = node("BatchNormalization p g b m v -> y")
KERNEL = {"w": floats(6, 2, 3, 3), "bias": floats(6)}

CASES: dict[str, Case] = {
    "fuse_consecutive_cast": Case(
        positive=model_of(
            node("Cast x -> a", to=I64),
            node("Cast a -> b", to=I32),
            node("Cast b -> y", to=F),
            node("Cast a -> z", to=H),
            inputs={"x": (I32, [2, 3])},
            outputs={"y": ROW, "z": (H, [2, 3])},
        ),
        negative=model_of(
            node("Cast x -> a", to=I32),
            node("Cast a -> b", to=F),
            node("Neg b -> y"),
            outputs={"y": ROW},
        ),
        holds=fewer("Cast", 2),
        saves=True,
    ),
    "fuse_consecutive_reshape": Case(
        positive=model_of(
            node("Reshape x s -> a"),
            node("Reshape a t -> b"),
            node("Reshape b u -> y"),
            node("Relu x -> c"),
            node("Reshape c s -> d"),
            node("Reshape d v -> e"),
            node("Neg e -> z"),
            outputs={"y": (F, [3, 1, 2]), "z": ROW},
            weights={
                "s": whole(3, 2),
                "t": whole(0, 1, -1),
                "u": whole(0, 0, 2),
                "v": whole(2, 3),
            },
        ),
        negative=model_of(
            node("Reshape x s -> a"),
            node("Neg a -> b"),
            node("Reshape b t -> y"),
            outputs={"y": (F, [6])},
            weights={"s": whole(3, 2), "t": whole(6)},
        ),
        holds=fewer("Reshape", 1),
        saves=True,
    ),
    "fuse_consecutive_transpose": Case(
        positive=model_of(
            node("Transpose x -> a", perm=[1, 2, 0]),
            node("Transpose a -> b", perm=[0, 2, 1]),
            node("Transpose b -> y", perm=[1, 0, 2]),
            node("Relu x -> c"),
            node("Transpose c -> d", perm=[1, 2, 0]),
            node("Transpose d -> e", perm=[2, 0, 1]),
            node("Neg e -> z"),
            inputs={"x": (F, [2, 3, 4])},
            outputs={"y": (F, [2, 3, 4]), "z": (F, [2, 3, 4])},
        ),
        negative=model_of(
            node("Transpose x -> a"),
            node("Neg a -> b"),
            node("Transpose b -> y"),
        ),
        holds=fewer("Transpose", 1),
        saves=True,
    ),
    "fuse_consecutive_squeeze": Case(
        positive=model_of(
            node("Squeeze x p -> a"),
            node("Squeeze a q -> y"),
            inputs={"x": (F, [1, 2, 1, 3, 1])},
            weights={"p": whole(-1, 0), "q": whole(1)},
        ),
        negative=model_of(
            node("Squeeze x p -> a"),
            node("Squeeze a -> y"),
            inputs={"x": (F, [1, 2, 1, 3, 1])},
            weights={"p": whole(0)},
        ),
        holds=fewer("Squeeze", 1),
        saves=True,
    ),
    "fuse_consecutive_unsqueeze": Case(
        positive=model_of(
            node("Unsqueeze x p -> a"),
            node("Unsqueeze a q -> y"),
            outputs={"y": (F, [1, 1, 2, 1, 3])},
            weights={"p": whole(-2, 0), "q": whole(1)},
        ),
        negative=model_of(
            node("Unsqueeze x p -> a"),
            node("Neg a -> b"),
            node("Unsqueeze b p -> y"),
            outputs={"y": (F, [1, 1, 2, 3])},
            weights={"p": whole(0)},
        ),
        holds=fewer("Unsqueeze", 1),
        saves=True,
    ),
    "fuse_consecutive_arithmetic": Case(
        positive=model_of(
            node("Add x c -> a"),
            node("Add d a -> b"),
            node("Mul b two -> m"),
            node("Div m four -> n"),
            node("Mul n c -> y"),
            weights={
                "c": reals(1, 2, 3),
                "d": reals(1, 4, 0),
                "two": TWO,
                "four": np.float32(4),
            },
        ),
        negative=model_of(
            node("Add x c -> a"),
            node("Sub a c -> b"),
            node("Sub c b -> e"),
            node("Mul e d -> f"),
            node("Mul f tiny -> y"),
            weights={
                "c": reals(1, 2, 3),
                "d": np.full((2, 1), 1e-30, np.float32),
                "tiny": np.float32(1e-30),
            },
        ),
        tolerance=ROUNDING,
        holds=lambda model: all(
            fewer(op, most)(model) for op, most in (("Add", 1), ("Mul", 1), ("Div", 0))
        ),
        saves=True,
    ),
    "fuse_bn_into_conv": Case(
        positive=model_of(
            node("Conv x w bias -> p", group=2),
            NORM,
            inputs={"x": PICTURE},
            outputs={"y": RESULT},
            weights={**KERNEL, **statistics(6)},
        ),
        negative=model_of(
            node("Conv x w bias -> p", group=2),
            NORM,
            inputs={"x": PICTURE},
            outputs={"y": RESULT, "p": RESULT},
            weights={**KERNEL, **statistics(6)},
        ),
        gone=frozenset({"BatchNormalization"}),
        tolerance=1e-5,
        saves=True,
    ),
    "fuse_bn_into_gemm": Case(
        positive=model_of(
            node("Gemm x w c -> p", transB=1, alpha=2.0, beta=0.5),
            node("BatchNormalization p g b m v -> q"),
            node("MatMul q u -> r"),
            node("BatchNormalization r g b m v -> y"),
            outputs={"y": (F, [2, 4])},
            weights={"w": floats(4, 3), "c": floats(2, 1), "u": floats(4, 4), **statistics(4)},
        ),
        negative=model_of(
            node("Gemm x w -> p"),
            NORM,
            node("Gemm x w -> z"),
            outputs={"y": (F, [2, 4]), "z": (F, [2, 4])},
            weights={"w": floats(3, 4), **statistics(4)},
        ),
        gone=frozenset({"BatchNormalization"}),
        tolerance=1e-5,
        saves=True,
    ),
    "fuse_mul_into_matmul": Case(
        positive=model_of(
            node("Mul x r -> a"),
            node("MatMul a w -> b"),
            node("Mul half b -> c"),
            node("MatMul c u -> d"),
            node("Mul d s -> y"),
            weights={
                "r": reals(1, 2, 3),
                "w": floats(3, 4),
                "half": np.float32(0.5),
                "u": floats(4, 3),
                "s": floats(3),
            },
        ),
        negative=model_of(
            node("MatMul x w -> a"),
            node("Mul a c -> b"),
            node("MatMul b w -> d"),
            node("Mul d half -> y"),
            node("Neg d -> z"),
            outputs={"y": ROW, "z": ROW},
            weights={"w": floats(3, 3), "c": reals(2, 3).reshape(2, 1), "half": np.float32(0.5)},
        ),
        gone=frozenset({"Mul"}),
        tolerance=1e-5,
        saves=True,
    ),
    "fuse_cast_into_onehot": Case(
        positive=model_of(
            node("OneHot x depth values -> a"),
            node("Cast a -> y", to=F),
            inputs={"x": (I64, [4])},
            outputs={"y": (F, [4, 3])},
            weights={"depth": np.int64(3), "values": whole(0, 1)},
        ),
        negative=model_of(
            node("OneHot x depth values -> a"),
            node("Cast a -> y", to=F),
            node("Neg a -> z"),
            inputs={"x": (I64, [4])},
            outputs={"y": (F, [4, 3]), "z": (I64, [4, 3])},
            weights={"depth": np.int64(3), "values": whole(0, 1)},
        ),
        gone=frozenset({"Cast"}),
        saves=True,
    ),
    "post_expand": Case(
        positive=model_of(
            node("Expand x s -> a"),
            node("Relu a -> b"),
            node("Mul c b -> d"),
            node("Neg d -> y"),
            outputs={"y": (F, [64, 2, 3])},
            weights={"s": whole(64, 1, 1), "c": reals(1, 2, 3)},
        ),
        negative=model_of(
            node("Expand x s -> a"),
            node("Add a c -> b"),
            node("Softmax b -> y"),
            outputs={"y": (F, [4, 2, 3])},
            weights={"s": whole(4, 1, 1), "c": floats(4, 1, 1)},
        ),
        holds=lambda model: all(
            graph.node[-1].op_type in ("Expand", "If") for graph in iter_graphs(model.graph)
        ),
        saves=True,
    ),
    "fold_periodic_initializer": Case(
        positive=model_of(
            node("Add x w -> a"),
            node("Add a v -> y"),
            inputs={"x": (F, [16, 64])},
            outputs={"y": (F, [16, 64])},
            weights={"w": np.tile(floats(1, 64), (16, 1)), "v": np.tile(floats(4, 8), (4, 8))},
        ),
        negative=model_of(
            node("Add x w -> a"),
            node("Add a v -> y"),
            inputs={"x": (F, [16, 64])},
            outputs={"y": (F, [16, 64])},
            weights={"w": floats(16, 64), "v": np.ones(64, np.float32)},
        ),
        made=frozenset({"Expand", "Tile"}),
    ),
}
