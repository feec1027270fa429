"""The counters of a server's processes, as Prometheus reads them."""

import threading
from collections import Counter

import pytest
from poplar_triton.tfserving.metrics import APIS, ENTRY_POINTS, Counters, make_memory
from poplar_triton.tfserving.models import Code
from prometheus_client.parser import text_string_to_metric_families
from triton_poplar.statistics import ERROR_KINDS, ERRORS, METRICS, Statistics

NAMES = ["m", 'odd "name"\\\n', ""]
COUNT, LATENCY = ":tensorflow:serving:request_count", ":tensorflow:serving:request_latency"


def open_counters(models=("m", "n"), processes=2):
    memory = make_memory(models, processes)
    return [Counters(memory, models, processes, index) for index in range(processes)], memory


def read_page(counters):
    """Return the samples of a metrics page by name and labels, and check that each occurs once."""
    samples = [
        (sample.name, tuple(sorted(sample.labels.items())), sample.value)
        for family in text_string_to_metric_families(counters.write_page().decode())
        for sample in family.samples
    ]
    found = {(name, labels): value for name, labels, value in samples}
    assert len(found) == len(samples)
    return found


def read(counters, name, **labels):
    return read_page(counters).get((name, tuple(sorted(labels.items()))), 0)


def make_statistics(**sums):
    return Statistics(4, **sums)


def test_any_process_answers_for_all():
    (one, other), _ = open_counters()
    one.observe("m", "Predict", "GRPC", Code.OK, 0.001)
    other.observe("m", "Predict", "GRPC", Code.OK, 0.002)
    other.observe("m", "Predict", "REST", Code.NOT_FOUND, 0.003)
    for counters in (one, other):
        assert read(counters, COUNT, model_name="m", status="OK") == 2
        assert read(counters, COUNT, model_name="m", status="NOT_FOUND") == 1
        labels = {"model_name": "m", "API": "Predict", "entrypoint": "GRPC"}
        assert read(counters, f"{LATENCY}_count", **labels) == 2
        assert read(counters, f"{LATENCY}_sum", **labels) == pytest.approx(3000)
        assert read(counters, f"{LATENCY}_count", **{**labels, "entrypoint": "REST"}) == 0
    assert one.write_page() == other.write_page()


@pytest.mark.parametrize("code", list(Code), ids=lambda code: code.name)
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("entry_point", ENTRY_POINTS)
def test_each_kind_of_request_is_counted_in_its_own_place(code, api, entry_point):
    (counters, _), _ = open_counters()
    before = read_page(counters)
    counters.observe("n", api, entry_point, code, 1.0)
    changed = {key: value for key, value in read_page(counters).items() if before.get(key) != value}
    assert changed.pop((COUNT, (("model_name", "n"), ("status", code.name)))) == 1
    labels = (("API", api), ("entrypoint", entry_point), ("model_name", "n"))
    kinds = {(name, tuple(pair for pair in found if pair[0] != "le")) for name, found in changed}
    answered = {(f"{LATENCY}_{what}", labels) for what in ("bucket", "count", "sum")}
    assert kinds == (answered if code is Code.OK else set())


@pytest.mark.parametrize(
    ("seconds", "first"),
    [(0, 10), (10e-6, 10), (10.1e-6, 18), (1e-3, 1101), (1e9, float("inf")), (2000, float("inf"))],
)
def test_a_request_is_in_the_buckets_from_its_own_time_on(seconds, first):
    (counters, _), _ = open_counters()
    counters.observe("m", "Predict", "GRPC", Code.OK, seconds)
    buckets = {
        float(dict(labels)["le"]): value
        for (name, labels), value in read_page(counters).items()
        if name == f"{LATENCY}_bucket"
    }
    assert len(buckets) == 34
    bounds = sorted(buckets)
    assert bounds[:2] == [10, 18]  # 10 * 1.8 ** power, TensorFlow Serving's own
    assert bounds[-2] == pytest.approx(10 * 1.8**32, rel=1e-5)
    assert [buckets[bound] for bound in bounds] == [bound >= first for bound in bounds]


