"""The chart's proxies: Envoy with the file of `deploy/`, the routes to it, and its monitoring."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from deploy_files import (
    ALL_ON,
    BACKEND_METRICS,
    CHART,
    DEPLOY,
    PROXY_METRICS,
    TRITON_METRICS,
    find_metrics,
    find_one,
    render,
)
from fleet.proxies import Envoy
from named_servers import EchoServer
from proxy_load import ask_all, count_statuses
from server_processes import HOST, choose_ports

SERVERS = "test-poplar-triton"
PROXY = f"{SERVERS}-proxy"
SECONDS = 60
KEDA = ("--set", "autoscaling.enabled=true,autoscaling.keda.serverAddress=http://prometheus:9090")


@pytest.fixture(scope="module")
def default(tools):
    return render(tools.helm)


@pytest.fixture(scope="module")
def all_on(tools):
    return render(tools.helm, "--values", str(ALL_ON))


def read_configuration(documents):
    return find_one(documents, "ConfigMap", PROXY)["data"]["envoy.yaml"]


def read_file(server, limit, queue, seconds):
    """Return the configuration that the chart's Envoy must have.

    It is the file `envoy.yaml` with the server's name and the limits set in their places.
    """
    settings = yaml.safe_load((DEPLOY / "envoy.yaml").read_text())
    for cluster in settings["static_resources"]["clusters"]:
        if cluster["name"] == "admin":
            continue
        (group,) = cluster["load_assignment"]["endpoints"]
        group["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]["address"] = server
        breakers = cluster["circuit_breakers"]
        breakers["thresholds"][0]["max_pending_requests"] = queue
        breakers["thresholds"][0]["retry_budget"]["min_retry_concurrency"] = limit
        (protocol,) = cluster["typed_extension_protocol_options"].values()
        if cluster["name"] == "http":
            breakers["per_host_thresholds"] = [{"max_connections": limit}]
        else:
            protocol["explicit_http_config"]["http2_protocol_options"]["max_concurrent_streams"] = (
                limit
            )
    for listener in settings["static_resources"]["listeners"][:2]:
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        route = manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"]
        route["retry_policy"]["per_try_timeout"] = f"{seconds}s"
        if listener["name"] == "http":
            route["timeout"] = f"{3 * seconds}s"
    return settings


@pytest.mark.parametrize(
    ("copy", "source"),
    [("envoy.yaml", "envoy.yaml"), ("dashboard.json", "grafana/dashboard.json")],
)
def test_the_charts_copies_are_equal_to_their_sources(copy, source):
    """Helm reads only files of the chart. After a change, copy the source there."""
    assert (CHART / "files" / copy).read_bytes() == (DEPLOY / source).read_bytes()


def test_the_proxies_have_the_very_file_with_their_part_of_the_limits(default, all_on):
    server = f"{SERVERS}-headless"
    assert yaml.safe_load(read_configuration(default)) == read_file(server, 32, 64, 60)
    assert yaml.safe_load(read_configuration(all_on)) == read_file(server, 17, 67, 20)


def test_envoy_takes_what_the_chart_renders(tools, all_on, tmp_path):
    file = tmp_path / "envoy.yaml"
    file.write_text(read_configuration(all_on))
    subprocess.run([tools.envoy, "--mode", "validate", "-c", file], check=True, timeout=SECONDS)


def test_another_configuration_is_another_pod(tools, default):
    def read_sum(documents):
        return find_one(documents, "Deployment", PROXY)["spec"]["template"]["metadata"][
            "annotations"
        ]

    assert read_sum(default) == read_sum(render(tools.helm))
    assert read_sum(default) != read_sum(render(tools.helm, "--set", "proxy.queue=5"))


def test_servers_and_proxies_are_never_taken_for_each_other(all_on):
    servers, proxies = (
        find_one(all_on, "Deployment", name)["spec"]["template"]["metadata"]["labels"]
        for name in (SERVERS, PROXY)
    )
    for name, own, others in (
        (SERVERS, servers, proxies),
        (f"{SERVERS}-headless", servers, proxies),
        (PROXY, proxies, servers),
    ):
        selector = find_one(all_on, "Service", name)["spec"]["selector"].items()
        assert selector <= own.items()
        assert not selector <= others.items()
    for kind in ("NetworkPolicy", "PodDisruptionBudget"):
        spec = find_one(all_on, kind, PROXY)["spec"]
        assert (
            spec.get("podSelector", spec.get("selector"))["matchLabels"].items() <= proxies.items()
        )
    (pod,) = (each for each in all_on if each["kind"] == "Pod")
    for selector in (servers, proxies):
        name = "app.kubernetes.io/name"
        assert pod["metadata"]["labels"].get(name) != selector[name]


def test_the_ports_of_the_proxies_are_those_of_their_file(default):
    settings = yaml.safe_load(read_configuration(default))
    listening = {
        each["name"]: each["address"]["socket_address"]["port_value"]
        for each in settings["static_resources"]["listeners"]
    }
    (container,) = find_one(default, "Deployment", PROXY)["spec"]["template"]["spec"]["containers"]
    assert {each["name"]: each["containerPort"] for each in container["ports"]} == listening
    exposed = find_one(default, "Service", PROXY)["spec"]["ports"]
    assert {each["name"]: each["port"] for each in exposed} == {"http": 8000, "grpc": 8001}
    assert str(settings["admin"]["address"]["socket_address"]["port_value"]) in str(
        container["lifecycle"]
    )


def test_a_proxy_that_goes_drains_within_its_grace_period(all_on):
    pod = find_one(all_on, "Deployment", PROXY)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    seconds = int(container["args"][container["args"].index("--drain-time-s") + 1])
    assert f"sleep {seconds}" in container["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert pod["terminationGracePeriodSeconds"] >= seconds + 10


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_proxy_that_drains_serves_on(tools, default, tmp_path, protocol):
    (container,) = find_one(default, "Deployment", PROXY)["spec"]["template"]["spec"]["containers"]
    command = container["lifecycle"]["preStop"]["exec"]["command"]
    with ExitStack() as running:
        servers = [running.enter_context(EchoServer(HOST, *choose_ports(3))) for _ in range(2)]
        envoy = running.enter_context(Envoy(tools, servers, tmp_path))
        envoy.wait_until_up(2)
        script = command[-1].replace("9901", str(envoy.admin_port)).replace("sleep 15", "sleep 2")
        (way,) = (each for each in envoy.ways if each.protocol == protocol)
        with subprocess.Popen(
            [*command[:-1], script], stdout=subprocess.PIPE, text=True
        ) as draining:
            while draining.poll() is None:
                assert count_statuses(ask_all(way, 20, at_once=4)) == {"OK": 20}
            text = draining.communicate()[0]
        assert draining.returncode == 0
        assert text.startswith("HTTP/1.1 200 OK"), text


@pytest.mark.parametrize(
    ("options", "front"), [([], PROXY), (["--set", "proxy.enabled=false"], SERVERS)]
)
def test_who_comes_from_outside_is_led_to_the_proxies(tools, options, front):
    documents = render(tools.helm, "--values", str(ALL_ON), *options)
    ports = {
        each["name"]: each["port"]
        for each in find_one(documents, "Service", front)["spec"]["ports"]
    }
    for kind, protocol in (("HTTPRoute", "http"), ("GRPCRoute", "grpc")):
        (rule,) = find_one(documents, kind)["spec"]["rules"]
        assert rule["backendRefs"] == [{"name": front, "port": ports[protocol]}]
        (parent,) = find_one(documents, kind)["spec"]["parentRefs"]
        assert parent == {"name": "public", "namespace": "gateways"}
    for protocol in ports:
        spec = find_one(documents, "Ingress", f"{SERVERS}-{protocol}")["spec"]
        (path,) = spec["rules"][0]["http"]["paths"]
        assert path["backend"]["service"] == {"name": front, "port": {"name": protocol}}
        assert spec["tls"][0]["hosts"] == [spec["rules"][0]["host"]]
    (pod,) = (each for each in documents if each["kind"] == "Pod")
    assert f"http://{front}:8000" in pod["spec"]["containers"][0]["args"]


def test_grafana_and_the_operator_find_the_dashboard_and_the_proxies(all_on):
    dashboard = find_one(all_on, "ConfigMap", f"{SERVERS}-dashboard")
    assert dashboard["metadata"]["labels"]["grafana_dashboard"] == "1"
    (text,) = dashboard["data"].values()
    assert json.loads(text) == json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
    monitor = find_one(all_on, "PodMonitor")
    labels = find_one(all_on, "Deployment", PROXY)["spec"]["template"]["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert monitor["spec"]["podMetricsEndpoints"][0]["path"] == "/stats/prometheus"


def test_keda_asks_for_series_that_exist_in_the_place_of_the_other_autoscaler(tools):
    documents = render(tools.helm, *KEDA)
    assert not [each for each in documents if each["kind"] == "HorizontalPodAutoscaler"]
    spec = find_one(documents, "ScaledObject")["spec"]
    assert spec["scaleTargetRef"] == {"name": SERVERS}
    assert len(spec["triggers"]) == 2
    for trigger in spec["triggers"]:
        asked = find_metrics(trigger["metadata"]["query"])
        assert asked <= TRITON_METRICS | BACKEND_METRICS | PROXY_METRICS


class _Model(BaseHTTPRequestHandler):
    """Server of one model, which rejects inputs that are not in its metadata."""

    asked: list[str]

    def do_GET(self) -> None:
        answers = {
            "/v2/health/ready": None,
            "/v2/models/m": {"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]},
        }
        self._answer(200 if self.path in answers else 404, answers.get(self.path))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        wanted = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 3], "data": [0, 0, 0]}]}
        self._answer(200 if body == wanted else 400, {"outputs": [{"name": "y"}]})

    def _answer(self, status: int, value: object) -> None:
        text = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(("model", "status"), [("m", 0), ("missing", 1)])
def test_the_chart_s_test_asks_for_readiness_and_an_answer(default, model, status):
    (pod,) = (each for each in default if each["kind"] == "Pod")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (container,) = pod["spec"]["containers"]
    assert container["command"] == ["python3", "-c"]
    script = container["args"][0]
    assert script.strip() == (CHART / "files" / "ask.py").read_text().strip()
    with ThreadingHTTPServer(("127.0.0.1", 0), _Model) as server:
        threading.Thread(target=server.serve_forever, args=[0.05], daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        done = subprocess.run(
            [Path(sys.executable), "-c", script, url, model],
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        server.shutdown()
    assert done.returncode == status, done.stderr
    assert ("model m: answered ['y']" in done.stdout) == (status == 0)
