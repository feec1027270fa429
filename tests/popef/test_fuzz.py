"""Tests of damaged files: each is read or rejected with a PopefError, in time, and has one meaning
only."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from example_counts import examples
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from popef_fuzzing import check, seed_files
from popef_mutations import mutate_file
from reference_files import FILES, PlainBlob, written_by_others, written_by_popef
from waiting import PATIENCE_SECONDS

FIRST = list(seed_files())
EXAMPLES = examples(150)
many = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
SEEDS = st.integers(0, (1 << 32) - 1)


@pytest.fixture(autouse=True)
def _no_warnings_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("CRITICAL", "popef")


@pytest.mark.parametrize("number", range(len(FIRST)))
def test_the_files_the_search_begins_with_hold_every_promise(number: int) -> None:
    check(FIRST[number])


@pytest.mark.slow
@many
@given(FILES, SEEDS)
def test_damaged_files_are_read_or_refused(file: list[PlainBlob], seed: int) -> None:
    pieces = [
        written_by_popef([blob]) if seed >> i & 1 else written_by_others(blob, seed + i)
        for i, blob in enumerate(file)
    ]
    starts = [sum(map(len, pieces[:i])) for i in range(len(pieces))]
    for i in range(4):
        check(mutate_file(b"".join(pieces), Random(seed + i), starts))


@pytest.mark.slow
@many
@given(st.integers(0, len(FIRST) - 1), SEEDS)
def test_damaged_seeds_are_read_or_refused(number: int, seed: int) -> None:
    for i in range(4):
        check(mutate_file(FIRST[number], Random(seed + i), [0]))


@pytest.mark.slow
@pytest.mark.skipif(
    not importlib.util.find_spec("atheris"),
    reason="atheris, which has wheels for Linux on x86-64, is not installed",
)
def test_a_search_led_by_coverage_finds_nothing(tmp_path: Path) -> None:
    script = Path(__file__).with_name("fuzz_reader.py")
    done = subprocess.run(
        [sys.executable, script, "--seconds", "5", "--corpus", tmp_path / "corpus"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(list((tmp_path / "corpus").iterdir())) > len(FIRST)
