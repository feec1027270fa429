"""Replicas that depend on each other, beside NumPy: collectives, and weights of their own."""

import numpy as np
import popart
import pytest


def draw(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def start(
    builder: popart.Builder,
    anchors: list[str] | dict[str, popart.AnchorReturnType],
    replicas: int,
    batches: int = 1,
    **changed: object,
) -> popart.InferenceSession:
    options = popart.SessionOptions()
    options.enableReplicatedGraphs, options.replicatedGraphCount = True, replicas
    for name, value in changed.items():
        setattr(options, name, value)
    session = popart.InferenceSession(
        builder.getModelProto(),
        popart.DataFlow(batches, anchors),
        popart.DeviceManager().createIpuModelDevice({"numIPUs": replicas}),
        userOptions=options,
    )
    session.prepareDevice()
    return session


def run(session: popart.InferenceSession, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    anchors = session.initAnchorArrays()
    session.run(popart.PyStepIO(inputs, anchors))
    return anchors


OPERATORS = {
    "Add": lambda x: x.sum(0),
    "Mean": lambda x: x.mean(0),
    "Mul": lambda x: x.prod(0),
    "Min": lambda x: x.min(0),
    "Max": lambda x: x.max(0),
    "SquareAdd": lambda x: (x * x).sum(0),
}


@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("name", OPERATORS)
def test_an_all_reduce_joins_the_values_of_all_replicas_in_each_batch(name, replicas):
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [2, 3]))
    operator = getattr(popart.CollectiveOperator, name)
    scaled = builder.aiOnnx.mul([x, builder.aiOnnx.constant(np.float32([2]))])
    y = builder.aiGraphcore.replicatedallreduce([scaled], operator)
    z = builder.aiOnnx.sub([y, x])
    session = start(builder, [y, z], replicas, batches=3)
    given = draw(3, replicas, 2, 3)
    found = run(session, {x: given})
    expected = np.stack([OPERATORS[name](2 * each) for each in given])[:, None]
    np.testing.assert_allclose(found[y], np.repeat(expected, replicas, 1), rtol=1e-5)
    np.testing.assert_allclose(found[z], expected - given, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["replicatedallreduce", "replicatedreducescatter"])
def test_over_one_replica_a_collective_changes_nothing(name):
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [3]))
    y = getattr(builder.aiGraphcore, name)([x])
    given = draw(3)
    np.testing.assert_array_equal(run(start(builder, [y], 1), {x: given})[y], given)


def test_a_local_reduction_leaves_each_replica_its_own_value():
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [3]))
    y = builder.aiGraphcore.replicatedallreduce([x], popart.CollectiveOperator.Local)
    given = draw(2, 3)
    np.testing.assert_array_equal(run(start(builder, [y], 2), {x: given})[y], given)


@pytest.mark.parametrize(
    ("kind", "size", "groups"),
    [
        (popart.CommGroupType.All, 0, [[0, 1, 2, 3]]),
        (popart.CommGroupType.Consecutive, 2, [[0, 1], [2, 3]]),
        (popart.CommGroupType.Orthogonal, 2, [[0, 2], [1, 3]]),
        (popart.CommGroupType.Ungrouped, 0, [[0], [1], [2], [3]]),
    ],
    ids=str,
)
def test_a_collective_joins_the_replicas_of_a_group_only(kind, size, groups):
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [3]))
    y = builder.aiGraphcore.replicatedallreduce([x], commGroup=popart.CommGroup(kind, size))
    given = draw(4, 3)
    expected = np.empty_like(given)
    for members in groups:
        expected[members] = given[members].sum(0)
    np.testing.assert_allclose(run(start(builder, [y], 4), {x: given})[y], expected, rtol=1e-6)


def gather(builder: popart.Builder, x: str) -> str:
    made = builder.customOp(
        opName="ReplicatedAllGather",
        opVersion=1,
        domain="ai.graphcore",
        inputs=[x],
        attributes={},
        numOutputs=1,
    )
    return made[0]


