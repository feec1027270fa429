"""The dashboard asks for series that exist, and omits none of ours."""

import json

import pytest
import yaml
from deploy_files import (
    BACKEND_METRICS,
    DEPLOY,
    PROXY_METRICS,
    TRITON_METRICS,
    find_metrics,
    supervisor_metrics,
)

DASHBOARD = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
OF_PROMETHEUS = {"ALERTS"}


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("up", {"up"}),
        (
            'sum by (model, kind) (rate(a_total{model=~"$model", kind!="x"}[5m])) / on (model) b',
            {"a_total", "b"},
        ),
        ("count(a) and deriv(b[1m:5s]) > 1e3 unless c offset 5m", {"a", "b", "c"}),
    ],
)
def test_names_of_series_are_found_in_expressions(expression, names):
    assert find_metrics(expression) == names


def test_every_series_asked_for_exists():
    asked = set().union(*map(find_metrics, QUERIES))
    assert (
        asked
        <= TRITON_METRICS | PROXY_METRICS | BACKEND_METRICS | supervisor_metrics() | OF_PROMETHEUS
    )
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert (
        variables["model"]["query"]["query"] == "label_values(nv_inference_request_success, model)"
    )


def test_every_series_of_ours_is_shown():
    asked = set().union(*map(find_metrics, QUERIES))
    assert asked >= BACKEND_METRICS | supervisor_metrics()


def test_panels_are_told_apart_lie_beside_each_other_and_say_what_their_lines_are():
    places = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & places
        places |= cells
    assert max(x for x, _ in places) < 24
    identifiers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identifiers)) == len(identifiers)
    for panel in PANELS:
        assert all(target["legendFormat"] for target in panel["targets"])
        assert panel["title"]


def test_grafana_is_given_the_dashboard_and_its_source():
    provisioning = DEPLOY / "grafana" / "provisioning"
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "poplar.yaml").read_text())[
        "providers"
    ]
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())[
        "datasources"
    ]
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    mounts = [volume.split(":")[:2] for volume in services["grafana"]["volumes"]]
    assert ["./grafana/dashboard.json", f"{provider['options']['path']}/dashboard.json"] in mounts
    assert ["./grafana/provisioning", "/etc/grafana/provisioning"] in mounts
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in services
