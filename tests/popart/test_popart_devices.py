"""popart's devices, options, data flow and patterns."""

import copy
import gc
import logging
import pickle

import popart
import pytest
from popart.devices import NUM_IPUS


def test_held_ipus_are_free_after_detach_and_after_garbage_collection():
    manager = popart.DeviceManager()
    whole = manager.acquireAvailableDevice(NUM_IPUS)
    assert whole.isAttached
    assert manager.tryAcquireAvailableDevice() is None
    with pytest.raises(popart.popart_exception, match="Failed to acquire device with 1 IPUs"):
        manager.acquireAvailableDevice()
    whole.detach()
    first = manager.acquireAvailableDevice(2)
    second = manager.acquireAvailableDevice(2)
    assert set(first.driverIds).isdisjoint(second.driverIds)
    assert not whole.attach()
    del first
    gc.collect()
    with second:
        pass
    assert not second.isAttached
    assert whole.attach()
    whole.detach()


def test_a_device_on_demand_is_attached_when_a_program_is_loaded():
    manager = popart.DeviceManager()
    holder = manager.acquireAvailableDevice(NUM_IPUS)
    kind = popart.DeviceConnectionType.OnDemand
    device = manager.acquireAvailableDevice(connectionType=kind)
    assert not device.isAttached
    builder = popart.Builder()
    x = builder.addInputTensor(popart.TensorInfo("FLOAT", [1]))
    flow = popart.DataFlow(1, [builder.aiOnnx.neg([x])])
    session = popart.InferenceSession(builder.getModelProto(), flow, device)
    with pytest.raises(popart.popart_exception, match="Failed to attach to device"):
        session.prepareDevice()
    holder.detach()
    session.prepareDevice()
    assert device.isAttached
    device.detach()


@pytest.mark.parametrize(
    ("make", "kind", "tiles", "version"),
    [
        (lambda m: m.createCpuDevice(), "cpu", 1, ""),
        (lambda m: m.createIpuModelDevice({}), "ipu-model", 4, "ipu2"),
        (lambda m: m.createIpuModelDevice({"ipuVersion": "ipu21"}), "ipu-model", 4, "ipu21"),
        (lambda m: m.createSimDevice({"tilesPerIPU": 8}), "sim", 8, "ipu21"),
        (lambda m: m.createOfflineIPUDevice({"numIPUs": "2"}), "offline-ipu", 1472, "ipu2"),
        (lambda m: m.acquireDeviceById(NUM_IPUS), "ipu", 1472, "ipu21"),
    ],
)
def test_devices_show_what_was_asked_for(make, kind, tiles, version):
    device = make(popart.DeviceManager())
    assert str(device.type) == kind
    assert (device.tilesPerIPU, device.tilesPerIpu, device.ipuVersion) == (tiles, tiles, version)
    expected = 2 if kind in ("offline-ipu", "ipu") else 1
    assert device.numIpus == expected
    assert device.canCompileOffline is (kind in ("ipu", "offline-ipu"))
    assert f"Device Type:{kind}" in str(device)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.acquireAvailableDevice(3), "must be a power of two"),
        (lambda m: m.acquireAvailableDevice(256), "Failed to acquire device with 256 IPUs"),
        (
            lambda m: m.acquireDeviceById(0, connectionType=popart.DeviceConnectionType.Never),
            "createOfflineIPUDevice",
        ),
        (lambda m: m.createIpuModelDevice({"x": 1}), "Invalid option `x' passed to"),
        (lambda m: m.createIpuModelDevice({"numIPUs": 0}), "expected a positive number"),
        (lambda m: m.createOfflineIPUDevice({"ipuVersion": "ipu9"}), "ipu9"),
        (lambda m: m.createOfflineIPUDevice({}).attach(), "Cannot attach to offline device"),
    ],
)
def test_devices_that_cannot_be_had_are_rejected(call, message):
    with pytest.raises(popart.popart_exception) as caught:
        call(popart.DeviceManager())
    assert message in caught.value.args[0]


def test_an_unknown_device_id_is_rejected():
    with pytest.raises(popart.poplar_exception, match="No such device set id: '1000'"):
        popart.DeviceManager().acquireDeviceById(1000)


def test_options_keep_their_types_and_reject_unknown_names():
    options = popart.SessionOptions()
    assert (options.constantWeights, options.replicatedGraphCount) == (True, 1)
    assert options.hardwareInstrumentations == {popart.Instrumentation.Outer}
    options.engineOptions["opt.level"] = "2"
    options.virtualGraphSplitRatios = (1, 0.5)
    options.enablePipelining = 1
    assert options.changed() == {
        "engineOptions": {"opt.level": "2"},
        "virtualGraphSplitRatios": [1.0, 0.5],
        "enablePipelining": True,
    }
    with pytest.raises(TypeError, match="incompatible function arguments"):
        options.virtualGraphMode = 1
    with pytest.raises(TypeError, match="expected str, found 2"):
        options.engineOptions["opt.level"] = 2
    with pytest.raises(AttributeError, match="did you mean 'enablePipelining'"):
        options.enablePipelin = True


