"""Models, requests and instances without Triton: those that agree are served.

All others are rejected by name.
"""

import json
import os

import make_tables
import numpy as np
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from sample_models import gather_model, linear_model, make_model
from triton_poplar.errors import ModelConfigError, RequestError
from triton_poplar.instance_state import ModelInstanceState
from triton_poplar.model_state import ModelState
from triton_poplar.parameters import parse_parameters
from triton_poplar.request import Request
from triton_poplar.sessions import open_session

import popef
from popef._tools.memory import usable_memory_bytes


def entry(name, dims, data_type="TYPE_FP32"):
    return {"name": name, "dims": [str(dim) for dim in dims], "data_type": data_type}


def make_config(**changes):
    """Return the configuration that Triton passes for the linear model."""
    parameters = changes.pop("parameters", {})
    return {
        "name": "linear",
        "max_batch_size": 4000,
        "input": [entry("x", [4])],
        "output": [entry("y", [3]), entry("z", [4])],
        "parameters": {name: {"string_value": value} for name, value in parameters.items()},
        **changes,
    }


@pytest.fixture
def folder(linear, compile_popef, tmp_path):
    """Return a version folder with the linear model."""
    compile_popef(linear, name="linear/1/executable.popef")
    return tmp_path / "linear" / "1"


def ask(instance, *batches, requested=()):
    requests = [Request(instance.model_state, {"x": x}, requested) for x in batches]
    instance.execute(requests)
    return requests


def test_requests_of_any_size_get_their_rows_and_only_the_outputs_asked_for(folder):
    instance = ModelInstanceState(ModelState(make_config(), folder), "linear_0")
    batches = [np.full((rows, 4), rows, np.float32) for rows in (1, 3, 4, 9, 40)]
    for request, x in zip(ask(instance, *batches, requested=["z"]), batches, strict=True):
        (name,) = request.outputs()
        assert name == "z"
        np.testing.assert_array_equal(request.outputs()["z"], 2 * x)


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_bad_requests_fail_alone(sizes):
    instance = test_bad_requests_fail_alone.instance
    requests = ask(instance, *(np.ones((rows, 4 if rows % 3 else 5), np.float32) for rows in sizes))
    for rows, request in zip(sizes, requests, strict=True):
        if rows % 3 == 0:
            with pytest.raises(RequestError):
                request.outputs()
        else:
            np.testing.assert_array_equal(request.outputs()["z"], np.full((rows, 4), 2))


@pytest.fixture(autouse=True)
def _shared_instance(request, folder):
    """Pass the instance on the test function; hypothesis rejects function-scoped fixtures."""
    if request.function is test_bad_requests_fail_alone:
        request.function.instance = ModelInstanceState(
            ModelState(make_config(), folder), "linear_0"
        )


ROW = np.ones((2, 4), np.float32)


@pytest.mark.parametrize(
    ("inputs", "requested", "reason"),
    [
        ({}, (), "has no input 'x'; model 'linear' expects x"),
        ({"x": ROW, "r": ROW, "q": ROW}, (), "has unknown input 'q'"),
        (
            {"x": ROW.astype(np.float64)},
            (),
            r"expected float32 of shape \['batch', 4\], found float64",
        ),
        ({"x": ROW[:, :3]}, (), r"found float32 of shape \[2, 3\]"),
        ({"x": ROW[0]}, (), r"found float32 of shape \[4\]"),
        ({"x": ROW[:0]}, (), "has batch size 0, expected at least 1"),
        ({"x": ROW}, ("q",), "output 'q' is not known; model 'linear' has y, z"),
    ],
)
def test_a_bad_request_says_what_is_wrong(folder, inputs, requested, reason):
    request = Request(ModelState(make_config(), folder), inputs, requested)
    assert request.error.code == "INVALID_ARG"
    with pytest.raises(RequestError, match=reason):
        request.outputs()


