"""The Helm chart: its rendered files are valid for Kubernetes and consistent."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml
from deploy_files import (
    ALERTS,
    ALL_ON,
    CHART,
    HELM_SECONDS,
    ROOT,
    find_one,
    find_option,
    iter_leaves,
    render,
)

SERVERS = "test-poplar-triton"
ALWAYS = [
    "Deployment", "NetworkPolicy", "Pod", "PodDisruptionBudget", "Service", "Service", "ServiceAccount"
]  # fmt: skip
OF_PROXIES = ["ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service"]
OPTIONAL = ["ConfigMap", "HorizontalPodAutoscaler", "Ingress", "Ingress"]
OF_OTHERS = [
    "GRPCRoute",
    "HTTPRoute",
    "PodMonitor",
    "PrometheusRule",
    "ScaledObject",
    "ServiceMonitor",
]
"""Kinds without a schema in kubernetes-validate; tests below check them."""
OLDEST, NEWEST = "1.27", "1.37"
"""Version of Kubernetes that Chart.yaml requires, and the newest version with a schema."""
SWITCHES_OFF = (
    "podDisruptionBudget.enabled=false",
    "networkPolicy.enabled=false",
    "proxy.enabled=false",
    "serviceAccount.create=false",
    "topologyKeys=null",
)


@pytest.fixture(scope="module", params=["default", "all on"])
def rendered(tools, request):
    return render(tools.helm, *(["--values", str(ALL_ON)] if request.param == "all on" else []))


@pytest.fixture(scope="module")
def all_on(tools):
    return render(tools.helm, "--values", str(ALL_ON))


def pod_of(documents):
    return find_one(documents, "Deployment", SERVERS)["spec"]["template"]["spec"]


def container_of(documents):
    (container,) = pod_of(documents)["containers"]
    return container


def validate(documents, version):
    for document in documents:
        if document["kind"] not in OF_OTHERS:
            kubernetes_validate.validate(document, version, strict=True)


def test_helm_lint_finds_nothing(tools):
    for options in ([], ["--values", ALL_ON]):
        subprocess.run(
            [tools.helm, "lint", "--strict", CHART, *options], check=True, timeout=HELM_SECONDS
        )


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_object_is_valid_to_the_last_field(rendered, version):
    validate(rendered, version)


def test_rendered_chart_passes_the_validating_command(tools, tmp_path):
    file = tmp_path / "rendered.yaml"
    command = [tools.helm, "template", "test", CHART]
    file.write_bytes(
        subprocess.run(command, capture_output=True, check=True, timeout=HELM_SECONDS).stdout
    )
    validating = Path(sys.executable).with_name("kubernetes-validate")
    subprocess.run([validating, "--strict", file], check=True, timeout=HELM_SECONDS)


def test_a_planted_error_is_found(tools, tmp_path):
    chart = tmp_path / "chart"
    shutil.copytree(CHART, chart)
    template = chart / "templates" / "deployment.yaml"
    template.write_text(template.read_text().replace("maxSurge:", "maxSurgee:"))
    with pytest.raises(kubernetes_validate.ValidationError, match="maxSurgee"):
        validate(render(tools.helm, chart=chart), NEWEST)


def test_optional_objects_can_be_switched_on(tools, all_on):
    assert sorted(each["kind"] for each in render(tools.helm)) == sorted(ALWAYS + OF_PROXIES)
    others = set(OF_OTHERS) - {"ScaledObject"}
    assert sorted(each["kind"] for each in all_on) == sorted(
        [*ALWAYS, *OF_PROXIES, *OPTIONAL, *others]
    )
    least = render(tools.helm, *(word for each in SWITCHES_OFF for word in ("--set", each)))
    validate(least, NEWEST)
    assert sorted(each["kind"] for each in least) == ["Deployment", "Pod", "Service", "Service"]
    assert "topologySpreadConstraints" not in pod_of(least)
    assert pod_of(least)["serviceAccountName"] == "default"


@pytest.mark.parametrize(
    "wrong",
    [
        "supervisor.drainSecond=3",
        "supervisor.drainSeconds=-1",
        "supervisor.onDeadStub=heal",
        "models.url=http://store/models",
        "models.existingClaim=",
        "replicaCount=two",
        "image.digest=sha256:12",
        "sharedMemory.size=lots",
        "tritonOptions[0]=log-verbose",
        "autoscaling.metrics={}",
        "autoscaling.metrics[0].nam=x",
        "autoscaling.keda.serverAddress=prometheus",
        "proxy.replicas=0",
        "proxy.serverRequests=many",
        "ingress.http.host=a b",
        "gateway.enabled=true",
        "test.models=m",
        "networkPolicy.clients=everybody",
        "probes.startup.seconds=10",
        "more.of=it",
    ],
)
def test_a_wrong_value_is_refused_by_name(tools, wrong):
    with pytest.raises(subprocess.CalledProcessError) as refused:
        render(tools.helm, "--set", wrong)
    first = re.split(r"[.\[=]", wrong)[0]
    assert re.search(
        rf"don't meet the specifications of the schema[\s\S]*{first}", refused.value.stderr
    )


def test_the_schema_has_every_value_and_no_other():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    jsonschema.Draft7Validator.check_schema(schema)

    def compare(given, described, path):
        if "properties" not in described:
            return
        assert described["additionalProperties"] is False, path
        assert given.keys() == described["properties"].keys() - {"global"}, path
        for name, value in given.items():
            compare(value, described["properties"][name], (*path, name))

    compare(values, schema, ())


def test_every_value_is_explained():
    """Each paragraph of values.yaml begins with a comment."""
    text = (CHART / "values.yaml").read_text()
    paragraphs = text.strip().split("\n\n")
    assert [each for each in paragraphs if not each.startswith("# ")] == []
    keys = {
        line.split(":")[0].strip() for line in text.splitlines() if not line.strip().startswith("#")
    }
    assert {name for path in iter_leaves(yaml.safe_load(text)) for name in path} <= keys


def test_no_pod_is_taken_away_before_another_is_ready(rendered):
    strategy = find_one(rendered, "Deployment", SERVERS)["spec"]["strategy"]
    assert strategy == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
    }


def test_all_probes_ask_the_supervisor(rendered):
    container = container_of(rendered)
    asked = {
        kind: container[kind]["httpGet"]
        for kind in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    assert asked == {
        "startupProbe": {"path": "/ready", "port": "health"},
        "readinessProbe": {"path": "/ready", "port": "health"},
        "livenessProbe": {"path": "/live", "port": "health"},
    }
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    for name, port in ports.items():
        assert find_option(container["args"], f"--{name}-port") == str(port)
    assert find_option(container["args"], "--health-address") == "0.0.0.0"


def test_a_slow_load_ends_no_pod_and_no_rollout(rendered):
    """The supervisor gives up first and logs the reason."""
    container = container_of(rendered)
    start = int(find_option(container["args"], "--start-seconds"))
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] > start
    assert find_one(rendered, "Deployment", SERVERS)["spec"]["progressDeadlineSeconds"] > start + 60


@pytest.mark.parametrize(("drain", "most", "timeout"), [(0, 0, 1), (10, 60, 30), (120, 60, 600)])
def test_the_grace_period_covers_drain_and_stop(tools, drain, most, timeout):
    values = {"drainSeconds": drain, "maxDrainSeconds": most, "exitTimeoutSeconds": timeout}
    documents = render(
        tools.helm,
        *("--set", ",".join(f"supervisor.{name}={value}" for name, value in values.items())),
    )
    arguments = container_of(documents)["args"]
    assert find_option(arguments, "--drain-seconds") == str(drain)
    most = max(drain, most)
    assert find_option(arguments, "--max-drain-seconds") == str(most)
    assert find_option(arguments, "--exit-timeout-secs") == str(timeout)
    # 15 s: poplar_triton.serving.server.STOP_MARGIN_SECONDS
    assert pod_of(documents)["terminationGracePeriodSeconds"] >= most + timeout + 15 + 5


def test_shared_memory_is_a_volume_of_its_own_size(rendered):
    pod = pod_of(rendered)
    mounts = {each["mountPath"]: each["name"] for each in container_of(rendered)["volumeMounts"]}
    volumes = {each["name"]: each for each in pod["volumes"]}
    assert volumes[mounts["/dev/shm"]]["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}
    assert volumes[mounts["/tmp"]]["emptyDir"] == {"sizeLimit": "10Gi"}
    assert set(mounts.values()) == volumes.keys()


def test_models_come_from_a_claim_or_a_store(tools, all_on):
    claim = render(tools.helm, "--set", "models.existingClaim=mine,models.subPath=a/b")
    assert container_of(claim)["args"][0] == "/models"
    (volume,) = (each for each in pod_of(claim)["volumes"] if each["name"] == "models")
    assert volume["persistentVolumeClaim"] == {"claimName": "mine", "readOnly": True}
    (mount,) = (each for each in container_of(claim)["volumeMounts"] if each["name"] == "models")
    assert mount == {"name": "models", "mountPath": "/models", "readOnly": True, "subPath": "a/b"}
    assert "envFrom" not in container_of(claim)
    store = container_of(all_on)
    assert store["args"][0] == "s3://https://store.example:9000/bucket/models"
    assert store["envFrom"] == [{"secretRef": {"name": "store"}}]
    assert "models" not in [each["name"] for each in pod_of(all_on)["volumes"]]


def test_the_pod_may_do_next_to_nothing(rendered):
    pod, container = pod_of(rendered), container_of(rendered)
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False


def test_management_apis_require_a_key(rendered):
    apis = "model-repository,shared-memory,trace,logging:admin-key=$(ADMIN_KEY)"
    container = container_of(rendered)
    for option in ("--http-restricted-api", "--grpc-restricted-protocol"):
        assert find_option(container["args"], option) == apis
    (key,) = (each["valueFrom"] for each in container["env"] if each["name"] == "ADMIN_KEY")
    assert key in (
        {"fieldRef": {"fieldPath": "metadata.uid"}},
        {"secretKeyRef": {"name": "administration", "key": "key"}},
    )


def test_all_select_the_same_pods(rendered):
    deployment = find_one(rendered, "Deployment", SERVERS)["spec"]
    wanted = deployment["selector"]["matchLabels"]
    assert wanted.items() <= deployment["template"]["metadata"]["labels"].items()
    for name in ("test-poplar-triton", "test-poplar-triton-headless"):
        assert find_one(rendered, "Service", name)["spec"]["selector"] == wanted
    assert (
        find_one(rendered, "PodDisruptionBudget", SERVERS)["spec"]["selector"]["matchLabels"]
        == wanted
    )
    assert (
        find_one(rendered, "NetworkPolicy", SERVERS)["spec"]["podSelector"]["matchLabels"] == wanted
    )
    for constraint in deployment["template"]["spec"]["topologySpreadConstraints"]:
        assert constraint["labelSelector"]["matchLabels"] == wanted


def test_metrics_and_health_are_reached_by_who_is_named_only(all_on):
    policy = find_one(all_on, "NetworkPolicy", SERVERS)["spec"]
    let_in = [
        ([each["port"] for each in rule["ports"]], rule["from"]) for rule in policy["ingress"]
    ]
    here = [{"podSelector": {}}]
    monitoring = [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    ]
    assert let_in == [
        (["http", "grpc"], here),
        (["health"], here),
        (["metrics", "health"], monitoring),
    ]
    assert policy["policyTypes"] == ["Ingress"]
    exposed = find_one(all_on, "Service", "test-poplar-triton")["spec"]["ports"]
    assert [each["name"] for each in exposed] == ["http", "grpc"]


def test_an_empty_list_of_peers_admits_no_client(tools):
    peers = ("clients", "checkers", "monitoring")
    documents = render(
        tools.helm, "--set-json", ",".join(f"networkPolicy.{each}=[]" for each in peers)
    )
    assert not find_one(documents, "NetworkPolicy", SERVERS)["spec"]["ingress"]


def test_replicas_are_left_to_the_autoscaler(all_on):
    assert "replicas" not in find_one(all_on, "Deployment", SERVERS)["spec"]
    scaler = find_one(all_on, "HorizontalPodAutoscaler")
    assert scaler["apiVersion"] == "autoscaling/v2"
    metrics = [each["pods"]["metric"]["name"] for each in scaler["spec"]["metrics"]]
    assert metrics == ["poplar_queue_seconds"]


def test_the_service_monitor_finds_both_pages_of_every_pod(all_on):
    monitor = find_one(all_on, "ServiceMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    headless = find_one(all_on, "Service", "test-poplar-triton-headless")
    plain = find_one(all_on, "Service", "test-poplar-triton")
    selected = monitor["spec"]["selector"]["matchLabels"].items()
    assert selected <= headless["metadata"]["labels"].items()
    assert not selected <= plain["metadata"]["labels"].items()
    ports = {each["name"] for each in headless["spec"]["ports"]}
    assert {each["port"] for each in monitor["spec"]["endpoints"]} == {"metrics", "health"} <= ports
    assert headless["spec"]["clusterIP"] == "None"


def test_the_operator_gets_the_very_rules(all_on):
    rules = find_one(all_on, "PrometheusRule")
    assert rules["spec"] == yaml.safe_load(ALERTS.read_text())


def test_the_chart_has_the_version_of_the_project():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == (ROOT / "popef" / "VERSION").read_text().strip()


def test_names_of_any_length_are_names(tools):
    documents = render(tools.helm, "--set", f"fullnameOverride={'n' * 80}")
    assert max(len(each["metadata"]["name"]) for each in documents) <= 63
