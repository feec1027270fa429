"""Random tests of the kernels against plain loops, under AddressSanitizer and UBSan: fuzz.c."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from kernel_builds import build_fuzzer, find_reason
from waiting import PATIENCE_SECONDS


@pytest.mark.skipif(bool(find_reason()), reason=find_reason())
@pytest.mark.slow
def test_every_set_of_instructions_computes_what_plain_loops_do(tmp_path: Path) -> None:
    fuzzer = build_fuzzer(tmp_path)
    done = subprocess.run(
        [fuzzer, "4"], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "portable" in done.stdout
