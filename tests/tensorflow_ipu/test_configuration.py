"""The configuration of TensorFlow's IPUs: IPUConfig, TF_POPLAR_FLAGS, and the devices they make."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.compiler.plugin.poplar.driver import config_pb2
from tensorflow.compiler.plugin.poplar.ops import gen_ipu_ops
from tensorflow.python import ipu
from tensorflow_ipu import events
from tensorflow_ipu.config import devices, flags, seeds, system
from tensorflow_ipu.config.table import ATTRIBUTES, CATEGORIES
from tensorflow_ipu.execution import counters

pytestmark = pytest.mark.tensorflow
VARIABLE = flags.VARIABLE


@pytest.fixture(autouse=True)
def nothing_is_configured(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    ipu.config.reset_ipu_configuration()
    devices.release()
    yield
    ipu.config.reset_ipu_configuration()
    devices.release()


@pytest.fixture
def config():
    return ipu.config.IPUConfig()


def configure(num_ipus=1, **options):
    config = ipu.config.IPUConfig()
    config.auto_select_ipus = num_ipus
    for name, value in options.items():
        *categories, name = name.split("__")
        category = config
        for part in categories:
            category = getattr(category, part)
        setattr(category, name, value)
    config.configure_ipu_system()


def test_every_field_of_the_message_that_the_table_names_is_there():
    message = config_pb2.IpuOptions()
    for entry in ATTRIBUTES.values():
        target = message
        for part in entry.field.removeprefix("!").split(".") if entry.field else ():
            assert part in {field.name for field in target.DESCRIPTOR.fields}, entry.name
            target = getattr(target, part)


def test_every_attribute_lies_in_a_described_category(config):
    for entry in ATTRIBUTES.values():
        assert entry.name.rpartition(".")[0] in {"", *CATEGORIES}
        metadata = config.get_attribute_metadata(entry.name)
        assert metadata.name == entry.name
        assert metadata.default == entry.default
        assert entry.help.endswith(".")
        assert entry.name in ipu.config.IPUConfig.__doc__


def test_what_json_has_becomes_the_same_configuration(config):
    config.matmuls.poplar_options = {"partialsType": "half"}
    config.optimizations.math.fast = True
    config.device_connection.type = ipu.config.DeviceConnectionType.ON_DEMAND
    config.select_ipus = [0, 3]
    other = ipu.config.IPUConfig()
    other.from_json(config.to_json())
    assert other.to_dict() == config.to_dict()
    assert other.device_connection.type is ipu.config.DeviceConnectionType.ON_DEMAND


def test_copies_share_nothing(config):
    config.compilation_poplar_options["a"] = "b"
    other = copy.deepcopy(config)
    other.compilation_poplar_options["c"] = "d"
    other.scheduling.maximum_scheduler_lookahead_depth = 1
    assert config.compilation_poplar_options == {"a": "b"}
    assert config.scheduling.maximum_scheduler_lookahead_depth == 5
    assert ipu.config.IPUConfig().compilation_poplar_options == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("auto_select_ipus", True),
        ("auto_select_ipus", [1, "2"]),
        ("auto_select_ipus", 2.0),
        ("select_ipus", (1, True)),
        ("allow_recompute", 1),
        ("selection_order", 1),
        ("serialization_output_folder", None),
        ("compilation_poplar_options", [("a", "b")]),
    ],
)
def test_a_value_of_another_type_is_refused(config, name, value):
    before = getattr(config, name)
    with pytest.raises(TypeError, match=f"Trying to set {name} to .*, but it must be of type"):
        setattr(config, name, value)
    assert getattr(config, name) == before


def test_options_of_poplar_are_texts(config):
    config.matmuls.poplar_options["availableMemoryProportion"] = 0.1
    with pytest.raises(TypeError, match=r"matmuls\.poplar_options: .*availableMemoryProportion"):
        config.configure_ipu_system()


def test_the_nearest_name_is_suggested(config):
    with pytest.raises(ValueError, match=r"Did you mean 'ipu_model\.tiles_per_ipu'\?"):
        config.ipu_model.tiles_per_ip = 3


def test_select_ipus_must_be_unique(config):
    config.select_ipus = [1, 1]
    with pytest.raises(ValueError, match="must be unique"):
        config.configure_ipu_system()


def test_set_all_turns_everything_on(config):
    config.floating_point_behaviour.set_all = True
    config.auto_select_ipus = 1
    config.configure_ipu_system()
    options = devices.find_device().session_options()
    assert options.engineOptions["debug.floatPointOpException"] == "true"
    assert options.engineOptions["debug.nanOverflowException"] == "true"
    assert options.enableStochasticRounding


# Devices


def test_one_number_makes_one_device_and_the_rest_of_its_ipus_are_replicas():
    configure(4)
    device = devices.find_device(0, 2)
    assert (device.info.numIpus, device.replicas, device.info.isAttached) == (4, 2, True)
    options = device.session_options()
    assert (options.enableReplicatedGraphs, options.replicatedGraphCount) == (True, 2)
    assert ipu.utils.get_num_of_ipus_in_device("/device:IPU:0") == 4


def test_several_numbers_make_several_devices_on_different_ipus():
    configure([1, 2])
    first, second = devices.find_device(0), devices.find_device(1)
    assert not set(first.info.driverIds) & set(second.info.driverIds)
    assert second.replicas == 2
    assert devices.find_device(2).info.numIpus == 1, "as a device that is not configured"


def test_ids_select_certain_ipus(config):
    config.select_ipus = [5, 64]
    config.configure_ipu_system()
    assert devices.find_device(0).info.driverIds == [5]
    assert devices.find_device(1).info.numIpus == 2


def test_shards_must_divide_the_ipus():
    configure(4)
    with pytest.raises(tf.errors.InternalError, match="4 IPUs and 3 shards"):
        devices.find_device(0, 3)


def test_a_number_that_the_machine_lacks_is_an_error():
    with pytest.raises(tf.errors.FailedPreconditionError, match="an IPU device with 3 IPUs"):
        configure(3)
    assert system.SYSTEM.options is None


def test_ipus_that_others_hold_cannot_be_had_always():
    configure([64])
    held = devices.find_device().info
    devices._SLOTS.clear()
    with pytest.raises(tf.errors.InternalError, match="Could not find an available device"):
        configure([32])
    held.detach()
    configure([32])


def test_on_demand_waits_until_the_time_is_over(monkeypatch):
    configure([64])
    held = devices.find_device().info
    devices._SLOTS.clear()
    monkeypatch.setenv(VARIABLE, "--on_demand_device_timeout=150 --on_demand_device_poll_time=100")
    configure(1, device_connection__type=ipu.config.DeviceConnectionType.ON_DEMAND)
    device = devices.find_device()
    assert not device.info.isAttached
    with pytest.raises(tf.errors.InternalError, match="Timed out trying to find"):
        device.attach()
    held.detach()
    device.attach()
    assert device.info.isAttached


@pytest.mark.parametrize("version", ["ipu1", "ipu2", "ipu21"])
def test_devices_that_only_compile_are_of_the_chip_that_is_asked_for(version):
    kind = ipu.config.DeviceConnectionType.NEVER
    configure(2, device_connection__type=kind, device_connection__version=version)
    device = devices.find_device()
    assert (device.info.ipuVersion, device.info.numIpus) == (version, 2)
    with pytest.raises(tf.errors.FailedPreconditionError, match="NEVER, which compiles only"):
        device.attach()


def test_programs_compiled_in_advance_return_zeros():
    kind = ipu.config.DeviceConnectionType.PRE_COMPILE
    configure(1, device_connection__type=kind, device_connection__version="ipu2")
    device = devices.find_device()
    device.attach()
    assert device.returns_zeros


def test_the_ipu_model_has_the_tiles_of_the_configuration_before_those_of_the_flag(monkeypatch):
    monkeypatch.setenv(VARIABLE, "--use_ipu_model --ipu_model_tiles=8")
    configure(3)
    assert devices.find_device().info.tilesPerIPU == 8
    assert devices.find_device().is_model
    configure(3, ipu_model__tiles_per_ipu=16)
    assert devices.find_device().info.tilesPerIPU == 16
    monkeypatch.setenv(VARIABLE, "--use_ipu_model")
    configure(1, ipu_model__version="ipu21")
    assert devices.find_device().info.tilesPerIPU == 1472


def test_without_a_configuration_a_device_has_one_ipu():
    assert devices.find_device().info.numIpus == 1
    assert ipu.utils.get_num_of_ipus_in_device("/device:IPU:0") == 1


def test_an_unknown_engine_option_is_an_error_when_a_program_is_compiled():
    configure(1, compilation_poplar_options={"some_option": "some_value"})
    with pytest.raises(tf.errors.InternalError, match="Unrecognised option 'some_option'"):
        devices.find_device().session_options()


def test_a_new_configuration_forgets_programs():
    calls = []
    system.RESET_HOOKS.append(lambda: calls.append(1))
    try:
        configure(1)
        configure(1)
        assert len(calls) == 1
        configure(2)
        assert len(calls) > 1
    finally:
        system.RESET_HOOKS.pop()


def test_a_second_configuration_without_a_reset_is_an_error(config):
    configure(1)
    config.auto_select_ipus = 2
    with pytest.raises(tf.errors.FailedPreconditionError, match="has already been set"):
        ipu.config.configure_ipu_system(config, reset_configuration=False)
    with pytest.raises(TypeError, match="must be an IpuOptions instance"):
        ipu.config.configure_ipu_system({"auto_select_ipus": 1})
    with pytest.raises(tf.errors.InvalidArgumentError, match="Badly initialized"):
        ipu.config.configure_ipu_system(config_pb2.IpuOptions())


def test_the_configuration_is_returned_once_for_each_device():
    with pytest.raises(RuntimeError, match="No IPU devices configured"):
        ipu.config.get_ipu_config()
    configure([1, 1])
    assert [len(options.device_config) for options in ipu.config.get_ipu_config()] == [2, 2]
    assert len(gen_ipu_ops.ipu_get_configuration()) == 2


# Runs


def run(function, *values):
    """Compile a function for the IPU in a session, run it, and return its result."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        places = [tf.compat.v1.placeholder(value.dtype, value.shape) for value in values]
        with ipu.scopes.ipu_scope("/device:IPU:0"):
            (result,) = ipu.ipu_compiler.compile(function, places)
        compiled = counters.compiled
        returned = session.run(result, dict(zip(places, values, strict=True)))
        assert counters.compiled == compiled + 1
    return returned


