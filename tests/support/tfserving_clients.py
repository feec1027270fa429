"""A client of TensorFlow Serving's gRPC that needs no TensorFlow: calls in our own messages, which
have its field numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import pytest
from poplar_triton.tfserving import messages_pb2 as messages
from poplar_triton.tfserving import wire
from poplar_triton.tfserving.models import BY_DTYPE
from waiting import PATIENCE_SECONDS

Array = npt.NDArray[Any]

PREDICT = "/tensorflow.serving.PredictionService/Predict"
METADATA = "/tensorflow.serving.PredictionService/GetModelMetadata"
STATUS = "/tensorflow.serving.ModelService/GetModelStatus"
_ANSWERS: dict[str, Any] = {
    PREDICT: messages.PredictResponse,
    METADATA: messages.GetModelMetadataResponse,
    STATUS: messages.GetModelStatusResponse,
}


class Client:
    """Client of the server at `url`, a context manager; with `credentials` over TLS.

    Its version is that of the last answer.
    """

    def __init__(self, url: str, credentials: grpc.ChannelCredentials | None = None) -> None:
        # A separate channel: channels with the same address and options share a connection.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        if credentials is None:
            self.channel = grpc.insecure_channel(url, options)
        else:
            self.channel = grpc.secure_channel(url, credentials, options)
        self.version = 0

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.channel.close()

    def predict(
        self,
        model: str,
        inputs: Mapping[str, Array],
        outputs: Sequence[str] = (),
        *,
        seconds: float = PATIENCE_SECONDS,
        **choice: Any,
    ) -> dict[str, Array]:
        """Return the outputs by name; raises grpc.RpcError. `choice` is `version` or
        `version_label`."""
        answer = self._ask(PREDICT, make_request(model, inputs, outputs, **choice), seconds)
        self.version = answer.model_spec.version.value
        return read_outputs(answer)

    def send(
        self, model: str, inputs: Mapping[str, Array], seconds: float = PATIENCE_SECONDS
    ) -> Any:
        """Return a future of a PredictResponse, to be cancelled."""
        return self._call(PREDICT).future(make_request(model, inputs), timeout=seconds)

    def read_status(self, model: str, **choice: Any) -> list[tuple[int, int, str]]:
        """Return version, state and error of each version; raises grpc.RpcError."""
        request = messages.GetModelStatusRequest(model_spec=make_spec(model, **choice))
        answer = self._ask(STATUS, request, PATIENCE_SECONDS)
        return [
            (status.version, status.state, status.status.error_message)
            for status in answer.model_version_status
        ]

    def _ask(self, method: str, request: Any, seconds: float) -> Any:
        return self._call(method)(request, timeout=seconds)

    def _call(self, method: str) -> Any:
        return self.channel.unary_unary(
            method, lambda request: request.SerializeToString(), _ANSWERS[method].FromString
        )


@contextmanager
def refused(code: str, *words: str) -> Iterator[None]:
    """Check that the block ends with a grpc.RpcError of this code, with these words in its text."""
    with pytest.raises(grpc.RpcError) as raised:
        yield
    text = raised.value.details()
    assert raised.value.code() is grpc.StatusCode[code], text
    assert [word for word in words if word not in text] == [], text


def make_spec(
    model: str, version: int | None = None, version_label: str | None = None
) -> messages.ModelSpec:
    """Return the specification of the requested model."""
    spec = messages.ModelSpec(name=model)
    if version is not None:
        spec.version.value = version
    if version_label is not None:
        spec.version_label = version_label
    return spec


def make_request(
    model: str, inputs: Mapping[str, Array], outputs: Sequence[str] = (), **choice: Any
) -> messages.PredictRequest:
    """Return a valid request, with its inputs as tensor_content."""
    request = messages.PredictRequest(model_spec=make_spec(model, **choice), output_filter=outputs)
    for name, array in inputs.items():
        tensor = request.inputs[name]
        tensor.dtype = BY_DTYPE[array.dtype].number
        for size in array.shape:
            tensor.tensor_shape.dim.add(size=size)
        if array.dtype.hasobject:
            tensor.string_val.extend(array.ravel().tolist())
        else:
            tensor.tensor_content = array.tobytes()
    return request


def read_outputs(answer: messages.PredictResponse) -> dict[str, Array]:
    """Return the arrays of an answer by name."""
    outputs = {}
    for name, tensor in answer.outputs.items():
        dtype, shape = wire.read_dtype(name, tensor), wire.read_shape(name, tensor)
        outputs[name] = np.array(wire.read_values(name, tensor, dtype, shape))
    return outputs
