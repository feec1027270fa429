"""Tests of packing, operator by operator: packed samples get the answers that ONNX Runtime, without
its optimisers, gives for each sample alone, unpadded."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
from exported_graphs import I64, Exporter, F
from onnx import TensorProto
from oracles import unoptimised_session
from poprt import Compiler, CompilerOptions, runtime
from poprt.passes import get_pass
from simipu import CompileError

WIDTH, TOKENS, OPSET = 8, 6, 23
LENGTHS = {3: [6, 2, 1, 5, 3], 1: [3, 1, 2]}
"""Lengths of the samples by the number of rows, over whose ends they lie."""
TABLE = np.random.default_rng(7).standard_normal((4, TOKENS, WIDTH)).astype(np.float32)
"""Constants of positions."""


@dataclass
class Net(Exporter):
    """A graph of [batch, tokens, 8] for a number of samples and of tokens."""

    batch: int
    tokens: int

    def __init__(self, batch: int, tokens: int) -> None:
        super().__init__(OPSET)
        self.batch, self.tokens = batch, tokens

    def positions(self, *shape: int) -> str:
        """Return a constant of `shape` whose axis -2 is the tokens' and whose rows are
        positions."""
        return self.constant(np.broadcast_to(TABLE[0, : self.tokens, : shape[-1]], shape))

    def sizes(self, *sizes: int) -> str:
        return self.integers(*sizes)

    def heads(self, x: str) -> str:
        split = self.add("Reshape", x, self.integers(self.batch, self.tokens, 2, WIDTH // 2))
        return self.add("Transpose", split, perm=[0, 2, 1, 3])

    def flat(self, x: str, width: int = WIDTH) -> str:
        return self.add("Reshape", x, self.integers(self.batch * self.tokens, width))

    def back(self, x: str, *rest: int) -> str:
        return self.add("Reshape", x, self.integers(self.batch, self.tokens, *rest))

    def at(self) -> str:
        return self.input("at", [self.batch, self.tokens], I64)

    def seen(self, rank: int = 4) -> str:
        """Return which tokens there are, [batch, 1, 1, tokens] or [batch, 1, tokens]."""
        given = self.add(
            "Cast", self.input("mask", [self.batch, self.tokens], I64), to=TensorProto.BOOL
        )
        return self.unsqueeze(given, *range(1, rank - 1))

    def square(self) -> str:
        """Return which tokens see which, [batch, 1, tokens, tokens]."""
        return self.add(
            "Expand", self.seen(), self.integers(self.batch, 1, self.tokens, self.tokens)
        )

    def first(self, op_type: str, *inputs: str, results: int, **attributes: int) -> str:
        """Add a node with several results, and return the first one."""
        found = self.add(op_type, *inputs, **attributes)
        self.nodes[-1].output.extend(f"{found}/{number}" for number in range(1, results))
        return found

    def floats(self, source: str) -> str:
        return self.add("Cast", source, to=F)

    def scores(self, x: str) -> str:
        keys = self.add("Transpose", self.heads(x), perm=[0, 1, 3, 2])
        return self.add("MatMul", self.heads(x), keys)


Builder = Callable[[Net, str], str]
ones = np.ones
PACKS: dict[str, Builder] = {
    "RMSNormalization": lambda n, x: n.add("RMSNormalization", x, n.weight(WIDTH)),
    "LayerNormalization": lambda n, x: n.add(
        "LayerNormalization", x, n.weight(WIDTH), n.weight(WIDTH)
    ),
    "LayerNormalization with a scale for each position": lambda n, x: n.add(
        "LayerNormalization", x, n.positions(n.tokens, WIDTH)
    ),
    "Dropout": lambda n, x: n.add("Dropout", x),
    "HardSwish": lambda n, x: n.add("HardSwish", x),
    "QuantizeLinear": lambda n, x: n.add(
        "DequantizeLinear",
        n.add("QuantizeLinear", x, n.constant(0.1), n.constant(3, np.uint8)),
        n.constant(0.1),
        n.constant(3, np.uint8),
    ),
    "LpNormalization": lambda n, x: n.add("LpNormalization", x, axis=2),
    "MeanVarianceNormalization": lambda n, x: n.add("MeanVarianceNormalization", x, axes=[2]),
    "InstanceNormalization of tokens as channels": lambda n, x: n.add(
        "InstanceNormalization", x, n.constant(ones(n.tokens)), n.constant(ones(n.tokens))
    ),
    "BatchNormalization of the width": lambda n, x: n.add(
        "BatchNormalization",
        n.add("Transpose", x, perm=[0, 2, 1]),
        *(n.constant(np.arange(1, 9)) for _ in range(4)),
    ),
    "LRN over the width": lambda n, x: n.add(
        "LRN", n.unsqueeze(n.add("Transpose", x, perm=[0, 2, 1]), 3), size=3
    ),
    "ArgMax": lambda n, x: n.floats(n.add("ArgMax", x, axis=2, keepdims=0)),
    "TopK": lambda n, x: n.first("TopK", x, n.integers(3), axis=-1, results=2),
    "Hardmax": lambda n, x: n.add("Hardmax", x, axis=-1),
    "CumSum in reverse over the width": lambda n, x: n.add(
        "CumSum", x, n.constant(2, np.int64), reverse=1
    ),
    "OneHot": lambda n, x: n.add(
        "OneHot",
        n.add("ArgMax", x, axis=2, keepdims=0),
        n.constant(9, np.int64),
        n.constant([0.0, 2.0]),
    ),
    "GatherElements": lambda n, x: n.add(
        "GatherElements", x, n.constant(np.full((n.batch, n.tokens, 2), 5), np.int64), axis=2
    ),
    "GatherElements of indices": lambda n, x: n.add(
        "GatherElements", x, n.add("ArgMax", x, axis=2, keepdims=1), axis=2
    ),
    "ScatterElements": lambda n, x: n.add(
        "ScatterElements",
        x,
        n.add("ArgMax", x, axis=2, keepdims=1),
        n.add("ReduceMax", x, n.integers(2)),
        axis=2,
    ),
    "Tile": lambda n, x: n.add("Tile", x, n.integers(1, 1, 3)),
    "Pad": lambda n, x: n.add("Pad", x, n.integers(0, 0, 1, 0, 0, 2)),
    "Concat with a constant": lambda n, x: n.add(
        "Concat", x, n.constant(ones((n.batch, n.tokens, 2))), axis=2
    ),
    "Concat with positions": lambda n, x: n.add(
        "Concat", x, n.positions(n.batch, n.tokens, 3), axis=-1
    ),
    "Split": lambda n, x: n.add("Split", x, axis=2, num_outputs=1),
    "AveragePool over the width": lambda n, x: n.add(
        "AveragePool", x, kernel_shape=[2], strides=[2]
    ),
    "MaxPool of flat tokens": lambda n, x: n.back(
        n.add("MaxPool", n.unsqueeze(n.flat(x), 1), kernel_shape=[2], strides=[2]), 1, 4
    ),
    "GlobalMaxPool": lambda n, x: n.add("GlobalMaxPool", x),
    "Conv over the letters of each token": lambda n, x: n.back(
        n.add("Conv", n.unsqueeze(n.flat(x), 1), n.weight(2, 1, 3), pads=[1, 1]), 2, WIDTH
    ),
    "LSTM over the letters of each token": lambda n, x: n.back(
        n.add(
            "Transpose",
            n.add(
                "LSTM",
                n.add("Transpose", n.unsqueeze(n.flat(x), 2), perm=[1, 0, 2]),
                n.weight(1, 12, 1),
                n.weight(1, 12, 3),
                hidden_size=3,
            ),
            perm=[2, 0, 1, 3],
        ),
        WIDTH,
        3,
    ),
    "Resize of the width": lambda n, x: n.add("Resize", x, "", n.constant([1.0, 1.0, 2.0])),
    "DepthToSpace of flat tokens": lambda n, x: n.back(
        n.add(
            "DepthToSpace",
            n.add("Reshape", n.flat(x), n.sizes(n.batch * n.tokens, 4, 1, 2)),
            blocksize=2,
        ),
        2,
        4,
    ),
    "MatMulInteger": lambda n, x: n.floats(
        n.add(
            "MatMulInteger",
            n.add("QuantizeLinear", x, n.constant(0.1), n.constant(3, np.uint8)),
            n.constant(np.arange(40).reshape(8, 5), np.uint8),
        )
    ),
    "Einsum of weights": lambda n, x: n.add(
        "Einsum", x, n.weight(WIDTH, 5), equation="btw,wv->btv"
    ),
    "Einsum of weights, turned": lambda n, x: n.add(
        "Einsum", n.weight(WIDTH, 5), x, equation="wv,btw->vbt"
    ),
    "attention by Einsum": lambda n, x: n.add(
        "Einsum",
        n.add(
            "Softmax",
            n.add(
                "Where",
                n.seen(3),
                n.add("Einsum", x, x, equation="bqd,bkd->bqk"),
                n.constant(-1e9),
            ),
            axis=-1,
        ),
        x,
        equation="bqk,bkd->bqd",
    ),
    "Trilu that keeps all": lambda n, x: n.add("Trilu", x, n.constant(-9, np.int64)),
    "DFT along the width": lambda n, x: n.add(
        "DFT", n.unsqueeze(x, 3), "", n.constant(2, np.int64)
    ),
    "RotaryEmbedding by positions": lambda n, x: n.add(
        "RotaryEmbedding",
        x,
        n.constant(TABLE[1, :, :2]),
        n.constant(TABLE[2, :, :2]),
        n.at(),
        num_heads=2,
    ),
    "RotaryEmbedding of heads by positions": lambda n, x: n.add(
        "RotaryEmbedding",
        n.heads(x),
        n.constant(TABLE[1, :, :2]),
        n.constant(TABLE[2, :, :2]),
        n.at(),
    ),
    "RotaryEmbedding by tables": lambda n, x: n.add(
        "RotaryEmbedding",
        x,
        n.positions(n.batch, n.tokens, 2),
        n.positions(n.batch, n.tokens, 2),
        num_heads=2,
    ),
    "Attention with a mask": lambda n, x: n.add(
        "Attention", x, x, x, n.square(), q_num_heads=2, kv_num_heads=2
    ),
    "Attention of heads with a mask": lambda n, x: n.add(
        "Attention", n.heads(x), n.heads(x), n.heads(x), n.square()
    ),
    "Attention that is causal": lambda n, x: n.add(
        "Attention", x, x, x, q_num_heads=2, kv_num_heads=2, is_causal=1
    ),
    "Attention of the first token": lambda n, x: n.add(
        "Attention", n.slice(x, 1, 0, 1), x, x, n.seen(), q_num_heads=2, kv_num_heads=2
    ),
    "attention of a matrix product": lambda n, x: n.add(
        "MatMul",
        n.add("Softmax", n.add("Where", n.seen(), n.scores(x), n.constant(-1e9)), axis=-1),
        n.heads(x),
    ),
    "sums from the first token on": lambda n, x: n.add("CumSum", x, n.constant(1, np.int64)),
}
"""Graphs that pack, most of them by operators with a row rule alone."""


def model_of(build: Builder, batch: int, tokens: int):
    net = Net(batch, tokens)
    given = net.input("x", [batch, tokens, WIDTH])
    made = build(net, net.add("Tanh", given))
    return net, net.model({made: None})


def answer_alone(build: Builder, sample: np.ndarray) -> np.ndarray:
    """Return ONNX Runtime's answer for one sample, in a graph of its length."""
    net, model = model_of(build, 1, len(sample))
    feeds = {
        "x": sample[None],
        "mask": ones((1, len(sample)), np.int64),
        "at": np.arange(len(sample), dtype=np.int64)[None],
    }
    taken = {value.name for value in net.inputs}
    session = unoptimised_session(declared(model))
    return session.run(None, {name: value for name, value in feeds.items() if name in taken})[0]


