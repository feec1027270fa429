"""Tests of replicas that depend on each other: parameters of their own, and collectives."""

import pytest

torch = pytest.importorskip("torch")

import poptorch  # noqa: E402
from poptorch import CommGroupType, VariableRetrievalMode  # noqa: E402

ONE = VariableRetrievalMode.OnePerGroup


class Product(torch.nn.Module):
    """A module with one parameter and a scalar."""

    def __init__(self, weight):
        super().__init__()
        self.W = torch.nn.Parameter(weight)
        self.scale = torch.nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return x @ self.W * self.scale


def make_options(replicas):
    return poptorch.Options().replicationFactor(replicas).showCompilationProgressBar(False)


@pytest.mark.parametrize(
    ("kind", "size", "groups"),
    [
        (CommGroupType.Orthogonal, 2, [0, 1, 0, 1]),
        (CommGroupType.Consecutive, 2, [0, 0, 1, 1]),
        (CommGroupType.NoGrouping, 0, [0, 1, 2, 3]),
    ],
)
def test_each_group_of_replicas_has_its_value_of_a_parameter(kind, size, groups):
    torch.manual_seed(0)
    module = Product(torch.randn(max(groups) + 1, 5, 3))
    model = poptorch.inferenceModel(module, make_options(4))
    model.W.replicaGrouping(kind, size, ONE)
    x = torch.randn(8, 5)
    parts = zip(x.split(2), groups, strict=True)
    expected = torch.cat([part @ module.W[group] for part, group in parts])
    torch.testing.assert_close(model(x), expected)
    with torch.no_grad():
        module.W.mul_(2)
    model.copyWeightsToDevice()
    torch.testing.assert_close(model(x), 2 * expected)
    assert module.W.shape[0] == max(groups) + 1


def test_grouping_by_all_has_no_effect():
    module = Product(torch.randn(5, 3))
    model = poptorch.inferenceModel(module, make_options(2))
    model.W.replicaGrouping(CommGroupType.All, 0, ONE)
    x = torch.randn(4, 5)
    torch.testing.assert_close(model(x), module(x))


@pytest.mark.parametrize(
    ("name", "kind", "size", "mode", "text"),
    [
        ("W", CommGroupType.Consecutive, 3, ONE, "must be divisible"),
        ("W", CommGroupType.NoGrouping, 0, ONE, r"appended outer dimension \(2\)"),
        ("W", CommGroupType.Consecutive, 2, VariableRetrievalMode.AllReplicas, "Use OnePerGroup"),
        ("scale", CommGroupType.Consecutive, 2, ONE, "Scalars cannot be passed"),
    ],
)
def test_groups_that_do_not_fit_are_refused(name, kind, size, mode, text):
    model = poptorch.inferenceModel(Product(torch.randn(2, 5, 3)), make_options(4))
    getattr(model, name).replicaGrouping(kind, size, mode)
    with pytest.raises(poptorch.Error, match=text):
        model(torch.randn(4, 5))


def call(name, x, example=None, **attributes):
    example = x if example is None else example
    return poptorch.custom_op([x], name, "ai.graphcore", 1, [example], attributes=attributes)[0]


def gather(x):
    return call("ReplicatedAllGather", x, torch.zeros(4, *x.shape)).reshape(4, *x.shape)


PAIRS = {"__collectiveReplicaGrouping": [4, 2, 2]}


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: call("ReplicatedAllReduce", x) * 2, [48, 56, 64, 72] * 4),
        (lambda x: call("ReplicatedAllReduceTP", x, op="sum", **PAIRS)[:1], [8, 16, 8, 16]),
        (lambda x: call("ReplicatedAllReduceTP", x, op="sum", backwards=True)[:1], [0, 4, 8, 12]),
        (lambda x: gather(x)[:, 1], [1, 5, 9, 13] * 4),
        (
            lambda x: call("ReplicatedAllToAll", x),
            [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15],
        ),
        (lambda x: call("ReplicatedReduceScatter", x, x[:1]), [24, 28, 32, 36]),
        (lambda x: call("ReplicatedAllReduce", torch.ones(1)) + x[:1], [4, 8, 12, 16]),
    ],
)
def test_collectives_exchange_values_between_replicas(function, expected):
    model = poptorch.inferenceModel(function, make_options(4))
    assert model(torch.arange(16.0)).tolist() == expected


def test_buffers_of_replicas_with_collectives_stay_apart():
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(1))

        def forward(self, x):
            self.total.add_(x)
            return call("ReplicatedAllReduce", self.total), self.total * 1

    options = make_options(2).deviceIterations(2).broadcastBuffers(False)
    summed, own = poptorch.inferenceModel(Counter(), options)(torch.arange(4.0))
    assert own.tolist() == [0, 1, 2, 4]
    assert summed.tolist() == [1, 1, 6, 6]


def test_anchors_of_replicas_that_depend_on_each_other_are_refused():
    options = make_options(2)
    options.anchorTensor("mine", "Mul:0")
    model = poptorch.inferenceModel(lambda x: call("ReplicatedAllReduce", x * 2) + 1, options)
    with pytest.raises(poptorch.Error, match="anchorTensor is not supported"):
        model(torch.ones(2))
