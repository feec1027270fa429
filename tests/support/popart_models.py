"""Small models for tests of popart: built, compiled and run once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import popart

Build = Callable[[popart.Builder, list[str]], Any]


def build(make: Build, inputs: Sequence[np.ndarray], opset: int = 10) -> tuple[bytes, list[str]]:
    """Return a model of what `make` adds to its inputs, and the names of its results."""
    builder = popart.Builder(opsets={"ai.onnx": opset, "ai.graphcore": 1})
    names = [builder.addInputTensor(popart.TensorInfo(each)) for each in inputs]
    made = make(builder, names)
    return builder.getModelProto(), list(made) if isinstance(made, (list, tuple)) else [made]


def open_session(proto: bytes, anchors: Sequence[str], **options: Any) -> popart.InferenceSession:
    chosen = popart.SessionOptions()
    for name, value in options.items():
        setattr(chosen, name, value)
    device = popart.DeviceManager().createCpuDevice()
    flow = popart.DataFlow(1, list(anchors))
    return popart.InferenceSession(proto, flow, device, userOptions=chosen)


def compute(
    make: Build, inputs: Sequence[np.ndarray], opset: int = 10, **options: Any
) -> list[np.ndarray]:
    """Return the results of a model for its inputs."""
    proto, anchors = build(make, inputs, opset)
    session = open_session(proto, anchors, **options)
    session.prepareDevice()
    session.weightsFromHost()
    arrays = session.initAnchorArrays()
    names = [name for name in session.getAllTensorIds() if name.startswith("input")]
    order = sorted(names, key=lambda name: (len(name), name))
    feeds = dict(zip(order, map(np.ascontiguousarray, inputs), strict=True))
    session.run(popart.PyStepIO(feeds, arrays))
    return [arrays[name] for name in anchors]
