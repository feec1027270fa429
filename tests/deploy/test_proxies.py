"""HAProxy and Envoy with the files of `deploy/`.

The files are valid and work for servers that share one name; they admit only what they name.
"""

import http.client
import os
import re
import ssl
import subprocess
from contextlib import ExitStack

import grpc
import pytest
import trustme
import yaml
from deploy_files import DEPLOY
from fleet.proxies import set_admin_port
from named_servers import METHOD, NAME, EchoServer, NameServer
from server_processes import HOST, Program, choose_ports
from waiting import wait_until

SECONDS = 60
ADDRESSES = ["127.0.0.1", "127.0.0.2"]
FIXED = {
    f"SERVER_{number}_{what}": value
    for number in (1, 2)
    for what, value in (
        ("HTTP", f"10.0.0.{number}:8000"),
        ("GRPC", f"10.0.0.{number}:8001"),
        ("HEALTH", "8003"),
    )
}
CARES = "envoy.extensions.network.dns_resolver.cares"
OPEN_PATHS = [
    "/v2",
    "/v2/health/live",
    "/v2/health/ready",
    "/v2/models/m",
    "/v2/models/m/infer",
    "/v2/models/m/generate_stream",
    "/v2/models/m/versions/2/infer",
    "/v2/models/m/versions/2/stats",
    "/v2/models/m/config",
    "/v2/models/m%20n/ready",
]
CLOSED_PATHS = [
    "/",
    "/metrics",
    "/v2/repository/index",
    "/v2/repository/models/m/load",
    "/v2/models/m/versions/1/../../../../repository/index",
    "/v2/models/../repository/index",
    "//v2/repository/index",
    "/v2/models/..%2frepository/index",
    "/v2/models/m/trace/setting",
    "/v2/trace/setting",
    "/v2/logging",
    "/v2/systemsharedmemory/region/a/register",
    "/v2/cudasharedmemory/status",
    "/v2/models/m/infer/",
    "/V2/models/m/infer",
]
SERVICE = "/inference.GRPCInferenceService"
OPEN_METHODS = [
    "/grpc.health.v1.Health/Check",
    f"{SERVICE}/ModelInfer",
    f"{SERVICE}/ModelReady",
    f"{SERVICE}/ModelMetadata",
    f"{SERVICE}/ModelConfig",
    f"{SERVICE}/ModelStatistics",
    f"{SERVICE}/ServerLive",
]
CLOSED_METHODS = [
    "/grpc.health.v1.Health/Watch",
    f"{SERVICE}/RepositoryIndex",
    f"{SERVICE}/RepositoryModelLoad",
    f"{SERVICE}/SystemSharedMemoryRegister",
    f"{SERVICE}/TraceSetting",
    f"{SERVICE}/LogSettings",
]


