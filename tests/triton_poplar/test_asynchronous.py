"""Requests to the session thread: each is answered once and in order, and the queue is bounded."""

import dataclasses
import gc
import json
import threading
import time
import weakref
from contextlib import suppress

import numpy as np
import pytest
from onnx import TensorProto, helper
from poprt import Compiler, Converter
from sample_models import gather_model, make_model
from triton_poplar.errors import RequestError
from triton_poplar.instance_state import ModelInstanceState
from triton_poplar.model_state import ModelState, complete_config
from triton_poplar.request import Request
from waiting import PATIENCE_SECONDS, wait_until


class Answers:
    """Collector of answered requests."""

    def __init__(self):
        self.requests = []
        self.changed = threading.Condition()

    def put(self, request):
        with self.changed:
            self.requests.append(request)
            self.changed.notify_all()

    def wait(self, count):
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.requests) >= count, 20), (
                f"{len(self.requests)} of {count} answers"
            )
        return self.requests


@pytest.fixture
def make_instance(linear, compile_popef, tmp_path):
    compile_popef(linear, name="linear/1/executable.popef")
    made = []

    def make(**parameters):
        config = {
            "name": "linear",
            "max_batch_size": 100,
            "parameters": {
                name: {"string_value": str(value)} for name, value in parameters.items()
            },
        }
        answers = Answers()
        instance = ModelInstanceState(
            ModelState(config, tmp_path / "linear" / "1"), "linear_0", answers.put
        )
        made.append(instance)
        return instance, answers

    yield make
    for instance in made:
        instance.close()


def request(instance, rows, value=1.0, requested=()):
    return Request(
        instance.model_state,
        {"x": np.full((rows, 4), value, np.float32)},
        requested,
        reply=(rows, value),
    )


def check(answered):
    rows, value = answered.reply
    np.testing.assert_array_equal(answered.outputs()["z"], np.full((rows, 4), 2 * value))


def test_rows_join_over_calls_and_answers_keep_the_order(make_instance):
    instance, answers = make_instance(timeout_ns=0)
    for index in range(8):
        instance.submit([request(instance, 1, index)])
    answered = answers.wait(8)
    assert [each.reply[1] for each in answered] == list(range(8))
    for each in answered:
        check(each)
    assert (instance.statistics.batches, instance.statistics.flushes) == (2, 0)
    assert instance.statistics.requests == 8


def test_an_incomplete_batch_is_flushed_after_the_timeout(make_instance):
    instance, answers = make_instance(timeout_ns=1_000_000)
    instance.submit([request(instance, 3)])
    check(answers.wait(1)[0])
    assert (instance.statistics.batches, instance.statistics.flushes) == (1, 1)
    assert instance.statistics.queue_wait_ns >= 1_000_000


def wait_until_idle(instance):
    wait_until(lambda: instance._request_flow.is_idle, "the instance is idle")


@pytest.mark.parametrize(
    ("parameters", "rows", "expected"),
    [
        ({"timeout_ns": 500_000}, 3, True),
        ({"timeout_ns": 500_000}, 4, False),
        ({"timeout_ns": 500_000}, 8, False),
        ({"timeout_ns": 500_000}, 9, True),
        ({"timeout_ns": 0}, 1, True),
        ({}, 1, False),
        ({"sim_timing": "paced"}, 4, True),
    ],
)
def test_a_call_is_handed_over_only_if_its_rows_wait(make_instance, parameters, rows, expected):
    instance, _ = make_instance(**parameters)
    wait_until_idle(instance)
    assert instance.is_worth_waiting([request(instance, rows)]) is expected


def test_a_call_is_handed_over_while_other_requests_are_at_work(make_instance):
    instance, answers = make_instance(timeout_ns=0)
    instance.submit([request(instance, 1)])
    assert instance.is_worth_waiting([request(instance, 4)])
    instance.submit([request(instance, 3)])
    answers.wait(2)
    wait_until_idle(instance)
    assert not instance.is_worth_waiting([request(instance, 4)])


def test_by_default_batches_wait_while_runs_take_longer_than_the_wait(make_instance):
    instance, answers = make_instance()
    wait_until_idle(instance)
    quick, slow = 499_999, 500_000
    for run_ns, waits in ((slow, True), (quick, False), *[(slow, False)] * 7, (slow, True)):
        instance.session.observer(0, run_ns, 1, 0, instance.session.run_cost)
        assert instance.is_worth_waiting([request(instance, 1)]) is waits
    for value in (1, 2):
        instance.submit([request(instance, 2, value)])
    for each in answers.wait(2):
        check(each)
    assert instance.statistics.batches == 10 + 1


