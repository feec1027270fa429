"""Tests of a decoder as PopTransformer builds it (its models/gpt2 and ops/customized.py). It is a
Loop over tokens with a cache of keys and values, its own norms, and weights of 4 and of 8 bits."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxgraph import CHIP_DOMAIN
from poprt import Compiler, CompilerOptions, Converter, runtime
from simipu import CompileError
from simipu.numerics.quarter import FORMATS, decode, encode

BATCH, TOKENS, HEADS, SIZE = 2, 5, 2, 4
WIDTH = HEADS * SIZE
H, I32, I64, B = TensorProto.FLOAT16, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL
FORMAT, SCALE = "F143", -1
LOWEST = -10_000.0


class Body:
    """Builder of the graph of one token."""

    def __init__(self):
        self.nodes, self.weights = [], []

    def add(self, op_type, *inputs, domain="", outputs=1, **attributes):
        names = [f"{op_type}_{len(self.nodes)}_{i}" for i in range(outputs)]
        node = helper.make_node(op_type, inputs, names, name=names[0], domain=domain, **attributes)
        self.nodes.append(node)
        return names[0] if outputs == 1 else names

    def chip(self, op_type, *inputs, **attributes):
        return self.add(op_type, *inputs, domain=CHIP_DOMAIN, **attributes)

    def hold(self, value):
        name = f"weight_{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def sizes(self, *values):
        return self.hold(np.array(values, np.int64))


def weights():
    rng = np.random.default_rng(0)
    values = {
        "tokens": rng.normal(size=(11, WIDTH)),
        "gamma": rng.normal(1, 0.1, WIDTH),
        "beta": rng.normal(0, 0.1, WIDTH),
        "scale": rng.normal(0.1, 0.01, 3 * WIDTH),
    }
    found = {name: value.astype(np.float16) for name, value in values.items()}
    found["nibbles"] = rng.integers(-128, 128, (3 * WIDTH, WIDTH // 2)).astype(np.int8)
    found["codes"] = encode(rng.normal(size=(WIDTH, WIDTH)), FORMATS[FORMAT], SCALE)
    return found


def decoder(first=0):
    """Return a model with a Loop that outputs the result of attention for each token."""
    held, net = weights(), Body()
    token = net.add(
        "Gather", net.hold(held["tokens"]), net.add("Gather", "ids", "step", axis=1), axis=0
    )
    x = net.add("Reshape", token, net.sizes(BATCH, 1, WIDTH))
    x = net.chip(
        "NormCE",
        x,
        net.hold(held["gamma"]),
        net.hold(held["beta"]),
        epsilon=1e-5,
        num_groups=BATCH,
        stable_algo=0,
        fwd_grain_size=-1,
        bwd_grain_size=-1,
        fwd_after_matmul=0,
        bwd_after_matmul=0,
        debug_str="norm",
    )
    wide = net.chip(
        "Int4ToHalf", net.hold(held["nibbles"]), net.hold(held["scale"]), x, axis=1, remap=1
    )
    query, key, value = net.add(
        "Split", net.add("MatMul", x, wide), net.sizes(WIDTH, WIDTH, WIDTH), outputs=3, axis=2
    )
    split = net.sizes(BATCH, 1, HEADS, SIZE)
    query, key, value = (
        net.add("Transpose", net.add("Reshape", each, split), perm=[0, 2, 1, 3])
        for each in (query, key, value)
    )
    pair = [net.add("Unsqueeze", each, net.sizes(0)) for each in (key, value)]
    past = net.chip(
        "KVCache",
        "step",
        net.add("Concat", *pair, axis=0),
        max_len=TOKENS,
        step_len=1,
        sequence_axis=3,
        fp8=0,
    )
    past = net.chip("Remap", past, fwd_grain_size=8, bwd_grain_size=8, debug_str="past")
    keys, values = net.add("Split", past, net.sizes(1, 1), outputs=2, axis=0)
    keys, values = (net.add("Squeeze", each, net.sizes(0)) for each in (keys, values))
    scores = net.add("MatMul", query, net.add("Transpose", keys, perm=[0, 1, 3, 2]))
    places = net.hold(np.arange(TOKENS, dtype=np.int32))
    hidden = net.add("Greater", places, "step")
    mask = net.add("Where", hidden, net.hold(np.float16(LOWEST)), net.hold(np.float16(0)))
    shares = net.chip("SoftmaxV3", net.add("Add", scores, mask), axis=-1, stable_mode=0)
    mixed = net.add("Transpose", net.add("MatMul", shares, values), perm=[0, 2, 1, 3])
    mixed = net.add("Reshape", mixed, net.sizes(BATCH, 1, WIDTH))
    scale = net.hold(np.array([SCALE], np.int32))
    narrow = net.chip("CastToUint8WithoutShapeInfer", mixed, scale, fp8Format=FORMAT)
    codes = net.hold(held["codes"])
    formats = {"fp8FormatLHS": FORMAT, "fp8FormatRHS": FORMAT}
    made = net.chip("FP8MatMulWithoutShapeInfer", narrow, codes, scale, scale, **formats)
    after, on = net.add("Add", "step", net.hold(np.int32(1))), net.add("Identity", "go")
    inputs = [
        helper.make_tensor_value_info(name, kind, [])
        for name, kind in (("turn", I64), ("go", B), ("step", I32))
    ]
    outputs = [
        helper.make_tensor_value_info(on, B, []),
        helper.make_tensor_value_info(after, I32, []),
    ]
    outputs.append(helper.make_tensor_value_info(made, H, [BATCH, 1, WIDTH]))
    body = helper.make_graph(net.nodes, "one_token", inputs, outputs)
    starts = {"turns": np.int64(TOKENS), "go0": np.array(True), "first": np.int32(first)}
    held_outside = [
        numpy_helper.from_array(np.asarray(each), name) for name, each in starts.items()
    ]
    loop = helper.make_node(
        "Loop", ["turns", "go0", "first"], ["last", "made"], name="loop", body=body
    )
    graph = helper.make_graph(
        [loop],
        "decoder",
        [helper.make_tensor_value_info("ids", I32, [BATCH, TOKENS])],
        [helper.make_tensor_value_info("made", H, [TOKENS, BATCH, 1, WIDTH])],
        [*held_outside, *net.weights],
    )
    opsets = [helper.make_opsetid("", 13), helper.make_opsetid(CHIP_DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def attend(ids):
    """Compute the same for all tokens at once, in double."""
    held = weights()
    x = held["tokens"].astype(float)[ids]
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    x = x * held["gamma"] + held["beta"]
    nibbles = held["nibbles"].astype(int)
    wide = np.stack([nibbles >> 4, ((nibbles & 15) ^ 8) - 8], 2).reshape(3 * WIDTH, WIDTH).T
    projected = np.split(x @ (wide * held["scale"].astype(float)), 3, axis=-1)
    query, key, value = (
        each.reshape(BATCH, TOKENS, HEADS, SIZE).transpose(0, 2, 1, 3) for each in projected
    )
    scores = query @ key.transpose(0, 1, 3, 2)
    scores = np.where(np.tril(np.ones((TOKENS, TOKENS), bool)), scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    mixed = (shares / shares.sum(-1, keepdims=True)) @ value
    mixed = mixed.transpose(0, 2, 1, 3).reshape(BATCH, TOKENS, WIDTH)
    return mixed @ decode(held["codes"], FORMATS[FORMAT], SCALE)


def compile_it(model):
    options = CompilerOptions(ipu_version="ipu21")
    options.show_compilation_progress_bar = False
    return Compiler.compile(Converter(disable_progress_bar=True).convert(model), None, options)


def test_a_decoder_with_a_cache_answers_like_all_tokens_at_once():
    model = decoder()
    onnx.checker.check_model(model)
    ids = np.random.default_rng(1).integers(0, 11, (BATCH, TOKENS)).astype(np.int32)
    runner = runtime.Runner(compile_it(model))
    expected = attend(ids).transpose(1, 0, 2)[:, :, None]
    for _ in range(2):  # a run begins with an empty cache
        found = {"made": np.zeros((TOKENS, BATCH, 1, WIDTH), np.float16)}
        runner.execute({"ids": ids}, found)
        # Values narrowed to 8 bits have a relative error of up to 2^-4.
        assert np.abs(found["made"] - expected).max() <= 2.0**-4 * np.abs(expected).max() * np.sqrt(
            WIDTH
        )


def test_a_decoder_that_goes_on_where_another_run_ended_is_refused():
    with pytest.raises(CompileError, match="expected a first step 'first' of 0, found 1"):
        compile_it(decoder(1))
