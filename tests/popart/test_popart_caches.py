"""KVCache of PopTransformer in a session: it stays on the device over the steps of a call."""

import numpy as np
import onnx
import popart
from onnxgraph import iter_bodies

LENGTH, WIDTH, STEPS = 4, 3, 6


def keep(graph: popart.Builder, step: str, row: str) -> str:
    attributes = {"max_len": LENGTH, "step_len": 1, "sequence_axis": 1, "fp8": False}
    return graph.customOp("KVCache", 1, "ai.graphcore", [step, row], attributes)[0]


def make_session(replicas: int = 1) -> tuple[popart.InferenceSession, str, str]:
    """Return a session with the sum over a cache of the rows x, 2 x, 3 x ... of the steps, newest
    first, in which entry i weighs 10 ** i; with several replicas their rows are added first."""
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [1, 1, WIDTH]))
    weights = 10.0 ** np.arange(LENGTH, dtype=np.float32)
    scale = builder.addInitializedInputTensor(weights.reshape(1, LENGTH, 1))
    body = builder.createSubgraphBuilder()
    body.addInputTensor(popart.TensorInfo("INT32", []))
    going = body.addInputTensor(popart.TensorInfo("BOOL", []))
    step, _ = (body.addUntypedInputTensor(name) for name in ("step", "found"))
    one = body.aiOnnx.constant(np.array(1, np.int32))
    following = body.aiOnnx.add([step, one])
    row = body.aiOnnx.mul([x, body.aiOnnx.cast([following], "FLOAT")])
    if replicas > 1:
        row = body.aiGraphcore.replicatedallreduce([row])
    cache = keep(body, step, row)
    total = body.aiOnnx.reducesum([body.aiOnnx.mul([cache, scale])], axes=[1], keepdims=0)
    for name in (body.aiOnnx.identity([going]), following, total):
        body.addOutputTensor(name)
    given = [
        builder.aiOnnx.constant(np.array(STEPS, np.int64)),
        builder.aiOnnx.constant(np.array(True)),
        builder.aiOnnx.constant(np.array(0, np.int32)),
        builder.aiOnnx.constant(np.zeros((1, WIDTH), np.float32)),
    ]
    y = builder.aiOnnx.loop(given, 2, body)[1]
    options = popart.SessionOptions()
    options.enableReplicatedGraphs, options.replicatedGraphCount = replicas > 1, replicas
    device = popart.DeviceManager().createIpuModelDevice({"numIPUs": replicas})
    flow = popart.DataFlow(1, [y])
    session = popart.InferenceSession(builder.getModelProto(), flow, device, userOptions=options)
    session.prepareDevice()
    return session, x, y


def run(session: popart.InferenceSession, x: str, given: np.ndarray) -> dict[str, np.ndarray]:
    anchors = session.initAnchorArrays()
    session.run(popart.PyStepIO({x: given}, anchors))
    return anchors


def expected(x: np.ndarray) -> np.ndarray:
    newest_first = range(STEPS, STEPS - LENGTH, -1)
    return x * sum(step * 10**place for place, step in enumerate(newest_first))


def test_a_cache_keeps_the_rows_of_the_steps_of_a_call_and_is_empty_in_the_next():
    session, x, y = make_session()
    for scale in (1, -2):
        given = scale * np.arange(1, WIDTH + 1, dtype=np.float32)
        np.testing.assert_allclose(run(session, x, given)[y], expected(given)[None], rtol=1e-6)


def test_each_replica_of_a_joined_program_has_its_cache():
    session, x, y = make_session(replicas=2)
    given = np.random.default_rng(0).standard_normal((2, WIDTH)).astype(np.float32)
    found = run(session, x, given)[y]
    np.testing.assert_allclose(found, np.tile(expected(given.sum(0)), (2, 1, 1)), rtol=1e-5)


def test_a_cache_goes_round_its_loop_and_is_no_input_or_output():
    session, x, y = make_session()
    graph = onnx.ModelProto.FromString(session.getSerializedGraph()).graph
    assert [value.name for value in graph.input] == [x]
    assert [value.name for value in graph.output] == [y]
    (loop,) = (node for node in graph.node if node.op_type == "Loop")
    (body,) = iter_bodies(loop)
    (cache,) = (node for node in body.node if node.op_type == "KVCache")
    states = {value.name for value in body.input[2:]}
    assert cache.input[2] in states
    assert len(states) == 3
