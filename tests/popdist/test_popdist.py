"""popdist: one process, and one of several that environment variables describe."""

from __future__ import annotations

import popart
import popdist
import popdist.popart
import pytest

RUN = {
    "NUM_TOTAL_REPLICAS": 8,
    "NUM_LOCAL_REPLICAS": 2,
    "NUM_IPUS_PER_REPLICA": 4,
    "REPLICA_INDEX_OFFSET": 6,
    "LOCAL_INSTANCE_INDEX": 1,
    "UNIFORM_REPLICAS_PER_INSTANCE": 1,
}
"""Environment of the last of four processes, the second on its host."""


@pytest.fixture
def start(monkeypatch):
    """Return a function that sets poprun's environment variables, with changes."""

    def start(**changes: object) -> None:
        for name, value in {**RUN, **changes}.items():
            monkeypatch.setenv(f"POPDIST_{name}", str(value))

    return start


@pytest.fixture(autouse=True)
def no_run(monkeypatch):
    for name in RUN:
        monkeypatch.delenv(f"POPDIST_{name}", raising=False)


def test_without_poprun_there_is_one_process_with_one_replica():
    popdist.init()
    assert not popdist.isPopdistEnvSet()
    assert (popdist.getNumInstances(), popdist.getInstanceIndex()) == (1, 0)
    assert (popdist.getNumTotalReplicas(), popdist.getNumLocalReplicas()) == (1, 1)
    assert (popdist.getReplicaIndexOffset(), popdist.getLocalInstanceIndex()) == (0, 0)
    assert popdist.getNumIpusPerReplica() == 1
    assert popdist.checkNumIpusPerReplica(1)
    assert popdist.execute_on_instances({0}, divmod, 7, 4) == (1, 3)


def test_a_process_of_poprun_knows_its_part(start):
    start()
    popdist.init()
    assert popdist.isPopdistEnvSet()
    assert (popdist.getNumInstances(), popdist.getInstanceIndex()) == (4, 3)
    assert (popdist.getNumTotalReplicas(), popdist.getNumLocalReplicas()) == (8, 2)
    assert (popdist.getReplicaIndexOffset(), popdist.getLocalInstanceIndex()) == (6, 1)
    assert popdist.checkNumIpusPerReplica(4)
    assert not popdist.checkNumIpusPerReplica(1)


def test_a_function_runs_on_the_named_instances_only(start):
    start()
    assert popdist.execute_on_instances({0, 3}, dict, a=1) == {"a": 1}
    assert popdist.execute_on_instances({0}, pytest.fail) is None


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"NUM_LOCAL_REPLICAS": 3},
            "POPDIST_NUM_TOTAL_REPLICAS is 8, POPDIST_NUM_LOCAL_REPLICAS is 3",
        ),
        ({"UNIFORM_REPLICAS_PER_INSTANCE": 0}, "POPDIST_UNIFORM_REPLICAS_PER_INSTANCE is 0"),
        ({"REPLICA_INDEX_OFFSET": 3}, "expected a multiple of 2 below 8, found 3"),
        ({"REPLICA_INDEX_OFFSET": 8}, "expected a multiple of 2 below 8, found 8"),
        (
            {"NUM_IPUS_PER_REPLICA": 0},
            "POPDIST_NUM_IPUS_PER_REPLICA: expected a whole number of at least 1, found '0'",
        ),
        ({"LOCAL_INSTANCE_INDEX": "first"}, "POPDIST_LOCAL_INSTANCE_INDEX: .* found 'first'"),
    ],
)
def test_init_names_variables_that_do_not_agree(start, changes, text):
    start(**changes)
    with pytest.raises(ValueError, match=text):
        popdist.init()


def test_each_process_of_a_host_has_a_device_for_all_of_its_replicas(start):
    ipus = {}
    for index in range(2):
        start(LOCAL_INSTANCE_INDEX=index)
        device = popdist.popart.getDevice(4)
        assert (device.id, device.numIpus) == (popdist.getDeviceId(), 8)
        ipus[index] = set(device.driverIds)
        device.detach()
    assert not ipus[0] & ipus[1]


def test_a_device_that_the_machine_lacks_is_named(start):
    start(NUM_IPUS_PER_REPLICA=3)
    with pytest.raises(
        ValueError, match=r"process 1 of this host needs a device of 6 IPUs: .* has 0"
    ):
        popdist.getDeviceId()


def test_a_device_in_use_is_named():
    held = popdist.popart.getDevice(2)
    with pytest.raises(popart.popart_exception, match=f"device {held.id} is in use"):
        popdist.popart.getDevice(2)
    held.detach()


@pytest.mark.parametrize("count", [1, 2])
def test_a_session_has_the_replicas_of_its_process(start, count):
    start(NUM_LOCAL_REPLICAS=count, REPLICA_INDEX_OFFSET=0)
    options = popart.SessionOptions()
    popdist.popart.configureSessionOptions(options)
    assert (options.enableReplicatedGraphs, options.replicatedGraphCount) == (count > 1, count)


def test_the_side_of_tensorflow_can_be_imported_and_says_that_it_is_not_supported():
    import popdist.tensorflow

    with pytest.raises(
        NotImplementedError, match=r"set_ipu_config is not supported: .*one process"
    ):
        popdist.tensorflow.set_ipu_config(None, ipus_per_replica=2)