def test_options_survive_pickling_and_stay_checked():
    options = popart.SessionOptions()
    options.engineOptions["a"] = "b"
    options.executionPhaseSettings.phases = 2
    again = pickle.loads(pickle.dumps(options))
    assert (again, again.executionPhaseSettings.phases) == (options, 2)
    with pytest.raises(TypeError, match="expected str, found 3"):
        again.engineOptions["a"] = 3


def test_a_copy_of_options_is_independent():
    options = popart.SessionOptions()
    copied = copy.deepcopy(options)
    copied.engineOptions["a"] = "b"
    copied.batchSerializationSettings.factor = 4
    assert not options.engineOptions
    assert options.batchSerializationSettings.factor == 0
    assert copied != options


def test_explicit_ir_sets_its_three_options():
    options = popart.SessionOptions()
    options.enableExplicitIR(True)
    assert (options.useHostCopyOps, options.enableExplicitMainLoops) == (True, True)
    assert options.explicitRecomputation


def test_the_environment_turns_the_cache_on(monkeypatch):
    monkeypatch.setenv("POPART_CACHE_DIR", "/somewhere")
    options = popart.SessionOptions()
    assert (options.enableEngineCaching, options.cachePath) == (True, "/somewhere")


def test_locations_take_the_forms_of_the_real_class():
    sharded = popart.TensorLocation(
        popart.TensorStorage.OffChip, popart.ReplicatedTensorSharding.On
    )
    assert sharded.loadTileSet is popart.TileSet.Compute
    settings = popart.TensorLocationSettings(popart.TensorStorage.OffChip, 3)
    assert settings.location.storage is popart.TensorStorage.OffChip
    assert (settings.minElementsForOffChip, settings.minElementsForReplicatedTensorSharding) == (
        3,
        8192,
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Many",), "Invalid anchor return type ID supplied: Many"),
        (("EveryN",), "Must specify return period with option 'EVERYN'"),
        (("EveryN", 0), "Anchor return period must be greater than zero"),
        (("All", 2), "A return period should not be supplied"),
    ],
)
def test_anchor_return_types_are_checked(arguments, message):
    with pytest.raises(popart.popart_exception, match=message):
        popart.AnchorReturnType(*arguments)


def test_data_flows_are_checked():
    assert popart.DataFlow(2, ["b", "a"], popart.AnchorReturnType("Final")).anchors() == ["a", "b"]
    with pytest.raises(popart.popart_exception, match="must be greater than zero"):
        popart.DataFlow(0, ["a"])
    for period, message in ((3, "must be <= to the number"), (2, "must be a factor of the number")):
        kind = popart.AnchorReturnType("EveryN", period)
        batches = 2 if period == 3 else 3
        with pytest.raises(popart.popart_exception, match=message):
            popart.DataFlow(batches, {"a": kind})


def test_patterns_are_switched_by_level_name_and_property():
    assert popart.Patterns(popart.PatternsLevel.All).isPatternEnabled("TiedGather")
    assert not popart.Patterns().isPatternEnabled("TiedGather")
    minimal = popart.Patterns(popart.PatternsLevel.Minimal)
    assert (minimal.InPlace, minimal.MatMulOp, minimal.PreUniRepl) == (False, True, False)
    minimal.PreUniRepl = True
    assert minimal.enablePattern("InPlace", True).InPlace
    with pytest.raises(popart.popart_exception, match="Invalid pattern name 'X'"):
        minimal.enablePattern("X", True)
    with pytest.raises(popart.popart_exception, match="did you mean InPlace"):
        popart.Patterns(["Inplace"])


def test_a_logger_writes_to_stderr_from_its_level_on(capfd):
    everything = popart.getLogger()
    everything.setLevel("WARN")
    everything.info("not shown")
    everything.warn("shown")
    popart.getLogger("session").setLevel("DEBUG")
    popart.getLogger("session").debug("of a session")
    everything.setLevel("OFF")
    everything.critical("never")
    logging.getLogger("popart.session").setLevel(logging.NOTSET)  # as it was: its parent's level
    everything.setLevel("WARN")
    written = capfd.readouterr().err
    assert "shown" in written
    assert "of a session" in written
    assert "not shown" not in written
    assert "never" not in written