@pytest.mark.parametrize("elements", [8, 6], ids=["even", "with a rest"])
def test_a_scattered_reduction_that_is_gathered_again_is_the_reduction(elements):
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [2, elements // 2]))
    part = builder.aiGraphcore.replicatedreducescatter([x])
    whole = gather(builder, part)
    given = draw(4, 2, elements // 2)
    found = run(start(builder, [part, whole], 4), {x: given})
    expected = np.zeros(8, np.float32)
    expected[:elements] = given.sum(0).reshape(-1)
    np.testing.assert_allclose(found[part], expected.reshape(4, 2), rtol=1e-5)
    np.testing.assert_allclose(found[whole], np.tile(expected, (4, 1)), rtol=1e-5)


def test_a_gather_returns_the_elements_of_all_replicas_in_order_in_one_axis():
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("INT32", [1, 2]))
    y = gather(builder, x)
    session = start(builder, [y], 2)
    assert session.getInfo(y).shape() == [4]
    given = np.arange(4, dtype=np.int32).reshape(2, 1, 2)
    np.testing.assert_array_equal(run(session, {x: given})[y], [[0, 1, 2, 3]] * 2)


def loop(builder: popart.Builder, trips: int, x: str, make_body) -> str:
    body = builder.createSubgraphBuilder()
    body.addInputTensor(popart.TensorInfo("INT32", []))
    going = body.addInputTensor(popart.TensorInfo("BOOL", []))
    state = body.addUntypedInputTensor("state")
    body.addOutputTensor(body.aiOnnx.identity([going]))
    body.addOutputTensor(make_body(body, state))
    count = builder.aiOnnx.constant(np.array(trips, np.int64))
    condition = builder.aiOnnx.constant(np.array(True))
    return builder.aiOnnx.loop([count, condition, x], 1, body)[0]


def test_a_collective_in_the_body_of_a_loop_joins_the_replicas_in_each_iteration():
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [3]))
    w = builder.addInitializedInputTensor(np.float32([0.5]), "w")

    def halve(body: popart.Builder, state: str) -> str:
        half = body.aiOnnx.mul([state, w])
        return body.aiOnnx.add([body.aiGraphcore.replicatedallreduce([half]), half])

    y = loop(builder, 3, x, halve)
    given = draw(2, 2, 3)
    expected = given
    for _ in range(3):
        half = expected / 2
        expected = half.sum(1, keepdims=True) + half
    found = run(start(builder, [y], 2, batches=2), {x: given})[y]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_loop_in_a_branch_stacks_the_results_of_each_replica():
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [3]))
    branch = builder.createSubgraphBuilder()
    branch.addInputTensorFromParentGraph(x)
    body = branch.createSubgraphBuilder()
    body.addInputTensor(popart.TensorInfo("INT32", []))
    going = body.addInputTensor(popart.TensorInfo("BOOL", []))
    state = body.addUntypedInputTensor("state")
    joined = body.aiGraphcore.replicatedallreduce([state])
    following = body.aiOnnx.sub([state, body.aiOnnx.mul([joined, joined])])
    for name in (body.aiOnnx.identity([going]), following, joined):
        body.addOutputTensor(name)
    count = branch.aiOnnx.constant(np.array(2, np.int64))
    condition = branch.aiOnnx.constant(np.array(True))
    for name in branch.aiOnnx.loop([count, condition, x], 2, body):
        branch.addOutputTensor(name)
    other = builder.createSubgraphBuilder()
    other.addInputTensorFromParentGraph(x)
    other.addOutputTensor(other.aiOnnx.neg([x]))
    other.addOutputTensor(other.aiOnnx.constant(np.zeros((2, 3), np.float32)))
    flag = builder.addInputTensor(popart.TensorInfo("BOOL", []))
    last, stacked = builder.aiOnnx.logical_if([flag], 2, other, branch)
    given = draw(2, 3)
    found = run(start(builder, [last, stacked], 2), {x: given, flag: np.array([True, True])})
    first = given.sum(0)
    middle = given - first**2
    second = middle.sum(0)
    np.testing.assert_allclose(found[last], middle - second**2, rtol=1e-4)
    np.testing.assert_allclose(found[stacked], [[first, second]] * 2, rtol=1e-4)


def test_integers_of_64_bits_are_joined_in_32_as_on_the_chip():
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("INT64", [2]))
    own = popart.VariableSettings(popart.CommGroup(popart.CommGroupType.Consecutive, 1))
    w = builder.addInitializedInputTensor(np.array([[1, 2], [30, 40]], np.int64), own)
    y = builder.aiGraphcore.replicatedallreduce([builder.aiOnnx.mul([x, w])])
    part = builder.aiGraphcore.replicatedreducescatter([y], popart.CollectiveOperator.Local)
    given = np.array([[5, 6], [7, 8]], np.int64)
    found = run(start(builder, [y, part], 2), {x: given})
    np.testing.assert_array_equal(found[y], [[215, 332]] * 2)
    np.testing.assert_array_equal(found[part], [[215], [332]])


def test_a_collective_in_a_branch_joins_the_replicas():
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [3]))
    settings = popart.InputSettings(popart.ReplicatedStreamMode.Broadcast)
    which = builder.addInputTensor(popart.TensorInfo("BOOL", []), settings)
    then, other = builder.createSubgraphBuilder(), builder.createSubgraphBuilder()
    for branch, made in ((then, then.aiGraphcore.replicatedallreduce), (other, other.aiOnnx.neg)):
        branch.addInputTensorFromParentGraph(x)
        branch.addOutputTensor(made([x]))
    y = builder.aiOnnx.logical_if([which], 1, other, then)[0]
    session, given = start(builder, [y], 2), draw(2, 3)
    joined = run(session, {x: given, which: np.array([True])})[y]
    np.testing.assert_allclose(joined, np.tile(given.sum(0), (2, 1)), rtol=1e-6)
    np.testing.assert_array_equal(run(session, {x: given, which: np.array([False])})[y], -given)


