"""What `deploy/` and the Dockerfile say, for tests: read as YAML, the chart rendered by helm."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from commands.serving.condition import Condition
from triton_poplar.statistics import ERRORS, METRICS

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "poplar-triton"
ALERTS = CHART / "files" / "alerts.yaml"
ALL_ON = ROOT / "tests" / "deploy" / "values_all_on.yaml"
HELM_SECONDS = 60

TRITON_METRICS = frozenset(
    """
    nv_cpu_memory_total_bytes nv_cpu_memory_used_bytes nv_cpu_utilization
    nv_inference_compute_infer_duration_us nv_inference_compute_input_duration_us
    nv_inference_compute_output_duration_us nv_inference_count nv_inference_exec_count
    nv_inference_pending_request_count nv_inference_queue_duration_us nv_inference_request_duration_us
    nv_inference_request_failure nv_inference_request_success nv_pinned_memory_pool_total_bytes
    nv_pinned_memory_pool_used_bytes
    """.split()
)
"""Those of Triton's page, seen with 2.51."""
BACKEND_METRICS = frozenset(metric.name for metric in (*METRICS, ERRORS))

Document = dict[str, Any]


def supervisor_metrics() -> frozenset[str]:
    """Those of the health port."""
    return frozenset(
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in Condition().collect()
    )


def find_metrics(expression: str) -> set[str]:
    """The names of series in a PromQL expression: words that are no function, keyword or label."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|without|on|ignoring) \([^)]*\)|\"[^\"]*\"", " ", expression)
    words = re.findall(r"(?<![\w.])[a-zA-Z_:][\w:]*(?!\w|\s*\()", bare)
    return set(words) - {"and", "or", "unless", "bool", "offset", "by", "without"}


def read_documents(text: str) -> list[Document]:
    """The documents of a YAML stream that are not empty."""
    return [document for document in yaml.safe_load_all(text) if document]


def render(helm: Path, *options: str, chart: Path = CHART) -> list[Document]:
    """The chart's objects, of the release `test` in the namespace `serving`; CalledProcessError where helm
    refuses."""
    command = [str(helm), "template", "test", str(chart), "--namespace", "serving", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HELM_SECONDS)
    return read_documents(done.stdout)


def find_one(documents: Sequence[Document], kind: str, name: str = "") -> Document:
    """The only object of a kind, or that of its name."""
    (found,) = (
        document
        for document in documents
        if document["kind"] == kind and name in ("", document["metadata"]["name"])
    )
    return found


def iter_leaves(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all values; a mapping without entries is one, too."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from iter_leaves(value, (*path, name))
        else:
            yield (*path, name)


def find_option(arguments: Sequence[str], name: str) -> str:
    """The one value of an option that is written `--name=value`."""
    (value,) = (word.partition("=")[2] for word in arguments if word.partition("=")[0] == name)
    return value