def declared(model):
    """Return the model with the type of its output, which ONNX Runtime needs."""
    return onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)


def lay(parts, rows: int):
    """Return values of tokens end to end in rows of TOKENS."""
    flat = np.concatenate(parts)
    packed = np.zeros((rows * TOKENS, *flat.shape[1:]), flat.dtype)
    packed[: len(flat)] = flat
    return packed.reshape(rows, TOKENS, *flat.shape[1:])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "longest"),
    [
        (3, TOKENS - 1),
        pytest.param(3, TOKENS, marks=pytest.mark.slow),
        pytest.param(1, TOKENS - 1, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", PACKS)
def test_packed_samples_get_the_answers_of_samples_alone(name, rows, longest):
    build, most = PACKS[name], 7
    net, model = model_of(build, rows, TOKENS)
    args = {"max_valid_num": most, "segment_max_size": longest}
    packed = get_pass("packed_transformer", pack_args=args)(declared(model))
    rng = np.random.default_rng(1)
    lengths = [min(length, longest) for length in LENGTHS[rows]]
    samples = [rng.standard_normal((length, WIDTH)).astype(np.float32) for length in lengths]
    feeds = {
        "x": lay(samples, rows),
        "mask": lay([ones(length, np.int64) for length in lengths], rows),
        "at": lay([np.arange(length, dtype=np.int64) for length in lengths], rows),
    }
    info = np.array([lengths + [0] * (most - len(lengths))], np.int32).T
    options = CompilerOptions()
    options.show_compilation_progress_bar = False
    runner = runtime.Runner(Compiler.compile(packed, None, options))
    (output,) = runner.get_execute_outputs()
    found = np.zeros(output.shape, output.numpy_data_type())
    taken = {value.name for value in net.inputs}
    given = {key: value for key, value in feeds.items() if key in taken}
    runner.execute({**given, "unpack_info": np.ascontiguousarray(info)}, {output.name: found})
    samples_axis, *tokens_axes = find_axes(build, most, longest, found.shape)
    for number, sample in enumerate(samples):
        expected = answer_alone(build, sample)
        answer = found.take([number], samples_axis)
        for axis in tokens_axes:
            answer = answer.take(range(len(sample)), axis)
        np.testing.assert_allclose(answer, expected, rtol=2e-5, atol=2e-5)


def find_axes(build: Builder, most: int, longest: int, shape) -> list[int]:
    """Return the axis of the samples, then those of the tokens, by how the result's shape differs
    between sizes of the graph."""
    first, second, third = (
        declared(model_of(build, *sizes)[1]).graph.output[0].type.tensor_type.shape.dim
        for sizes in ((2, 3), (4, 3), (2, 5))
    )
    of_samples = [axis for axis, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]
    of_tokens = [axis for axis, (a, b) in enumerate(zip(first, third, strict=True)) if a != b]
    assert all(shape[axis] == most for axis in of_samples)
    assert all(shape[axis] == longest for axis in of_tokens)
    return [*of_samples, *of_tokens]


MIXES: dict[str, Builder] = {
    "Softmax over samples": lambda n, x: n.add("Softmax", x, axis=0),
    "LpNormalization over tokens": lambda n, x: n.add("LpNormalization", x, axis=1),
    "LayerNormalization over tokens": lambda n, x: n.add(
        "LayerNormalization", x, n.weight(n.tokens, WIDTH), axis=1
    ),
    "ReduceMean over tokens": lambda n, x: n.add("ReduceMean", x, n.integers(1)),
    "ReduceMax over tokens": lambda n, x: n.add("ReduceMax", x, n.integers(1)),
    "ReduceSum over samples": lambda n, x: n.add("ReduceSum", x, n.integers(0)),
    "sums over samples": lambda n, x: n.add("CumSum", x, n.constant(0, np.int64)),
    "sums to the last token": lambda n, x: n.add("CumSum", x, n.constant(1, np.int64), reverse=1),
    "LRN over tokens": lambda n, x: n.add("LRN", n.unsqueeze(x, 3), size=3),
    "Conv over tokens": lambda n, x: n.add(
        "Conv", n.add("Transpose", x, perm=[0, 2, 1]), n.weight(3, WIDTH, 3)
    ),
    "Conv of tokens as channels": lambda n, x: n.add("Conv", x, n.weight(2, TOKENS, 3)),
    "AveragePool over tokens": lambda n, x: n.add(
        "AveragePool", n.add("Transpose", x, perm=[0, 2, 1]), kernel_shape=[2]
    ),
    "GlobalAveragePool over tokens": lambda n, x: n.add(
        "GlobalAveragePool", n.add("Transpose", x, perm=[0, 2, 1])
    ),
    "InstanceNormalization over tokens": lambda n, x: n.add(
        "InstanceNormalization",
        n.add("Transpose", x, perm=[0, 2, 1]),
        n.constant(ones(WIDTH)),
        n.constant(ones(WIDTH)),
    ),
    "ArgMax over tokens": lambda n, x: n.floats(n.add("ArgMax", x, axis=1)),
    "TopK over tokens": lambda n, x: n.first("TopK", x, n.integers(2), axis=1, results=2),
    "Hardmax over tokens": lambda n, x: n.add("Hardmax", x, axis=1),
    "Trilu over tokens": lambda n, x: n.add("Trilu", x),
    "Pad of tokens": lambda n, x: n.add("Pad", x, n.integers(0, 1, 0, 0, 0, 0)),
    "Tile of tokens": lambda n, x: n.add("Tile", x, n.integers(1, 2, 1)),
    "Tile of samples": lambda n, x: n.add("Tile", x, n.integers(2, 1, 1)),
    "Resize of tokens": lambda n, x: n.add("Resize", x, "", n.constant([1.0, 2.0, 1.0])),
    "LSTM over tokens": lambda n, x: n.add(
        "LSTM",
        n.add("Transpose", x, perm=[1, 0, 2]),
        n.weight(1, 12, WIDTH),
        n.weight(1, 12, 3),
        hidden_size=3,
    ),
    "ReverseSequence of tokens": lambda n, x: n.add(
        "ReverseSequence", x, n.constant(np.full(n.batch, 2), np.int64), batch_axis=0, time_axis=1
    ),
    "GatherElements of tokens": lambda n, x: n.add(
        "GatherElements", x, n.constant(np.zeros((n.batch, 1, WIDTH)), np.int64), axis=1
    ),
    "Gather of the last token": lambda n, x: n.add("Gather", x, n.constant(-1, np.int64), axis=1),
    "Gather of a sample": lambda n, x: n.add("Gather", x, n.constant(0, np.int64), axis=0),
    "products of samples": lambda n, x: n.add(
        "MatMul", n.add("Transpose", x, perm=[1, 2, 0]), n.add("Transpose", x, perm=[1, 0, 2])
    ),
    "products with a mixer of tokens": lambda n, x: n.add(
        "MatMul", n.weight(n.tokens, n.tokens), x
    ),
    "Einsum over tokens": lambda n, x: n.add(
        "Einsum", x, n.weight(n.tokens, 3), equation="btw,tv->bvw"
    ),
    "Einsum over samples": lambda n, x: n.add("Einsum", x, x, equation="btw,btv->twv"),
    "Attention that sees padding": lambda n, x: n.add(
        "Attention", x, x, x, q_num_heads=2, kv_num_heads=2
    ),
    "Attention with a mask of all": lambda n, x: n.add(
        "Attention",
        x,
        x,
        x,
        n.constant(ones((n.tokens, n.tokens)), bool),
        q_num_heads=2,
        kv_num_heads=2,
    ),
    "DynamicQuantizeLinear": lambda n, x: n.floats(n.first("DynamicQuantizeLinear", x, results=3)),
    "samples told apart": lambda n, x: n.add("Mul", x, n.weight(n.batch, n.tokens, 1)),
    "samples told apart beside them": lambda n, x: n.add(
        "Concat", x, n.weight(n.batch, n.tokens, 1), axis=2
    ),
    "tokens folded into the width": lambda n, x: n.add(
        "Reshape", x, n.sizes(n.batch, n.tokens // 2, 2 * WIDTH)
    ),
    "RotaryEmbedding along the heads' axis": lambda n, x: n.add(
        "RotaryEmbedding",
        n.add("Transpose", n.heads(x), perm=[0, 2, 1, 3]),
        n.weight(6, 2),
        n.weight(6, 2),
        n.at(),
    ),
}
"""Graphs that mix samples, or tokens with padding."""


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", MIXES)
def test_nodes_that_mix_samples_or_padding_are_rejected(name, batch):
    if "told apart" in name:
        batch = 3  # one row of constants has numbers for positions, not for samples
    _, model = model_of(MIXES[name], batch, TOKENS)
    with pytest.raises(CompileError, match="packed_transformer: node"):
        get_pass("packed_transformer", pack_args={"max_valid_num": 7, "segment_max_size": 5})(
            declared(model)
        )