def test_names_that_strangers_ask_for_do_not_make_the_page_grow():
    (counters, _), _ = open_counters()
    counters.observe("", "Predict", "GRPC", Code.NOT_FOUND, 0)
    size = len(counters.write_page().splitlines())
    for number in range(1000):
        counters.observe(f"no such {number}", "Predict", "REST", Code.NOT_FOUND, 0)
    assert len(counters.write_page().splitlines()) == size
    assert read(counters, COUNT, model_name="", status="NOT_FOUND") == 1001


def test_odd_names_are_labels_that_the_parser_gives_back():
    (counters,), _ = open_counters(NAMES[:2], 1)
    counters.observe(NAMES[1], "GetModelMetadata", "REST", Code.OK, 1)
    counters.publish(NAMES[1], [make_statistics(requests=3)])
    assert read(counters, COUNT, model_name=NAMES[1], status="OK") == 1
    assert read(counters, "poplar_requests_total", model=NAMES[1]) == 3


def test_the_backends_sums_are_those_of_all_versions_and_processes():
    (one, other), _ = open_counters()
    first = make_statistics(requests=3, batches=2, rows=5, errors=Counter(run=1), queue_depth=2)
    second = make_statistics(requests=10, batches=1, rows=4, errors=Counter(run=1, bad_request=2))
    one.publish("m", [first, second])
    other.publish("m", [first])
    page = read_page(other)
    expected = {metric.name: 2 * metric.value(first) + metric.value(second) for metric in METRICS}
    assert expected["poplar_requests_total"] == 16
    assert expected["poplar_padded_rows_total"] == 2 * 3
    for name, value in expected.items():
        assert page[name, (("model", "m"),)] == pytest.approx(value)
        assert page[name, (("model", "n"),)] == 0
    errors = {kind: page[ERRORS.name, (("kind", kind), ("model", "m"))] for kind in ERROR_KINDS}
    assert errors == {**dict.fromkeys(ERROR_KINDS, 0), "run": 3, "bad_request": 2}


def test_publishing_again_is_not_counting_again():
    (counters, _), _ = open_counters()
    statistics = make_statistics(requests=3)
    for requests in (3, 3, 5):
        statistics.requests = requests
        counters.publish("m", [statistics])
        assert read(counters, "poplar_requests_total", model="m") == requests


def test_a_restarted_process_continues_where_the_last_one_ended():
    (one, _), memory = open_counters()
    one.observe("m", "Predict", "GRPC", Code.OK, 0.001)
    one.publish("m", [make_statistics(requests=3, errors=Counter(run=1), queue_depth=7)])
    again = Counters(memory, ("m", "n"), 2, 0)
    again.observe("m", "Predict", "GRPC", Code.OK, 0.001)
    again.publish("m", [make_statistics(requests=2, errors=Counter(run=2), queue_depth=1)])
    again.publish("m", [make_statistics(requests=4, errors=Counter(run=2), queue_depth=1)])
    assert read(again, COUNT, model_name="m", status="OK") == 2
    assert read(again, "poplar_requests_total", model="m") == 7
    assert read(again, "poplar_errors_total", model="m", kind="run") == 3
    assert read(again, "poplar_queue_rows", model="m") == 1  # a gauge, not a sum


def test_threads_lose_no_count():
    (counters, _), _ = open_counters()

    def count():
        for _ in range(2000):
            counters.observe("m", "Predict", "GRPC", Code.OK, 0.001)

    counting = [threading.Thread(target=count) for _ in range(4)]
    for thread in counting:
        thread.start()
    for thread in counting:
        thread.join()
    assert read(counters, COUNT, model_name="m", status="OK") == 8000


def test_the_types_of_series_are_told():
    (counters, _), _ = open_counters()
    counters.observe("m", "Predict", "GRPC", Code.OK, 0.001)
    families = {
        each.name: each.type
        for each in text_string_to_metric_families(counters.write_page().decode())
    }
    assert families[LATENCY] == "histogram"
    assert families["poplar_queue_rows"] == "gauge"
    assert {metric.name for metric in METRICS} <= families.keys()
