"""Tests that ONNX Runtime sends no telemetry, whichever package imports it first."""

import os
import subprocess
import sys

import pytest

LOOK = """
import importlib, os, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "onnxruntime":
            print(os.environ.get("ORT_DISABLE_TELEMETRY"))
            sys.exit()
sys.meta_path.insert(0, Finder())
importlib.import_module(sys.argv[1])
"""


@pytest.mark.parametrize(
    "module",
    [
        "simipu.engines.computed",
        "poprt.compile.compiler",
        "poprt.passes.fusion.attention",
        "poplar_triton.demo.runner",
    ],
)
def test_telemetry_is_off_before_onnxruntime_is_imported(module):
    environment = {
        name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"
    }
    done = subprocess.run(
        [sys.executable, "-c", LOOK, module],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["1"]
