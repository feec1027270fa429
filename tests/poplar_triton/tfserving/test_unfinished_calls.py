"""Clients that open calls over gRPC and send no request: the server ends these calls.

It answers all others.
"""

import threading
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import grpc
import pytest
from http2_calls import open_calls
from poplar_triton.tfserving.settings import MAX_CALLS, MAX_STREAMS
from poplar_triton.tfserving.threads import Threads
from poplar_triton.tfserving.unfinished import UnfinishedCalls
from rest_servers import wait_for
from waiting import PATIENCE_SECONDS

METHOD = "/test/Echo"


@contextmanager
def serve_echo(**limits):
    """Start an echo server and yield a client's connection to it."""
    threads = Threads("unfinished calls of a test")
    unfinished = UnfinishedCalls(threads, **limits)
    handler = grpc.stream_unary_rpc_method_handler(unfinished.read)
    server = grpc.server(
        threads,
        [grpc.method_handlers_generic_handler("test", {"Echo": handler})],
        options=[("grpc.max_concurrent_streams", MAX_STREAMS)],
        maximum_concurrent_rpcs=MAX_CALLS,
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield SimpleNamespace(port=port, channel=channel, unfinished=unfinished)
    finally:
        server.stop(None).wait(PATIENCE_SECONDS)
        threads.shutdown()


@contextmanager
def opened(served, number):
    """Yield calls whose request does not come until the context ends."""
    ended = threading.Event()

    def requests():
        ended.wait(PATIENCE_SECONDS)
        yield b"late"

    try:
        yield [served.channel.stream_unary(METHOD).future(requests()) for _ in range(number)]
    finally:
        ended.set()


def echo(served):
    return served.channel.unary_unary(METHOD)(b"now", timeout=PATIENCE_SECONDS)


def is_answered(served):
    try:
        return echo(served) == b"now"
    except grpc.RpcError:
        return False


def test_calls_that_were_opened_and_not_sent_take_no_thread_from_others():
    with serve_echo() as served, opened(served, 20) as calls:
        assert wait_for(lambda: len(served.unfinished) == 20)
        assert echo(served) == b"now"
        assert not any(call.done() for call in calls)


def test_more_unfinished_calls_than_the_limit_do_not_shut_out_others():
    """There are 1,030 calls at once: more than are let in, and four times as many as threads."""
    with serve_echo(max_calls=16) as served, ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(open_calls(served.port, METHOD, 206))
        assert wait_for(lambda: len(served.unfinished) == 16)
        assert wait_for(lambda: is_answered(served))
        for _ in range(10):
            assert echo(served) == b"now"
        assert len(served.unfinished) <= 16


def test_their_requests_are_answered_once_they_come():
    with serve_echo() as served:
        with opened(served, 20) as calls:
            assert wait_for(lambda: len(served.unfinished) == 20)
        assert [call.result(PATIENCE_SECONDS) for call in calls] == [b"late"] * 20
        assert echo(served) == b"now"


def test_above_the_cap_the_oldest_are_ended():
    with serve_echo(max_calls=4) as served, opened(served, 30) as calls:
        assert wait_for(lambda: sum(call.done() for call in calls) == 26)
        ended = [call for call in calls if call.done()]
        assert {call.code() for call in ended} == {grpc.StatusCode.CANCELLED}
        assert echo(served) == b"now"


def test_after_their_time_they_are_ended():
    with serve_echo(max_seconds=0.05) as served, opened(served, 3) as calls:
        assert wait_for(lambda: all(call.done() for call in calls))
        assert len(served.unfinished) == 0
        assert echo(served) == b"now"


def test_a_call_that_ends_without_a_request_leaves_nothing():
    with serve_echo() as served:
        with pytest.raises(grpc.RpcError):
            served.channel.stream_unary(METHOD)(iter(()), timeout=PATIENCE_SECONDS)
        assert wait_for(lambda: len(served.unfinished) == 0)