def check_haproxy(tools, file, environment):
    return subprocess.run(
        [tools.haproxy, "-c", "-f", file],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Return the certificate file of a server and the file that its clients trust."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    authority.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    authority.cert_pem.write_to_path(folder / "authority.pem")
    return folder / "server.pem", folder / "authority.pem"


@pytest.mark.parametrize(
    "more", [FIXED, {"SERVICE": NAME}, {"SERVICE": NAME, "DNS_SERVER": "127.0.0.1:53"}]
)
@pytest.mark.parametrize("encrypted", [False, True])
def test_haproxy_takes_its_configuration(tools, certificate, more, encrypted):
    tls = {"TLS_CERTIFICATE": str(certificate[0])} if encrypted else {}
    done = check_haproxy(tools, DEPLOY / "haproxy.cfg", {**more, **tls})
    assert (done.returncode, re.findall(r"WARNING|ALERT", done.stdout + done.stderr)) == (0, [])


def test_haproxy_without_servers_or_with_a_planted_error_refuses(tools, tmp_path):
    assert check_haproxy(tools, DEPLOY / "haproxy.cfg", {}).returncode != 0
    wrong = tmp_path / "haproxy.cfg"
    wrong.write_text((DEPLOY / "haproxy.cfg").read_text().replace("retry-on", "retry-onn"))
    assert "retry-onn" in check_haproxy(tools, wrong, FIXED).stderr


def validate_envoy(tools, file):
    return subprocess.run(
        [tools.envoy, "--mode", "validate", "-c", file],
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )


def test_envoy_takes_its_configuration_and_finds_nothing_deprecated(tools):
    done = validate_envoy(tools, DEPLOY / "envoy.yaml")
    assert (done.returncode, re.findall(r"\[(?:warning|error|critical)\].*", done.stderr)) == (
        0,
        [],
    )


def test_envoy_refuses_a_planted_error(tools, tmp_path):
    wrong = tmp_path / "envoy.yaml"
    wrong.write_text((DEPLOY / "envoy.yaml").read_text().replace("num_retries", "num_retriess", 1))
    done = validate_envoy(tools, wrong)
    assert done.returncode != 0
    assert "num_retriess" in done.stderr


def make_haproxy(tools, folder, names, ports, servers, certificate):
    environment = {
        "SERVICE": NAME,
        "DNS_SERVER": f"{HOST}:{names.port}",
        "LISTEN_ADDRESS": HOST,
        **{
            f"LISTEN_{what}": str(port)
            for what, port in zip(("HTTP", "GRPC", "METRICS"), ports, strict=True)
        },
        "SERVICE_HTTP": str(servers[0].http_port),
        "SERVICE_GRPC": str(servers[0].grpc_port),
        "SERVICE_HEALTH": str(servers[0].health_port),
        "TLS_CERTIFICATE": str(certificate),
    }
    return Program(
        "haproxy", [tools.haproxy, "-db", "-f", DEPLOY / "haproxy.cfg"], folder, environment
    )


def make_envoy(tools, folder, names, ports, servers):
    """Return an Envoy program whose file has this machine's ports, addresses and name server."""
    text = (DEPLOY / "envoy.yaml").read_text()
    there = servers[0]
    for before, after in (
        ("address: 0.0.0.0, port_value: 8000", f"address: {HOST}, port_value: {ports[0]}"),
        ("address: 0.0.0.0, port_value: 8001", f"address: {HOST}, port_value: {ports[1]}"),
        ("address: 0.0.0.0, port_value: 9902", f"address: {HOST}, port_value: {ports[2]}"),
        (f"address: {NAME}, port_value: 8000", f"address: {NAME}, port_value: {there.http_port}"),
        (f"address: {NAME}, port_value: 8001", f"address: {NAME}, port_value: {there.grpc_port}"),
        ("port_value: 8003", f"port_value: {there.health_port}"),
    ):
        assert before in text
        text = text.replace(before, after)
    settings = yaml.safe_load(text)
    set_admin_port(settings, *choose_ports(1))
    settings["typed_dns_resolver_config"] = {
        "name": "envoy.network.dns_resolver.cares",
        "typed_config": {
            "@type": f"type.googleapis.com/{CARES}.v3.CaresDnsResolverConfig",
            "resolvers": [
                {"socket_address": {"address": HOST, "port_value": names.port, "protocol": "UDP"}}
            ],
        },
    }
    file = folder / "envoy.yaml"
    file.write_text(yaml.safe_dump(settings))
    return Program("envoy", [tools.envoy, "-c", file, "--disable-hot-restart"], folder)


class Proxied:
    """Servers that share one name, behind a proxy."""

    def __init__(self, proxy, names, servers, ports, authority):
        self.proxy, self.names, self.servers = proxy, names, servers
        self._http_port, self._authority = ports[0], authority
        target = f"{HOST}:{ports[1]}"
        if authority is None:
            self.channel = grpc.insecure_channel(target)
        else:
            self.channel = grpc.secure_channel(
                target, grpc.ssl_channel_credentials(authority.read_bytes())
            )

    def ask_http(self, path, body=b"x"):
        if self._authority is None:
            connection = http.client.HTTPConnection(HOST, self._http_port, timeout=SECONDS)
        else:
            context = ssl.create_default_context(cafile=self._authority)
            connection = http.client.HTTPSConnection(
                HOST, self._http_port, timeout=SECONDS, context=context
            )
        try:
            connection.request("POST", path, body)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def ask_grpc(self, method=METHOD):
        try:
            return "OK", self.channel.unary_unary(method)(b"x", timeout=SECONDS).decode()
        except grpc.RpcError as error:
            return error.code().name, ""

    def reached(self):
        """Return who answers over each protocol; each server gives some of twelve answers."""
        try:
            over_http = {self.ask_http("/v2/models/m/infer") for _ in range(12)}
        except OSError:
            return set(), set()
        over_grpc = {self.ask_grpc() for _ in range(12)}
        return {who for status, who in over_http if status == 200}, {
            who for _, who in over_grpc if who
        }

    def wait_for(self, addresses):
        wanted = set(addresses)
        wait_until(
            lambda: self.reached() == (wanted, wanted),
            f"{self.proxy.name} asks {wanted}; see {self.proxy.log}",
        )


@pytest.fixture(scope="module", params=["haproxy", "envoy"])
def proxied(tools, request, certificate, tmp_path_factory):
    folder = tmp_path_factory.mktemp("proxied")
    ports, there = choose_ports(3), choose_ports(3)
    server_file, authority = certificate
    with ExitStack() as stack:
        names = stack.enter_context(NameServer(ADDRESSES))
        servers = [stack.enter_context(EchoServer(address, *there)) for address in ADDRESSES]
        if request.param == "haproxy":
            proxy = make_haproxy(tools, folder, names, ports, servers, server_file)
        else:
            proxy, authority = make_envoy(tools, folder, names, ports, servers), None
        stack.enter_context(proxy)
        proxied = Proxied(proxy, names, servers, ports, authority)
        stack.callback(proxied.channel.close)
        proxied.wait_for(ADDRESSES)
        yield proxied


def test_every_server_of_the_name_is_asked_and_none_that_has_left_it(proxied):
    try:
        proxied.names.addresses = ADDRESSES[:1]
        proxied.wait_for(ADDRESSES[:1])
    finally:
        proxied.names.addresses = ADDRESSES
    proxied.wait_for(ADDRESSES)


@pytest.mark.parametrize("index", [0, 1])
def test_a_server_that_is_not_ready_is_not_asked(proxied, index):
    server = proxied.servers[index]
    try:
        server.is_ready = False
        proxied.wait_for([ADDRESSES[1 - index]])
    finally:
        server.is_ready = True
    proxied.wait_for(ADDRESSES)


def test_allowed_paths_pass_unchanged(proxied):
    for server in proxied.servers:
        server.asked.clear()
    assert {path: proxied.ask_http(path)[0] for path in OPEN_PATHS} == dict.fromkeys(
        OPEN_PATHS, 200
    )
    asked = [path for server in proxied.servers for path in server.asked]
    assert sorted(asked) == sorted(OPEN_PATHS)
    assert {method: proxied.ask_grpc(method)[0] for method in OPEN_METHODS} == dict.fromkeys(
        OPEN_METHODS, "OK"
    )


def test_other_paths_are_refused_by_the_proxy(proxied):
    for server in proxied.servers:
        server.asked.clear()
    assert {proxied.ask_http(path)[0] for path in CLOSED_PATHS} <= {400, 403}
    assert [server.asked for server in proxied.servers] == [[], []]
    assert {proxied.ask_grpc(method)[0] for method in CLOSED_METHODS} == {"PERMISSION_DENIED"}
