"""grpc.health.v1 over a socket, asked by our messages and by gRPC's own health client."""

import json
from contextlib import contextmanager
from types import SimpleNamespace

import grpc
import pytest
from poplar_triton.tfserving import messages_pb2 as messages
from poplar_triton.tfserving.grpc_service import Health, make_handlers
from poplar_triton.tfserving.threads import Threads
from poplar_triton.tfserving.unfinished import UnfinishedCalls
from rest_servers import make_models, wait_for
from tfserving_clients import STATUS, make_spec, refused
from waiting import PATIENCE_SECONDS

SERVING, NOT_SERVING, SERVICE_UNKNOWN = 1, 2, 3
SERVICE = "tensorflow.serving.PredictionService"


@contextmanager
def serve(**limits):
    """Start a server in state SERVING and yield it with its health service."""
    threads = Threads("health of a test")
    unfinished = UnfinishedCalls(threads)
    health = Health(unfinished, **limits)
    health.set_serving(True)
    handlers = make_handlers(make_models(), lambda *_: None, health, unfinished, as_content=False)
    server = grpc.server(threads, handlers)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield SimpleNamespace(health=health, threads=threads, url=f"127.0.0.1:{port}")
    finally:
        health.close()
        server.stop(None).wait(PATIENCE_SECONDS)
        threads.shutdown()


@pytest.fixture
def served():
    with serve() as running:
        yield running


@contextmanager
def connect(served, config=None):
    options = [("grpc.use_local_subchannel_pool", 1)]
    if config is not None:
        options.append(("grpc.service_config", json.dumps(config)))
    with grpc.insecure_channel(served.url, options) as channel:
        yield channel


def check(channel, service):
    request = messages.HealthCheckRequest(service=service).SerializeToString()
    answer = channel.unary_unary("/grpc.health.v1.Health/Check")(request, timeout=PATIENCE_SECONDS)
    return messages.HealthCheckResponse.FromString(answer).status


def watch(channel, service=""):
    """Return the stream of statuses that the health service reports."""
    request = messages.HealthCheckRequest(service=service).SerializeToString()
    return channel.unary_stream(
        "/grpc.health.v1.Health/Watch", response_deserializer=lambda data: read(data)
    )(request, timeout=PATIENCE_SECONDS)


def read(data):
    return messages.HealthCheckResponse.FromString(data).status


@pytest.mark.parametrize("service", ["", SERVICE, "ModelService"])
def test_a_check_says_whether_the_server_serves(served, service):
    with connect(served) as channel:
        assert check(channel, service) == SERVING
        served.health.set_serving(False)
        assert check(channel, service) == NOT_SERVING


def test_a_check_of_a_service_that_is_not_known_is_not_found(served):
    with connect(served) as channel, refused("NOT_FOUND", "'x.Y' is not known", SERVICE):
        check(channel, "x.Y")


def test_a_watcher_is_notified_at_once_and_at_each_change(served):
    with connect(served) as channel:
        watches = [watch(channel), watch(channel, SERVICE)]
        assert [next(each) for each in watches] == [SERVING] * 2
        served.health.set_serving(True)  # no change
        served.health.set_serving(False)
        assert [next(each) for each in watches] == [NOT_SERVING] * 2
        served.health.set_serving(True)
        assert [next(each) for each in watches] == [SERVING] * 2


def test_who_watches_a_service_that_is_not_known_stays(served):
    with connect(served) as channel:
        watched = watch(channel, "x.Y")
        assert next(watched) == SERVICE_UNKNOWN
        served.health.set_serving(False)
        assert watched.is_active()
        served.health.close()
        assert list(watched) == []
        assert watched.code() is grpc.StatusCode.OK


def test_watches_take_no_threads_and_end_with_their_clients(served):
    with connect(served) as channel:
        watches = [watch(channel) for _ in range(50)]
        assert {next(each) for each in watches} == {SERVING}
        assert len(served.health._watches) == 50
        assert check(channel, "") == SERVING
        assert len(served.threads._threads) < 20
    assert wait_for(lambda: len(served.health._watches) == 0)


def test_above_the_limit_the_oldest_watch_ends():
    with serve(max_watches=2) as served, connect(served) as channel:
        watches = []
        for _ in range(3):
            watches.append(watch(channel))
            assert next(watches[-1]) == SERVING
        assert wait_for(lambda: watches[0].code() is grpc.StatusCode.CANCELLED)
        served.health.set_serving(False)
        assert [next(each) for each in watches[1:]] == [NOT_SERVING] * 2


def test_the_health_client_of_grpc_sends_requests_while_the_server_serves(served):
    config = {
        "loadBalancingConfig": [{"round_robin": {}}],
        "healthCheckConfig": {"serviceName": SERVICE},
    }
    request = messages.GetModelStatusRequest(model_spec=make_spec("half")).SerializeToString()
    with connect(served, config) as channel:
        ask = channel.unary_unary(STATUS)

        def is_refused():
            try:
                ask(request, timeout=PATIENCE_SECONDS)
            except grpc.RpcError as error:
                return error.code() is grpc.StatusCode.UNAVAILABLE
            return False

        assert not is_refused()
        served.health.set_serving(False)
        assert wait_for(is_refused)
        served.health.set_serving(True)
        assert wait_for(lambda: not is_refused())
