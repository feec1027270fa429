"""What the metrics say of the sums that an instance keeps."""

from triton_poplar.statistics import ERRORS, METRICS, Statistics


def test_metrics_are_sums_in_seconds_rows_and_runs():
    statistics = Statistics(capacity=8, cycles=1000, seconds=0.5, modelled_seconds=0.75)
    statistics.add_run(start_ns=1_000_000_000, end_ns=3_000_000_000, rows=8, lateness_ns=0)
    statistics.add_run(start_ns=3_000_000_000, end_ns=3_500_000_000, rows=7, lateness_ns=1)
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
    statistics = Statistics(capacity=8, cycles=1000, seconds=0.5, modelled_seconds=0.75)
    assert {metric.value(statistics) for metric in (*METRICS, ERRORS)} == {0}


def test_what_can_fall_is_a_gauge_and_all_else_a_counter():
    """Prometheus takes the rate of names that end so."""
    assert {metric.name for metric in METRICS if not metric.is_counter} == {"poplar_queue_rows"}
    assert all(metric.name.endswith("_total") == metric.is_counter for metric in (*METRICS, ERRORS))
