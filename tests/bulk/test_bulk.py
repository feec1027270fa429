"""The examples of bulk inference on the real engines.

Every row has its answer once, even if a worker is killed on the way.
`make bulk` prints rows/s beside a plain loop of ONNX Runtime's in the same engine.
"""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import bulk_rows
import numpy as np
import pytest

pytestmark = [pytest.mark.bulk, pytest.mark.timeout(3000)]

ROOT = Path(__file__).parents[2]
ROWS = int(os.environ.get("BULK_ROWS", "100000"))
ROUNDS = int(os.environ.get("BULK_ROUNDS", "1"))
CORES = len(os.sched_getaffinity(0))
LIMIT_SECONDS = 1200
MODULES = {"ray": "ray.data", "dask": "dask.distributed", "spark": "pyspark"}


@pytest.fixture(scope="module")
def rows():
    return bulk_rows.make_rows(ROWS)


@pytest.fixture(scope="module")
def folder(rows, tmp_path_factory):
    pytest.importorskip("pyarrow", reason="needs the extra [bulk]")
    folder = tmp_path_factory.mktemp("bulk")
    bulk_rows.write_model(folder)
    bulk_rows.write_rows(folder / "rows", rows)
    return folder


@pytest.fixture(scope="module")
def expected(folder, rows):
    return bulk_rows.compute_expected(folder / "model.onnx", rows)


@pytest.fixture(params=MODULES)
def engine(request):
    pytest.importorskip(MODULES[request.param], reason="needs the extra [bulk]")
    if request.param == "spark" and not (os.environ.get("JAVA_HOME") or shutil.which("java")):
        pytest.skip("needs Java 17")
    return request.param


@pytest.fixture
def run(engine, folder, tmp_path):
    """Return a function that runs the engine's example with a kind of predictor.

    That function returns what the example measured, and the folders of its answers and of its
    workers' notes.
    """
    # The paths of Ray's sockets may have a hundred characters at most.
    scratch = tempfile.mkdtemp()

    def run_example(kind):
        notes, target = tmp_path / f"{kind}.notes", tmp_path / kind
        shutil.rmtree(notes, ignore_errors=True)
        notes.mkdir()
        paths = [ROOT / "backend", ROOT, ROOT / "examples", ROOT / "tests" / "support"]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_TMPDIR": scratch,
            "OMP_NUM_THREADS": "1",
            "BULK_NOTES": str(notes),
            "BULK_BATCH": str(bulk_rows.BATCH),
        }
        script = ROOT / "tests" / "support" / "bulk_runs.py"
        words = [engine, kind, folder / "model.popef", folder / "rows", target, notes, CORES]
        child = subprocess.Popen(
            [sys.executable, script, *map(str, words)],
            env=environment,
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            told, errors = child.communicate(timeout=LIMIT_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        assert child.returncode == 0, told[-2000:] + errors[-6000:]
        return json.loads(told.splitlines()[-1]), target, notes

    yield run_example
    shutil.rmtree(scratch, ignore_errors=True)


def check_answers(target, expected):
    ids, answers = bulk_rows.read_answers(target)
    np.testing.assert_array_equal(ids, np.arange(len(expected)))
    np.testing.assert_allclose(answers, expected, rtol=1e-4, atol=1e-5)


def test_every_row_has_its_answer(engine, run, expected):
    rounds = []
    for number in range(ROUNDS):
        figures = []
        for kind in ("plain", "own") if number % 2 else ("own", "plain"):
            taken, target, _ = run(kind)
            check_answers(target, expected)
            shutil.rmtree(target)
            figures.append((kind, taken))
        rounds.append(dict(figures))
    for name in rounds[0]["own"]:
        pairs = [(ROWS / each["own"][name], ROWS / each["plain"][name]) for each in rounds]
        own, plain = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(ours / theirs for ours, theirs in pairs)
        print(
            f"{engine}, {name}: {own:,.0f} rows/s, plain loop {plain:,.0f}, median ratio "
            f"{ratio:.2f}"
        )


def test_a_worker_that_is_killed_costs_no_row(run, expected):
    _, target, notes = run("killed")
    assert (notes / "killed").exists()
    check_answers(target, expected)
