"""Tests that a trace is valid Chrome JSON and holds the newest events.

It keeps its own file and never stops a server.
"""

import gc
import json
import logging
import os
import re
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from model_runtime.pvti import Options, Trace
from waiting import PATIENCE_SECONDS


@pytest.fixture
def make_trace(tmp_path):
    """Yield a function that makes traces below `tmp_path`.

    They are written on demand or at the end of the test rather than of the interpreter.
    """
    made = []

    def make(name="mnist_0", capacity=100, **options):
        made.append(Trace(name, Options(**{"directory": str(tmp_path), **options}), capacity))
        return made[-1]

    yield make
    for trace in made:
        trace.close()


def refuse(constant):
    raise ValueError(f"{constant} is not JSON")


def read(path):
    return json.loads(path.read_text(), parse_constant=refuse)


def written(trace, phase=None):
    return [event for event in read(trace.write())["traceEvents"] if phase in (None, event["ph"])]


def names(trace, phase="X"):
    return [event["name"] for event in written(trace, phase)]


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def run_python(program, **environ):
    subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environ},
        check=True,
        timeout=PATIENCE_SECONDS,
    )


def test_a_slice_has_its_times_in_microseconds_to_the_nanosecond(make_trace):
    trace = make_trace()
    trace.add_slice("run", 1_234_567, 1_300_000, {"rows": 3})
    pid, tid = os.getpid(), threading.get_native_id()
    expected = {
        "ph": "X",
        "name": "run",
        "pid": pid,
        "tid": tid,
        "ts": 1234.567,
        "dur": 65.433,
        "args": {"rows": 3},
    }
    assert written(trace, "X") == [expected]


def test_a_tracepoint_covers_its_block_and_what_is_nested_in_it(make_trace):
    trace = make_trace()
    before_us = time.perf_counter_ns() / 1000
    with trace.tracepoint("outer", label="any name will do", self=1), trace.tracepoint("inner"):
        time.sleep(0.001)
    after_us = time.perf_counter_ns() / 1000
    inner, outer = written(trace, "X")
    assert (inner["name"], outer["name"]) == ("inner", "outer")
    assert inner["dur"] >= 1000
    assert before_us <= outer["ts"] <= inner["ts"]
    assert inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] <= after_us
    assert outer["args"] == {"label": "any name will do", "self": 1}
    assert "args" not in inner


def test_a_block_that_raises_is_recorded_and_raises(make_trace):
    trace = make_trace()
    with pytest.raises(KeyError), trace.tracepoint("fails"):
        raise KeyError
    assert names(trace) == ["fails"]


def test_an_instant_has_the_scope_of_its_thread(make_trace):
    trace = make_trace()
    before_us = time.perf_counter_ns() / 1000
    trace.instant("timeout")
    (event,) = written(trace, "i")
    assert before_us <= event.pop("ts") <= time.perf_counter_ns() / 1000
    assert event == {
        "ph": "i",
        "name": "timeout",
        "pid": os.getpid(),
        "tid": threading.get_native_id(),
        "s": "t",
    }


def test_the_values_of_a_series_are_counters_named_by_graph_and_unit(make_trace):
    trace = make_trace()
    series = trace.graph("time", "ms").addSeries("compute")
    series.add(1.5, time_ns=2_000)
    series.add(np.float32(0.25))
    trace.graph("queue").addSeries("rows").add(np.int64(7))
    first, second, third = written(trace, "C")
    pid, tid = os.getpid(), threading.get_native_id()
    assert first == {
        "ph": "C",
        "name": "time (ms)",
        "pid": pid,
        "tid": tid,
        "ts": 2.0,
        "args": {"compute": 1.5},
    }
    assert second["args"] == {"compute": 0.25}
    assert first["ts"] < second["ts"] <= third["ts"]
    assert (third["name"], third["args"]) == ("queue", {"rows": 7.0})


def test_a_graph_is_made_once_per_name_and_trace(make_trace):
    trace = make_trace()
    graph = trace.graph("time", "ms")
    assert trace.graph("time") is graph
    assert trace.graph("rows") is not graph
    assert make_trace().graph("time", "ms") is not graph


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), np.float32("nan")])
def test_a_value_that_json_lacks_leaves_a_gap_in_the_graph(make_trace, value):
    trace = make_trace()
    series = trace.graph("loss").addSeries("mean")
    for number in (1, value, 2):
        series.add(number)
    assert [event["args"]["mean"] for event in written(trace, "C")] == [1, 2]


