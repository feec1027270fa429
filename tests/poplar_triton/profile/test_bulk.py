"""A bulk run of `poplar-triton profile` writes one table.

It does so however often the run is ended, and over however many processes or machines.
"""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hostile_graphs as hostile
import onnx
import pytest
from onnx import TensorProto, helper
from poplar_triton.cli import main
from poplar_triton.profile import bulk, cases, journal
from poplar_triton.profile.bulk import CaseLimits
from poplar_triton.profile.source import Estimator, ProfileSettings
from sample_models import linear_model, make_model
from waiting import PATIENCE_SECONDS, wait_until

SWEEP = ("--sweep", "batch_size=1,2", "--sweep", "target=c600,bow")
CASES = 4
"""Number of cases of each model with SWEEP."""

Run = Callable[..., tuple[int, str, str]]


def save(model: onnx.ModelProto, path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    onnx.save(model, path)
    return path


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for width in (4, 8, 12):
        save(linear_model(width), tmp_path / "models" / f"width_{width}.onnx")
    return tmp_path / "models"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """Return a function that runs the command into the output of that name.

    It returns status, stdout and stderr.
    """

    def call(*arguments: object, output: str = "out") -> tuple[int, str, str]:
        words = ["profile", *arguments, "--output", tmp_path / output]
        try:
            status = main([str(word) for word in words])
        except SystemExit as exit_:
            status = int(exit_.code or 0)
        return status, *capsys.readouterr()

    return call


@pytest.fixture
def read(tmp_path: Path) -> Callable[[str], tuple[bytes, bytes]]:
    return lambda output: tuple(
        (tmp_path / f"{output}.{kind}").read_bytes() for kind in ("jsonl", "csv")
    )


def read_rows(tmp_path: Path, output: str = "out") -> list[dict]:
    return [json.loads(line) for line in (tmp_path / f"{output}.jsonl").read_text().splitlines()]


def errors(tmp_path: Path, output: str = "out") -> dict[str, set[str | None]]:
    """Return the errors in the rows of each model."""
    found: dict[str, set[str | None]] = {}
    for row in read_rows(tmp_path, output):
        found.setdefault(Path(row["model"]).stem, set()).add(row["error"])
    return found


def test_a_row_is_what_the_command_says_of_the_model_alone(models, run, tmp_path, capsys):
    assert run(models, *SWEEP)[0] == 0
    with (tmp_path / "out.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    rows = read_rows(tmp_path)
    assert len(table) == len(rows) == 3 * CASES
    for width, start in ((12, 0), (8, 2 * CASES)):
        main(["profile", str(models / f"width_{width}.onnx"), *SWEEP, "--json"])
        alone = json.loads(capsys.readouterr().out)
        assert [row["profile"] for row in rows[start : start + CASES]] == alone
        for line, profile in zip(table[start : start + CASES], alone, strict=True):
            assert line["model"] == str(models / f"width_{width}.onnx")
            assert line["error"] == ""
            named = set(line) - {"model", "error"}
            assert {name: line[name] for name in named} == {
                name: str(profile[name]) for name in named
            }


def test_written_files_are_printed(models, run, tmp_path):
    status, out, err = run(models, "--batch_size", 1, output="out.csv")
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        f"wrote {tmp_path}/out.jsonl",
        f"wrote {tmp_path}/out.csv",
        "3 cases, 0 of them done before, 0 with an error",
    ]
    assert (
        run(models, "--batch_size", 1, output="out.jsonl")[1]
        .splitlines()[-1]
        .startswith("3 cases, 3 of th")
    )


@pytest.mark.slow
def test_the_table_does_not_depend_on_how_many_work_at_it(models, run, read):
    for jobs in (1, 2):
        assert run(models, *SWEEP, "--jobs", jobs, output=str(jobs))[0] == 0
    assert read("1") == read("2")


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 7])
def test_the_shards_together_are_the_whole(models, run, read, tmp_path, count):
    run(models, *SWEEP, output="whole")
    for number in range(count):
        assert run(models, *SWEEP, "--shard", f"{number}/{count}", output=f"part{number}")[0] == 0
    parts = [read_rows(tmp_path, f"part{number}") for number in range(count)]
    keys = [row["key"] for part in parts for row in part]
    assert len(set(keys)) == len(keys) == 3 * CASES
    joined = b"".join(read(f"part{number}")[0] for number in range(count))
    (tmp_path / "joined.jsonl").write_bytes(joined)
    status, out, _ = run(models, *SWEEP, output="joined")
    assert (status, out.splitlines()[-1]) == (
        0,
        "12 cases, 12 of them done before, 0 with an error",
    )
    assert read("joined") == read("whole")