def test_a_scan_with_a_collective_keeps_states_and_results_of_each_replica():
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [4, 3]))
    start_state = builder.aiOnnx.constant(np.zeros((1, 3), np.float32))
    body = builder.createSubgraphBuilder()
    state, element = (body.addUntypedInputTensor(name) for name in ("state", "element"))
    total = body.aiOnnx.add([state, element])
    body.addOutputTensor(total)
    body.addOutputTensor(body.aiGraphcore.replicatedallreduce([total]))
    last, joined = builder.aiOnnx.scan([start_state, x], 2, body, 1)
    given = draw(2, 4, 3)
    found = run(start(builder, [last, joined], 2), {x: given})
    np.testing.assert_allclose(found[last], given.sum(1, keepdims=True), rtol=1e-5)
    expected = np.tile(given.cumsum(1).sum(0), (2, 1, 1))
    np.testing.assert_allclose(found[joined], expected, rtol=1e-5)


def split_product(kind: popart.CommGroupType, size: int, value: np.ndarray):
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [2, 3]))
    settings = popart.VariableSettings(popart.CommGroup(kind, size))
    w = builder.addInitializedInputTensor(value, settings, "w")
    return builder, x, w, builder.aiOnnx.matmul([x, w])


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "streamed"])
@pytest.mark.parametrize(
    ("kind", "size", "groups"),
    [
        (popart.CommGroupType.Ungrouped, 0, [0, 1, 2, 3]),
        (popart.CommGroupType.Consecutive, 2, [0, 0, 1, 1]),
        (popart.CommGroupType.Orthogonal, 2, [0, 1, 0, 1]),
    ],
    ids=str,
)
def test_a_weight_has_a_value_for_each_group_of_replicas(kind, size, groups, constant):
    value = draw(max(groups) + 1, 3, 5)
    builder, x, w, y = split_product(kind, size, value)
    session = start(builder, [y], 4, constantWeights=constant)
    assert session.getInfo(w).shape() == [3, 5]
    given = draw(4, 2, 3)
    np.testing.assert_allclose(run(session, {x: given})[y], given @ value[groups], rtol=1e-4)
    back = np.empty_like(value)
    session.weightsToHost()
    session.readWeights(popart.PyWeightsIO({w: back}))
    np.testing.assert_array_equal(back, value)
    if not constant:
        session.writeWeights(popart.PyWeightsIO({w: 2 * value}))
        session.weightsFromHost()
        found = run(session, {x: given})[y]
        np.testing.assert_allclose(found, given @ (2 * value[groups]), rtol=1e-4)


def test_a_product_split_over_replicas_is_the_whole_product_after_an_all_reduce():
    builder = popart.Builder()
    settings = popart.InputSettings(popart.ReplicatedStreamMode.Broadcast)
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [2, 3]), settings)
    own = popart.VariableSettings(popart.CommGroup(popart.CommGroupType.Consecutive, 1))
    first, second = draw(3, 8), draw(8, 5)
    left = builder.addInitializedInputTensor(np.stack(np.split(first, 4, 1)), own)
    right = builder.addInitializedInputTensor(np.stack(np.split(second, 4, 0)), own)
    y = builder.aiOnnx.matmul([builder.aiOnnx.relu([builder.aiOnnx.matmul([x, left])]), right])
    z = builder.aiGraphcore.replicatedallreduce([y])
    session = start(builder, [z], 4, batches=2)
    given = draw(2, 2, 3)
    expected = np.maximum(given @ first, 0) @ second
    found = run(session, {x: given})[z]
    np.testing.assert_allclose(found, np.repeat(expected[:, None], 4, 1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "reduce"),
    [("All", lambda y: y), ("Final", lambda y: y[-1]), ("Sum", lambda y: y.sum(0))],
)
def test_anchors_of_joined_replicas_return_the_iterations_that_their_type_says(kind, reduce):
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [3]))
    y = builder.aiOnnx.add([builder.aiGraphcore.replicatedallreduce([x]), x])
    anchors = {each: popart.AnchorReturnType(kind) for each in (x, y)}
    given = draw(3, 2, 3)
    found = run(start(builder, anchors, 2, batches=3), {x: given})
    np.testing.assert_allclose(found[x], reduce(given), rtol=1e-6)
    expected = reduce(given + given.sum(1, keepdims=True))
    np.testing.assert_allclose(found[y], expected, rtol=1e-5)


