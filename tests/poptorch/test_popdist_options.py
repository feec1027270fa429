"""popdist.poptorch.Options: PopTorch's options, with what poprun determines."""

import pytest

torch = pytest.importorskip("torch")

import popdist.poptorch  # noqa: E402
import poptorch  # noqa: E402


@pytest.fixture
def poprun(monkeypatch):
    """Set the environment of the second of two processes with two replicas each."""
    values = {"NUM_TOTAL": 4, "NUM_LOCAL": 2, "NUM_IPUS_PER": 1}
    names = {"NUM_IPUS_PER": "NUM_IPUS_PER_REPLICA"}
    for name, value in values.items():
        monkeypatch.setenv(f"POPDIST_{names.get(name, f'{name}_REPLICAS')}", str(value))
    monkeypatch.setenv("POPDIST_REPLICA_INDEX_OFFSET", "2")
    monkeypatch.setenv("POPDIST_LOCAL_INSTANCE_INDEX", "1")


def test_one_process_has_poptorchs_defaults():
    options = popdist.poptorch.Options(ipus_per_replica=2).deviceIterations(3)
    assert isinstance(options, poptorch.Options)
    assert (options.replication_factor, options.device_iterations) == (1, 3)
    assert (options.Distributed.processId, options.Distributed.numProcesses) == (0, 1)
    assert not options.exists("ipu_id")


def test_a_process_of_poprun_has_its_replicas_its_part_of_the_data_and_its_device(poprun):
    options = popdist.poptorch.Options()
    assert options.replication_factor == 2
    assert (options.Distributed.processId, options.Distributed.numProcesses) == (1, 2)
    assert options.ipu_id == popdist.getDeviceId()
    rows = torch.arange(8).reshape(8, 1)
    loader = poptorch.DataLoader(options, torch.utils.data.TensorDataset(rows), batch_size=1)
    assert [batch.flatten().tolist() for (batch,) in loader] == [[4, 5], [6, 7]]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda options: options.replicationFactor(2), "replicationFactor"),
        (lambda options: options.useIpuId(0), "useIpuId"),
        (lambda options: options.Distributed.disable(), "Distributed.disable"),
        (lambda options: options.Distributed.configureProcessId(0, 2), "configureProcessId"),
        (lambda options: options.Distributed.setEnvVarNames("A", "B"), "setEnvVarNames"),
    ],
)
def test_settings_that_poprun_determines_are_rejected(change, name):
    with pytest.raises(poptorch.Error, match=f"{name} by itself: pass it to poprun"):
        change(popdist.poptorch.Options())


def test_a_model_runs_with_them(poprun):
    module = torch.nn.Linear(3, 2).eval()
    model = poptorch.inferenceModel(module, popdist.poptorch.Options(ipus_per_replica=1))
    data = torch.randn(4, 3)
    torch.testing.assert_close(model(data), module(data))
    assert model.options.replication_factor == 2