def test_a_run_records_its_compilation_its_load_and_itself(config):
    options = config._create_protobuf()
    options.device_config.add(auto_count=1)
    options.profiling.enable_ipu_trace_events = True
    ipu.config.configure_ipu_system(options)
    events.take_events()
    assert run(lambda x: x * 2.0 + 1.0, np.ones([3], "f")).tolist() == [3.0, 3.0, 3.0]
    recorded = [ipu.utils.IpuTraceEvent.FromString(event) for event in events.take_events()]
    assert [event.type for event in recorded] == [0, 1, 4, 5]


def test_a_program_compiled_in_advance_returns_zeros():
    kind = ipu.config.DeviceConnectionType.PRE_COMPILE
    configure(1, device_connection__type=kind, device_connection__version="ipu2")
    assert (
        run(lambda x: tf.stack([x * 2.0, x + 1.0]), np.ones([3], "f")).tolist() == [[0.0] * 3] * 2
    )


def test_a_device_that_only_compiles_does_not_run():
    kind = ipu.config.DeviceConnectionType.NEVER
    configure(1, device_connection__type=kind, device_connection__version="ipu2")
    with pytest.raises(tf.errors.FailedPreconditionError, match="NEVER, which compiles only"):
        run(lambda x: x * 2.0 + 1.0, np.ones([3], "f"))


