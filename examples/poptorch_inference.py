"""A script of PopTorch: wrap a module, run it, export it, and compare.

    pip install torch onnxscript
    python examples/poptorch_inference.py

A call computes two device iterations. The exported PopEF file then runs in model_runtime, as a
Triton server runs it.
"""

from __future__ import annotations

import poptorch
import torch
from model_runtime import ModelRunner

ITERATIONS, ROWS, FEATURES, CLASSES = 2, 4, 16, 5
FILE = "classifier.popef"


def main() -> None:
    """Print the shape of the result, the modelled time, and whether all ways agree."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 32), torch.nn.GELU(), torch.nn.Linear(32, CLASSES)
    ).eval()
    data = torch.randn(ITERATIONS * ROWS, FEATURES)
    options = poptorch.Options().deviceIterations(ITERATIONS).logCycleCount(True)
    model = poptorch.inferenceModel(module, options)
    scores = model(data)
    print(f"scores {list(scores.shape)}, {model.cycleCount()} cycles, modelled")
    print(f"close to PyTorch: {torch.allclose(scores, module(data), atol=1e-5)}")

    model.save(FILE, export_model=False)
    with ModelRunner(FILE) as runner:
        (output,) = runner.getExecuteOutputs()
        parts = [
            torch.from_numpy(runner.execute({"input": part.numpy()})[output.name])
            for part in data.split(ROWS)
        ]
    print(f"equal to the file's: {torch.equal(torch.cat(parts), scores)}")


if __name__ == "__main__":
    main()
