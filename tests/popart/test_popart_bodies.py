"""Operators with graphs inside: If, Loop, Scan, Call and packed data."""

import numpy as np
import popart
import pytest
from popart_models import build, compute, open_session

F = np.float32
R = np.random.default_rng(3)
X = R.standard_normal((2, 3)).astype(F)


def scalar(builder, value, dtype):
    return builder.aiOnnx.constant(np.array(value, dtype))


@pytest.mark.parametrize("count_type", [np.int32, np.int64])
def test_a_loop_carries_tensors_and_stacks_results(count_type):
    def make(b, names):
        body = b.createSubgraphBuilder()
        body.setGraphName("body")
        body.addInputTensor(popart.TensorInfo("INT32", []))
        goes_on = body.addInputTensor(popart.TensorInfo("BOOL", []))
        state = body.addUntypedInputTensor()
        doubled = body.aiOnnx.add([state, state])
        for name in (goes_on, doubled, body.aiOnnx.add([doubled, names[1]])):
            body.addOutputTensor(name)
        return b.aiOnnx.loop(
            [scalar(b, 3, count_type), scalar(b, True, np.bool_), names[0]], 2, body
        )

    last, stacked = compute(make, [X, X + 1], opset=10)
    np.testing.assert_allclose(last, X * 8, rtol=1e-6)
    np.testing.assert_allclose(stacked, np.stack([X * 2**n + X + 1 for n in (1, 2, 3)]), rtol=1e-6)


def test_a_body_s_input_hides_the_parent_s_tensor_of_its_name():
    def make(b, names):
        outer = b.aiOnnx.mul([names[0], names[0]])
        body = b.createSubgraphBuilder()
        body.setGraphName("body")
        body.addInputTensor(popart.TensorInfo("INT32", []))
        goes_on = body.addInputTensor(popart.TensorInfo("BOOL", []))
        body.addInputTensorFromParentGraph(outer)
        body.addOutputTensor(goes_on)
        body.addOutputTensor(body.aiOnnx.add([outer, names[0]]))
        made = b.aiOnnx.loop([scalar(b, 2, np.int32), scalar(b, True, np.bool_), names[0]], 1, body)
        return [outer, *made]

    outer, last = compute(make, [X])
    np.testing.assert_allclose(outer, X * X, rtol=1e-6)
    np.testing.assert_allclose(last, X * 3, rtol=1e-6)


@pytest.mark.parametrize("taken", [True, False])
def test_an_if_takes_one_branch(taken):
    def make(b, names):
        branches = []
        for name in ("exp", "neg"):
            branch = b.createSubgraphBuilder()
            branch.setGraphName(name)
            branch.addOutputTensor(getattr(branch.aiOnnx, name)([names[0]]))
            branches.append(branch)
        return b.aiOnnx.logical_if([names[1]], 1, else_branch=branches[1], then_branch=branches[0])

    (found,) = compute(make, [X, np.array(taken)])
    np.testing.assert_allclose(found, np.exp(X) if taken else -X, rtol=1e-6)


def test_branches_of_two_shapes_are_refused():
    def make(b, names):
        branches = []
        for axis in (0, 1):
            branch = b.createSubgraphBuilder()
            branch.setGraphName(f"branch{axis}")
            branch.addOutputTensor(branch.aiOnnx.concat([names[0], names[0]], axis))
            branches.append(branch)
        return b.aiOnnx.logical_if([names[1]], 1, branches[1], branches[0])

    proto, names = build(make, [X, np.array(True)])
    with pytest.raises(popart.popart_exception, match=r"FLOAT \[4 3\], the else branch FLOAT"):
        open_session(proto, names)


def test_a_scan_keeps_the_scanned_axis_and_joins_results_along_it():
    rows = R.standard_normal((4, 3)).astype(F)

    def make(b, names):
        body = b.createSubgraphBuilder()
        body.setGraphName("body")
        total, row = (body.addUntypedInputTensor() for _ in range(2))
        total = body.aiOnnx.add([total, row])
        body.addOutputTensor(total)
        body.addOutputTensor(body.aiOnnx.concat([total, row], 0))
        return b.aiOnnx.scan(names, 2, body, 1, scan_input_directions=[1])

    total, joined = compute(make, [np.zeros((1, 3), F), rows])
    sums = np.cumsum(rows[::-1], 0)
    np.testing.assert_allclose(total, sums[-1:], rtol=1e-5)
    expected = np.stack([sums, rows[::-1]], 1).reshape(8, 3)
    np.testing.assert_allclose(joined, expected, rtol=1e-5)


def test_a_graph_can_be_called_more_than_once():
    def make(b, names):
        callee = b.createSubgraphBuilder()
        callee.setGraphName("halve")
        x = callee.addUntypedInputTensor()
        half = callee.aiOnnx.constant(np.array([0.5], F))
        callee.addOutputTensor(callee.aiOnnx.mul([x, half]))
        once = b.aiGraphcore.call([names[0]], 1, callee)
        return b.aiGraphcore.call(once, 1, callee)

    (found,) = compute(make, [X])
    np.testing.assert_array_equal(found, X / 4)


def test_sequences_that_are_packed_are_computed_apart():
    lengths, width, longest = [2, 1, 3, 2], 2, 3
    data = R.standard_normal((sum(lengths), width)).astype(F)
    offsets = np.cumsum([0, *lengths[:-1]])

    def make(b, names):
        callee = b.createSubgraphBuilder()
        callee.setGraphName("sum")
        x = callee.addUntypedInputTensor()
        total = callee.aiOnnx.reducesum([x], axes=[1], keepdims=1)
        callee.addOutputTensor(callee.aiOnnx.sub([x, total]))
        return b.aiGraphcore.packedDataBlock(
            [*names, names[1], names[2]], [longest], len(data), 2, callee
        )

    inputs = [data, offsets.astype(np.uint32), np.array(lengths, np.uint32)]
    (found,) = compute(make, inputs)
    expected = np.concatenate(
        [data[o : o + n] - data[o : o + n].sum(0) for o, n in zip(offsets, lengths, strict=True)]
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
