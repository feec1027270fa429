"""Tests of indices out of range on every engine, whoever chose them: none reads or writes memory
that is not the tensor's."""

import subprocess
import sys
from pathlib import Path

import hostile_indices
import pytest

pytest.importorskip("simipu.engines.openvino_package")


@pytest.mark.slow
@pytest.mark.parametrize("name", hostile_indices.OPERATORS)
def test_an_index_out_of_range_is_an_error_or_the_nearest_element(name):
    script = str(Path(hostile_indices.__file__))
    ended = subprocess.run([sys.executable, script, name], capture_output=True, text=True)
    lines = [line.split("|") for line in ended.stdout.splitlines()]
    # The process dies in the case after the last one.
    assert ended.returncode == 0, (lines[-1:], ended.stderr[-500:])
    assert len(lines) == len(list(hostile_indices.iter_cases(name))) * 4
    for *case, engine, check, found in lines:
        title = f"{case} {engine} {check}"
        is_constant = case[2] in ("graph", "node", "weight", "branch")
        may_answer = check == "clamp" and not is_constant and name.startswith("Gather")
        expected = {"load", "run"} | ({"7.0"} if may_answer and "wide" not in name else set())
        assert found in expected, f"{title}: {found}"
    by_clamping = [line for line in lines if line[-1] == "7.0"]
    assert bool(by_clamping) == (name.startswith("Gather") and "wide" not in name)
