"""Rows of different requests share a run only if they are proven to be independent."""

import logging
import threading

import numpy as np
import pytest
from sample_models import loudness_model, steps_model
from triton_poplar.errors import ModelConfigError, RequestError
from triton_poplar.instance_state import ModelInstanceState
from triton_poplar.model_state import ModelState, complete_config
from triton_poplar.request import Request
from waiting import PATIENCE_SECONDS

import popef

LOUD, QUIET = 100.0, 1.0


@pytest.fixture
def folder(compile_popef, tmp_path):
    compile_popef(loudness_model(), name="loudness/1/executable.popef")
    return tmp_path / "loudness" / "1"


def open_instance(folder, respond=None, max_batch_size=100, **parameters):
    config = {"name": "loudness", "max_batch_size": max_batch_size}
    config["parameters"] = {
        name: {"string_value": str(value)} for name, value in parameters.items()
    }
    return ModelInstanceState(ModelState(config, folder), "loudness_0", respond)


def request(instance, rows, value):
    x = np.full((rows, 4), value, np.float32)
    x[:, 1:] /= 2
    return Request(instance.model_state, {"x": x}, ())


def check(answered):
    np.testing.assert_array_equal(answered.outputs()["y"][:, :2], [[1, 0.5]] * answered.batch_size)


def test_a_quiet_request_beside_a_loud_one_gets_its_own_answer(folder):
    instance = open_instance(folder)
    requests = [
        request(instance, rows, value)
        for rows, value in ((1, QUIET), (1, LOUD), (3, QUIET), (4, LOUD))
    ]
    instance.execute(requests)
    for each in requests:
        check(each)
    assert (instance.statistics.batches, instance.statistics.rows) == (4, 9)
    instance.close()


def test_dependent_rows_in_asynchronous_mode_run_without_a_wait_for_more(folder):
    done = threading.Semaphore(0)
    instance = open_instance(folder, lambda request: done.release(), timeout_ns=0)
    requests = [
        request(instance, rows, value)
        for rows, value in ((1, QUIET), (2, LOUD), (1, QUIET), (1, LOUD))
    ]
    instance.submit(requests)
    for _ in requests:
        assert done.acquire(timeout=PATIENCE_SECONDS)
    for each in requests:
        check(each)
    assert instance.statistics.batches == 4
    instance.close()


@pytest.mark.parametrize("is_asynchronous", [False, True])
def test_a_request_that_would_have_to_be_split_is_refused_and_its_neighbours_are_not(
    folder, is_asynchronous
):
    done = threading.Semaphore(0)
    instance = open_instance(folder, (lambda request: done.release()) if is_asynchronous else None)
    requests = [request(instance, rows, QUIET) for rows in (2, 5, 4)]
    (instance.submit if is_asynchronous else instance.execute)(requests)
    for _ in range(3 * is_asynchronous):
        assert done.acquire(timeout=PATIENCE_SECONDS)
    check(requests[0])
    check(requests[2])
    with pytest.raises(
        RequestError, match=r"compiled batch of 4 rows, found 5.*'loudest_of_all' \(ReduceMax\)"
    ) as refused:
        requests[1].outputs()
    assert refused.value.code == "INVALID_ARG"
    assert instance.statistics.errors == {"bad_request": 1}
    instance.close()


def test_the_real_backends_way_is_there_for_whoever_asks_for_it(folder):
    instance = open_instance(folder, join_dependent_rows=1)
    requests = [request(instance, 1, QUIET), request(instance, 6, LOUD)]
    instance.execute(requests)
    assert requests[0].outputs()["y"][0, 0] == np.float32(QUIET / LOUD)
    assert instance.statistics.batches == 2
    instance.close()


@pytest.mark.parametrize(
    ("parameters", "told"),
    [({}, "each request runs alone"), ({"join_dependent_rows": 1}, "depend on other clients'")],
)
def test_a_configuration_that_batches_is_warned_of_by_the_nodes_name(
    folder, caplog, parameters, told
):
    with caplog.at_level(logging.WARNING):
        open_instance(folder, **parameters).close()
    (record,) = caplog.records
    assert "'loudest_of_all' (ReduceMax): it reduces over the rows" in record.getMessage()
    assert told in record.getMessage()


def test_nothing_is_warned_of_where_a_request_is_the_whole_batch(folder, caplog):
    with caplog.at_level(logging.WARNING):
        instance = open_instance(folder, max_batch_size=0)
    assert not caplog.records
    whole = request(instance, 4, LOUD)
    instance.execute([whole])
    check(whole)
    instance.close()


