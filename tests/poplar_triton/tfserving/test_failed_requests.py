"""Failed requests leave nothing behind, even without the garbage collector."""

import gc
import weakref

import grpc
import numpy as np
import pytest
from poplar_triton.tfserving.grpc_service import Health, make_handlers
from poplar_triton.tfserving.models import Code, ServingError
from poplar_triton.tfserving.threads import Threads
from poplar_triton.tfserving.unfinished import UnfinishedCalls
from rest_servers import FLOATS, PREDICT, FakeModels, FakeServable, serve, wait_for
from tfserving_clients import Client, refused
from waiting import PATIENCE_SECONDS


class Failing(FakeServable):
    """Model that fails and records whether its inputs still exist."""

    def predict(self, inputs, outputs, call):
        self.seen = weakref.ref(inputs["x"])
        raise ServingError(Code.INVALID_ARGUMENT, "so it is")


@pytest.fixture
def servable():
    return Failing("half", 1, FLOATS)


@pytest.fixture
def _no_collector():
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collector")
def test_a_request_that_fails_over_grpc_is_not_kept(servable):
    threads = Threads("failed requests of a test")
    unfinished = UnfinishedCalls(threads)
    models = FakeModels({"half": [servable]})
    handlers = make_handlers(
        models, lambda *_: None, Health(unfinished), unfinished, as_content=False
    )
    server = grpc.server(threads, handlers)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with Client(f"127.0.0.1:{port}") as client, refused("INVALID_ARGUMENT", "so it is"):
        client.predict("half", {"x": np.ones(3, np.float32)})
    assert wait_for(lambda: servable.seen() is None)
    server.stop(None).wait(PATIENCE_SECONDS)
    threads.shutdown()


@pytest.mark.usefixtures("_no_collector")
def test_a_request_that_fails_over_rest_is_not_kept(servable):
    with serve(FakeModels({"half": [servable]})) as server:
        assert server.post(PREDICT, {"instances": [1.0]}).status == 400
        assert wait_for(lambda: servable.seen() is None)