def test_the_queue_is_bounded(make_instance):
    """While no run ends, the rows of one run wait in the queue, and the next call blocks."""
    instance, answers = make_instance(timeout_ns=0)
    gate = threading.Event()
    compute = instance.session._engine._mains[5].compute
    instance.session._engine._mains[5].compute = lambda *arguments: (
        gate.wait(PATIENCE_SECONDS) and compute(*arguments)
    )
    instance.submit([request(instance, 4)])
    instance.submit([request(instance, 4, index) for index in range(1)])
    blocked = threading.Thread(target=instance.submit, args=[[request(instance, 4, 7)]])
    blocked.start()
    blocked.join(0.3)
    assert blocked.is_alive()
    gate.set()
    blocked.join(PATIENCE_SECONDS)
    for each in answers.wait(3):
        check(each)


def test_bad_requests_are_answered_among_the_good(make_instance):
    instance, answers = make_instance()
    bad = Request(instance.model_state, {"x": np.ones((1, 5), np.float32)}, (), reply="bad")
    instance.submit([request(instance, 2), bad, request(instance, 9, 5, ["z"])])
    answered = answers.wait(3)
    assert len(answered) == 3
    for each in answered:
        if each.reply == "bad":
            with pytest.raises(RequestError, match=r"found float32 of shape \[1, 5\]"):
                each.outputs()
        else:
            check(each)
    assert instance.statistics.errors == {"bad_request": 1}


def test_only_the_outputs_asked_for_are_kept(make_instance):
    instance, answers = make_instance()
    instance.submit([request(instance, 2, 1, ["z"])])
    assert set(answers.wait(1)[0].outputs()) == {"z"}


def test_closing_answers_what_waits_with_unavailable(make_instance):
    instance, answers = make_instance(timeout_ns=0)
    instance.submit([request(instance, 1)])
    instance.close()
    with pytest.raises(RequestError, match="stopped before the request was computed") as raised:
        answers.wait(1)[0].outputs()
    assert raised.value.code == "UNAVAILABLE"
    instance.submit([request(instance, 1)])
    with pytest.raises(RequestError, match="the session was stopped"):
        answers.wait(2)[1].outputs()
    assert instance.statistics.errors == {"stopped": 2}


def test_cancelled_requests_leave_their_places(make_instance):
    instance, answers = make_instance(timeout_ns=0)
    instance.submit([request(instance, 1, index) for index in range(3)])
    instance.withdraw_cancelled(lambda waiting: waiting.reply[1] == 1)
    cancelled = answers.wait(1)[0]
    with pytest.raises(RequestError) as raised:
        cancelled.outputs()
    assert (raised.value.code, cancelled.reply[1]) == ("CANCELLED", 1)
    instance.submit([request(instance, 1, index) for index in (5, 6)])
    for each in answers.wait(5)[1:]:
        check(each)
    assert instance.statistics.batches == 1


def test_the_culprit_of_a_joined_run_fails_alone(compile_popef, tmp_path):
    compile_popef(gather_model(), name="gather/1/executable.popef", batch=8)
    state = ModelState({"name": "gather", "max_batch_size": 8}, tmp_path / "gather/1")
    answers = Answers()
    instance = ModelInstanceState(state, "gather_0", answers.put)
    values = [[[index % 10, 99 if index == 5 else 0]] for index in range(8)]
    instance.submit(
        [Request(state, {"ids": np.array(value, np.int32)}, (), reply=value) for value in values]
    )
    for each in answers.wait(8):
        if each.reply[0][1] == 99:
            with pytest.raises(RequestError, match="indices element out of data bounds"):
                each.outputs()
        else:
            assert each.outputs()["rows"][0, 0, 0] == 3 * each.reply[0][0]
    instance.close()


def test_delays_for_tests_count_the_instance(make_instance):
    instance, _ = make_instance(execute_delay_ms=20, instance_wise_delay_multiplier=3)
    state = instance.model_state
    assert [state.execution_delay_seconds(number) for number in (0, 1, 2)] == [0.02, 0.06, 0.12]


def test_instances_are_numbered_through_their_groups(linear, compile_popef, tmp_path):
    compile_popef(linear, name="linear/1/executable.popef")
    groups = [{"name": "linear_0", "count": 1}, {"name": "linear_1", "count": 2}, {"name": "own"}]
    state = ModelState({"name": "linear", "instance_group": groups}, tmp_path / "linear" / "1")
    names = ("linear_0_0", "linear_1_0", "linear_1_1", "own_0", "linear_0", "strange")
    assert [state.instance_id(name) for name in names] == [0, 1, 2, 3, 0, 0]
    assert state.instance_count == 4