def test_completed_configurations_do_not_batch(folder):
    added = complete_config({}, folder)
    assert added == {
        "max_batch_size": 0,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [4, 4]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [4, 4]}],
    }
    ModelState(added, folder).validate()


def test_of_a_file_that_says_nothing_nothing_is_taken_for_proven(linear, compile_popef, tmp_path):
    folder = write_with_note(compile_popef(linear, name="source.popef"), tmp_path, None)
    assert complete_config({}, folder)["max_batch_size"] == 0


def write_with_note(source, tmp_path, payload):
    """Return the version folder of a model with this note on its rows; None removes the note."""
    target = tmp_path / "model" / "1" / "executable.popef"
    target.parent.mkdir(parents=True)
    with popef.Reader() as reader, popef.Writer(target) as writer:
        reader.parseFile(source)
        for blob in reader.blobs():
            if blob.type is not popef.BlobType.OPAQUE:
                writer.copyBlob(blob)
        if payload is not None:
            with writer.createOpaqueBlob(popef.ROWS_BLOB, reader.executables()[0].name) as blob:
                blob.write(payload)
    return target.parent


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"[]",
        b"[" * 100_000,
        b"\xff",
        b'{"dependence": 3, "batch_axes": {}}',
        b'{"dependence": null, "batch_axes": {"x": 2}}',
        b'{"dependence": null, "batch_axes": {"x": -1}}',
        b'{"dependence": null, "batch_axes": {"x": true}}',
        b'{"dependence": null, "batch_axes": {"nobody": 0}}',
        b'{"dependence": null, "batch_axes": []}',
        b'{"dependence": null, "batch_axes": {}, "more": "' + b"x" * (1 << 20) + b'"}',
    ],
)
def test_a_damaged_note_on_rows_is_refused(linear, compile_popef, tmp_path, payload):
    folder = write_with_note(compile_popef(linear, name="source.popef"), tmp_path, payload)
    with pytest.raises(
        ModelConfigError, match=r"expected one JSON object.*compile the model again"
    ):
        ModelState({"name": "model"}, folder)


@pytest.fixture
def steps(compile_popef, tmp_path):
    compile_popef(steps_model(), name="steps/1/executable.popef", batch_axis=1)
    return tmp_path / "steps" / "1"


def test_rows_along_the_second_axis_are_served_in_any_number(steps):
    added = complete_config({}, steps)
    assert [entry["dims"] for entry in (*added["input"], *added["output"])] == [
        [5, -1, 2],
        [5, -1, 3],
        [-1, 3],
    ]
    assert added["max_batch_size"] == 0
    state = ModelState({"name": "steps", **added}, steps)
    state.validate()
    instance = ModelInstanceState(state, "steps_0")
    x = np.random.default_rng(0).standard_normal((5, 11, 2)).astype(np.float32)
    parts = [x[:, :1], x[:, 1:4], x[:, 4:]]
    requests = [Request(state, {"x": np.ascontiguousarray(part)}, ()) for part in (x, *parts)]
    instance.execute(requests[:1])
    instance.execute(requests[1:])
    whole = requests[0].outputs()
    assert (whole["y"].shape, whole["last"].shape) == ((5, 11, 3), (11, 3))
    np.testing.assert_array_equal(whole["last"], whole["y"][-1])
    assert whole["y"].flags.c_contiguous
    np.testing.assert_allclose(
        np.concatenate([each.outputs()["y"] for each in requests[1:]], axis=1),
        whole["y"],
        atol=1e-6,
    )
    instance.close()


def test_triton_may_batch_them_along_the_first(steps):
    """With a user's max_batch_size, dims are those of a row, and Triton puts rows before them."""
    entries = {"input": [("x", [5, 2])], "output": [("y", [5, 3]), ("last", [3])]}
    config = {
        kind: [{"name": name, "data_type": "TYPE_FP32", "dims": dims} for name, dims in tensors]
        for kind, tensors in entries.items()
    }
    state = ModelState({"name": "steps", "max_batch_size": 8, **config}, steps)
    state.validate()
    instance = ModelInstanceState(state, "steps_0")
    answered = Request(state, {"x": np.ones((6, 5, 2), np.float32)}, ())
    instance.execute([answered])
    assert (answered.outputs()["y"].shape, answered.outputs()["last"].shape) == ((6, 5, 3), (6, 3))
    instance.close()