def test_unequal_batches_are_refused(compile_popef, tmp_path):
    shape = ["n", 2]
    model = make_model(
        [helper.make_node("Add", ["a", "b"], ["c"])],
        {"a": (TensorProto.FLOAT, shape), "b": (TensorProto.FLOAT, shape)},
        {"c": (TensorProto.FLOAT, shape)},
        {},
    )
    compile_popef(model, name="add/1/executable.popef")
    config = {
        "max_batch_size": 8,
        "input": [entry("a", [2]), entry("b", [2])],
        "output": [entry("c", [2])],
    }
    state = ModelState(config, tmp_path / "add/1")
    inputs = {"a": np.ones((2, 2), np.float32), "b": np.ones((3, 2), np.float32)}
    assert "input 'b' has batch size 3, expected 2" in str(Request(state, inputs, ()).error)

    config["input"] = []
    with pytest.raises(
        ModelConfigError, match=r"config.pbtxt has no input 'a'; the model requires a, b"
    ):
        ModelState(config, tmp_path / "add/1").validate()
    assert "has no input 'a'; " in str(Request(state, {}, ()).error)


def test_a_request_that_the_arithmetic_refuses_fails_alone(compile_popef, tmp_path):
    compile_popef(gather_model(), name="gather/1/executable.popef", batch=8)
    config = {
        "name": "gather",
        "max_batch_size": 8,
        "input": [entry("ids", [2], "TYPE_INT32")],
        "output": [entry("rows", [2, 3])],
    }
    state = ModelState(config, tmp_path / "gather/1")
    instance = ModelInstanceState(state, "gather_0")
    values = ([[0, 1]], [[5, 99]], [[9, 9], [2, 3]])
    requests = [Request(state, {"ids": np.array(value, np.int32)}, ()) for value in values]
    instance.execute(requests)
    assert requests[0].outputs()["rows"].shape == (1, 2, 3)
    np.testing.assert_array_equal(requests[2].outputs()["rows"][1, 1], [9, 10, 11])
    with pytest.raises(RequestError, match="could not compute the request") as raised:
        requests[1].outputs()
    assert raised.value.code == "INTERNAL"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"input": [entry("q", [4])]},
            "lists input 'q', which the PopEF file does not have; its inputs are x; these are the "
            "names in the file, because there is no name_map.json",
        ),
        ({"input": []}, "has no input 'x'"),
        ({"output": []}, "lists no output; the model's outputs are y, z"),
        (
            {"input": [entry("x", [4], "TYPE_FP16")]},
            "config.pbtxt has type TYPE_FP16, expected TYPE_FP32 of the PopEF file",
        ),
        (
            {"input": [entry("x", [4], "TYPE_BF16")]},
            "TYPE_BF16, which PopEF does not support; supported are BOOL = TYPE_BOOL",
        ),
        (
            {"output": [entry("y", [3], "TYPE_STRING")]},
            "TYPE_STRING, which PopEF does not support;",
        ),
        (
            {"input": [entry("x", [5])]},
            r"config.pbtxt has dims \[5\], expected \[4\] of the PopEF file",
        ),
        (
            {"max_batch_size": 0},
            r"dims \[4\], expected \[4, 4\] .*; with max_batch_size 0, dims include the batch, 4 "
            r"or -1",
        ),
        ({"input": [entry("x", [4, 4])]}, "dims do not include the batch dimension"),
        (
            {"input": [{**entry("x", [1]), "reshape": {"shape": []}}]},
            r"dims \[\], expected \[4\] of the PopEF file \(anchor 'x'; dims do not include the "
            r"batch",
        ),
        (
            {"input": [entry("x", [-1])]},
            r"dims \[-1\], expected \[4\] .*; shapes are fixed at compile time; dims do not",
        ),
        (
            {"max_batch_size": 0, "input": [entry("x", [4, -1])]},
            "shapes are fixed at compile time; with max_batch_size 0, dims incl",
        ),
        (
            {"model_transaction_policy": {"decoupled": True}},
            "sets decoupled: true, but every request has exactly one response; remove",
        ),
        (
            {"parameters": {"executable_path": "gone.popef"}},
            "file 'gone.popef' .parameter executable_path. does not exist",
        ),
        ({"parameters": {"weights_path": "gone.popef"}}, "parameter weights_path"),
        ({"parameters": {"name_map_file_path": "gone.json"}}, "parameter name_map_file_path"),
        (
            {"parameters": {"check_package_hash": "maybe"}},
            "expected 0, 1, true or false, found 'maybe'",
        ),
        (
            {"parameters": {"timeout_ns": "-1"}},
            "expected a whole number from 0 to 9223372036854775807, found '-1'",
        ),
        ({"parameters": {"timeout_ns": str(2**63)}}, "timeout_ns: expected a whole number"),
        (
            {"parameters": {"timeout_ns": "9" * 10_000}},
            r"expected a whole number.* found '9+ \[9802 characters\] 9+'$",
        ),
        (
            {"parameters": {"sim_threads": "1025"}},
            "expected a whole number from 0 to 1024, found '1025'",
        ),
        (
            {"parameters": {"execute_delay_ms": "86400001"}},
            "expected a whole number from 0 to 86400000",
        ),
        (
            {"parameters": {"creation_delay_sec": "86401"}},
            "expected a whole number from 0 to 86400",
        ),
        (
            {"parameters": {"executable_path": " "}},
            "expected a path, or several paths separated by commas, each of at most 4095 bytes",
        ),
        (
            {"parameters": {"executable_path": "a" * 5000}},
            "parameter executable_path: expected a path",
        ),
        (
            {"parameters": {"executable_path": "a" * 4000}},
            "parameter executable_path. does not exist",
        ),
        ({"parameters": {"weights_path": "a\0b"}}, r"without control characters, found 'a\\x00b'"),
        (
            {"parameters": {"executable_name": "n" * 1025}},
            "expected a name of 1 to 1024 characters",
        ),
        (
            {"parameters": {"synchronus_execution": "1"}},
            "'synchronus_execution' is not known; did you mean synchronous_execution",
        ),
        (
            {"parameters": {"SIM_THREADS": "1"}},
            "'SIM_THREADS' is not known; did you mean sim_threads",
        ),
    ],
)
def test_a_config_that_disagrees_is_refused(folder, changes, reason):
    with pytest.raises(ModelConfigError, match=reason):
        ModelState(make_config(**changes), folder).validate()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('["x"]', "expected a JSON object of strings, found a list"),
        ('{"x": 1}', "'x': expected a string, found a number"),
        ('{"x": %s}' % ("9" * 6000), "'x': expected a string, found a number"),
        ('{"x": "a", "x": "b"}', "expected every anchor once, found 'x' twice"),
        ('{"x": "%s"}' % ("a" * 1025), "expected a name of at most 1024 characters, found 1025"),
        (r'{"x": "a\u001b[31m"}', "expected a name without control characters"),
        ('{"x": "a"', "expected a JSON object of strings"),
        ("[" * 100_000, "expected a JSON object of strings"),
        ('{"q": "a"}', "anchor 'q' does not exist in the PopEF file; its anchors are x, y, z"),
        ('{"x": "same", "y": "same"}', "maps both 'x' and 'y' to 'same'"),
        ('{"x": "y"}', "maps both 'x' and 'y' to 'y'"),
    ],
)
def test_a_bad_name_map_is_refused(folder, text, reason):
    (folder / "name_map.json").write_text(text)
    with pytest.raises(ModelConfigError, match=reason):
        ModelState(make_config(), folder)


