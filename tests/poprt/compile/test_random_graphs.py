"""Property tests of the passes that fold, drop and fuse, on small random graphs. Answers, inputs
and outputs stay the same, and a second run changes nothing."""

import numpy as np
import onnx
from example_counts import examples
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from oracles import unoptimised_session
from poprt import Converter
from poprt.passes import get_pass
from simipu.engines.computed import ORT_ERRORS

F, I32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL
TYPES = {F: np.float32, I32: np.int32, I64: np.int64}
SHAPE = (2, 3, 2)
EXACT = [
    "eliminate_deadend",
    "eliminate_duplicate_initializer",
    "eliminate_duplicate_nodes",
    "eliminate_identity",
    "eliminate_nop_arithmetic",
    "eliminate_nop_cast",
    "eliminate_nop_expand",
    "eliminate_nop_flatten",
    "eliminate_nop_if",
    "eliminate_nop_pad",
    "eliminate_nop_reshape",
    "eliminate_nop_transpose",
    "eliminate_unused_initializer",
    "fuse_consecutive_cast",
    "fuse_consecutive_reshape",
    "fuse_consecutive_squeeze",
    "fuse_consecutive_transpose",
    "fuse_consecutive_unsqueeze",
    "post_expand",
]
ROUNDED = ["fuse_consecutive_arithmetic", "fuse_mul_into_matmul"]
VALUES = st.sampled_from([0.0, 1.0, 2.0, 0.5, -1.0, 3.0])


class Drawing:
    """Random graph under construction: nodes are drawn one after the other, and the shapes and
    types of tensors are known."""

    def __init__(self, draw, outer=()):
        self.draw = draw
        self.tensors = dict(outer)
        self.own = []
        self.nodes, self.weights = [], []
        self.prefix = "" if not outer else f"body{draw(st.integers(0, 2**30))}_"

    def name(self):
        return f"{self.prefix}t{len(self.nodes)}_{len(self.weights)}"

    def constant(self, values, dtype=np.float32):
        name = f"{self.prefix}w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def add(self, op_type, inputs, kind, shape, **attributes):
        name = self.name()
        self.nodes.append(
            helper.make_node(op_type, inputs, [name], name=f"{name}_node", **attributes)
        )
        self.tensors[name] = kind, tuple(shape)
        self.own.append(name)
        return name

    def grow(self, steps):
        for _ in range(steps):
            STEPS[self.draw(st.sampled_from(sorted(STEPS)))](self)

    def pick(self, kinds=(F, I32, I64)):
        # Nodes mostly read the last tensors, so that chains form.
        found = [name for name, (kind, _) in self.tensors.items() if kind in kinds]
        return found[-1 - self.draw(st.integers(0, min(4, len(found) - 1)))]


def unary(drawing):
    name = drawing.pick()
    kind, shape = drawing.tensors[name]
    drawing.add(drawing.draw(st.sampled_from(["Neg", "Abs", "Identity"])), [name], kind, shape)


def constant_arithmetic(drawing):
    name = drawing.pick((F,))
    _, shape = drawing.tensors[name]
    op_type = drawing.draw(st.sampled_from(["Add", "Sub", "Mul", "Div"]))
    number = drawing.draw(VALUES.filter(bool) if op_type == "Div" else VALUES)
    wide = drawing.draw(st.booleans())
    other = drawing.constant(np.full(shape[-1:] if wide else (), number))
    turned = drawing.draw(st.booleans()) and op_type in ("Add", "Mul")
    drawing.add(op_type, [other, name] if turned else [name, other], F, shape)


def of_constants(drawing):
    shape = SHAPE
    one, two = (drawing.constant(np.full(shape, drawing.draw(VALUES))) for _ in range(2))
    drawing.add(drawing.draw(st.sampled_from(["Add", "Mul"])), [one, two], F, shape)


def binary(drawing):
    name = drawing.pick((F,))
    _, shape = drawing.tensors[name]
    fitting = [other for other, found in drawing.tensors.items() if found == (F, shape)]
    drawing.add("Add", [name, drawing.draw(st.sampled_from(fitting))], F, shape)


def cast(drawing):
    name = drawing.pick()
    kind = drawing.draw(st.sampled_from([F, I32, I64]))
    drawing.add("Cast", [name], kind, drawing.tensors[name][1], to=kind)


