"""Tests of gathers and scatters: their results, PopART's operators for them, and the log."""

import json

import pytest

torch = pytest.importorskip("torch")

import poptorch  # noqa: E402
from poptorch import arguments  # noqa: E402
from poptorch.capture import capture  # noqa: E402

REDUCTIONS = [(kind, own) for kind in ("sum", "prod", "mean", "amax", "amin") for own in (0, 1)]


def list_operators(function, *args):
    """Return the operators of a captured function in PopART's types."""
    captured = capture.capture(function, arguments.bind(function, args, {}))
    return json.loads(captured.ir)["maingraph"]


def list_scatters(function, *args):
    """Return the group sizes of a captured function's scatters."""
    found = [each for each in list_operators(function, *args) if each["type"] == "ScatterReduce"]
    return [int(each["attributes"].get("group_size", 1)) for each in found]


@pytest.fixture
def trace():
    poptorch.setLogLevel("TRACE")
    yield
    poptorch.setLogLevel("WARN")


@pytest.fixture
def tensors():
    torch.manual_seed(0)
    return torch.randn(5, 3), torch.randint(0, 4, (6, 3)), torch.randn(6, 4)


def test_reductions_are_those_of_torch(tensors):
    def reduce_all(x, index, src):
        whole = [x.scatter_reduce(0, index, src, k, include_self=bool(s)) for k, s in REDUCTIONS]
        part = x.scatter_add(1, index[:4, :2] % 3, src)
        slices = [
            x.index_reduce(0, index[:, 0], src[:, :3], k, include_self=bool(s))
            for k, s in REDUCTIONS
            if k != "sum"
        ]
        return [*whole, *slices, part, x.clone().index_add_(0, index[:, 0], src[:, :3], alpha=2)]

    found = poptorch.inferenceModel(reduce_all)(*tensors)
    for one, other in zip(found, reduce_all(*tensors), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("dtype", [torch.double, torch.half, torch.bfloat16, torch.int8])
def test_sources_of_all_types_are_scattered(tensors, dtype):
    def scatter(x, index, src):
        made = x.scatter_reduce(0, index, src, "amax", include_self=False)
        return made.scatter_add(0, index, src)

    x, index, src = tensors
    args = (x * 4).to(dtype), index, (src[:, :3] * 4).to(dtype)
    found = poptorch.inferenceModel(scatter)(*args)
    torch.testing.assert_close(found, scatter(*args), check_dtype=False, rtol=0.02, atol=0.02)


def test_an_expanded_index_scatters_slices(tensors):
    def reduce_all(x, index, src):
        made = [
            x.scatter_reduce(0, index[:, :1].expand(6, 3), src[:, :3], k, include_self=bool(s))
            for k, s in REDUCTIONS
        ]
        column = index[:, :1].expand_as(src[:, :3])
        return [*made, torch.zeros(5, 3).scatter_add_(-2, column, src[:, :3])]

    found = poptorch.inferenceModel(reduce_all)(*tensors)
    for one, other in zip(found, reduce_all(*tensors), strict=True):
        torch.testing.assert_close(one, other)
    kinds = [each["type"] for each in list_operators(reduce_all, *tensors)]
    assert "ScatterReduce" in kinds
    assert "Expand" not in kinds


def test_an_index_expanded_along_the_scattered_axis_stays(tensors):
    def scatter(x, index, src):
        return x.scatter_add(0, index[:1].expand(6, 3), src[:, :3])

    x, index, src = tensors
    found = poptorch.inferenceModel(scatter)(x, index, src)
    torch.testing.assert_close(found, scatter(x, index, src))
    assert "Expand" in [each["type"] for each in list_operators(scatter, x, index, src)]


@pytest.mark.parametrize(
    ("axis", "size", "kind"), [(0, 3, "Gather"), (0, 2, "GatherElements"), (1, 3, "GatherElements")]
)
def test_a_gather_by_an_index_expanded_over_the_whole_other_axis_selects_slices(axis, size, kind):
    def gather(x, index):
        return x.gather(axis, index.expand(5, size))

    x, index = torch.randn(5, 3), torch.randint(0, 3, (5, 1))
    found = poptorch.inferenceModel(gather)(x, index)
    torch.testing.assert_close(found, gather(x, index))
    assert kind in [each["type"] for each in list_operators(gather, x, index)]


def test_scatters_that_do_not_depend_on_each_other_are_one(tensors):
    def scatter_three(x, index, src):
        parts = [x.scatter_add(0, index, part) for part in (src[:, :3], src[:, 1:], src[:, :3] * 2)]
        return torch.cat([parts[0], parts[1] * parts[2]])

    found = poptorch.inferenceModel(scatter_three)(*tensors)
    torch.testing.assert_close(found, scatter_three(*tensors))
    assert list_scatters(scatter_three, *tensors) == [3]


def test_equal_scatters_are_computed_once(tensors):
    def scatter_twice(x, index, src):
        src = src[:, :3]
        first = x.scatter_add(0, index, src)
        return first * 2, x.scatter_add(0, index, src)

    found = poptorch.inferenceModel(scatter_twice)(*tensors)
    torch.testing.assert_close(found, scatter_twice(*tensors))
    assert list_scatters(scatter_twice, *tensors) == [1]


@pytest.mark.parametrize("reason", ["order", "shape", "reduction", "block"])
def test_scatters_stay_apart(tensors, reason):
    class Scatters(torch.nn.Module):
        def forward(self, x, index, src):
            first = x.scatter_add(0, index, src)
            if reason == "order":
                return first.scatter_add(0, index, src)
            if reason == "shape":
                return first, x.scatter_add(0, index[:5], src)
            if reason == "reduction":
                return first, x.scatter_reduce(0, index, src, "amax")
            poptorch.Block.start(ipu_id=1)
            return first, x.scatter_add(0, index, src * 2)

    model = poptorch.inferenceModel(Scatters(), poptorch.Options().deviceIterations(2))
    model.compile(*(torch.cat([each, each]) for each in tensors))
    kinds = [each["type"] for each in json.loads(model._debugGetPopartIR())["maingraph"]]
    assert kinds.count("ScatterReduce") == 2


def test_the_log_holds_the_graph_before_and_after_the_optimisations(trace, capsys, tensors):
    def scatter(x, index, src):
        made = x.scatter_add(0, index[:, :1].expand(6, 3), src[:, :3])
        return poptorch.set_available_memory(made, 0.5)

    list_operators(scatter, *tensors)
    before, removed, after = capsys.readouterr().err.partition("Removing index expansion node:")
    assert removed
    assert "aten::expand(" in before
    assert "aten::expand(" not in after.partition("\n")[2]
    lowered = after.partition("Graph before lowering to PopART:")[2]
    line = next(each for each in lowered.splitlines() if "popart::scatterreduce" in each)
    name = line.split()[0]
    assert f"poptorch::set_available_memory[availableMemoryProportion=0.5]({name})" in lowered


def test_hints_change_neither_results_nor_names():
    def halve(x):
        return poptorch.set_available_memory(x / 2, 0.5)

    model = poptorch.inferenceModel(halve)
    torch.testing.assert_close(model(torch.ones(3)), torch.full((3,), 0.5))
    assert "Div:0" in model.getTensorNames()
