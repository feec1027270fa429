"""Tests of the exporter's table of operators, which captures share."""

import pytest

torch = pytest.importorskip("torch")

import poptorch  # noqa: E402
from poptorch.translations import exporter  # noqa: E402
from torch.onnx._internal.exporter import _registration  # noqa: E402

TABLE = _registration.ONNXRegistry


def count_builds(monkeypatch):
    """Return a list that grows with each table that torch builds."""
    built, build = [], TABLE.from_torchlib.__func__

    def from_torchlib(cls, *args, **keywords):
        built.append(args)
        return build(cls, *args, **keywords)

    monkeypatch.setattr(TABLE, "from_torchlib", classmethod(from_torchlib))
    exporter._find_table.cache_clear()
    return built


@pytest.fixture(autouse=True)
def forget_table():
    yield
    exporter._find_table.cache_clear()


def test_captures_build_the_table_once_and_leave_torchs_method_as_it_is(monkeypatch):
    built = count_builds(monkeypatch)
    before = vars(TABLE)["from_torchlib"]
    for module in (torch.nn.ReLU(), torch.nn.Tanh()):
        poptorch.inferenceModel(module).compile(torch.ones(2))
    assert len(built) == 1
    assert vars(TABLE)["from_torchlib"] is before


def test_an_operator_that_one_export_adds_is_not_there_in_the_next():
    with exporter.share_operators():
        first = TABLE.from_torchlib(opset_version=18)
        known = len(first.functions["aten::relu"])
        first.register_op(torch.ops.aten.relu.default, lambda x: x)
        second = TABLE.from_torchlib(opset_version=18)
    assert len(first.functions["aten::relu"]) == known + 1
    assert len(second.functions["aten::relu"]) == known


def test_without_torchs_private_table_captures_work(monkeypatch):
    monkeypatch.setattr(exporter, "_MODULE", "torch.onnx.no_such_module")
    exporter._find_table.cache_clear()
    assert exporter._find_table() is None
    executor = poptorch.inferenceModel(torch.nn.ReLU())
    assert executor(torch.tensor([-1.0, 1.0])).tolist() == [0, 1]