@pytest.mark.parametrize("name", ["inv", "div0", "oflo"])
def test_a_floating_point_exception_ends_the_run(name):
    configure(1, **{f"floating_point_behaviour__{name}": True})
    with pytest.raises(tf.errors.InternalError, match=r"\[Poplar\].*: Tiles in excepted state: "):
        run(lambda x: x * x * x, np.full([3], 3e4, np.float16))


def test_an_overflow_is_the_largest_half_or_nan():
    configure(1)
    largest = np.finfo(np.float16).max
    assert run(lambda x: x * x, np.full([3], 3e4, np.float16)).tolist() == [largest] * 3
    configure(1, floating_point_behaviour__nanoo=True)
    assert np.isnan(run(lambda x: x * x, np.full([3], 3e4, np.float16))).all()


# Flags


@pytest.mark.parametrize("truth", ["", "=true", "=1", "=True"])
def test_a_bare_flag_is_true(truth):
    assert flags.parse(f"--use_ipu_model{truth}").use_ipu_model is True
    assert flags.parse("--use_ipu_model=false").use_ipu_model is False


def test_flags_have_their_defaults_and_values():
    values = flags.parse("--executable_cache_path='/a b' --on_demand_device_poll_time=5  --help")
    assert values.cache_path == "/a b"
    assert values.poll_seconds == 0.1
    assert values.help
    assert values.while_loop_brute_force_max_trip_count == 128
    assert flags.parse("").max_infeed_threads == -1


