"""PoplarExecutor: batching, output modes, state, weights, life cycle and files.

PyTorch on the CPU is the witness of all results.
"""

import pytest

torch = pytest.importorskip("torch")

import poptorch  # noqa: E402

NUM_ITERATIONS = 4


class Accumulator(torch.nn.Module):
    """Module that adds its inputs up in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(1, 2))

    def forward(self, x):
        self.total += x
        return self.total * 1


@pytest.fixture(scope="module")
def linear():
    torch.manual_seed(7)
    return torch.nn.Linear(3, 5)


def run_in_mode(linear, x, mode, period=1, replicas=1):
    options = poptorch.Options().deviceIterations(NUM_ITERATIONS).replicationFactor(replicas)
    options.outputMode(mode, period)
    return poptorch.inferenceModel(linear, options)(x)


def test_a_call_returns_what_the_module_returns_on_the_cpu(linear):
    x = torch.randn(8, 3)
    model = poptorch.inferenceModel(linear)
    torch.testing.assert_close(model(x), linear(x))
    assert model.isCompiled()
    assert model.isAttachedToDevice()


def test_a_compiled_executor_knows_the_batch_that_it_is_compiled_for(linear):
    model = poptorch.inferenceModel(linear)
    assert not model._executable_inputs
    model.compile(input=torch.randn(8, 3))
    assert model._executable_inputs.args[0].shape[0] == 8


@pytest.mark.parametrize("replicas", [1, 2])
def test_each_output_mode_returns_its_iterations(linear, replicas):
    x = torch.randn(NUM_ITERATIONS * replicas * 2, 3)
    parts = linear(x).reshape(NUM_ITERATIONS, replicas * 2, 5)
    expected = {
        (poptorch.OutputMode.All, 1): parts,
        (poptorch.OutputMode.EveryN, 2): parts[1::2],
        (poptorch.OutputMode.Final, 1): parts[-1:],
        (poptorch.OutputMode.Sum, 1): parts.sum(0, keepdim=True),
    }
    for (mode, period), values in expected.items():
        found = run_in_mode(linear, x, mode, period, replicas)
        torch.testing.assert_close(found, values.reshape(-1, 5))


def test_values_without_dimensions_become_a_vector_of_the_iterations():
    options = poptorch.Options().deviceIterations(NUM_ITERATIONS)
    model = poptorch.inferenceModel(lambda x: x.sum(), options)
    assert model(torch.arange(NUM_ITERATIONS * 2.0)).tolist() == [1, 5, 9, 13]


def test_a_batch_that_the_iterations_do_not_divide_is_rejected(linear):
    model = poptorch.inferenceModel(linear, poptorch.Options().deviceIterations(NUM_ITERATIONS))
    with pytest.raises(AssertionError, match=r"Invalid batch dimension.*\(6\) must be a multiple"):
        model(torch.zeros(6, 3))


def test_changed_buffers_stay_on_the_device_until_they_are_copied():
    module = Accumulator()
    model = poptorch.inferenceModel(module)
    x = torch.tensor([[1.0, 2.0]])
    assert [model(x)[0, 1].item() for _ in range(3)] == [2, 4, 6]
    assert module.total[0, 1] == 0
    model.copyWeightsToHost()
    assert module.total[0, 1] == 6
    module.total.zero_()
    model.copyWeightsToDevice()
    assert model(x)[0, 1] == 2


def test_replicas_keep_buffers_of_their_own_if_they_are_not_broadcast():
    x = torch.tensor([[1.0, 2.0], [10.0, 20.0]])
    options = poptorch.Options().replicationFactor(2)
    with pytest.raises(poptorch.Error, match="does not support broadcasting buffers"):
        poptorch.inferenceModel(Accumulator(), options)(x)
    options = poptorch.Options().replicationFactor(2).broadcastBuffers(False)
    model = poptorch.inferenceModel(Accumulator(), options)
    model(x)
    torch.testing.assert_close(model(x), 2 * x)


def test_inputs_that_forward_changes_are_changed_for_the_caller():
    def double(x):
        x.mul_(2)

    x = torch.tensor([1.0, 2.0])
    assert poptorch.inferenceModel(double)(x) is None
    assert x.tolist() == [2, 4]


def test_new_weights_are_seen_after_they_are_copied():
    module = torch.nn.Linear(3, 5)
    model, x = poptorch.inferenceModel(module), torch.randn(2, 3)
    before = model(x)
    with torch.no_grad():
        module.weight.mul_(2)
    torch.testing.assert_close(model(x), before)
    model.copyWeightsToDevice()
    torch.testing.assert_close(model(x), module(x))
    model.load_state_dict({"weight": torch.zeros(5, 3), "bias": torch.ones(5)})
    assert model(x).unique().tolist() == [1]


def test_a_call_attaches_again_after_the_device_was_released(linear):
    model, x = poptorch.inferenceModel(linear), torch.randn(2, 3)
    with pytest.raises(poptorch.Error, match="has not been compiled"):
        model.detachFromDevice()
    model.compile(x)
    with pytest.raises(poptorch.Error, match="Device is already attached"):
        model.attachToDevice()
    model.detachFromDevice()
    with pytest.raises(poptorch.Error, match="Device is not attached"):
        model.detachFromDevice()
    torch.testing.assert_close(model(x), linear(x))
    model.destroy()
    assert not model.isCompiled()
    torch.testing.assert_close(model(x[:1]), linear(x[:1]))


def test_other_shapes_than_those_compiled_for_are_rejected(linear):
    model = poptorch.inferenceModel(linear)
    model(torch.zeros(2, 3))
    with pytest.raises(poptorch.Error, match=r"Shape mismatch for input.*destroy\(\)"):
        model(torch.zeros(4, 3))


def test_a_saved_model_is_loaded_with_its_weights(linear, tmp_path):
    x = torch.randn(2, 3)
    model = poptorch.inferenceModel(linear)
    model.compileAndExport(tmp_path / "folder" / "model.pt", x)
    loaded = poptorch.load(tmp_path / "folder" / "model.pt")
    torch.testing.assert_close(loaded(x), model(x), rtol=0, atol=0)


def test_a_file_without_its_model_needs_a_wrapped_one(linear, tmp_path):
    x, file = torch.randn(2, 3), tmp_path / "model.pt"
    poptorch.inferenceModel(linear).compileAndExport(file, x, export_model=False)
    with pytest.raises(AssertionError, match="loadExecutable"):
        poptorch.load(file)
    model = poptorch.inferenceModel(linear)
    model.loadExecutable(file)
    torch.testing.assert_close(model(x), linear(x))
    other = poptorch.inferenceModel(torch.nn.Identity())
    with pytest.raises(poptorch.Error, match="another model"):
        other.loadExecutable(file)


def test_an_offline_model_compiles_but_does_not_run(linear, tmp_path):
    x = torch.randn(2, 3)
    model = poptorch.inferenceModel(linear, poptorch.Options().useOfflineIpuTarget())
    model.compileAndExport(tmp_path / "model.pt", x)
    with pytest.raises(AssertionError, match="offline device"):
        model(x)
    model.destroy()
    torch.testing.assert_close(poptorch.load(tmp_path / "model.pt")(x), linear(x))


def test_cycles_and_latencies_are_modelled(linear):
    options = poptorch.Options().deviceIterations(NUM_ITERATIONS).logCycleCount(True)
    model = poptorch.inferenceModel(linear, options)
    assert model.getPerfCounters()["input"] == [[]]
    with pytest.raises(poptorch.Error, match="run the model at least once"):
        model.cycleCount()
    model(torch.zeros(NUM_ITERATIONS, 3))
    assert model.cycleCount() > 0
    counted = model.getPerfCounters()
    assert [len(each) for each in counted["output"]] == [NUM_ITERATIONS]
    least, most, mean = model.getLatency()
    assert 0 < least <= mean <= most
    with pytest.raises(poptorch.Error, match="logging is disabled"):
        poptorch.inferenceModel(linear).cycleCount()


def test_backward_of_a_result_is_rejected(linear):
    with pytest.raises(poptorch.Error, match="cannot be called explicitly"):
        poptorch.inferenceModel(linear)(torch.zeros(2, 3)).backward()


def test_training_is_rejected_with_a_reason(linear):
    with pytest.raises(poptorch.Error, match="training is not supported"):
        poptorch.trainingModel(linear)


def test_options_cannot_be_changed_once_a_model_has_them(linear):
    options = poptorch.Options()
    poptorch.inferenceModel(linear, options)
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        options.deviceIterations(2)
    with pytest.raises(poptorch.Error, match="'options' is of type"):
        poptorch.inferenceModel(linear, 3)


def test_hooks_run_around_a_compilation(linear):
    calls = []
    handles = [
        poptorch.registerPreCompileHook(lambda: calls.append("before")),
        poptorch.registerPostCompileHook(lambda: calls.append("after")),
    ]
    poptorch.inferenceModel(linear)(torch.zeros(2, 3))
    for handle in handles:
        handle.remove()
    poptorch.inferenceModel(linear)(torch.zeros(2, 3))
    assert calls == ["before", "after"]


def test_anchored_tensors_are_returned_beside_the_results(linear):
    module, x = torch.nn.Sequential(linear, torch.nn.ReLU()), torch.randn(NUM_ITERATIONS, 3)
    options = poptorch.Options().deviceIterations(NUM_ITERATIONS)
    options.outputMode(poptorch.OutputMode.Final)
    options.anchorTensor("hidden", "0/Gemm:0", poptorch.OutputMode.All)
    model = poptorch.inferenceModel(module, options)
    torch.testing.assert_close(model(x), module(x)[-1:])
    torch.testing.assert_close(model.getAnchoredTensor("hidden"), linear(x))
    with pytest.raises(AssertionError, match="No tensor with name other"):
        model.getAnchoredTensor("other")
    options = poptorch.Options().anchorTensor("a", "nowhere")
    with pytest.raises(poptorch.Error, match="no operator of the model computes"):
        poptorch.inferenceModel(module, options)(x)
