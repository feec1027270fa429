"""Tests of the names of operators and tensors, and of the log lines with operators' places."""

import json
import re

import pytest

torch = pytest.importorskip("torch")

import poptorch  # noqa: E402
from poptorch import arguments  # noqa: E402
from poptorch.capture import capture  # noqa: E402


class Layered(torch.nn.Module):
    """Convolution, activation and product in two modules."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU())
        self.second = torch.nn.ReLU()

    def forward(self, x):
        return self.second(self.first(x) * 2) * 3


@pytest.fixture
def debug():
    poptorch.setLogLevel("DEBUG")
    yield
    poptorch.setLogLevel("WARN")


def name_outputs(model, *args, **options):
    """Return the names of a captured model's tensors, without constants."""
    bound = arguments.bind(model.forward, args, {})
    graph = capture.capture(model, bound, **options).model.graph
    return [name for node in graph.node for name in node.output if ":" in name]


def test_operators_are_named_after_their_modules_and_types():
    names = name_outputs(Layered(), torch.ones(1, 1, 5, 5))
    assert names == ["first/0/Conv:0", "first/1/Relu:0", "Mul:0", "second/Relu:0", "Mul:0/1"]


def test_names_of_modules_can_be_left_out():
    names = name_outputs(Layered(), torch.ones(1, 1, 5, 5), has_namescope=False)
    assert names == ["Conv:0", "Relu:0", "Mul:0", "Relu:0/1", "Mul:0/1"]


def test_outputs_of_an_operator_are_numbered():
    class Largest(torch.nn.Module):
        def forward(self, x):
            return torch.topk(x, 2)

    assert {"TopK:0", "TopK:1"} <= set(name_outputs(Largest(), torch.ones(5)))


def test_a_captured_model_holds_no_source_lines():
    bound = arguments.bind(Layered().forward, (torch.ones(1, 1, 5, 5),), {})
    model = capture.capture(Layered(), bound).model
    assert b"test_popart_names" not in model.SerializeToString()


def test_executors_tell_the_names():
    model = poptorch.inferenceModel(Layered())
    model(torch.ones(1, 1, 5, 5))
    assert "first/0/Conv:0" in model.getTensorNames()
    graph = json.loads(model._debugGetPopartIR())["maingraph"]
    assert "first/0/Conv" in [node["name"] for node in graph]


@pytest.mark.parametrize(
    ("strategy", "mode"),
    [(poptorch.PipelinedExecution, "Pipelined"), (poptorch.ShardedExecution, "Sharded")],
)
def test_the_log_says_where_each_operator_runs(debug, capsys, strategy, mode):
    module = Layered()
    poptorch.BeginBlock(module.second, ipu_id=1)
    options = poptorch.Options().deviceIterations(2).setExecutionStrategy(strategy())
    poptorch.inferenceModel(module, options)(torch.ones(2, 1, 5, 5))
    found = re.findall(
        r"tensor (\S+) mode\((\w+)\), ipu\((\d)\), stage\((\d)\)", capsys.readouterr().err
    )
    assert found == [
        ("first/0/Conv:0", mode, "0", "0"),
        ("first/1/Relu:0", mode, "0", "0"),
        ("Mul:0", mode, "0", "0"),
        ("second/Relu:0", mode, "1", "1"),
        ("Mul:0/1", mode, "1", "1"),
    ]


@pytest.mark.parametrize(("ipu", "value"), [(0, 0), (1, 1)])
def test_the_log_says_whether_the_model_is_pipelined(debug, capsys, ipu, value):
    module = Layered()
    poptorch.BeginBlock(module.second, ipu_id=ipu)
    options = poptorch.Options().deviceIterations(2)
    poptorch.inferenceModel(module, options).compile(torch.ones(2, 1, 5, 5))
    assert f"enablePipelining set to value {value}" in capsys.readouterr().err


def test_a_shape_that_changes_is_called_reshape_as_in_poptorch():
    class Flat(torch.nn.Module):
        def forward(self, x):
            return (x + 1).squeeze(-1).unsqueeze(0).flatten()

    names = name_outputs(Flat(), torch.ones(2, 3, 1))
    assert names == ["Add:0", "Reshape:0", "Reshape:0/1", "Reshape:0/2"]


def test_a_copy_of_a_result_is_no_operator():
    class Halves(torch.nn.Module):
        def forward(self, x):
            first, second = (x + 1).split(1, -1)
            return first.squeeze(-1).contiguous(), second.squeeze(-1).clone()

    assert name_outputs(Halves(), torch.ones(3, 2))[-2:] == ["Reshape:0", "Reshape:0/1"]


def test_scopes_that_hooks_push_come_before_the_module_that_is_entered():
    """graphcore/examples' ResNet is served as fc/fc/model/fc/fc/Gemm:0 because of such hooks."""

    class Wrapped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = torch.nn.Sequential()
            self.model.add_module("fc", torch.nn.Linear(3, 2))

        def forward(self, x):
            return self.model(x + 1)

    wrapped = Wrapped()
    for each in wrapped.modules():
        each.register_forward_pre_hook(lambda *_: torch.ops.poptorch.push_name_scope("fc"))
        each.register_forward_hook(lambda *_: torch.ops.poptorch.pop_name_scope())
    names = name_outputs(wrapped, torch.ones(1, 3))
    assert names == ["fc/Add:0", "fc/fc/model/fc/fc/Gemm:0"]


def test_a_name_scope_is_part_of_names_between_its_modules():
    class Scoped(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.act = torch.nn.ReLU()

        def forward(self, x):
            with poptorch.NameScope("first"):
                x = self.act(x) + 1
            return self.act(x)

    names = name_outputs(Scoped(), torch.ones(3))
    assert names == ["first/act/Relu:0", "first/Add:0", "act/Relu:0"]


def test_internal_cast_takes_popart_names_of_types():
    cast = torch.ops.poptorch.internal_cast
    assert cast(torch.ones(2), "FLOAT16").dtype == torch.float16
    with pytest.raises(poptorch.Error, match="unknown type 'DOUBLE'"):
        cast(torch.ones(2), "DOUBLE")
