"""The image, Compose and KServe: each starts a supervised server and agrees with the chart."""

import json
import re
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from compose_spec import PyCompose
from deploy_files import DEPLOY, ROOT, find_one, read_documents, render
from poplar_triton.cli import make_parser
from poplar_triton.serving import command as serve
from poplar_triton.serving.options import find_all, find_exit_seconds

SECONDS = 60
VERSION = (ROOT / "popef" / "VERSION").read_text().strip()
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE_FILE = DEPLOY / "compose.yaml"
COMPOSE = yaml.safe_load(COMPOSE_FILE.read_text())
RUNTIME = find_one(
    read_documents((DEPLOY / "kserve" / "servingruntime.yaml").read_text()), "ServingRuntime"
)
INFERENCE = find_one(
    read_documents((DEPLOY / "kserve" / "inferenceservice.yaml").read_text()), "InferenceService"
)
EVERYWHERE = ["--http-address=0.0.0.0", "--grpc-address=0.0.0.0", "--metrics-address=0.0.0.0"]
FIRST_WITHOUT_CLIENT_SHARED_MEMORY = (26, 5)


def read_instruction(name):
    """Return the list of words of an instruction; it must occur once."""
    (found,) = re.findall(rf"^{name}\b[^\[]* (\[.*\])$", DOCKERFILE.replace("\\\n", " "), re.M)
    return json.loads(found)


def parse(arguments):
    """Parse the arguments as `poplar-triton` does; an unknown argument ends the test."""
    own, triton_options = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    parser = make_parser()
    parser.set_defaults(triton_options=triton_options)
    return parser.parse_args(["serve", *own])


@pytest.fixture(params=["image", "chart", "KServe", "Compose"])
def arguments(request, tools):
    """Return the arguments that a deployment passes to `poplar-triton serve`."""
    if request.param == "image":
        return read_instruction("CMD")
    if request.param == "KServe":
        return RUNTIME["spec"]["containers"][0]["args"]
    if request.param == "Compose":
        return COMPOSE["services"]["triton"]["command"]
    (container,) = find_one(render(tools.helm), "Deployment", "test-poplar-triton")["spec"][
        "template"
    ]["spec"]["containers"]
    return container["args"]


def test_the_command_line_is_one_of_ours(arguments):
    options = parse(arguments)
    assert options.run is serve.run
    assert (options.http_port, options.grpc_port, options.metrics_port, options.health_port) == (
        *range(8000, 8004),
    )
    assert options.health_address == "0.0.0.0"
    assert options.on_dead_stub == "reload"
    assert options.restart > 0
    assert options.drain_seconds >= 5
    assert all(option in options.triton_options for option in EVERYWHERE)


@pytest.mark.parametrize(
    ("grace", "command"),
    [
        (
            INFERENCE["spec"]["predictor"]["terminationGracePeriodSeconds"],
            RUNTIME["spec"]["containers"][0]["args"],
        ),
        (
            int(COMPOSE["services"]["triton"]["stop_grace_period"].removesuffix("s")),
            COMPOSE["services"]["triton"]["command"],
        ),
    ],
    ids=["KServe", "Compose"],
)
def test_who_stops_it_waits_for_drain_and_stop(grace, command):
    options = parse(command)
    # 15 s: poplar_triton.serving.server.STOP_MARGIN_SECONDS
    assert grace >= options.drain_seconds + find_exit_seconds(options.triton_options) + 15 + 5


def test_loading_models_requires_a_key(arguments):
    """The key is either one that the user gives or that of the supervisor, which only it knows."""
    options = parse(arguments)
    allowed = serve._allow_reload(options.triton_options, serve.OnDeadStub.RELOAD)
    for name in ("--http-restricted-api", "--grpc-restricted-protocol"):
        (restricted,) = find_all(allowed, name)
        apis, key = restricted.split(":", 1)
        assert "model-repository" in apis.split(",")
        assert re.fullmatch(r"[\w-]+=(\$\(ADMIN_KEY\)|\$\{ADMIN_KEY.*\}|[0-9a-f]{32})", key)


def test_the_image_is_well_made():
    hadolint = Path(sys.executable).with_name("hadolint")
    subprocess.run(
        [hadolint, "--failure-threshold", "style", ROOT / "Dockerfile"], check=True, timeout=SECONDS
    )


