"""The programs that the other tests run exist and run."""

from __future__ import annotations

import subprocess
from dataclasses import asdict

import pytest
from waiting import PATIENCE_SECONDS

VERSION_OPTIONS = {
    "envoy": "--version",
    "haproxy": "-v",
    "helm": "version",
    "prometheus": "--version",
    "promtool": "--version",
    "weed": "version",
}


@pytest.mark.parametrize("name", VERSION_OPTIONS)
def test_a_program_of_a_deployment_runs(tools, name):
    subprocess.run(
        [asdict(tools)[name], VERSION_OPTIONS[name]], check=True, timeout=PATIENCE_SECONDS
    )


def test_every_program_is_asked(tools):
    assert asdict(tools).keys() == VERSION_OPTIONS.keys()
