"""Tests of sequences and optional values: where constants say what is in them, they are written as
tensors, and computed as ONNX Runtime does without its optimisers."""

import numpy as np
import onnx
import pytest
from model_runtime import ModelRunner, ModelRunnerConfig
from onnxgraph import iter_nodes
from oracles import unoptimised_session
from poprt import Compiler, Converter
from poprt.passes import get_pass
from sequence_programs import make_program
from simipu import CompileError

X = np.arange(18, dtype=np.float32).reshape(6, 3)
HEAD = '<ir_version: 8, opset_import: ["": 18]> sequences '


def answer(model, feeds, precision="fp32", **options):
    converter = Converter(precision=precision, disable_progress_bar=True, **options)
    executable = Compiler.compile(converter.convert(model))
    config = ModelRunnerConfig(timeout_ns=1_000, num_threads=1)
    with ModelRunner(executable.getPopefModel(), config) as runner:
        types = {each.name: each.numpy_data_type() for each in runner.getExecuteInputs()}
        given = {name: np.asarray(feeds[name], kind) for name, kind in types.items()}
        return dict(runner.execute(given))


def assert_answers(model, feeds, precision="fp32", **options):
    names = [value.name for value in model.graph.output]
    expected = unoptimised_session(model).run(names, feeds)
    found = answer(model, feeds, precision, **options)
    for name, value in zip(names, expected, strict=True):
        assert found[name].shape == value.shape
        np.testing.assert_allclose(found[name], value, rtol=1e-2 if precision == "fp16" else 1e-5)


COUNTED = """(float[6,3] x) => (float[4,6,3] y, int64 n) <int64 four = {4}> {
  empty = SequenceEmpty()
  s = Loop(four, , empty)<body = b (int64 i, bool c, seq(float) s) => (bool c, seq(float) t) {
    f = Cast<to = 1>(i) v = Add(x, f) t = SequenceInsert(s, v) }>
  y = ConcatFromSequence<axis = 0, new_axis = 1>(s) n = SequenceLength(s) }"""
NESTED = """(float[6,3] x) => (float[36,3] y) <int64 two = {2}, int64 three = {3}> {
  empty = SequenceEmpty()
  s = Loop(two, , empty)<body = b (int64 i, bool c, seq(float) s) => (bool c, seq(float) t) {
    t = Loop(three, , s)<body = d (int64 j, bool e, seq(float) u) => (bool e, seq(float) v) {
      k = Add(i, j) f = Cast<to = 1>(k) w = Mul(x, f) v = SequenceInsert(u, w) }> }>
  y = ConcatFromSequence<axis = 0>(s) }"""
PARTS = """(float[6,3] x) => (float[6,3] y, float[6,2] z, float[3] r, int64 n)
  <int64 two = {2}, int64[2] sizes = {1,2}, int64 last = {-1}> {
  rows = SplitToSequence<axis = 0>(x)
  powers = SequenceMap(rows)<body = b (float[1,3] e) => (float[1,3] f) { f = Exp(e) }>
  y = ConcatFromSequence<axis = 0>(powers)
  columns = SplitToSequence<axis = 1>(x, sizes) z = SequenceAt(columns, last)
  single = SplitToSequence<axis = 0, keepdims = 0>(x) r = SequenceAt(single, two)
  pairs = SplitToSequence<axis = 0>(x, two) n = SequenceLength(pairs) }"""
EDITED = """(float[6,3] x) => (float[18,3] y, int64 n) <int64 zero = {0}, int64 one = {1}, int64 back = {-2}> {
  a = Neg(x) b = Exp(x) s = SequenceConstruct(x, a, b, a) t = SequenceErase(s, back)
  u = SequenceInsert(t, b, zero) v = SequenceErase(u) n0 = SequenceLength(v)
  n = Sub(n0, one) w = SequenceInsert(v, x, n) p = SequenceErase(w, one)
  y = ConcatFromSequence<axis = 0>(p) }"""
OPTIONAL = """(float[6,3] x) => (float[6,3] y, bool h, bool e) {
  o = Optional(x) h = OptionalHasElement(o) y = OptionalGetElement(o)
  m = Optional<type = float[6,3]>() e = OptionalHasElement(m) }"""