@pytest.mark.slow
def test_a_run_goes_on_wherever_it_was_cut_off(models, run, read, tmp_path):
    model = models / "width_4.onnx"
    run(model, *SWEEP, output="whole")
    text = read("whole")[0]
    ends = [place for place, byte in enumerate(text) if byte == ord("\n")]
    for size in (0, 1, ends[0], ends[0] + 1, ends[2] + 5, len(text) - 1, len(text)):
        (tmp_path / "cut.jsonl").write_bytes(text[:size])
        assert run(model, *SWEEP, output="cut")[0] == 0
        assert read("cut") == read("whole")


def start(*words: object, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "poplar_triton.cli", "profile", *map(str, words)]
    return subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def descendants(pid: int) -> list[int]:
    try:
        children = [
            int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except FileNotFoundError:
        return []
    return [each for child in children for each in (child, *descendants(child))]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
def test_who_is_killed_goes_on_to_the_same_table(models, run, read, tmp_path):
    run(models, *SWEEP, output="whole")
    kills = 0
    while True:
        lines = (
            (tmp_path / "out.jsonl").read_bytes().count(b"\n")
            if (tmp_path / "out.jsonl").exists()
            else 0
        )
        process = start(models, *SWEEP, "--output", tmp_path / "out", "--jobs", 2, cwd=tmp_path)

        def is_further(process=process, lines=lines) -> bool:
            file = tmp_path / "out.jsonl"
            return process.poll() is not None or (
                file.exists() and file.read_bytes().count(b"\n") > lines
            )

        wait_until(is_further, "the work goes on")
        children = descendants(process.pid)
        process.kill()
        process.communicate()
        wait_until(
            lambda children=children: not any(map(is_running, children)),
            "the children end",
        )
        if process.returncode == 0:
            break
        kills += 1
    assert kills > 1
    assert read("out") == read("whole")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_all_and_keeps_what_is_done(models, tmp_path, number):
    (tmp_path / "temporary").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path / "temporary"))
        process = start(models, *SWEEP, "--output", tmp_path / "out", "--jobs", 3, cwd=tmp_path)
    wait_until(
        lambda: (tmp_path / "out.jsonl").exists() and len(descendants(process.pid)) > 2,
        "the children start",
    )
    children = descendants(process.pid)
    process.send_signal(number)
    _, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, err) == (130, "")
    wait_until(lambda: not any(map(is_running, children)), "the children end")
    assert not list((tmp_path / "temporary").glob("p*")), (
        "ours begin with poplar-triton-, poprt's with poprt-"
    )
    assert not (tmp_path / "out.csv").exists()
    for row in read_rows(tmp_path):
        assert row["error"] is None


@pytest.mark.slow
def test_a_failed_case_is_a_row_and_the_others_go_on(models, tmp_path):
    save(hostile.endless_loop(), models / "loop.onnx")
    doc = "x" * (120 << 20)
    save(
        hostile.make_model([helper.make_node("Relu", ["x"], ["y"])], doc_string=doc),
        models / "large.onnx",
    )
    (models / "text.onnx").write_text("no model")
    (models / "cut.popef").write_bytes(b"no model")
    (models / "folder.onnx").mkdir()
    os.mkfifo(models / "pipe.onnx")
    limits = ("--memory_limit", 300, "--jobs", 2)
    process = start(models, "--batch_size", 4, *limits, "--output", tmp_path / "out", cwd=tmp_path)
    out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, err) == (0, "")
    assert out.splitlines()[-1] == "7 cases, 0 of them done before, 4 with an error"
    found = {name: next(iter(texts)) for name, texts in errors(tmp_path).items()}
    assert {name for name, text in found.items() if text is None} == {
        "width_4",
        "width_8",
        "width_12",
    }
    assert "needs more than its limit of 300 MiB of memory; --memory_limit raises" in found["large"]
    assert "nothing ends it before" in found["loop"]
    assert "text.onnx: expected an ONNX model" in found["text"]
    assert "cut.popef" in found["cut"]


@pytest.mark.slow
def test_a_case_that_takes_too_long_is_a_row(models, run, tmp_path, monkeypatch):
    """A slow conversion fails all cases that wait for its graph, a slow plan only its own case."""
    convert, profile = Estimator.convert, Estimator.profile

    def sleep(estimator: Estimator, name: str, settings: ProfileSettings) -> None:
        if (estimator.source.name, settings.target) == (name, "bow"):
            time.sleep(600)

    def convert_slowly(estimator: Estimator, settings: ProfileSettings):
        sleep(estimator, "width_4", settings)
        return convert(estimator, settings)

    def profile_slowly(estimator: Estimator, settings: ProfileSettings):
        sleep(estimator, "width_8", settings)
        return profile(estimator, settings)

    monkeypatch.setattr(Estimator, "convert", convert_slowly)
    monkeypatch.setattr(Estimator, "profile", profile_slowly)
    limits = ("--time_limit", 8, "--jobs", 2)
    assert run(models, "--batch_size", 1, "--sweep", "target=bow,c600", *limits)[0] == 0
    late = "it took longer than its limit of 8 s and was ended; --time_limit raises the limit"
    assert [row["error"] for row in read_rows(tmp_path)] == [None, None, late, late, late, None]


