"""Tests of examples that need a package which is not installed by default. The pages' tests run
the others."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import PATIENCE_SECONDS

EXAMPLES = Path(__file__).parent.parent / "examples"
is_installed = all(importlib.util.find_spec(name) for name in ("torch", "onnxscript"))


@pytest.mark.slow
@pytest.mark.skipif(not is_installed, reason="torch and onnxscript are not installed")
def test_a_pytorch_module_is_exported_compiled_and_compared(tmp_path):
    command = [sys.executable, EXAMPLES / "pytorch_export.py"]
    said = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert said.returncode == 0, said.stderr
    assert "largest difference" in said.stdout