def test_callbacks_are_called_for_each_replica_of_a_joined_batch():
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [3]))
    y = builder.aiGraphcore.replicatedallreduce([x])
    session, given, found = start(builder, [y], 2, batches=2), draw(4, 3), []
    values = iter(given)

    def take(_: str) -> np.ndarray:
        found.append(np.empty(3, np.float32))
        return found[-1]

    session.run(
        popart.PyStepIOCallback(
            lambda _, is_prefetch: next(values), lambda _: None, take, lambda _: None
        )
    )
    expected = given.reshape(2, 2, 3).sum(1, keepdims=True).repeat(2, 1).reshape(4, 3)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_each_replica_draws_numbers_of_its_own_that_the_seed_decides():
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [64]))
    noise = builder.aiOnnx.randomnormal([64])
    total = builder.aiGraphcore.replicatedallreduce([builder.aiOnnx.add([x, noise])])
    session = start(builder, [noise, total], 2)
    given = draw(2, 64)

    def again(seed: int) -> dict[str, np.ndarray]:
        session.setRandomSeed(seed)
        return run(session, {x: given})

    one, other, same = again(1), again(2), again(1)
    assert not np.array_equal(one[noise][0], one[noise][1])
    assert not np.array_equal(one[noise], other[noise])
    np.testing.assert_array_equal(one[noise], same[noise])
    np.testing.assert_allclose(one[total][0], (one[noise] + given).sum(0), rtol=1e-4, atol=1e-5)


def test_the_modelled_time_is_that_of_one_replica():
    def count(replicas: int) -> int:
        builder = popart.Builder()
        x = builder.addInputTensor(popart.TensorInfo("FLOAT", [8, 256]))
        w = builder.addInitializedInputTensor(draw(256, 256))
        y = builder.aiGraphcore.replicatedallreduce([builder.aiOnnx.matmul([x, w])])
        session = start(builder, [y], replicas, instrumentWithHardwareCycleCounter=True)
        run(session, {x: draw(replicas, 8, 256)})
        return session.getCycleCount()

    assert count(2) == count(4) < 2 * count(1)


def test_a_weight_whose_first_axis_is_not_the_number_of_groups_is_rejected():
    builder, _, _, y = split_product(popart.CommGroupType.Consecutive, 1, draw(3, 3, 5))
    with pytest.raises(popart.popart_internal_exception, match="should match numGroups: 2"):
        start(builder, [y], 2)


def test_groups_that_do_not_divide_the_replicas_are_rejected():
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [3]))
    group = popart.CommGroup(popart.CommGroupType.Consecutive, 3)
    y = builder.aiGraphcore.replicatedallreduce([x], commGroup=group)
    with pytest.raises(popart.popart_exception, match="must be divisible"):
        start(builder, [y], 4)


def test_a_logical_reduction_is_rejected_by_name():
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [3]))
    y = builder.aiGraphcore.replicatedallreduce([x], popart.CollectiveOperator.LogicalAnd)
    with pytest.raises(popart.popart_exception, match="LogicalAnd is not supported"):
        start(builder, [y], 2)


def test_a_split_weight_gives_no_shape_to_the_graph():
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [6]))
    own = popart.VariableSettings(popart.CommGroup(popart.CommGroupType.Consecutive, 1))
    shape = builder.addInitializedInputTensor(np.array([[2, 3], [3, 2]], np.int64), own)
    y = builder.aiOnnx.reshape([x, shape])
    with pytest.raises(popart.popart_exception, match="does not have data"):
        start(builder, [y], 2)


def test_a_session_whose_replicas_depend_on_each_other_is_not_exported(tmp_path):
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [3]))
    y = builder.aiGraphcore.replicatedallreduce([x])
    session = start(builder, [y], 2)
    with pytest.raises(popart.popart_exception, match="depend on each other"):
        session.compileAndExport(str(tmp_path))


def test_a_weight_that_all_replicas_of_a_group_would_return_is_rejected():
    builder = popart.Builder()
    group = popart.CommGroup(popart.CommGroupType.Consecutive, 2)
    settings = popart.VariableSettings(group, popart.VariableRetrievalMode.AllReplicas)
    w = builder.addInitializedInputTensor(draw(2, 3), settings)
    y = builder.aiOnnx.neg([w])
    with pytest.raises(popart.popart_exception, match="AllReplicas is not supported"):
        start(builder, [y], 4)


def test_a_builder_takes_groups_of_a_weight_by_their_type_only():
    builder = popart.Builder()
    with pytest.raises(popart.popart_exception, match="not initialised using"):
        builder.addInitializedInputTensor(draw(2, 3), popart.VariableSettings(1, 2))
