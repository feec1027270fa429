"""Bulk work as a Job of Kubernetes and as an array of Slurm.

The files say what they should, and their commands run. There is no cluster here that runs them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
from sample_models import linear_model
from waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.deploy

JOBS = Path(__file__).parents[2] / "deploy" / "jobs"


@pytest.fixture(scope="module")
def job() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((JOBS / "profile-kubernetes.yaml").read_text())


@pytest.fixture
def models(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    for width in (4, 8, 12):
        onnx.save(linear_model(width), tmp_path / "models" / f"{width}.onnx")
    return tmp_path / "models"


def run(command: list[str], **environment: object) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    given = {name: str(value) for name, value in environment.items()}
    subprocess.run(
        command, env={**os.environ, **given, "PATH": path}, check=True, timeout=PATIENCE_SECONDS
    )


def read_keys(results: Path) -> list[str]:
    """Return the keys of all parts, and check that each part is complete."""
    keys = []
    for part in results.glob("part-*.jsonl"):
        rows = [json.loads(line) for line in part.read_text().splitlines()]
        assert part.with_suffix(".csv").read_text().count("\n") == 1 + len(rows)
        assert [row["error"] for row in rows] == [None] * len(rows)
        keys += [row["key"] for row in rows]
    return keys


def test_kubernetes_takes_the_job(job):
    validate = pytest.importorskip("kubernetes_validate")
    validate.validate(job, "1.37", strict=True)
    job["spec"]["completionsMode"] = "Indexed"
    with pytest.raises(validate.ValidationError):
        validate.validate(job, "1.37", strict=True)


def test_the_pods_of_the_job_do_all_of_the_work(job, models, tmp_path):
    spec = job["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    assert f'"$JOB_COMPLETION_INDEX/{spec["completions"]}"' in container["command"][-1]
    (tmp_path / "results").mkdir()
    command = [word.replace("/models", str(models)) for word in container["command"]]
    command = [word.replace("/results", str(tmp_path / "results")) for word in command]
    for index in range(spec["completions"]):
        run(command, JOB_COMPLETION_INDEX=index)
    keys = read_keys(tmp_path / "results")
    assert len(keys) == len(set(keys)) == 3 * 5 * 2


def test_the_tasks_of_the_array_do_all_of_the_work(models, tmp_path):
    count = 3
    command = [str(JOBS / "profile-slurm.sh"), str(models), str(tmp_path / "results")]
    slurm = {"SLURM_CPUS_PER_TASK": 2, "SLURM_MEM_PER_NODE": 4096, "SLURM_ARRAY_TASK_COUNT": count}
    for number in range(count):
        run(command, SLURM_ARRAY_TASK_ID=number, **slurm)
    keys = read_keys(tmp_path / "results")
    assert len(keys) == len(set(keys)) == 3 * 5 * 2
