"""More requests than the server computes, over gRPC: with deadlines its answers stay in time, and without
them nobody is refused."""

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
from triton_clients import read_metric
from tritonclient.grpc import service_pb2, service_pb2_grpc

REQUEST = service_pb2.ModelInferRequest(
    model_name="slow",
    inputs=[{"name": "x", "datatype": "FP32", "shape": [1, 4]}],
    raw_input_contents=[np.ones(4, np.float32).tobytes()],
)
OFFERED_PER_SECOND = 320
DEADLINE_SECONDS = 0.5


def read_drained(server):
    """The requests that the metrics say were refused with a backlog."""
    return read_metric(server.metrics_url, "poplar_errors_total", model="slow", kind="drained")


def test_clients_without_deadlines_wait_and_are_never_refused(server):
    with grpc.insecure_channel(server.grpc_url) as channel, ThreadPoolExecutor(48) as pool:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        codes = pool.map(lambda _: stub.ModelInfer.future(REQUEST).code().name, range(144))
        assert Counter(codes) == {"OK": 144}


def test_under_overload_answers_stay_in_time_and_the_metrics_say_what_was_refused(server):
    with grpc.insecure_channel(server.grpc_url) as channel:
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
    deadline = time.monotonic() + 10
    while not read_drained(server) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert read_drained(server) > 0
