"""Tests of what options, blocks and environment variables change when a model is compiled."""

import onnx
import pytest

torch = pytest.importorskip("torch")

import poptorch  # noqa: E402


class Chain(torch.nn.Module):
    """Three layers, of which blocks can be made."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(3)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def make_chain():
    torch.manual_seed(1)
    model = Chain().eval()
    for index, layer in enumerate(model.layers):
        poptorch.BeginBlock(layer, ipu_id=index)
    return model


def test_popart_options_take_integers_for_enumerations():
    options = poptorch.Options().enableSyntheticData(False)
    options._Popart.set("autoRecomputation", 3)
    options._Popart.set("hardwareInstrumentations", {0, 1})
    options._Popart.set("batchSerializationSettings.batchSchedule", 1)
    options._Popart.set("accumulateOuterFragmentSettings.excludedVirtualGraphs", ["0", "1"])
    assert poptorch.inferenceModel(lambda x: x + 1, options)(torch.ones(1)).item() == 2


def test_a_number_that_no_enumeration_has_is_an_error():
    options = poptorch.Options()
    options._Popart.set("autoRecomputation", 77)
    model = poptorch.inferenceModel(lambda x: x + 1, options)
    with pytest.raises(poptorch.Error, match=r"_Popart.set\('autoRecomputation', 77\)"):
        model(torch.ones(1))


def test_blocks_on_several_ipus_change_no_result():
    model = make_chain()
    options = poptorch.Options().deviceIterations(3).autoRoundNumIPUs()
    data = torch.randn(3, 2)
    found = poptorch.inferenceModel(model, options)(data)
    torch.testing.assert_close(found, model(data))


def test_a_pipeline_needs_an_iteration_for_each_stage():
    options = poptorch.Options().deviceIterations(2).autoRoundNumIPUs()
    with pytest.raises(poptorch.Error, match=r"number of pipeline stages \(3\)"):
        poptorch.inferenceModel(make_chain(), options)(torch.randn(2, 2))


def test_three_ipus_are_rounded_up_on_request_or_offline_only():
    options = poptorch.Options().setExecutionStrategy(poptorch.ShardedExecution())
    with pytest.raises(poptorch.Error, match="specifies the use of 3 IPUs"):
        poptorch.inferenceModel(make_chain(), options.clone())(torch.randn(1, 2))
    offline = poptorch.inferenceModel(make_chain(), options.clone().useOfflineIpuTarget())
    offline.compile(torch.randn(1, 2))
    with pytest.raises(AssertionError, match="Trying to run a model on an offline device"):
        offline(torch.randn(1, 2))


def test_an_operator_outside_any_block_is_an_error():
    class Model(torch.nn.Module):
        def forward(self, x):
            with poptorch.Block("a", 0):
                x = x * 2
            return x + 1

    with pytest.raises(poptorch.Error, match="No active Block"):
        poptorch.inferenceModel(Model())(torch.ones(1))


def test_the_text_of_an_executor_shows_modules_and_blocks():
    text = repr(poptorch.inferenceModel(make_chain()))
    assert text.startswith("PoplarExecutor(Chain(")
    assert "(2): BeginBlock(user_id=None, ipu_id=2) Linear(" in text


def test_tensors_without_elements_are_refused():
    with pytest.raises(poptorch.Error, match=r"Zero-sized tensors are unsupported .*\[0, 2\]"):
        poptorch.inferenceModel(lambda x: x + 1)(torch.ones(0, 2))


def test_the_captured_model_can_be_written_as_onnx(tmp_path, monkeypatch):
    path = tmp_path / "folder" / "model.onnx"
    monkeypatch.setenv("POPTORCH_EXPORT_PROTO_FILE", str(path))
    poptorch.inferenceModel(lambda x: x + 1)(torch.ones(1))
    assert [each.name for each in onnx.load(path).graph.input] == ["input"]


def test_optimizers_have_a_common_base_for_annotations():
    parameters = [torch.nn.Parameter(torch.ones(1))]
    assert isinstance(poptorch.optim.AdamW(parameters), poptorch.optim.Optimizer)
    assert poptorch._poplar_executor.PoplarExecutor is poptorch.PoplarExecutor


@pytest.mark.parametrize("divisor", [0.0, 1.0])
def test_a_floating_point_exception_is_an_error_if_options_ask_for_it(divisor):
    options = poptorch.Options()
    options.Precision.enableFloatingPointExceptions(True)
    model = poptorch.inferenceModel(lambda x, y: x / y, options)
    given = torch.ones(3), torch.full((3,), divisor)
    if divisor:
        assert model(*given).tolist() == [1, 1, 1]
        return
    with pytest.raises(poptorch.Error, match="floating-point exception"):
        model(*given)