def test_arguments_that_json_lacks_become_text(make_trace):
    trace = make_trace()
    with trace.tracepoint(
        "run",
        good=True,
        ratio=0.5,
        none=None,
        nan=float("nan"),
        shape=(1, 2),
        text="\u00e9\ud800\n",
    ):
        pass
    (event,) = written(trace, "X")
    expected = {
        "good": True,
        "ratio": 0.5,
        "none": "None",
        "nan": "nan",
        "shape": "(1, 2)",
        "text": "\u00e9\ud800\n",
    }
    assert event["args"] == expected


def test_a_trace_without_events_is_valid_and_named(make_trace):
    document = read(make_trace('a "model"').write())
    assert document["displayTimeUnit"] == "ns"
    assert document["otherData"] == {
        "name": 'a "model"',
        "clock": "time.perf_counter_ns",
        "dropped_events": 0,
    }
    pid = os.getpid()
    assert document["traceEvents"] == [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": pid, "args": {"name": 'a "model"'}}
    ]


@pytest.mark.parametrize(("count", "dropped"), [(9, 0), (10, 0), (11, 1), (35, 25)])
def test_a_full_buffer_drops_the_oldest_events_and_says_how_many(make_trace, count, dropped):
    trace = make_trace(capacity=10)
    for index in range(count):
        trace.add_slice(f"run {index}", index, index + 1)
    assert names(trace) == [f"run {index}" for index in range(dropped, count)]
    assert read(trace.write())["otherData"]["dropped_events"] == dropped