def transpose(drawing):
    name = drawing.pick()
    kind, shape = drawing.tensors[name]
    order = drawing.draw(st.permutations(range(len(shape))))
    drawing.add("Transpose", [name], kind, [shape[axis] for axis in order], perm=order)


def reshape(drawing):
    name = drawing.pick()
    kind, shape = drawing.tensors[name]
    size = int(np.prod(shape))
    made = drawing.draw(
        st.sampled_from([shape, (size,), (1, size), (size, 1), tuple(reversed(shape))])
    )
    written = list(made)
    if drawing.draw(st.booleans()) and written:
        written[drawing.draw(st.integers(0, len(written) - 1))] = -1
    if written and len(shape) >= 1 and written[0] == shape[0] and drawing.draw(st.booleans()):
        written[0] = 0
    drawing.add("Reshape", [name, drawing.constant(written, np.int64)], kind, made)


def unsqueeze(drawing):
    name = drawing.pick()
    kind, shape = drawing.tensors[name]
    if len(shape) > 4:
        return
    rank = len(shape) + 1
    axis = drawing.draw(st.integers(-rank, rank - 1))
    made = list(shape)
    made.insert(axis % rank, 1)
    drawing.add("Unsqueeze", [name, drawing.constant([axis], np.int64)], kind, made)


def squeeze(drawing):
    name = drawing.pick()
    kind, shape = drawing.tensors[name]
    ones = [axis for axis, size in enumerate(shape) if size == 1]
    if ones:
        axis = drawing.draw(st.sampled_from(ones))
        given = axis - len(shape) if drawing.draw(st.booleans()) else axis
        made = [size for i, size in enumerate(shape) if i != axis]
        drawing.add("Squeeze", [name, drawing.constant([given], np.int64)], kind, made)


def expand(drawing):
    name = drawing.pick()
    kind, shape = drawing.tensors[name]
    front = drawing.draw(st.sampled_from([(), (1,), (2,)]))
    made = (*front, *shape)
    if int(np.prod(made)) <= 96 and len(made) <= 5:
        drawing.add("Expand", [name, drawing.constant(made, np.int64)], kind, made)


def pad(drawing):
    name = drawing.pick((F,))
    _, shape = drawing.tensors[name]
    if shape:
        ends = drawing.draw(st.sampled_from([0, 1]))
        pads = [0] * (2 * len(shape) - 1) + [ends]
        drawing.add(
            "Pad",
            [name, drawing.constant(pads, np.int64)],
            F,
            (*shape[:-1], shape[-1] + ends),
            mode="constant",
        )


def flatten(drawing):
    name = drawing.pick((F,))
    _, shape = drawing.tensors[name]
    if shape:
        made = (shape[0], int(np.prod(shape[1:])))
        drawing.add("Flatten", [name], F, made, axis=1)


def sized(drawing):
    name = drawing.pick()
    kind, shape = drawing.tensors[name]
    if shape and kind == F:
        size = drawing.add("Shape", [name], I64, (len(shape),))
        zeros = drawing.add("ConstantOfShape", [size], F, shape)
        drawing.add("Sub", [name, zeros], F, shape)


def multiply(drawing):
    name = drawing.pick((F,))
    _, shape = drawing.tensors[name]
    if len(shape) >= 2:
        weights = np.arange(shape[-1] * 2).reshape(shape[-1], 2)
        drawing.add("MatMul", [name, drawing.constant(weights / 4)], F, (*shape[:-1], 2))


def choose(drawing):
    if drawing.prefix:
        return
    name = drawing.pick((F,))
    bodies = []
    for kind in ("then", "else"):
        inner = Drawing(drawing.draw, drawing.tensors)
        inner.prefix += f"{kind}{len(drawing.nodes)}_"
        inner.grow(drawing.draw(st.integers(0, 4)))
        made = inner.add("Neg", [name], *drawing.tensors[name])
        # The body's output need not be the result of its last node.
        _, shape = drawing.tensors[name]
        fitting = [each for each in inner.own if inner.tensors[each] == (F, shape)]
        made = drawing.draw(st.sampled_from(fitting))
        value = helper.make_tensor_value_info(made, F, shape)
        bodies.append(helper.make_graph(inner.nodes, kind, [], [value], inner.weights))
    condition = (
        "c"
        if drawing.draw(st.booleans())
        else drawing.constant(drawing.draw(st.booleans()), np.bool_)
    )
    drawing.add(
        "If", [condition], *drawing.tensors[name], then_branch=bodies[0], else_branch=bodies[1]
    )