@pytest.mark.parametrize("is_asynchronous", [True, False])
def test_calls_and_runs_are_traced(make_instance, monkeypatch, tmp_path, is_asynchronous):
    monkeypatch.setenv(
        "PVTI_OPTIONS", json.dumps({"enable": "true", "directory": str(tmp_path / "traces")})
    )
    instance, answers = make_instance()
    if is_asynchronous:
        instance.submit([request(instance, 4)])
        answers.wait(1)
    else:
        # It has no callback for answers, as synchronous instances have none.
        instance._respond = None
        instance.execute([request(instance, 3), request(instance, 1)])
    assert instance.get_graph("batch size", "rows") is not None
    instance.close()
    (file,) = (tmp_path / "traces").iterdir()
    assert file.name.startswith("linear_linear_0_")
    events = json.loads(file.read_text())["traceEvents"]
    runs = [event for event in events if event["ph"] == "X" and event["name"] == "run"]
    assert [run["args"]["rows"] for run in runs] == [4]
    modelled = runs[0]["args"]["IPU and host seconds (modelled)"]
    assert (
        modelled
        == instance.session.modelled_seconds
        > runs[0]["args"]["IPU seconds (modelled)"]
        > 0
    )
    values = {event["name"]: event["args"]["linear_0"] for event in events if event["ph"] == "C"}
    assert values["linear batch size (rows)"] == 4
    assert values["linear execution (ms)"] == pytest.approx(instance.statistics.execution_ns / 1e6)
    # Calls to `submit` overlap; the slices of one thread do not.
    calls = [event["args"] for event in events if event["name"] == "execute"]
    assert calls == ([] if is_asynchronous else [{"requests": 2, "rows": 4}])


def test_without_tracing_there_are_no_graphs(make_instance):
    instance, _ = make_instance()
    assert instance.get_graph("batch size") is None


def slow_down(instance, seconds):
    """Make the CPU take so many seconds longer for each batch."""
    graph = instance.session._engine._mains[5].graph
    compute = graph.run
    graph.run = lambda *arguments: time.sleep(seconds) or compute(*arguments)


@pytest.mark.parametrize(("timing", "late"), [("fast", 0), ("paced", 3)])
@pytest.mark.parametrize("isolation", ["none", pytest.param("process", marks=pytest.mark.slow)])
def test_runs_of_a_cpu_slower_than_the_modelled_chip_are_counted(
    make_instance, timing, late, isolation
):
    instance, answers = make_instance(sim_timing=timing, sim_isolation=isolation)
    slow_down(instance, 2 * instance.session.modelled_seconds)
    instance.submit([request(instance, 4) for _ in range(2)])
    answers.wait(2)
    instance.execute([request(instance, 4)])
    statistics = instance.read_statistics()
    assert (statistics.batches, statistics.late_batches) == (3, late)