def test_friendly_names_take_the_place_of_anchor_names(folder):
    (folder / "name_map.json").write_text(json.dumps({"x": "picture", "y": "label"}))
    config = make_config(input=[entry("picture", [4])], output=[entry("label", [3])])
    state = ModelState(config, folder)
    instance = ModelInstanceState(state, "linear_0")
    request = Request(state, {"picture": ROW}, ["label"])
    instance.execute([request])
    assert request.outputs()["label"].shape == (2, 3)


def test_relative_paths_are_taken_from_the_version_then_the_model_folder(folder):
    (folder / "executable.popef").rename(folder.parent / "mine.popef")
    state = ModelState(make_config(parameters={"executable_path": "mine.popef"}), folder)
    assert state.executable_files == [folder.parent / "mine.popef"]


def test_a_model_without_batch_takes_whole_tensors(compile_popef, tmp_path):
    model = make_model(
        [
            helper.make_node("ReduceSum", ["state"], ["total"], keepdims=0),
            helper.make_node("Neg", ["state"], ["next"]),
        ],
        {"state": (TensorProto.FLOAT, [2, 3])},
        {"total": (TensorProto.FLOAT, []), "next": (TensorProto.FLOAT, [2, 3])},
        {},
    )
    compile_popef(model, name="state/1/executable.popef", batch=None)
    config = {
        "input": [entry("state", [2, 3])],
        "output": [entry("total", [1]), entry("next", [2, 3])],
    }
    state = ModelState(config, tmp_path / "state/1")
    assert state.wraps_rows
    request = Request(state, {"state": np.ones((2, 3), np.float32)}, ())
    ModelInstanceState(state, "state_0").execute([request])
    assert request.outputs()["total"].tolist() == [6]
    assert request.outputs()["next"].shape == (2, 3)