def test_the_image_is_of_a_release_that_has_the_fixes():
    named = r"^FROM nvcr\.io/nvidia/tritonserver:(\d+)\.(\d+)-py3 AS triton$"
    (year, month) = re.findall(named, DOCKERFILE, re.M)[0]
    assert (int(year), int(month)) >= FIRST_WITHOUT_CLIENT_SHARED_MEMORY


def test_the_image_starts_the_supervisor_as_an_unprivileged_user():
    assert read_instruction("ENTRYPOINT") == (
        "tini -- poplar-triton serve --server /opt/tritonserver/bin/tritonserver".split()
    )
    assert re.findall(r"^USER (.*)$", DOCKERFILE, re.M) == ["1000:1000"]
    assert read_instruction("HEALTHCHECK")[-1] == "http://127.0.0.1:8003/ready"


def test_compose_takes_its_file_and_refuses_a_planted_error():
    text = COMPOSE_FILE.read_text()
    assert sorted(PyCompose.from_yaml(text).service_names()) == [
        "grafana",
        "haproxy",
        "prometheus",
        "triton",
    ]
    with pytest.raises(ValueError, match="shm_sizee"):
        PyCompose.from_yaml(text.replace("shm_size", "shm_sizee"))


def test_compose_mounts_what_is_there_and_opens_ports_on_this_machine_only():
    for name, service in COMPOSE["services"].items():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (DEPLOY / source).exists(), (name, source)
            else:
                assert source in COMPOSE["volumes"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert "ports" not in COMPOSE["services"]["triton"]
    assert COMPOSE["services"]["haproxy"]["environment"]["SERVICE"] == "triton"


def test_prometheus_scrapes_the_pages_of_compose():
    configuration = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    scraped = {
        (name, asked["port"])
        for job in configuration["scrape_configs"]
        for asked in job.get("dns_sd_configs", [])
        for name in asked["names"]
    }
    options = parse(COMPOSE["services"]["triton"]["command"])
    assert scraped == {("triton", options.metrics_port), ("triton", options.health_port)}


def test_kserve_runs_what_the_chart_runs(tools):
    documents = render(tools.helm)
    pod = find_one(documents, "Deployment", "test-poplar-triton")["spec"]["template"]["spec"]
    (ours,), (theirs,) = pod["containers"], RUNTIME["spec"]["containers"]
    assert theirs["args"] == ["/mnt/models", *ours["args"][1:]]
    assert theirs["env"] == ours["env"]
    assert theirs["resources"] == ours["resources"]
    assert theirs["securityContext"].items() >= ours["securityContext"].items()
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        asked = {**ours[probe], "httpGet": {**ours[probe]["httpGet"], "port": 8003}}
        assert theirs[probe] == asked
    assert (
        INFERENCE["spec"]["predictor"]["terminationGracePeriodSeconds"]
        == pod["terminationGracePeriodSeconds"]
    )
    shared = [each for each in pod["volumes"] if each["name"] == "shared-memory"]
    assert shared[0] in RUNTIME["spec"]["volumes"]
    assert {"name": "shared-memory", "mountPath": "/dev/shm"} in theirs["volumeMounts"]


def test_the_pod_that_kserve_makes_of_it_is_valid():
    """KServe's own kinds have no schema here, but the parts of a pod in them have one."""
    predictor, runtime = INFERENCE["spec"]["predictor"], RUNTIME["spec"]
    pod = {
        "containers": runtime["containers"],
        "volumes": runtime["volumes"],
        "terminationGracePeriodSeconds": predictor["terminationGracePeriodSeconds"],
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "predictor"},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}},
            "strategy": predictor["deploymentStrategy"],
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod},
        },
    }
    kubernetes_validate.validate(deployment, "1.37", strict=True)


def test_kserve_finds_the_runtime_by_its_format():
    model = INFERENCE["spec"]["predictor"]["model"]
    assert model["runtime"] == RUNTIME["metadata"]["name"]
    formats = [(each["name"], each["version"]) for each in RUNTIME["spec"]["supportedModelFormats"]]
    assert (model["modelFormat"]["name"], model["modelFormat"]["version"]) in formats
    assert model["protocolVersion"] in RUNTIME["spec"]["protocolVersions"]


def test_all_name_the_image_of_this_version():
    assert COMPOSE["services"]["triton"]["image"] == f"poplar-triton:{VERSION}"
    assert RUNTIME["spec"]["containers"][0]["image"] == f"poplar-triton:{VERSION}"
    assert f"poplar-triton:{VERSION} ." in DOCKERFILE
