"""The metrics that are made of the sums that an instance keeps."""

import numpy as np
import pytest
from model_runtime.compiled_model import RunCost
from triton_poplar.errors import ModelConfigError
from triton_poplar.parameters import parse_parameters
from triton_poplar.statistics import DEFAULT_BUCKETS, ERRORS, METRICS, Histogram, Statistics


def test_metrics_are_sums_in_seconds_rows_and_runs():
    statistics = Statistics(capacity=8)
    cheap, dear = RunCost(500, 0.25, 0.5), RunCost(1500, 0.75, 1.0)
    statistics.add_run(
        start_ns=1_000_000_000, end_ns=3_000_000_000, rows=8, lateness_ns=0, cost=cheap
    )
    statistics.add_run(
        start_ns=3_000_000_000, end_ns=3_500_000_000, rows=7, lateness_ns=1, cost=dear
    )
    statistics.requests, statistics.queue_depth = 5, 6
    statistics.queue_wait_ns, statistics.execution_ns = 4_000_000_000, 7_000_000_000
    statistics.errors.update(["run", "run", "timeout"])
    assert {metric.name: metric.value(statistics) for metric in (*METRICS, ERRORS)} == {
        "poplar_requests_total": 5,
        "poplar_batches_total": 2,
        "poplar_rows_total": 15,
        "poplar_padded_rows_total": 1,
        "poplar_flushes_total": 1,
        "poplar_queue_rows": 6,
        "poplar_queue_wait_seconds_total": 4.0,
        "poplar_compute_seconds_total": 2.5,
        "poplar_execution_seconds_total": 7.0,
        "poplar_ipu_cycles_total": 2000,
        "poplar_ipu_seconds_total": 1.0,
        "poplar_modelled_seconds_total": 1.5,
        "poplar_late_batches_total": 1,
        "poplar_errors_total": 3,
    }


def test_an_instance_that_has_done_nothing_counts_nothing():
    statistics = Statistics(capacity=8)
    assert {metric.value(statistics) for metric in (*METRICS, ERRORS)} == {0}


def test_metrics_that_can_fall_are_gauges_and_all_others_counters():
    """Prometheus takes the rate of metrics whose names end in `_total`."""
    assert {metric.name for metric in METRICS if not metric.is_counter} == {"poplar_queue_rows"}
    assert all(metric.name.endswith("_total") == metric.is_counter for metric in (*METRICS, ERRORS))


def test_a_duration_is_in_every_bucket_from_its_own_on_and_a_bound_belongs_to_its_bucket():
    bounds = (0.001, 0.5, 1.0)
    durations_ns = [0, 1_000_000, 1_000_001, 500_000_000, 999_999_999, 1_000_000_001, 5_000_000_000]
    histogram = Histogram(bounds)
    for each in durations_ns:
        histogram.add(each)
    seconds = np.array(durations_ns) / 1e9
    expected = {f"{bound:g}": int((seconds <= bound).sum()) for bound in bounds} | {"+Inf": 7}
    assert dict(histogram.iter_buckets()) == expected
    assert histogram.sum_ns == sum(durations_ns)


def test_larger_buckets_are_published_first():
    """A page that is read at the same time then has no bucket larger than a longer one."""
    assert [le for le, _ in Histogram((0.5, 1.0)).iter_buckets()] == ["+Inf", "1", "0.5"]


def parse_buckets(text):
    return parse_parameters(
        {"parameters": {"latency_buckets": {"string_value": text}}}
    ).latency_buckets


def test_buckets_are_a_parameter():
    assert parse_buckets("0.01, 0.1,2") == (0.01, 0.1, 2.0)
    assert parse_buckets("1, 86400") == (1.0, 86400.0)
    assert parse_parameters({}).latency_buckets == DEFAULT_BUCKETS


@pytest.mark.parametrize(
    "text", ["", "1,1", "2,1", "0,1", "-1,1", "a", "1,nan", "nan", "inf", "86401", "1," * 51]
)
def test_buckets_that_prometheus_could_not_read_are_refused(text):
    with pytest.raises(
        ModelConfigError, match="latency_buckets: expected 1 to 50 ascending numbers"
    ):
        parse_buckets(text)
