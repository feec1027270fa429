"""The backend's options: their sources, their values, and their effect on a model."""

import subprocess
import sys

import numpy as np
import onnx
import pytest
import simipu
from sdk_files import rewrite
from triton_poplar import sessions
from triton_poplar.errors import ModelConfigError
from triton_poplar.instance_state import ModelInstanceState
from triton_poplar.model_state import ModelState
from triton_poplar.parameters import (
    BackendState,
    environment_variable,
    find_options,
    read_command_line,
)
from triton_poplar.request import Request

import popef


def test_both_spellings_of_the_flag_are_read_and_the_last_counts():
    line = [
        "tritonserver",
        "--backend-config=poplar,sim_num_IPUs=1",
        "--backend-config",
        "poplar,sim_ipu_version=ipu21",
    ]
    line += [
        "--backend-config=python,sim_num_IPUs=9",
        "--backend-config=poplar,sim_num_IPUs=4",
        "--http-port=1",
    ]
    assert find_options(line) == {"sim_num_IPUs": "4", "sim_ipu_version": "ipu21"}
    options = BackendState(line, {}).options
    assert (options.sim_num_IPUs, options.sim_ipu_version, options.sim_tiles_per_IPU) == (
        4,
        21,
        None,
    )


@pytest.mark.parametrize(
    "line", [["--backend-config"], ["--backend-config=poplar"], ["--backend-config=poplar,x"], [""]]
)
def test_flags_without_a_value_are_left_alone(line):
    assert find_options(line) == {}


def test_the_environment_stands_in_for_the_command_line():
    environ = {"POPLAR_SIM_NUM_IPUS": "2", "POPLAR_USE_SIM_IF_NO_HW": "False"}
    assert environment_variable("sim_num_IPUs") == "POPLAR_SIM_NUM_IPUS"
    options = BackendState([], environ).options
    assert (options.sim_num_IPUs, options.use_sim_if_no_hw) == (2, False)
    assert (
        BackendState(["--backend-config=poplar,sim_num_IPUs=3"], environ).options.sim_num_IPUs == 3
    )


def test_the_command_line_of_a_process_is_read():
    code = "print(flush=True); input()"
    command = [sys.executable, "-c", code, "--backend-config=poplar,a=b=c,d"]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        child.stdout.readline()
        assert find_options(read_command_line(child.pid)) == {"a": "b=c,d"}
    finally:
        child.kill()
        child.communicate()


def test_an_unreadable_command_line_holds_nothing():
    assert read_command_line(2**30) == []


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        ("use_sim_if_no_hw=maybe", "use_sim_if_no_hw: expected 0, 1, true or false, found 'maybe'"),
        ("sim_num_IPUs=0", "sim_num_IPUs: expected a whole number from 1 to 65536, found '0'"),
        ("sim_tiles_per_IPU=-4", "sim_tiles_per_IPU: expected a whole number from 1 to 1472"),
        (
            "sim_ipu_version=3",
            "sim_ipu_version: expected 1, 2 or 21 or a chip's name .*c600.*, found '3'",
        ),
        ("sim_num_ipus=1", "option 'sim_num_ipus' is not known; did you mean sim_num_IPUs?"),
    ],
)
def test_bad_values_name_the_option(option, reason):
    with pytest.raises(ModelConfigError, match=reason):
        BackendState([f"--backend-config=poplar,{option}"], {})


def test_an_option_that_nothing_knows_is_a_warning(caplog):
    BackendState(["--backend-config=poplar,colour=red"], {})
    assert "option 'colour' is not known; known are use_sim_if_no_hw, sim_num_IPUs" in caplog.text


@pytest.fixture
def open_instance(linear, compile_popef, tmp_path):
    """Yield a function that opens an instance of the linear model with options of the backend."""
    compile_popef(linear, name="linear/1/executable.popef")
    opened = []

    def make(*options):
        backend = BackendState([f"--backend-config=poplar,{option}" for option in options], {})
        instance = ModelInstanceState(
            ModelState({"name": "linear"}, tmp_path / "linear" / "1", backend), "linear_0"
        )
        opened.append(instance)
        return instance

    yield make
    for instance in opened:
        instance.close()


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("sim_num_IPUs=1",),
        ("sim_ipu_version=C600",),
        ("sim_num_IPUs=4", "sim_ipu_version=21", "sim_tiles_per_IPU=1472"),
    ],
)
def test_a_machine_that_fits_serves(open_instance, options):
    assert open_instance(*options).session.executable.target.tiles_per_ipu == 1472


