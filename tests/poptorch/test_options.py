"""Tests of PopTorch's options: setters, types, freezing, files, and the check of names."""

import copy
import pickle

import pytest

torch = pytest.importorskip("torch")

import poptorch  # noqa: E402
from poptorch.options.model_options import GROUPS  # noqa: E402


def test_setters_chain_and_values_are_read_by_name():
    options = poptorch.Options().deviceIterations(4).replicationFactor(2).logDir("logs")
    assert (options.device_iterations, options.replication_factor) == (4, 2)
    assert options.log_dir == "logs"


@pytest.mark.parametrize(("group", "cls"), GROUPS.items())
def test_every_setter_of_the_tables_exists_and_has_a_text(group, cls):
    for option in cls.OPTIONS.values():
        if option.setter:
            assert callable(getattr(cls, option.setter))
            assert option.help or group == "TensorLocationSettings"


def test_a_value_of_another_type_is_rejected():
    with pytest.raises(AssertionError, match=r"Unexpected type .*str.* for option device_iter"):
        poptorch.Options().deviceIterations("4")
    with pytest.raises(AssertionError, match="must be positive, found 0"):
        poptorch.Options().replicationFactor(0)


def test_an_unknown_attribute_names_the_nearest():
    with pytest.raises(AttributeError, match="Did you mean 'deviceIterations'"):
        poptorch.Options().deviceIteration(2)
    with pytest.raises(AttributeError, match="Invalid attribute wibble"):
        poptorch.Options().wibble = 2


@pytest.mark.parametrize(
    "change",
    [
        lambda options: options.deviceIterations(2),
        lambda options: setattr(options, "replication_factor", 2),
        lambda options: options.Training.gradientAccumulation(2),
        lambda options: options.Precision.setPartialsType(torch.half),
        lambda options: options._Popart.set("autoRecomputation", 3),
        lambda options: options.setExecutionStrategy(poptorch.ShardedExecution()),
        lambda options: options.anchorTensor("a", "b"),
    ],
)
def test_frozen_options_reject_changes_but_their_copies_do_not(change):
    options = poptorch.Options()
    options.freeze()
    with pytest.raises(AttributeError, match="Can't modify frozen Options"):
        change(options)
    change(copy.deepcopy(options))
    change(options.clone())


def test_a_copy_is_independent():
    options = poptorch.Options().anchorTensor("a", "x")
    options._Popart.set("key", 1)
    made = options.clone()
    made.anchorTensor("b", "y")
    made._Popart.set("key", 2)
    made.Precision.enableStochasticRounding(True)
    assert list(options.anchored_tensors) == ["a"]
    assert options._Popart.options == {"rearrangeAnchorsOnHost": False, "key": 1}
    assert made._Popart.options["enableStochasticRounding"] is True


def test_options_survive_pickling():
    options = poptorch.Options().deviceIterations(3)
    options.TensorLocations.setWeightLocation(
        poptorch.TensorLocationSettings().useOnChipStorage(False)
    )
    made = pickle.loads(pickle.dumps(options))
    assert repr(made) == repr(options)
    assert made.TensorLocations.location_weight == {"onChip": 0}


def test_a_file_sets_options_with_names_of_poptorch_and_torch(tmp_path):
    path = tmp_path / "options.conf"
    path.write_text(
        "deviceIterations(2)\n\n# comment\n"
        "  outputMode(poptorch.OutputMode.EveryN, 2) # comment\n"
        "setExecutionStrategy(poptorch.PipelinedExecution(poptorch.Stage('a').ipu(1)))\n"
        "Precision.setPartialsType(torch.half)\n"
        "TensorLocations.setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage())\n"
        "_Popart.set('engineOptions', {'a': 'b'})\n"
    )
    options = poptorch.Options().loadFromFile(str(path))
    assert options.device_iterations == 2
    assert options.output_mode is poptorch.OutputMode.EveryN
    assert options.output_return_period == 2
    assert options.execution_strategy.stage("a").ipu_id == 1
    assert options._Popart.options["partialsTypeMatMuls"] == "half"
    assert options._Popart.options["engineOptions"] == {"a": "b"}
    assert options.TensorLocations.location_weight == {"onChip": 1}


@pytest.mark.parametrize(
    "line",
    [
        "deviceIterations(__import__('os').system('touch found'))",
        "deviceIterations(open('found', 'w'))",
        "deviceIterations(poptorch.Options.__init__.__globals__)",
        "deviceIterations(torch.load('found'))",
        "__class__.__init__.__globals__['os']",
        "deviceIterations(poptorch.OutputMode.__subclasses__())",
        "deviceIterations('a'.format(1))",
        "logDir(poptorch.wibble)",
    ],
)
def test_a_file_of_options_cannot_run_code(line, tmp_path):
    path = tmp_path / "options.conf"
    path.write_text(f"deviceIterations(2)\n{line}\n")
    with pytest.raises(poptorch.ConfigFileError, match=r"at line 2 of options.conf"):
        poptorch.Options().loadFromFile(str(path))


def test_the_environment_sets_defaults(monkeypatch):
    monkeypatch.setenv(
        "POPTORCH_DEFAULT_OPTIONS",
        '{"deviceIterations": 3, "connectionType": "ConnectionType.OnDemand",'
        ' "_Popart.set": ["a", "b"], "Precision.enableStochasticRounding": true}',
    )
    options = poptorch.Options()
    assert options.device_iterations == 3
    assert options.connection_type is poptorch.ConnectionType.OnDemand
    assert options._Popart.options["a"] == "b"
    assert options._Popart.options["enableStochasticRounding"] is True


@pytest.mark.parametrize("text", ["[1]", "{", '{"wibble": 1}', '{"__class__": 1}'])
def test_a_wrong_environment_is_named(text, monkeypatch):
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", text)
    with pytest.raises(poptorch.ConfigFileError, match="POPTORCH_DEFAULT_OPTIONS"):
        poptorch.Options()


def test_unknown_names_and_types_of_popart_options_are_rejected():
    options = poptorch.Options().outputMode(poptorch.OutputMode.All)
    options._Popart.set("batchSerializationSettings.factor", 1)
    options._Popart.set("saveInitializersToFile", "weights.onnx")
    poptorch.poptorch_core._validateOptions(options.toDict())
    options._Popart.set("wibble", True)
    with pytest.raises(poptorch.Error, match="Unknown bool option wibble for value True"):
        poptorch.poptorch_core._validateOptions(options.toDict())
    options._Popart.set("wibble", torch.ones(1))
    with pytest.raises(poptorch.Error, match="Unknown value type Tensor for option wibble"):
        poptorch.poptorch_core._validateOptions(options.toDict())


def test_old_ways_of_casting_are_accepted_with_a_warning(capsys):
    poptorch.Options().Precision.autocastEnabled(False)
    assert "[warning] [Deprecated] Precision.autocastEnabled" in capsys.readouterr().err
    with pytest.raises(ValueError, match="no longer supported"):
        poptorch.Options().Jit.traceModel(True)
