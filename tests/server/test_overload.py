"""More requests than the server computes, over gRPC.

With deadlines its answers stay in time, and without deadlines no request is rejected.
"""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest
import tritonclient.http as httpclient
from triton_clients import read_metric
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException
from waiting import wait_until

pytestmark = pytest.mark.timed

REQUEST = service_pb2.ModelInferRequest(
    model_name="slow",
    inputs=[{"name": "x", "datatype": "FP32", "shape": [1, 4]}],
    raw_input_contents=[np.ones(4, np.float32).tobytes()],
)
OFFERED_PER_SECOND = 320
DEADLINE_SECONDS = 0.5
TIMEOUT_MICROSECONDS = 1_000
"""Timeout that a request exceeds if it waits for a call of 50 ms."""


def read_drained(slow_server):
    """Return the number of requests that the metrics count as rejected with a backlog."""
    return read_metric(slow_server.metrics_url, "poplar_errors_total", model="slow", kind="drained")


def test_clients_without_deadlines_wait_and_are_never_refused(slow_server):
    with grpc.insecure_channel(slow_server.grpc_url) as channel, ThreadPoolExecutor(48) as pool:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        codes = pool.map(lambda _: stub.ModelInfer.future(REQUEST).code().name, range(144))
        assert Counter(codes) == {"OK": 144}


def test_a_request_that_waits_longer_than_its_own_timeout_is_refused_and_others_wait(slow_server):
    hasty = service_pb2.ModelInferRequest()
    hasty.CopyFrom(REQUEST)
    hasty.parameters["timeout"].int64_param = TIMEOUT_MICROSECONDS
    with grpc.insecure_channel(slow_server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        calls = [stub.ModelInfer.future([REQUEST, hasty][number % 2]) for number in range(32)]
        assert Counter(call.code().name for call in calls[::2]) == {"OK": 16}
        assert Counter(call.code().name for call in calls[1::2])["UNAVAILABLE"] >= 4


def test_so_is_one_over_http(slow_server):
    tensor = httpclient.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 4), np.float32))
    with httpclient.InferenceServerClient(slow_server.http_url, concurrency=24) as client:
        calls = [
            client.async_infer("slow", [tensor], timeout=[None, TIMEOUT_MICROSECONDS][n % 2])
            for n in range(24)
        ]
        for call in calls[::2]:
            call.get_result()
        refusals = 0
        for call in calls[1::2]:
            try:
                call.get_result()
            except InferenceServerException as error:
                refusals += "timeout expired" in str(error)
        assert refusals >= 1


def test_under_overload_answers_stay_in_time_and_the_metrics_say_what_was_refused(slow_server):
    with grpc.insecure_channel(slow_server.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        start, calls = time.monotonic(), []
        while (passed := time.monotonic() - start) < 4:
            for _ in range(len(calls), int(passed * OFFERED_PER_SECOND)):
                calls.append(stub.ModelInfer.future(REQUEST, timeout=DEADLINE_SECONDS))
            time.sleep(0.005)
        codes = [call.code().name for call in calls]
    # Without a drain nothing is answered after the first second.
    late = Counter(codes[len(codes) // 2 :])
    assert late["OK"] >= 10, late
    assert Counter(codes)["UNAVAILABLE"] > 0
    time.sleep(0.5)
    with grpc.insecure_channel(slow_server.grpc_url) as channel, ThreadPoolExecutor(48) as pool:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        codes = pool.map(lambda _: stub.ModelInfer.future(REQUEST).code().name, range(96))
        assert Counter(codes) == {
            "OK": 96
        }  # clients in closed loops come back, and none is refused
    wait_until(lambda: read_drained(slow_server) > 0, "the metrics tell what was refused")