STEPS = {
    each.__name__: each
    for each in (
        unary,
        constant_arithmetic,
        of_constants,
        binary,
        cast,
        transpose,
        reshape,
        unsqueeze,
        squeeze,
        expand,
        pad,
        flatten,
        sized,
        multiply,
        choose,
    )
}


@st.composite
def models(draw):
    drawing = Drawing(draw)
    drawing.tensors["x"] = F, SHAPE
    drawing.grow(draw(st.integers(1, 14)))
    if not drawing.own:
        drawing.add("Neg", ["x"], F, SHAPE)
    # Some tensors in the middle are outputs too.
    outputs = list(
        dict.fromkeys([drawing.own[-1], *draw(st.lists(st.sampled_from(drawing.own), max_size=2))])
    )
    graph = helper.make_graph(
        drawing.nodes,
        "drawn",
        [
            helper.make_tensor_value_info("x", F, SHAPE),
            helper.make_tensor_value_info("c", BOOL, []),
        ],
        [helper.make_tensor_value_info(name, *drawing.tensors[name]) for name in outputs],
        drawing.weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def answer(model, feeds):
    session = unoptimised_session(model)
    wanted = {value.name for value in session.get_inputs()}
    return session.run(None, {name: value for name, value in feeds.items() if name in wanted})


def compute(model, feeds):
    """Return the answers of the given model. Skip a model that ONNX Runtime cannot compute: it
    shows nothing about passes.

    ONNX Runtime (1.31) drops the first of two Casts to the existing type, with all optimisers off
    too. Then it misses the values that a body reads from them.
    """
    try:
        return answer(model, feeds)
    except ORT_ERRORS as error:
        assume("Missing Input" not in str(error))
        raise


def assert_kept(name, model, seed, tolerance):
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    changed = get_pass(name)(copy)
    onnx.checker.check_model(changed, full_check=True)
    for side in ("input", "output"):
        before, after = (getattr(each.graph, side) for each in (model, changed))
        assert [(v.name, v.type) for v in before] == [(v.name, v.type) for v in after]
    again = onnx.ModelProto()
    again.CopyFrom(changed)
    assert get_pass(name)(again) == changed
    rng = np.random.default_rng(seed)
    feeds = {"x": rng.normal(size=SHAPE).astype(np.float32), "c": np.array(bool(seed % 2))}
    for expected, found in zip(compute(model, feeds), answer(changed, feeds), strict=True):
        if tolerance:
            scale = max(1.0, float(np.abs(expected).max(initial=0)))
            np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * scale)
        else:
            np.testing.assert_array_equal(found, expected)


def bounded(count):
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(max_examples=examples(count), deadline=None, suppress_health_check=slow)


@bounded(200)
@given(model=models(), name=st.sampled_from(EXACT), seed=st.integers(0, 9))
def test_dropping_and_joining_nodes_changes_no_bit_of_the_answers(model, name, seed):
    assert_kept(name, model, seed, 0.0)


@bounded(200)
@given(model=models(), name=st.sampled_from(ROUNDED), seed=st.integers(0, 9))
def test_joining_constants_changes_the_last_bits_only(model, name, seed):
    assert_kept(name, model, seed, 1e-5)


@bounded(25)
@given(model=models(), seed=st.integers(0, 9))
def test_constants_are_folded_to_the_bits_that_the_graph_computes(model, seed):
    assert_kept("constant_folding", model, seed, 0.0)


@bounded(25)
@given(model=models(), seed=st.integers(0, 9))
def test_a_converted_model_answers_as_the_one_given(model, seed):
    converted = Converter().convert(model)
    onnx.checker.check_model(converted, full_check=True)
    names = [value.name for value in model.graph.output]
    assert [value.name for value in converted.graph.output] == names
    rng = np.random.default_rng(seed)
    feeds = {"x": rng.normal(size=SHAPE).astype(np.float32), "c": np.array(bool(seed % 2))}
    for expected, found in zip(compute(model, feeds), answer(converted, feeds), strict=True):
        # Other families of passes round at other places: a division becomes a multiplication.
        scale = max(1.0, float(np.abs(expected).max(initial=0)))
        np.testing.assert_allclose(found, expected.astype(found.dtype), rtol=0, atol=1e-5 * scale)
