"""Traces of requests reach an OpenTelemetry collector, as documented in docs/operations.md."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import tritonclient.grpc as grpcclient
from fleet.models import Model
from fleet.repositories import LocalRepository, fill
from poplar_triton.serving.server import TritonServer
from waiting import PATIENCE_SECONDS, wait_until

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
DOCS = Path(__file__).resolve().parents[2] / "docs" / "operations.md"


@contextmanager
def collect() -> Iterator[tuple[int, list[dict]]]:
    """Yield the port of a collector and the list of the spans that it receives."""
    spans = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.path == "/v1/traces"
            for resource in body["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    spans.extend(scope["spans"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=[0.1], daemon=True)
        thread.start()
        yield server.server_port, spans
        server.shutdown()
        thread.join(PATIENCE_SECONDS)


def test_the_documented_options_send_the_spans_of_a_request_under_its_trace(tmp_path):
    fill(LocalRepository(tmp_path / "models"), [Model("linear")])
    (text,) = re.findall(
        r"poplar-triton serve models -- (--trace-config=mode.*?)```", DOCS.read_text(), re.DOTALL
    )
    options = text.replace("\\\n", " ").split()
    with collect() as (port, spans):
        options = [
            word.replace(":4318/", f":{port}/").replace("rate=1000", "rate=1") for word in options
        ]
        options.append("--trace-config=opentelemetry,bsp_schedule_delay=200")
        with (
            TritonServer(tmp_path / "models", log=tmp_path / "log", options=options) as server,
            grpcclient.InferenceServerClient(server.grpc_url) as client,
        ):
            x = np.ones((1, 512), np.float32)
            tensor = grpcclient.InferInput("x", x.shape, "FP32")
            tensor.set_data_from_numpy(x)
            client.infer("linear", [tensor], headers={"traceparent": f"00-{TRACE}-{PARENT}-01"})
            wait_until(lambda: len(spans) >= 3, "the spans of the request")
    assert {span["traceId"] for span in spans} == {TRACE}
    assert {span["name"] for span in spans} == {"InferRequest", "linear", "compute"}
    (outer,) = [span for span in spans if span["name"] == "InferRequest"]
    assert outer["parentSpanId"] == PARENT