def test_a_paced_pipeline_takes_as_many_batches_as_it_works_on(make_instance, linear, tmp_path):
    """It works on five batches, each of which takes a second.

    The chip has room for the next batch after a fifth of that.
    """
    compiled = Compiler.compile(Converter(batch_size=4).convert(linear))
    target = compiled.executable.target
    slow = {"cycles": target.clock_hz, "interval_cycles": target.clock_hz // 5}
    programs = tuple(
        dataclasses.replace(p, **slow) if p.cycles else p for p in compiled.executable.programs
    )
    executable = dataclasses.replace(compiled.executable, programs=programs)
    compiled.executable = executable
    compiled.export(tmp_path / "linear/1/executable.popef")
    instance, answers = make_instance(sim_timing="paced")
    assert instance.session.runs_at_once == 5
    instance.submit([request(instance, 4, value) for value in range(5)])
    assert not answers.requests, "handed over while the first is still at work"
    for answered in answers.wait(5):
        check(answered)
    assert instance.read_statistics().late_batches == 0


def test_rows_handed_over_begin_when_the_modelled_device_is_free(make_instance):
    """A full batch starts at once; an incomplete one first waits for more rows, from then on."""
    instance, answers = make_instance(sim_timing="paced", timeout_ns=50_000_000)
    batch_ns, clock = (
        round(instance.session.modelled_seconds * 1e9),
        instance.session._engine._clock,
    )
    free_at_ns = time.perf_counter_ns() + 200_000_000
    clock.start(free_at_ns, 0)
    instance.submit([request(instance, 4), request(instance, 1)])
    answers.wait(2)
    assert clock.free_at_ns == free_at_ns + 2 * batch_ns + 50_000_000
    assert time.perf_counter_ns() >= clock.free_at_ns


def test_both_modes_answer_and_count_the_same(make_instance):
    seen = []
    for is_asynchronous in (False, True):
        instance, answers = make_instance(timeout_ns=100_000_000)
        bad = Request(instance.model_state, {"x": np.ones((1, 5), np.float32)}, (), reply="bad")
        requests = [*(request(instance, rows, rows) for rows in (2, 2, 9)), bad]
        if is_asynchronous:
            instance.submit(requests)
            answers.wait(4)
        else:
            instance.execute(requests)
        for each in requests[:3]:
            check(each)
        with pytest.raises(RequestError, match=r"found float32 of shape \[1, 5\]"):
            bad.outputs()
        counted = instance.read_statistics()
        seen.append(
            (counted.requests, counted.batches, counted.rows, counted.flushes, counted.errors)
        )
    assert seen[0] == seen[1] == (4, 4, 13, 1, {"bad_request": 1})


def test_errors_while_handing_over_are_answered(make_instance):
    instance, answers = make_instance()
    instance._delay_seconds = float("inf")
    instance.submit([request(instance, 1), request(instance, 2)])
    for each in answers.wait(2):
        with pytest.raises(
            RequestError, match="could not compute the request: timestamp"
        ) as raised:
            each.outputs()
        assert raised.value.code == "INTERNAL"
    instance._delay_seconds = 0
    instance.enqueue_request = None
    for _ in range(10):  # failed requests have left their places
        instance.submit([request(instance, 4)])
    assert len(answers.wait(12)) == 12
    del instance.enqueue_request
    instance.submit([request(instance, 4)])
    check(answers.wait(13)[-1])


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_rejected_values_are_logged_once_with_the_instances_name(
    compile_popef, tmp_path, caplog, mode
):
    compile_popef(gather_model(), name="gather/1/executable.popef", batch=8)
    answers = Answers()
    state = ModelState({"name": "gather", "max_batch_size": 8}, tmp_path / "gather" / "1")
    instance = ModelInstanceState(
        state, "gather_0_0", answers.put if mode == "asynchronous" else None
    )
    for _ in range(100):
        refused = [Request(state, {"ids": np.full((1, 2), 99, np.int32)}, ()) for _ in range(3)]
        if mode == "asynchronous":
            instance.submit(refused)
        else:
            instance.execute(refused)
    if mode == "asynchronous":
        answers.wait(300)
    instance.close()
    lines = [record.getMessage() for record in caplog.records]
    assert 2 <= len(lines) < 10
    assert lines[0].startswith("gather_0_0: model 'gather' could not compute the request: ")
    assert lines[-1].startswith("gather_0_0: ")
    assert instance.statistics.errors["run"] == 300


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_a_model_without_inputs_answers_each_request_once(mode, compile_popef, tmp_path):
    weights = {"w": np.float32([[1, 4], [9, 16]])}
    outputs = {"y": (TensorProto.FLOAT, [2, 2])}
    model = make_model([helper.make_node("Sqrt", ["w"], ["y"])], {}, outputs, weights)
    compile_popef(model, batch=None, name="constant/1/executable.popef")
    config = {"name": "constant"} | complete_config(
        {"name": "constant"}, tmp_path / "constant" / "1"
    )
    assert (config["max_batch_size"], config["input"]) == (0, [])
    state, answers = ModelState(config, tmp_path / "constant" / "1"), Answers()
    state.validate()
    instance = ModelInstanceState(
        state, "constant_0", answers.put if mode == "asynchronous" else None
    )
    requests = [Request(state, {}, ()) for _ in range(5)]
    if mode == "asynchronous":
        instance.submit(requests)
        requests = answers.wait(5)
    else:
        instance.execute(requests)
    for each in requests:
        np.testing.assert_array_equal(each.outputs()["y"], [[1, 2], [3, 4]])
        assert each.started_ns
    assert instance.read_statistics().rows == 5
    instance.close()


class Reply:
    """Stands for an object of Triton, whose memory ends with the process's last request."""


@pytest.mark.parametrize("kind", ["bad", "failed", "expired", "answered", "never computed"])
def test_a_request_is_freed_at_once_whatever_its_answer_was(kind, make_instance):
    """What only the garbage collector frees would be freed after Triton's stub has unmapped it."""
    instance, _ = make_instance()
    reply = Reply()
    width = 5 if kind == "bad" else 4
    asked = Request(instance.model_state, {"x": np.ones((1, width), np.float32)}, (), reply, 1)
    if kind == "failed":
        try:
            raise ValueError(asked)
        except ValueError as error:
            asked.fail_run(error)
    elif kind == "expired":
        wait_until(asked.expire, "it has waited too long")
    elif kind == "answered":
        asked.expires_ns += 10**12
        instance.execute([asked])
    gc.collect()
    gc.disable()
    try:
        with suppress(RequestError):
            asked.outputs()
        freed = weakref.ref(reply)
        del asked, reply
        assert freed() is None
    finally:
        gc.enable()
