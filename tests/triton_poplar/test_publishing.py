"""The series that model.py adds to Triton's metrics page."""

import importlib.util
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from triton_poplar.statistics import Histogram, Statistics

MODEL_FILE = Path(__file__).resolve().parents[2] / "backend" / "poplar" / "model.py"
LABELS = {"model": "m", "version": "1", "instance": "m_0", "numerics": "exact", "kernels": "avx2"}


class Family:
    """Family of metrics of Triton's Python backend; a page is {(name, le, kind): value}."""

    COUNTER, GAUGE = "counter", "gauge"
    page: ClassVar[dict] = {}
    labels: ClassVar[dict] = {}

    def __init__(self, name, description, kind):
        assert description
        self.name, self.kind = name, kind

    def Metric(self, labels):
        family, key = self, (self.name, labels.get("le") or labels.get("kind"))
        assert key not in Family.page
        Family.page[key], Family.labels[key] = 0, labels

        class Series:
            def increment(self, value):
                assert family.kind == "counter"
                assert value > 0
                Family.page[key] += value

            def set(self, value):
                assert family.kind == "gauge"
                Family.page[key] = value

        return Series()


@pytest.fixture
def publisher(monkeypatch):
    statistics = Statistics(4, errors=Counter())
    statistics.latency = Histogram((0.1, 1.0))
    instance = SimpleNamespace(
        name="m_0",
        kernels="avx2",
        load_seconds=2.5,
        statistics=statistics,
        read_statistics=lambda: statistics,
    )
    state = SimpleNamespace(name="m", version="1", parameters=SimpleNamespace(sim_numerics="exact"))
    monkeypatch.setattr(Family, "page", {})
    monkeypatch.setattr(Family, "labels", {})
    stub = SimpleNamespace(MetricFamily=Family, Metric=object)
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", stub)
    spec = importlib.util.spec_from_file_location("poplar_model", MODEL_FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module._Publisher(state, instance), statistics


def read_buckets(name):
    return {le: value for (found, le), value in Family.page.items() if found == f"{name}_bucket"}


def test_a_histogram_is_cumulative_counters_by_le_with_a_sum_and_a_count(publisher):
    publisher, statistics = publisher
    assert read_buckets("poplar_request_seconds") == {"0.1": 0, "1": 0, "+Inf": 0}
    for rounds in (1, 2):
        for seconds in (0.05, 0.1, 0.5, 3):
            statistics.latency.add(int(seconds * 1e9))
        publisher.publish()
        publisher.publish()
        counts = {"0.1": 2 * rounds, "1": 3 * rounds, "+Inf": 4 * rounds}
        assert read_buckets("poplar_request_seconds") == counts
        assert Family.page["poplar_request_seconds_count", None] == 4 * rounds
        assert Family.page["poplar_request_seconds_sum", None] == pytest.approx(3.65 * rounds)
    assert LABELS.items() <= Family.labels["poplar_request_seconds_bucket", "0.1"].items()


def test_constant_metrics_are_published_at_once(publisher):
    assert Family.page["poplar_load_seconds", None] == 2.5
    assert Family.page["poplar_build_info", None] == 1
    assert {"version", "onnxruntime", "python", "process"} == Family.labels[
        "poplar_build_info", None
    ].keys()
