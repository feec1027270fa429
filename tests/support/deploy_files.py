"""Content of `deploy/` and the Dockerfile, for tests: read as YAML, with the chart rendered by
helm."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from poplar_triton.serving.server_state import ServerState
from triton_poplar.statistics import BUILD_INFO, ERRORS, HISTOGRAMS, LOAD, METRICS

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
"""Metrics of Triton's page, as seen with 2.51."""
PROXY_METRICS = frozenset(
    """
    envoy_cluster_outlier_detection_ejections_active envoy_cluster_upstream_cx_none_healthy
    envoy_cluster_upstream_rq_pending_active envoy_cluster_upstream_rq_pending_overflow
    envoy_cluster_upstream_rq_retry envoy_cluster_upstream_rq_retry_overflow envoy_http_downstream_rq_total
    haproxy_backend_connection_errors_total haproxy_backend_current_queue
    haproxy_backend_queue_time_average_seconds haproxy_backend_retry_warnings_total
    haproxy_frontend_http_requests_total
    """.split()
)
"""Metrics of HAProxy's and Envoy's pages in use; tests/deploy/test_proxy_limits.py finds each."""
BACKEND_METRICS = frozenset(
    [metric.name for metric in (*METRICS, ERRORS)]
    + [name for metric in HISTOGRAMS for name in metric.series_names()]
    + [LOAD[0], BUILD_INFO[0]]
)

Document = dict[str, Any]


def supervisor_metrics() -> frozenset[str]:
    """Return the names of the metrics of the health port."""
    return frozenset(
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in ServerState().collect()
    )


def find_metrics(expression: str) -> set[str]:
    """Return the names of series in a PromQL expression: words that are no function, keyword or
    label."""
    bare = re.sub(
        r"\{[^}]*\}|\[[^\]]*\]|\b(?:by|without|on|ignoring) \([^)]*\)|\"[^\"]*\"", " ", expression
    )
    words = re.findall(r"(?<![\w.])[a-zA-Z_:][\w:]*(?!\w|\s*\()", bare)
    return set(words) - {"and", "or", "unless", "bool", "offset", "by", "without"}


def read_documents(text: str) -> list[Document]:
    """Return the documents of a YAML stream that are not empty."""
    return [document for document in yaml.safe_load_all(text) if document]


def render(helm: Path, *options: str, chart: Path = CHART) -> list[Document]:
    """Render the chart's objects for the release `test` in the namespace `serving`.

    Raises CalledProcessError if helm rejects the options.
    """
    command = [str(helm), "template", "test", str(chart), "--namespace", "serving", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=HELM_SECONDS)
    return read_documents(done.stdout)


def find_one(documents: Sequence[Document], kind: str, name: str = "") -> Document:
    """Return the only object of a kind, or the one with that name."""
    (match,) = (
        document
        for document in documents
        if document["kind"] == kind and name in ("", document["metadata"]["name"])
    )
    return match


def iter_leaves(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the paths of all values; a mapping without entries counts as a value."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from iter_leaves(value, (*path, name))
        else:
            yield (*path, name)


def find_option(arguments: Sequence[str], name: str) -> str:
    """Return the one value of an option that is written `--name=value`."""
    (value,) = (word.partition("=")[2] for word in arguments if word.partition("=")[0] == name)
    return value