NONE = """(float[6,3] x) => (float[6,3] y, int64 n) <int64 zero = {0}> {
  one = SequenceConstruct(x)
  s = Loop(zero, , one)<body = b (int64 i, bool c, seq(float) s) => (bool c, seq(float) t) {
    t = SequenceInsert(s, x) }>
  y = ConcatFromSequence<axis = 0>(s) n = SequenceLength(s) }"""
CASES = {
    "made in a loop": COUNTED,
    "made in nested loops": NESTED,
    "parts of a tensor": PARTS.replace("powers = SequenceMap(rows)<body = b (float[1,3] e) => "
                                       "(float[1,3] f) { f = Exp(e) }>", "powers = Identity(rows)"),
    "edited by position": EDITED,
    "optional values": OPTIONAL.replace("m = Optional<type = float[6,3]>() e = OptionalHasElement(m)",
                                        "e = OptionalHasElement(x)"),
    "made in no turn": NONE,
}  # fmt: skip


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("case", CASES)
def test_sequences_whose_lengths_are_constants_are_computed(case, precision):
    assert_answers(onnx.parser.parse_model(HEAD + CASES[case]), {"x": X / 9}, precision)


def test_elements_may_be_mapped():
    found = answer(onnx.parser.parse_model(HEAD + PARTS), {"x": X / 9})
    np.testing.assert_allclose(found["y"], np.exp(X / 9), rtol=1e-6)
    assert found["n"] == 3


def test_an_empty_optional_value_has_no_element():
    found = answer(onnx.parser.parse_model(HEAD + OPTIONAL), {"x": X})
    assert (bool(found["h"]), bool(found["e"])) == (True, False)


BAGS = """({offsets}int64[8] x) => (float[3,2] y) <float[10,2] table = {{{table}}}{weights}> {{
  zero = Constant<value_int = 0>() one = Constant<value_int = 1>()
  axis = Constant<value_ints = [0]>() size = Shape(x) rows = Gather(table, x)
  ends = Concat<axis = 0>(offsets, size) shape = Shape(offsets) count = Squeeze(shape)
  empty = SequenceEmpty() starts = Less(zero, count)
  number, bags = Loop("", starts, zero, empty)<
    body = b (int64 i, bool c, int64 k, seq(float) s) => (bool d, int64 m, seq(float) t) {{
      at = Unsqueeze(k, axis) first = Gather(ends, at) m = Add(k, one) behind = Unsqueeze(m, axis)
      last = Gather(ends, behind) part = Slice(rows, first, last, axis)
      sum = ReduceSum<keepdims = 1>(part, axis) t = SequenceInsert(s, sum) d = Less(m, count) }}>
  y = ConcatFromSequence<axis = 0>(bags) }}"""
TABLE = ", ".join(f"{number}.5" for number in range(20))
IDS = np.int64([1, 2, 4, 5, 4, 3, 2, 9])


def test_bags_of_embeddings_as_torch_writes_them_are_computed():
    """The loop ends by a condition, and each turn cuts another number of rows out."""
    text = BAGS.format(offsets="", table=TABLE, weights=", int64[3] offsets = {0, 3, 4}")
    assert_answers(onnx.parser.parse_model(HEAD + text), {"x": IDS})


def test_bags_whose_offsets_are_data_ask_to_fix_them():
    text = BAGS.format(offsets="int64[3] offsets, ", table=TABLE, weights="")
    model = onnx.parser.parse_model(HEAD + text)
    feeds = {"x": IDS, "offsets": np.int64([0, 3, 4])}
    with pytest.raises(CompileError, match=r"computed of input 'offsets'.*--fix_input offsets="):
        answer(model, feeds)
    assert_answers(model, feeds, fix_inputs={"offsets": feeds["offsets"]})