@pytest.mark.parametrize(
    ("option", "reason"),
    [
        (
            "use_sim_if_no_hw=false",
            "No IPU can be attached: this machine has none, and the backend option "
            "use_sim_if_no_hw is false",
        ),
        (
            "sim_ipu_version=mk2",
            "option sim_ipu_version is 2, but the executable was compiled for 21",
        ),
        (
            "sim_tiles_per_IPU=4",
            "option sim_tiles_per_IPU is 4, but the executable was compiled for 1472",
        ),
    ],
)
def test_a_machine_that_does_not_fit_is_a_load_error(open_instance, option, reason):
    with pytest.raises(ModelConfigError, match=reason):
        open_instance(option)


def write_real(folder, replicas):
    """Write a file as an SDK writes it.

    It has machine code, TensorFlow's names, and replicas of a batch of 4 halves.
    """

    def anchor(name, kind, width):
        shape = (replicas, 4, width) if replicas else (4, width)
        info = popef.TensorInfo(shape=shape, dataType=popef.DataType.F16)
        return popef.Anchor(
            name=name,
            handle=name,
            tensorInfo=info,
            type=kind,
            isPerReplica=bool(replicas),
            programs=[1],
        )

    anchors = [
        anchor("infeed_1.0", popef.TensorType.INPUT, 4),
        anchor("outfeed_2.0", popef.TensorType.OUTPUT, 3),
        anchor("outfeed_2.1", popef.TensorType.OUTPUT, 4),
    ]
    metadata = popef.Metadata(
        replicationFactor=replicas,
        numIpus=max(1, replicas),
        seedHandle="__seed_stream",
        anchors=anchors,
        executable="UNHASHED_EXECUTABLE",
        ipuVersion=2,
        programFlow=popef.ProgramFlow(load=[0], main=[1], save=[2]),
        engineOptions=[popef.Option(name="debug.nanOverflowException", value="true")],
    )
    folder.mkdir(parents=True)
    rewrite(folder / "executable.popef", metadata, b"\x7fELF machine code of a chip")
    (folder / "name_map.json").write_text(
        '{"infeed_1.0": "x", "outfeed_2.0": "y", "outfeed_2.1": "z"}'
    )


@pytest.mark.slow
@pytest.mark.parametrize(("module", "step"), [(simipu, "try_in_child"), (sessions, "_streams")])
def test_a_graph_file_that_is_exchanged_while_it_loads_is_rejected(
    linear, tmp_path, monkeypatch, module, step
):
    """`_streams` is called just before the graph's file is read."""
    folder = tmp_path / "real" / "1"
    write_real(folder, 0)
    onnx.save(linear, folder / "model.onnx")
    parameters = {"sim_graph_path": {"string_value": "model.onnx"}}
    state = ModelState({"name": "real", "max_batch_size": 4, "parameters": parameters}, folder)
    original = getattr(module, step)

    def exchange(*arguments):
        onnx.save(linear, folder / "other.onnx")
        (folder / "other.onnx").replace(folder / "model.onnx")
        return original(*arguments) if step == "_streams" else None

    monkeypatch.setattr(simipu, "try_in_child", lambda *_: None)
    monkeypatch.setattr(module, step, exchange)
    with pytest.raises(ModelConfigError, match=r"exchanged or written to .*model\.onnx"):
        ModelInstanceState(state, "real_0")


# A file without a number of replicas has one replica.
@pytest.mark.slow
@pytest.mark.parametrize("replicas", [2, 0])
def test_real_executables_are_served_with_their_graph(linear, tmp_path, replicas, caplog):
    folder = tmp_path / "real" / "1"
    write_real(folder, replicas)
    onnx.save(linear, folder / "model.onnx")
    config = {"name": "real", "max_batch_size": 100}
    with pytest.raises(ModelConfigError, match=r"UNHASHED_EXECUTABLE.*parameter sim_graph_path"):
        ModelInstanceState(ModelState(config, folder), "real_0")
    config["parameters"] = {"sim_graph_path": {"string_value": "model.onnx"}}
    state = ModelState(config, folder)
    capacity = 4 * max(1, replicas)
    assert state.total_batch_size == capacity
    with caplog.at_level("WARNING", "triton_poplar"):
        instance = ModelInstanceState(state, "real_0")
    assert "model.onnx (sim_graph_path) is computed instead" in caplog.text
    assert instance.session.executable.numerics.nan_on_overflow
    x = np.arange(44, dtype=np.float16).reshape(11, 4)
    request = Request(state, {"x": x}, ["z"])
    instance.execute([request])
    np.testing.assert_array_equal(request.outputs()["z"], 2 * x)
    assert (instance.statistics.batches, instance.statistics.capacity) == (
        -(-11 // capacity),
        capacity,
    )
    instance.close()
