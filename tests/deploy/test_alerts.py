"""The alerts: the series that they ask for exist, and they fire when they should and only then."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from deploy_files import (
    ALERTS,
    BACKEND_METRICS,
    DEPLOY,
    PROXY_METRICS,
    ROOT,
    TRITON_METRICS,
    find_metrics,
    supervisor_metrics,
)

SECONDS = 60
UNIT_TESTS = Path(__file__).with_name("alerts_test.yaml")
(GROUP,) = yaml.safe_load(ALERTS.read_text())["groups"]
RULES = {rule["alert"]: rule for rule in GROUP["rules"]}


def test_prometheus_takes_the_rules_and_its_configuration(tools):
    subprocess.run([tools.promtool, "check", "rules", ALERTS], check=True, timeout=SECONDS)
    configuration = DEPLOY / "prometheus" / "prometheus.yml"
    subprocess.run([tools.promtool, "check", "config", configuration], check=True, timeout=SECONDS)
    (file,) = yaml.safe_load(configuration.read_text())["rule_files"]
    assert (configuration.parent / file).resolve() == ALERTS


def test_each_alert_fires_when_it_should(tools):
    done = subprocess.run(
        [tools.promtool, "test", "rules", UNIT_TESTS],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_rule_that_never_fires_is_found(tools, tmp_path):
    wrong = tmp_path / "alerts.yaml"
    wrong.write_text(
        ALERTS.read_text().replace("poplar_supervisor_dead_stubs > 0", "vector(0) > 1")
    )
    units = tmp_path / "units.yaml"
    units.write_text(
        UNIT_TESTS.read_text().replace(f"../../{ALERTS.relative_to(ROOT)}", str(wrong))
    )
    done = subprocess.run(
        [tools.promtool, "test", "rules", units], capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode != 0
    assert "PoplarStubDead" in done.stdout + done.stderr


def test_each_alert_is_tested_to_fire_and_not_to():
    asked = [
        each
        for test in yaml.safe_load(UNIT_TESTS.read_text())["tests"]
        for each in test["alert_rule_test"]
    ]
    for fires in (True, False):
        assert {
            each["alertname"] for each in asked if bool(each["exp_alerts"]) == fires
        } == RULES.keys()


@pytest.mark.parametrize("name", RULES)
def test_an_alert_asks_for_series_that_exist_and_says_who_should_care(name):
    rule = RULES[name]
    asked = find_metrics(rule["expr"])
    assert asked
    assert asked <= TRITON_METRICS | PROXY_METRICS | BACKEND_METRICS | supervisor_metrics()
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"].keys() == {"summary", "description", "runbook"}
    assert rule["annotations"]["runbook"] == f"docs/operations.md#{name.lower()}"


@pytest.mark.parametrize("name", RULES)
def test_the_operations_document_says_what_to_do_at_an_alert(name):
    assert re.search(rf"^#+ {name}$", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE)