BRANCHES = """(float[6,3] x, bool[1] c) => (float[12,3] y, int64 n, float[6,3] z) <int64 zero = {0}> {
  s, z = If(c)<
    then_branch = t () => (seq(float[6,3]) p, float[6,3] o) { e = Exp(x) p = SequenceConstruct(e, x) o = Abs(x) },
    else_branch = f () => (seq(float[6,3]) q, float[6,3] o) { e = Neg(x) q = SequenceConstruct(e, e) o = Neg(x) }>
  y = ConcatFromSequence<axis = 0>(s) n = SequenceLength(s) }"""


@pytest.mark.parametrize("taken", [True, False])
def test_branches_may_give_sequences_of_one_length(taken):
    model = onnx.parser.parse_model(HEAD + BRANCHES)
    assert_answers(model, {"x": X / 9, "c": np.array([taken])})


def test_an_element_of_equal_ones_may_be_chosen_by_data():
    text = """(float[6,3] x, int64[1] k) => (float[6,3] y) <int64[0] none = {}> { a = Neg(x)
      s = SequenceConstruct(x, a, x) at = Reshape(k, none) y = SequenceAt(s, at) }"""
    model = onnx.parser.parse_model(HEAD + text)
    for place in (0, 1, -1):
        assert_answers(model, {"x": X, "k": np.int64([place])})


REFUSED = {
    "an input": (
        "(seq(float[2]) s) => (float[2] y) <int64 zero = {0}> { y = SequenceAt(s, zero) }",
        "input 's' is a sequence; the IPU has tensors only",
    ),
    "an output": (
        "(float[2] x) => (seq(float[2]) s) { s = SequenceConstruct(x, x) }",
        "output 's' is a sequence; the IPU has tensors only",
    ),
    "a length of data": (
        "(float[2] x, int64 n) => (float[2] y) <int64 zero = {0}> { e = SequenceEmpty() "
        "s = Loop(n, , e)<body = b (int64 i, bool c, seq(float) s) => (bool c, seq(float) t) "
        "{ t = SequenceInsert(s, x) }> y = SequenceAt(s, zero) }",
        "is a sequence whose length or elements depend on the data",
    ),
    "a loop without an end": (
        "(float[2] x) => (float[2] y) <int64 n = {4611686018427387904}, int64 zero = {0}> "
        "{ e = SequenceEmpty() "
        "s = Loop(n, , e)<body = b (int64 i, bool c, seq(float) s) => (bool c, seq(float) t) "
        "{ t = SequenceInsert(s, x) }> y = SequenceAt(s, zero) }",
        "is a sequence whose length or elements depend on the data|runs 4611686018427387904 times",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_sequences_are_refused_by_name(case):
    text, message = REFUSED[case]
    model = onnx.parser.parse_model(HEAD + text)
    for compile_it in (
        Compiler.compile,
        lambda given: Compiler.compile(Converter().convert(given)),
    ):
        with pytest.raises(CompileError, match=message):
            compile_it(model)


@pytest.mark.parametrize("seed", range(25))
def test_random_programs_on_sequences_are_computed(seed):
    model = make_program(seed)
    converted = Converter(disable_progress_bar=True).convert(model)
    assert not any("Sequence" in node.op_type for node in iter_nodes(converted.graph))
    x = np.random.default_rng(seed).standard_normal((2, 3)).astype(np.float32)
    for found, wanted in zip(
        unoptimised_session(converted).run(["y", "z"], {"x": x}),
        unoptimised_session(model).run(["y", "z"], {"x": x}),
        strict=True,
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_a_loop_in_a_loop_without_sequences_stays_a_loop():
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        nested (float[2,3] x) => (float[2,3] y)
        <float one = {1.0}, int64 twenty = {20}, int64 thirty = {30}> {
            y = Loop (thirty, , x) <body = outer (int64 i, bool c, float[2,3] a)
                => (bool on, float[2,3] b) {
                on = Identity (c)
                b = Loop (twenty, , a) <body = inner (int64 j, bool d, float[2,3] e)
                    => (bool go, float[2,3] f) { go = Identity (d) f = Add (e, one) }>
            }>
        }"""
    )
    onnx.checker.check_model(model, full_check=True)
    found = get_pass("resolve_sequences")(model)
    assert [node.op_type for node in iter_nodes(found.graph)].count("Loop") == 2
