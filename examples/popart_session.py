"""A script of PopART: build a model, run batches of it in one step, export it, and compare.

    python examples/popart_session.py

The anchors are the scores of every batch and the sum of the classes' scores over the batches. The
exported PopEF file then runs in model_runtime, as a Triton server runs it.
"""

from __future__ import annotations

import numpy as np
import popart
from model_runtime import ModelRunner

BATCHES, ROWS, FEATURES, CLASSES = 3, 4, 16, 5


def build() -> tuple[popart.Builder, str, str, str]:
    """Return a builder with the names of the input, the scores and the sum of each class."""
    random = np.random.default_rng(0)
    builder = popart.Builder()
    pictures = builder.addInputTensor(popart.TensorInfo("FLOAT", [ROWS, FEATURES]), "pictures")
    hidden = pictures
    for layer, (source, target) in enumerate(((FEATURES, 32), (32, CLASSES))):
        weight = random.standard_normal((source, target), np.float32) / np.sqrt(source)
        with builder.nameScope(f"layer{layer}"):
            product = builder.aiOnnx.matmul(
                [hidden, builder.addInitializedInputTensor(weight.astype(np.float32), "weight")]
            )
            hidden = builder.aiGraphcore.gelu([product])
    scores = builder.aiOnnx.softmax([hidden])
    totals = builder.aiOnnx.reducesum([scores], axes=[0], keepdims=0)
    for output in (scores, totals):
        builder.addOutputTensor(output)
    return builder, pictures, scores, totals


def main() -> None:
    """Print the shapes of the anchors, the modelled time, and whether both ways agree."""
    builder, pictures, scores, totals = build()
    flow = popart.DataFlow(
        BATCHES, {scores: popart.AnchorReturnType("All"), totals: popart.AnchorReturnType("Sum")}
    )
    options = popart.SessionOptions()
    options.instrumentWithHardwareCycleCounter = True
    with popart.DeviceManager().acquireAvailableDevice(1) as device:
        session = popart.InferenceSession(
            builder.getModelProto(), flow, device, userOptions=options
        )
        session.prepareDevice()
        anchors = session.initAnchorArrays()
        data = np.random.default_rng(1).standard_normal((BATCHES, ROWS, FEATURES), np.float32)
        session.run(popart.PyStepIO({pictures: data}, anchors))
        print(f"{scores} {anchors[scores].shape}, {totals} {anchors[totals].shape}")
        print(f"{session.getCycleCount()} cycles for {BATCHES} batches, modelled")
        session.compileAndExport("classifier.popef")
    with ModelRunner("classifier.popef") as runner:
        again = np.stack([runner.execute({pictures: batch})[scores] for batch in data])
    print(f"equal: {np.array_equal(again, anchors[scores])}")


if __name__ == "__main__":
    main()
