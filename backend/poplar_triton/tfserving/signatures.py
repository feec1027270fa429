"""Description of a model's signature in TensorFlow's messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from poplar_triton.tfserving import messages_pb2 as messages
from poplar_triton.tfserving.dtypes import BY_DTYPE
from poplar_triton.tfserving.models import DEFAULT_SIGNATURE, Signature, TensorSpec

PREDICT_METHOD = "tensorflow/serving/predict"


def describe_signature(signature: Signature) -> messages.SignatureDefMap:
    """Return the map of signatures, which has one entry. The graph tensors have the friendly names
    with `:0`, because there is no TensorFlow graph."""
    described = messages.SignatureDefMap()
    definition = described.signature_def[DEFAULT_SIGNATURE]
    definition.method_name = PREDICT_METHOD
    _describe(definition.inputs, signature.inputs)
    _describe(definition.outputs, signature.outputs)
    return described


def _describe(infos: Any, tensors: Mapping[str, TensorSpec]) -> None:
    for name, tensor in tensors.items():
        info = infos[name]
        info.name = f"{name}:0"
        info.dtype = BY_DTYPE[tensor.dtype].number
        info.tensor_shape.SetInParent()  # also for a scalar, which has a shape without axes
        for size in tensor.shape:
            info.tensor_shape.dim.add(size=size)
