"""The least proxy of gRPC in Python: it passes the bytes of each call on to another server, and the
answer's bytes back, without reading them.

It bounds what a proxy in Python can reach that also translates: `tfserving --triton`. Its only line
of output says that it listens.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

NUM_THREADS = 16
READY = "listening"


class PassThrough(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    """Handler of all unary methods of the server behind `channel`."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self._methods: dict[str, Any] = {}

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        """Return the handler of the called method, which other threads run."""
        method = details.method
        if method not in self._methods:
            self._methods[method] = self._make(method)
        return self._methods[method]

    def _make(self, method: str) -> Any:
        call = self._channel.unary_unary(method)
        # As tfserving calls Triton: a future can be cancelled when the client gives up.
        return grpc.unary_unary_rpc_method_handler(
            lambda request, _context: call.future(request).result()
        )


def main() -> None:
    """Listen on --port of 127.0.0.1 until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("target", help="HOST:PORT of the server's gRPC")
    parser.add_argument("--port", required=True)
    options = parser.parse_args()
    server = grpc.server(ThreadPoolExecutor(NUM_THREADS))
    server.add_generic_rpc_handlers([PassThrough(grpc.insecure_channel(options.target))])
    server.add_insecure_port(f"127.0.0.1:{options.port}")
    server.start()
    print(READY, flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
