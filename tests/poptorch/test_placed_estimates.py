"""Tests of where a captured model's operators are in the estimate, beside popart's builder."""

import json

import numpy as np
import popart
import pytest

torch = pytest.importorskip("torch")

import poptorch  # noqa: E402
from onnxgraph import attribute  # noqa: E402
from poprt.compile import profile_executable  # noqa: E402

ITERATIONS = 6


def draw(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


class ThreeStages(torch.nn.Module):
    """Two products and an activation, on IPUs 0, 1 and 0."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.from_numpy(draw(64, 64)))
        self.v = torch.nn.Parameter(torch.from_numpy(draw(64, 32)))

    def forward(self, x):
        with poptorch.Block("a", 0):
            y = torch.matmul(x, self.w)
        with poptorch.Block("b", 1):
            z = torch.matmul(torch.tanh(y), self.v)
        with poptorch.Block("c", 0):
            return torch.relu(z)


def make_session(is_pipeline):
    """Return a session of popart's with the network of ThreeStages."""
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [4, 64]), "x")
    with builder.virtualGraph(0), builder.pipelineStage(0):
        y = builder.aiOnnx.matmul([x, builder.addInitializedInputTensor(draw(64, 64))])
    with builder.virtualGraph(1), builder.pipelineStage(1):
        weight = builder.addInitializedInputTensor(draw(64, 32))
        z = builder.aiOnnx.matmul([builder.aiOnnx.tanh([y]), weight])
    with builder.virtualGraph(0), builder.pipelineStage(2):
        result = builder.aiOnnx.relu([z])
    options = popart.SessionOptions()
    options.virtualGraphMode = popart.VirtualGraphMode.Manual
    options.enablePipelining = is_pipeline
    options.constantWeights = False
    options.instrumentWithHardwareCycleCounter = True
    device = popart.DeviceManager().createIpuModelDevice({"numIPUs": 2, "ipuVersion": "ipu21"})
    flow = popart.DataFlow(ITERATIONS, [result])
    session = popart.InferenceSession(builder.getModelProto(), flow, device, userOptions=options)
    session.prepareDevice()
    session.weightsFromHost()
    data = {"x": draw(ITERATIONS, 4, 64)}
    session.run(popart.PyStepIO(data, session.initAnchorArrays()))
    return session


def make_executor(module, strategy):
    options = poptorch.Options().deviceIterations(ITERATIONS).logCycleCount(True)
    return poptorch.inferenceModel(module.eval(), options.setExecutionStrategy(strategy))


def find_places(executor):
    """Return the IPU and stage of each operator by its type."""
    nodes = json.loads(executor._debugGetPopartIR())["maingraph"]
    return [
        (
            node["type"],
            node["attributes"].get("__ipu_number"),
            node["attributes"].get("__pipeline_stage"),
        )
        for node in nodes
    ]


@pytest.mark.parametrize(
    ("strategy", "is_pipeline"),
    [
        (poptorch.ShardedExecution(poptorch.AutoStage.AutoIncrement), False),
        (poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement), True),
        (poptorch.PipelinedExecution(), True),
        (poptorch.SerialPhasedExecution("a", "b", "c"), False),
    ],
)
def test_blocks_take_the_time_and_memory_of_the_builders_virtual_graphs(strategy, is_pipeline):
    session = make_session(is_pipeline)
    module = ThreeStages()
    executor = make_executor(module, strategy)
    data = torch.from_numpy(draw(4 * ITERATIONS, 64))
    assert torch.allclose(executor(data), module(data), atol=1e-5)
    assert executor.cycleCount() == session.getCycleCount()
    made = executor._loaded.compilation
    (profile,) = profile_executable(made.executable, made.compiled.options, "inference", made.model)
    (other,) = profile_executable(
        session._ir.compiled.executable,
        session._ir.compiled.options,
        "inference",
        session._ir.lowered.model,
    )
    assert profile.estimate.stage_cycles == other.estimate.stage_cycles
    assert profile.estimate.ipus == other.estimate.ipus
    assert [each.cycles for each in profile.estimate.ipus] == [2758, 3539]
    assert len(profile.estimate.stage_cycles) == (3 if is_pipeline else 0)
    if is_pipeline:  # each IPU begins the next batch when it is free
        first = sum(profile.estimate.stage_cycles)
        assert executor.cycleCount() == first + (ITERATIONS - 1) * 3539


def test_a_pipeline_takes_less_time_than_shards_and_both_have_the_blocks_places():
    sharded = make_executor(ThreeStages(), poptorch.ShardedExecution())
    pipelined = make_executor(ThreeStages(), poptorch.PipelinedExecution())
    data = torch.from_numpy(draw(4 * ITERATIONS, 64))
    assert torch.equal(sharded(data), pipelined(data))
    assert pipelined.cycleCount() < sharded.cycleCount()
    assert find_places(sharded) == [
        ("MatMul", "0", None),
        ("Tanh", "1", None),
        ("MatMul", "1", None),
        ("Relu", "0", None),
    ]
    assert find_places(pipelined) == [
        ("MatMul", "0", "0"),
        ("Tanh", "1", "1"),
        ("MatMul", "1", "1"),
        ("Relu", "0", "2"),
    ]


def test_operators_that_conversion_divides_stay_in_their_block():
    module = torch.nn.Sequential(
        torch.nn.Linear(16, 16), torch.nn.BatchNorm1d(4), torch.nn.LayerNorm(16), torch.nn.GELU()
    )
    poptorch.BeginBlock(module[1], ipu_id=1)
    poptorch.BeginBlock(module[2], ipu_id=2)
    poptorch.BeginBlock(module[3], ipu_id=3)
    executor = make_executor(module, poptorch.PipelinedExecution())
    executor.compile(torch.ones(ITERATIONS, 4, 16))
    graph = executor._loaded.compilation.model.graph
    places = [
        (node.op_type, attribute(node, "__ipu_number"), attribute(node, "__pipeline_stage"))
        for node in graph.node
    ]
    by_type = {kind: ipu for kind, ipu, _ in places}
    assert by_type["BatchNormalization"] == 1
    assert by_type["GroupNormalization"] == 2
    assert by_type["Erf"] == 3
    numbers = [ipu for _, ipu, _ in places]
    assert numbers == sorted(numbers)
    assert [stage for _, _, stage in places] == numbers


def test_a_model_on_one_ipu_names_no_place():
    executor = make_executor(torch.nn.Linear(4, 4), poptorch.PipelinedExecution())
    executor.compile(torch.ones(ITERATIONS, 4))
    assert {ipu for _, ipu, _ in find_places(executor)} == {None}