def test_another_variable_names_the_cache_where_the_flag_does_not(monkeypatch):
    monkeypatch.setenv(flags.CACHE_VARIABLE, "/elsewhere")
    assert flags.parse("").cache_path == "/elsewhere"
    assert flags.parse("--executable_cache_path=/here").cache_path == "/here"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("--use_ipu_modle", r"Unknown flag in TF_POPLAR_FLAGS: --use_ipu_modle; did you mean"),
        ("--help use_ipu_model", "Unknown flag in TF_POPLAR_FLAGS: use_ipu_model"),
        ("--max_infeed_threads=many", "--max_infeed_threads: expected a whole number"),
        ("--executable_cache_path", "--executable_cache_path requires a value"),
        ("--show_progress_bar=maybe", "--show_progress_bar: expected"),
        ("--synthetic_data_categories=infeed,all", "expected infeed, outfeed, .*found 'all'"),
        ("--synthetic_data_initializer=1", "can only be used in combination with"),
        ("no_such_file", "expected flags or a file with flags"),
    ],
)
def test_a_wrong_flag_ends_the_process_with_one_line(text, message, monkeypatch):
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(SystemExit, match=message) as caught:
        flags.read_flags()
    assert "\n" not in str(caught.value)


def test_flags_may_be_in_a_file(tmp_path):
    (tmp_path / "flags").write_text("--use_ipu_model\n--ipu_model_tiles=3\n")
    values = flags.parse(str(tmp_path / "flags"))
    assert (values.use_ipu_model, values.ipu_model_tiles) == (True, 3)


def test_help_names_all_flags():
    text = flags.describe()
    assert all(f"--{name}: " in text for name in flags.FLAGS)


def test_kinds_of_synthetic_data_are_those_of_the_message():
    names = {name.lower(): number for name, number in config_pb2.SyntheticDataCategory.items()}
    assert names == {**flags.CATEGORIES, "unknown": 5}
    with pytest.raises(tf.errors.InvalidArgumentError, match="Invalid synthetic data category: 9"):
        ipu.utils.use_synthetic_data_for(9)


# Seeds, events, older names


def test_the_same_seed_draws_the_same_seeds():
    ipu.utils.reset_ipu_seed(7)
    first = seeds.draw_seeds(0, 3)
    assert seeds.draw_seeds(0, 3) != first
    ipu.utils.reset_ipu_seed(7)
    assert seeds.draw_seeds(0, 3) == first
    assert len(set(first)) == 3
    ipu.utils.reset_ipu_seed(7, experimental_identical_replicas=True)
    assert len(set(seeds.draw_seeds(0, 3))) == 1


@pytest.mark.parametrize("name", ["IPU", "/device:IPU", "nonsense", ""])
def test_a_seed_needs_the_name_of_a_device(name):
    with pytest.raises(tf.errors.InvalidArgumentError, match="Invalid device name"):
        ipu.utils.reset_ipu_seed(1, device=name)


def test_events_are_recorded_where_the_configuration_turns_them_on(config):
    events.take_events()
    events.record_run("module", 0)
    assert not events.take_events()
    options = config._create_protobuf()
    options.profiling.enable_ipu_trace_events = True
    options.profiling.enable_io_trace = True
    ipu.config.configure_ipu_system(options)
    events.record_compilation("module", 0, 0.25)
    events.record_load("module", 0)
    events.record_transfer(["x"], 0, to_device=True)
    events.record_run("module", 0)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        messages = session.run(gen_ipu_ops.ipu_event_trace())
    recorded = [ipu.utils.IpuTraceEvent.FromString(message) for message in messages]
    assert [event.type for event in recorded] == [0, 1, 4, 2, 5]
    assert recorded[1].compile_end.duration == 250_000
    assert len(gen_ipu_ops.ipu_event_trace()) == 0


@pytest.mark.parametrize("name", ["create_ipu_config", "auto_select_ipus", "set_matmul_options"])
def test_functions_of_older_sdks_say_what_replaced_them(name):
    with pytest.raises(NotImplementedError, match=r"was removed in version 2\.2 of the SDK: use"):
        getattr(ipu.utils, name)({}, num_ipus=1)


def test_initial_values_move_to_the_cpu_but_not_what_reads_variables():
    with tf.Graph().as_default() as graph:
        with tf.device("/device:IPU:0"):
            first = tf.compat.v1.get_variable(
                "first", initializer=tf.random.normal([2]) * 2.0, use_resource=True
            )
            tf.compat.v1.get_variable(
                "second", initializer=first.read_value() + 1.0, use_resource=True
            )
        ipu.utils.move_variable_initialization_to_cpu()
        devices_of = {operation.name: operation.device for operation in graph.get_operations()}
    assert devices_of["mul"] == "/device:CPU:0"
    assert devices_of["random_normal"] == "/device:CPU:0"
    assert devices_of["add"] == "/device:CPU:0"
    assert devices_of["first"] == "/device:IPU:0"
    assert all("IPU" in place for name, place in devices_of.items() if "ReadVariable" in name)