@pytest.fixture
def crashing(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Simulate C++ code that a model crashes.

    width_4 crashes when it is converted, width_8 when it is planned for a Bow.
    """
    convert, profile = Estimator.convert, Estimator.profile

    def crash(estimator: Estimator, name: str) -> None:
        if estimator.source.name == name:
            os.kill(os.getpid(), signal.SIGKILL)

    def crash_in_convert(estimator: Estimator, settings: ProfileSettings):
        crash(estimator, "width_4")
        return convert(estimator, settings)

    def crash_in_profile(estimator: Estimator, settings: ProfileSettings):
        if settings.target == "bow":
            crash(estimator, "width_8")
        return profile(estimator, settings)

    monkeypatch.setattr(Estimator, "convert", crash_in_convert)
    monkeypatch.setattr(Estimator, "profile", crash_in_profile)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_crash_is_a_row_of_what_was_done_in_that_moment(models, run, tmp_path, crashing, jobs):
    sweep = ("--sweep", "target=bow,c600,mk1")
    assert run(models, "--batch_size", 1, *sweep, "--jobs", jobs)[0] == 0
    crashed = (
        "onnx or ONNX Runtime crashed (SIGKILL): the model is damaged, or asks for what "
        "they cannot do"
    )
    found = [
        (Path(row["model"]).stem, row["settings"]["target"], row["error"])
        for row in read_rows(tmp_path)
    ]
    targets = ("bow", "c600", "mk1")
    assert found == [
        *(("width_12", target, None) for target in targets),
        *(("width_4", target, crashed) for target in targets),
        *(("width_8", target, crashed if target == "bow" else None) for target in targets),
    ]


def test_failed_cases_are_retried_with_the_option(models, run, tmp_path, crashing, monkeypatch):
    run(models, "--batch_size", 1)
    monkeypatch.undo()
    assert (
        run(models, "--batch_size", 1)[1].splitlines()[-1]
        == "3 cases, 3 of them done before, 1 with an error"
    )
    done = run(models, "--batch_size", 1, "--retry_failed")[1].splitlines()[-1]
    assert done == "3 cases, 2 of them done before, 0 with an error"
    assert set().union(*errors(tmp_path).values()) == {None}


def test_warnings_go_into_the_rows(tmp_path, run):
    tensor = hostile.elsewhere("c", "../x")
    save(
        hostile.make_model([helper.make_node("Add", ["x", "c"], ["y"])], [tensor]),
        tmp_path / "m" / "w.onnx",
    )
    assert run(tmp_path / "m", "--sweep", "target=c600,bow")[2] == ""
    for row in read_rows(tmp_path):
        assert "external data of weight" in row["warnings"][0]
        assert row["error"] is None


def test_rows_of_other_work_are_not_lost(models, run, read, tmp_path, monkeypatch):
    run(models, *SWEEP)
    before = read("out")
    for words in (
        (models, "--batch_size", 1),
        (models / "width_4.onnx", *SWEEP),
        (models, *SWEEP, "--shard", "0/2"),
        (models, *SWEEP, "--num_io_tiles", 32),
    ):
        status, _, err = run(*words)
        assert status == 1
        assert "expected rows of the models and settings of this command, found" in err
        assert "choose another --output, or remove the file to start again" in err
    monkeypatch.setattr(cases, "__version__", "9.9")
    assert "found 12 others, such as" in run(models, *SWEEP)[2]
    assert read("out") == before
    monkeypatch.undo()
    assert run(models, *SWEEP[2:], "--sweep", "batch_size=1,2,4")[0] == 0, "more settings go on"
    save(linear_model(5), models / "width_4.onnx")
    assert "found 6 others" in run(models, *SWEEP[2:], "--sweep", "batch_size=1,2,4")[2], (
        "another model"
    )


@pytest.mark.parametrize("line", ["no JSON", "[]", "{}", '{"key": 1}', "[" * 100_000, "\udcff"])
def test_a_file_that_is_no_journal_is_left_alone(models, run, tmp_path, line):
    file = tmp_path / "out.jsonl"
    run(models, "--batch_size", 1)
    text = file.read_text() + line + "\n"
    file.write_text(text, errors="surrogateescape")
    status, _, err = run(models, "--batch_size", 1)
    assert status == 1
    assert f"{file}, line 4: expected a row of a profile, found" in err
    assert file.read_text(errors="surrogateescape") == text


def test_two_runs_at_once_need_two_tables(models, run, tmp_path):
    with journal.open_journal(tmp_path / "out.csv"):
        assert (
            "another run writes into it; wait for it, or choose another"
            in run(models, "--batch_size", 1)[2]
        )
    assert run(models, "--batch_size", 1)[0] == 0


def test_names_come_back_out_of_the_table(run, tmp_path):
    names = ["a,b", 'a"b', "a b", "a;b", "-a", "ü", os.fsdecode(b"\xff"), "a\nb", "=1+1"]
    for name in names:
        save(linear_model(), tmp_path / "m" / f"{name}.onnx")
    assert run(tmp_path / "m", "--batch_size", 1)[0] == 0
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        listed = [Path(row["model"]).stem for row in csv.DictReader(file)]
    assert sorted(listed) == sorted(
        name.replace("\n", r"\n").replace("\udcff", r"\xff") for name in names
    )
    assert sorted(Path(row["model"]).stem for row in read_rows(tmp_path)) == sorted(names)


def test_shapes_are_given_to_the_models_that_have_the_input(run, tmp_path):
    for name in ("a", "b"):
        node = helper.make_node("Relu", [name], [f"{name}y"])
        inputs = {name: (TensorProto.FLOAT, ["n", "m"])}
        save(
            make_model([node], inputs, {f"{name}y": (TensorProto.FLOAT, ["n", "m"])}, {}),
            tmp_path / "m" / f"{name}.onnx",
        )
    shapes = ("--input_shape", "a=-1,7", "--input_shape", "b=-1,3")
    assert run(tmp_path / "m", *shapes, "--sweep", "batch_size=2,4")[0] == 0
    found = [
        (Path(row["model"]).stem, row["error"], row["profile"]["batch_size"])
        for row in read_rows(tmp_path)
    ]
    assert found == [("a", None, 2), ("a", None, 4), ("b", None, 2), ("b", None, 4)]


def test_paths_that_are_not_there_end_the_call(models, run, tmp_path):
    (tmp_path / "empty").mkdir()
    for path, what in (("gone.onnx", "No such file"), ("empty", "found none")):
        status, _, err = run(models, tmp_path / path)
        assert status == 1
        assert str(tmp_path / path) in err
        assert what in err
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a.onnx", "b.onnx"], "expected one MODEL without --output, found 2"),
        (["a.onnx", "--jobs", "2"], "--jobs requires --output"),
        (["a.onnx", "--shard", "0/2"], "--shard requires --output"),
        (["a.onnx", "--retry_failed"], "--retry_failed requires --output"),
        (["a.onnx", "--output", "o", "--json"], "--json applies to one model"),
        (["a.onnx", "--output", "o", "--html", "h"], "--html applies to one model"),
        *(
            (["a.onnx", "--output", "o", "--shard", shard], "expected I/N with I from 0 to N-1")
            for shard in ("2/2", "1", "x/2", "a/b", "0/0", "/")
        ),
    ],
)
def test_wrong_calls(words, message, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["profile", *words])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("jobs", "limit_mib", "expected"),
    [
        (4, None, (4, 2048)),
        (None, None, (3, 2730)),
        (4, 4096, (2, 4096)),
        (2, 1024, (2, 1024)),
        (4, 9000, (1, 9000)),
    ],
)
def test_all_at_once_take_no_more_memory_than_there_is(
    monkeypatch, tmp_path, jobs, limit_mib, expected
):
    monkeypatch.setattr(bulk, "spare_memory_bytes", lambda: 8192 << 20)
    monkeypatch.setattr(bulk, "usable_cores", lambda: 3)
    limits = bulk.choose_limits(jobs, 60, limit_mib, tmp_path)
    assert (limits.jobs, limits.memory_bytes >> 20) == expected
    assert isinstance(limits, CaseLimits)


@pytest.mark.parametrize(
    ("quota", "cores"), [("100000 100000", 1), ("150000 100000", 2), ("max 100000", 64), ("", 64)]
)
def test_cores_are_what_the_container_is_allowed(monkeypatch, tmp_path, quota, cores):
    """The limit is that of a group around the process's own, of version 2 or 1."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    for version, line in (("2", "0::/a/b"), ("1", "3:cpuacct,cpu:/a/b")):
        proc, group = tmp_path / version, tmp_path / version / ("cpu" * (version == "1")) / "a"
        for folder in (proc / "self", group / "b"):
            folder.mkdir(parents=True)
        (proc / "self" / "cgroup").write_text(line)
        (group / "cpu.max").write_text(quota)
        for name, part in zip(("quota", "period"), quota.split(), strict=False):
            (group / f"cpu.cfs_{name}_us").write_text(part.replace("max", "-1"))
        assert bulk.usable_cores(proc, proc) == cores
