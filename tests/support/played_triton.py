"""A Triton that a test plays: a small gRPC server that answers as the test says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from tritonclient.grpc import model_config_pb2, service_pb2, service_pb2_grpc
from waiting import PATIENCE_SECONDS

METHODS = ("ModelMetadata", "ModelConfig", "ModelInfer", "RepositoryIndex")
UNKNOWN = "Request for unknown model: 'm' is not found"


class Refused(Exception):
    """Error that a call is rejected with."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = grpc.StatusCode[code]


class Triton(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """Fake server that answers with its inputs, under their names.

    A function in `plan` for a method is called for its answer instead. `asked` has the received
    calls, `ended` the methods of those that are over. Calls that `wait` go on once it is
    `released`.
    """

    def __init__(self) -> None:
        self.versions = [1, 2]
        self.tensors = [("x", "FP32", [-1, 2])]
        self.optional: set[str] = set()
        self.asked: list[tuple[str, Any]] = []
        self.seconds: list[float | None] = []
        self.ended: list[str] = []
        self.released = threading.Event()
        self.plan: dict[str, Callable[[Any], Any]] = {}
        self.port = 0
        self._server: Any = None

    def start(self) -> None:
        handlers = {
            method: grpc.unary_unary_rpc_method_handler(
                self._handle(method),
                getattr(service_pb2, f"{method}Request").FromString,
                lambda answer: answer.SerializeToString(),
            )
            for method in METHODS
        }
        service = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers)
        self._server = grpc.server(ThreadPoolExecutor(32), handlers=[service])
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        self._server.start()

    def stop(self) -> None:
        self.released.set()
        self._server.stop(None).wait()

    def count(self, method: str) -> int:
        return sum(name == method for name, _ in self.asked)

    def wait(self, _: Any) -> Any:
        self.released.wait(PATIENCE_SECONDS)
        raise Refused("INTERNAL", "released")

    def _handle(self, method: str) -> Callable[[Any, Any], Any]:
        def handle(request: Any, context: Any) -> Any:
            self.asked.append((method, request))
            self.seconds.append(context.time_remaining())
            context.add_callback(lambda: self.ended.append(method))
            try:
                return self.plan.get(method, getattr(self, f"answer_{method}"))(request)
            except Refused as error:
                return context.abort(error.code, str(error))

        return handle

    def answer_ModelMetadata(self, request: Any) -> Any:
        tensors = [
            {"name": name, "datatype": kind, "shape": shape} for name, kind, shape in self.tensors
        ]
        versions = [version for version in self.versions if request.version in ("", str(version))]
        if not versions:
            raise Refused("NOT_FOUND", UNKNOWN)
        return service_pb2.ModelMetadataResponse(
            name=request.name, versions=map(str, versions), inputs=tensors, outputs=tensors
        )

    def answer_ModelConfig(self, request: Any) -> Any:
        inputs = [{"name": name, "optional": name in self.optional} for name, _, _ in self.tensors]
        return service_pb2.ModelConfigResponse(config=model_config_pb2.ModelConfig(input=inputs))

    def answer_ModelInfer(self, request: Any) -> Any:
        return service_pb2.ModelInferResponse(
            model_version=request.model_version or str(max(self.versions)),
            outputs=[
                {"name": output.name, "datatype": output.datatype, "shape": output.shape}
                for output in request.inputs
            ],
            raw_output_contents=request.raw_input_contents,
        )

    def answer_RepositoryIndex(self, request: Any) -> Any:
        entries = [
            ("m", "1", "READY", ""),
            ("m", "10", "UNAVAILABLE", "no such file"),
            ("m", "2", "READY", ""),
            ("m", "3", "UNAVAILABLE", "unloaded"),
            ("m", "4", "LOADING", ""),
            ("m", "5", "UNLOADING", ""),
            ("m", "6", "SOMETHING_NEW", ""),
            ("never_loaded", "", "", ""),
            ("other", "7", "READY", ""),
        ]
        fields = ("name", "version", "state", "reason")
        return service_pb2.RepositoryIndexResponse(
            models=[dict(zip(fields, entry, strict=True)) for entry in entries]
        )


def refuse(code: str, text: str) -> Callable[[Any], Any]:
    def answer(_: Any) -> Any:
        raise Refused(code, text)

    return answer