def test_every_thread_has_its_own_number_and_name(make_trace):
    trace = make_trace()
    together = threading.Barrier(3)

    def work(label):
        together.wait(timeout=PATIENCE_SECONDS)
        with trace.tracepoint(label):
            pass
        together.wait(timeout=PATIENCE_SECONDS)

    threads = [
        threading.Thread(target=work, args=(f"work {index}",), name=f"worker {index}")
        for index in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    named = {
        event["tid"]: event["args"]["name"]
        for event in written(trace, "M")
        if event["name"] == "thread_name"
    }
    assert named == {thread.native_id: thread.name for thread in threads}
    assert {event["name"]: event["tid"] for event in written(trace, "X")} == {
        f"work {index}": thread.native_id for index, thread in enumerate(threads)
    }


def test_nothing_is_lost_when_threads_record_while_another_writes(make_trace):
    trace = make_trace(capacity=20_000)

    def work():
        for _ in range(4_000):
            trace.add_slice("run", 0, 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        written(trace)
    for thread in threads:
        thread.join()
    assert len(names(trace)) == 16_000
    assert read(trace.write())["otherData"]["dropped_events"] == 0


@pytest.mark.parametrize(
    "text", [None, "", " ", '{"enable":"false"}', '{"enable":false}', '{"enable":"False"}']
)
def test_nothing_is_traced_unless_the_options_ask_for_it(text, caplog):
    assert Trace.from_environment("mnist", {} if text is None else {"PVTI_OPTIONS": text}) is None
    assert not warnings(caplog)


@pytest.mark.parametrize("switch", ['"enable":"true",', '"enable":true,', '"enable":"True",', ""])
def test_tracing_is_on_where_the_options_say_so_or_do_not_say(switch, tmp_path, caplog):
    text = f'{{{switch}"directory":{json.dumps(str(tmp_path / "new" / "reports"))}}}'
    trace = Trace.from_environment("mnist", {"PVTI_OPTIONS": text})
    trace.close()
    assert len(list((tmp_path / "new" / "reports").iterdir())) == 1
    assert not warnings(caplog)


MALFORMED = [
    "true",
    "[]",
    "{",
    '{"enable":"yes"}',
    '{"enable":1}',
    '{"directory":1}',
    '{"file":false}',
    "[" * 100_000,
]


@pytest.mark.parametrize("text", MALFORMED, ids=lambda text: text[:20])
def test_malformed_options_warn_and_trace_nothing(text, caplog):
    assert Trace.from_environment("mnist", {"PVTI_OPTIONS": text}) is None
    (warning,) = warnings(caplog)
    assert "PVTI_OPTIONS" in warning
    assert caplog.records[0].name == "model_runtime"


def test_unknown_options_warn_and_are_ignored(tmp_path, caplog):
    text = json.dumps(
        {"enable": "true", "directory": str(tmp_path), "channels": ["Poplar"], "colour": "red"}
    )
    trace = Trace.from_environment("mnist", {"PVTI_OPTIONS": text})
    assert trace.write().parent == tmp_path
    trace.close()
    (warning,) = warnings(caplog)
    assert "'channels', 'colour'" in warning


def test_the_file_is_named_by_trace_time_and_process_in_the_working_directory(
    tmp_path, monkeypatch, make_trace
):
    monkeypatch.chdir(tmp_path)
    trace = make_trace("../my model:0", directory="")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    path = trace.write()
    assert path.parent == tmp_path
    assert re.fullmatch(
        rf"\.\._my_model_0_\d{{4}}-\d\d-\d\d_\d\d-\d\d-\d\d_{os.getpid()}\.json", path.name
    )


@pytest.mark.parametrize(
    ("file", "expected"),
    [("run.json", "run_m.json"), ("a/b.c.json", "a/b.c_m.json"), ("run", "run_m"), (".", "_m")],
)
def test_the_file_option_gets_the_name_of_the_trace_before_its_suffix(
    make_trace, tmp_path, file, expected
):
    assert make_trace("m", file=file).write() == tmp_path / expected


def test_a_name_too_long_for_a_file_is_cut(make_trace):
    assert len(make_trace("m" * 300).write().name) < 255


def test_traces_of_one_name_get_files_of_their_own(make_trace, tmp_path):
    first, second, third = (make_trace("m", file="run.json") for _ in range(3))
    first.instant("first")
    second.instant("second")
    paths = [trace.write() for trace in (first, second, third, second)]
    assert [path.name for path in paths] == [
        "run_m.json",
        "run_m_2.json",
        "run_m_3.json",
        "run_m_2.json",
    ]
    assert names(first, "i") == ["first"]
    assert names(second, "i") == ["second"]


def test_a_file_that_was_there_before_stays_as_it_was(make_trace, tmp_path):
    (tmp_path / "run_m.json").write_text("precious")
    (tmp_path / "run_m_2.json").mkdir()
    assert make_trace("m", file="run.json").write().name == "run_m_3.json"
    assert (tmp_path / "run_m.json").read_text() == "precious"


def test_writing_again_replaces_the_file_by_all_events_and_leaves_nothing_else(
    make_trace, tmp_path
):
    trace = make_trace()
    trace.instant("one")
    first = trace.write()
    trace.instant("two")
    assert trace.write() == first
    assert names(trace, "i") == ["one", "two"]
    assert list(tmp_path.iterdir()) == [first]


def test_the_file_has_the_permissions_of_any_new_file(make_trace, tmp_path):
    (tmp_path / "plain").touch()
    assert make_trace().write().stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize(
    "options", [{"directory": "/dev/null/reports"}, {"file": "a\0b"}, {"file": "f" * 300}]
)
def test_a_file_that_cannot_be_written_is_a_warning(make_trace, tmp_path, caplog, options):
    trace = make_trace(**options)
    trace.instant("one")
    assert trace.write() is None
    (warning,) = warnings(caplog)
    assert "mnist_0: cannot write" in warning
    assert list(tmp_path.iterdir()) == []


def test_a_trace_can_be_written_once_its_directory_can(make_trace, tmp_path):
    (tmp_path / "reports").touch()
    trace = make_trace(directory=str(tmp_path / "reports"))
    trace.instant("one")
    assert trace.write() is None
    (tmp_path / "reports").unlink()
    assert names(trace, "i") == ["one"]


RECORD = """
from model_runtime.pvti import Trace
trace = Trace.from_environment("mnist")
with trace.tracepoint("run"):
    pass
"""


@pytest.mark.slow
def test_leaving_the_interpreter_writes_the_trace(tmp_path):
    run_python(
        RECORD,
        PVTI_OPTIONS=json.dumps({"enable": "true", "directory": str(tmp_path), "file": "run.json"}),
    )
    assert [path.name for path in tmp_path.iterdir()] == ["run_mnist.json"]
    assert "run" in [event["name"] for event in read(tmp_path / "run_mnist.json")["traceEvents"]]


@pytest.mark.slow
def test_a_closed_trace_is_not_written_again(tmp_path):
    program = RECORD + "trace.close(); trace._path.unlink(); trace.close()"
    run_python(program, PVTI_OPTIONS=json.dumps({"directory": str(tmp_path)}))
    assert list(tmp_path.iterdir()) == []


def test_nothing_holds_a_closed_trace(tmp_path):
    trace = Trace("mnist", Options(directory=str(tmp_path)))
    gone = weakref.ref(trace)
    trace.close()
    del trace
    gc.collect()
    assert gone() is None


@pytest.mark.slow
def test_a_forked_process_leaves_the_file_of_its_parent_alone(tmp_path):
    # Use only os._exit: a fork that exits normally hangs in onnxruntime, with or without a trace.
    fork = (
        "import os\nchild = os.fork()\nif not child: trace.close(); "
        "os._exit(0)\nos.waitpid(child, 0)\nos._exit(0)"
    )
    run_python(RECORD + fork, PVTI_OPTIONS=json.dumps({"directory": str(tmp_path)}))
    assert list(tmp_path.iterdir()) == []