def test_types_that_triton_lacks_are_refused_with_the_table(folder, open_model):
    path = folder / "executable.popef"
    model = open_model(path)
    payload = bytes(model.executable.executable())
    model.metadata.anchors()[0].setTensorInfo(
        popef.TensorInfo(shape=(4, 4), dataType=popef.DataType.F8143)
    )
    with popef.Writer(path) as writer:
        writer.writeMetadata(model.metadata)
        with writer.createExecutable(model.executable.name) as blob:
            blob.write(payload)
    with pytest.raises(
        ModelConfigError,
        match="has type F8143, which Triton does not support; supported are BOOL = TYPE_BOOL",
    ):
        ModelState(make_config(), folder)


def test_damaged_files_are_refused_by_name(folder):
    path = folder / "executable.popef"
    whole = path.read_bytes()
    for damaged in (b"", b"garbage", whole[: len(whole) // 2], whole + b"\0" * 9):
        path.write_bytes(damaged)
        with pytest.raises(ModelConfigError, match=r"executable\.popef"):
            ModelState(make_config(), folder)


@pytest.fixture
def two_models(folder, compile_popef):
    """Write one file with two executables and return the names that poprt gives them."""
    other = compile_popef(linear_model(width=4, seed=1), name="other.popef")
    path = folder / "executable.popef"
    path.write_bytes(path.read_bytes() + other.read_bytes())
    with popef.Reader() as reader:
        reader.parseFile(path)
        return [executable.name for executable in reader.executables()]


def test_two_executables_are_refused_with_their_names(folder, two_models):
    with pytest.raises(
        ModelConfigError,
        match=rf"expected one executable, got 2 among '{two_models[0]}', '{two_models[1]}'",
    ):
        ModelState(make_config(), folder)


def test_one_of_several_executables_is_chosen_by_the_parameter_or_the_models_name(
    folder, two_models
):
    for name in two_models:
        chosen = ModelState(make_config(parameters={"executable_name": name}), folder).load_model()
        assert chosen.executable.name == name
        assert ModelState(make_config(name=name), folder).load_model().executable.name == name
    with pytest.raises(ModelConfigError, match="expected one executable called 'third', got 0"):
        ModelState(make_config(parameters={"executable_name": "third"}), folder)


def test_a_model_may_lie_in_several_files(folder, linear, compile_popef):
    """Executable, metadata and each weight may lie in a file of their own."""
    path = compile_popef(linear, name="apart/executable.popef", options={"constant_weights": False})
    with popef.Reader() as reader:
        reader.parseFile(path)
        (executable,), (metadata,) = reader.executables(), reader.metadata()
        payload = bytes(executable.executable())
        with (
            popef.Writer(folder / "code.popef") as writer,
            writer.createExecutable(executable.name) as blob,
        ):
            blob.write(payload)
        with popef.Writer(folder / "metadata.popef") as writer:
            writer.writeMetadata(metadata)
    weights = []
    with popef.Reader() as reader:
        reader.parseFile(path.parent / "weights.popef")
        for tensor in reader.tensors():
            weights.append(f"{tensor.info.name()}.popef")
            with (
                popef.Writer(folder.parent / weights[-1]) as writer,
                writer.createTensorData(tensor.info) as blob,
            ):
                blob.write(tensor.data().tobytes())
    parameters = {
        "executable_path": "code.popef, metadata.popef",
        "weights_path": ",".join(weights),
    }
    state = ModelState(make_config(parameters=parameters), folder)
    assert len(state.executable_files) == 2
    instance = ModelInstanceState(state, "linear_0")
    (request,) = ask(instance, ROW)
    np.testing.assert_array_equal(request.outputs()["z"], 2 * ROW)
    with pytest.raises(
        ModelConfigError, match=r"file 'gone.popef' \(parameter weights_path\) does not exist"
    ):
        ModelState(
            make_config(parameters={**parameters, "weights_path": f"{weights[0]},gone.popef"}),
            folder,
        )


def test_a_file_may_have_a_comma_in_its_name(folder):
    (folder / "executable.popef").rename(folder / "a,b.popef")
    state = ModelState(make_config(parameters={"executable_path": "a,b.popef"}), folder)
    assert state.executable_files == [folder / "a,b.popef"]


@pytest.mark.parametrize(
    "name", ["my_timeout", "batch_timeout_ns", "execution_mode", "x\x1b[31m" * 1000]
)
def test_a_parameter_that_nothing_knows_is_a_warning(name, caplog):
    parse_parameters({"name": "m", "parameters": {name: {"string_value": "1"}}})
    (warning,) = (record.getMessage() for record in caplog.records)
    assert "is not known; known are executable_path, weights_path" in warning
    assert warning.isprintable()
    assert len(warning) < 1000


def test_a_wait_for_tests_lasts_a_day_at_most(folder):
    parameters = {"execute_delay_ms": "86400000", "instance_wise_delay_multiplier": "1000000"}
    state = ModelState(make_config(parameters=parameters), folder)
    assert state.execution_delay_seconds(0) == 86_400
    with pytest.raises(
        ModelConfigError,
        match=r"at most 86400 s for each instance, found 1.728e\+11 s for instance 2",
    ):
        state.execution_delay_seconds(2)


@pytest.mark.parametrize("handed", [[], ["handed over"]])
def test_a_wait_for_tests_comes_once_for_each_call_and_instance(folder, monkeypatch, handed):
    """The calling thread waits before it takes any of the call's requests."""
    waits = []
    parameters = {"execute_delay_ms": "1500", "creation_delay_sec": "3"}
    state = ModelState(make_config(parameters=parameters), folder)
    monkeypatch.setattr("time.sleep", waits.append)
    instance = ModelInstanceState(state, "linear_0", (lambda _: None) if handed else None)
    assert waits == [3]
    requests = [Request(state, {"x": ROW}, ()) for _ in range(2)]
    (instance.submit if handed else instance.execute)(requests)
    instance.close()
    assert waits == [3, 1.5]


def test_anchors_whose_names_no_request_can_have_are_refused(folder, open_model):
    path = folder / "executable.popef"
    model = open_model(path)
    payload = bytes(model.executable.executable())
    model.metadata.anchors()[0].setName("x\x1b[2J")
    with popef.Writer(path) as writer:
        writer.writeMetadata(model.metadata)
        with writer.createExecutable(model.executable.name) as blob:
            blob.write(payload)
    with pytest.raises(
        ModelConfigError,
        match=r"expected a name without control characters, found \\x1b at character 1",
    ):
        ModelState(make_config(), folder)


@pytest.mark.parametrize(
    ("texts", "value"),
    [("1 true TRUE True", True), ("0 false FALSE False", False)],
    ids=["on", "off"],
)
def test_flags_are_spelled_as_users_spell_them(texts, value):
    for text in texts.split():
        given = {name: {"string_value": text} for name in ("synchronous_execution", "sim_prepack")}
        found = parse_parameters({"parameters": given})
        assert (found.synchronous_execution, found.sim_prepack) == (value, value)


def test_the_tables_of_the_documents_are_written_from_the_code():
    for file, text in make_tables.make_texts():
        assert file.read_text() == text, "run `make docs`"


@pytest.mark.parametrize(
    ("parameter", "value", "read", "default", "expected"),
    [
        (
            "sim_memory_mib",
            "64",
            lambda c: c.graph_options.memory_bytes,
            usable_memory_bytes(),
            64 << 20,
        ),
        ("sim_load_sec", "7", lambda c: c.graph_options.ready_seconds, 90, 7),
        ("sim_prepack", "false", lambda c: c.graph_options.prepack, True, False),
        ("sim_numerics", "fast", lambda c: c.graph_options.exact, True, False),
        ("sim_index_check", "clamp", lambda c: c.graph_options.index_check, "error", "clamp"),
        (
            "sim_threads",
            "3",
            lambda c: c.graph_options.num_threads,
            len(os.sched_getaffinity(0)),
            3,
        ),
        ("sim_isolation", "process", lambda c: c.isolated, False, True),
        ("sim_timing", "paced", lambda c: c.paced, False, True),
        ("check_package_hash", "0", lambda c: c.check_package_hash, True, False),
        ("join_dependent_rows", "1", lambda c: c.join_dependent_rows, False, True),
    ],
)
def test_parameters_reach_the_session(folder, parameter, value, read, default, expected):
    """The amount of free memory changes from one measurement to the next."""
    for parameters, wanted in (({}, default), ({parameter: value}, expected)):
        session = open_session(ModelState(make_config(parameters=parameters), folder))
        is_near = wanted != expected and not isinstance(wanted, str)
        assert read(session._config) == (pytest.approx(wanted, rel=0.5) if is_near else wanted)
        session.unloadFromDevice()


def test_instances_share_the_cores(folder):
    cores = len(os.sched_getaffinity(0))
    groups = [{"kind": "KIND_CPU"}, {"kind": "KIND_CPU", "count": cores}]
    assert ModelState(make_config(instance_group=groups), folder).num_threads == 1
    assert ModelState(make_config(), folder).num_threads == cores
    assert ModelState(make_config(parameters={"sim_threads": "3"}), folder).num_threads == 3


@pytest.mark.parametrize("variable", ["POPLAR_ENGINE_OPTIONS", "POPLAR_RUNTIME_OPTIONS"])
def test_options_in_the_environment_that_are_none_are_an_error_at_load(
    linear, compile_popef, monkeypatch, variable
):
    file = compile_popef(linear)
    parameters = {"executable_path": {"string_value": str(file)}}
    state = ModelState({"name": "m", "parameters": parameters}, file.parent)
    monkeypatch.setenv(variable, "{'target.hostSyncTimeout': 5}")
    with pytest.raises(ModelConfigError, match=f"{variable}: expected a JSON object"):
        ModelInstanceState(state, "m_0_0")
