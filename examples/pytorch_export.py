"""From PyTorch to PopEF: export a module, compile it, run it, and compare the answers.

    python examples/pytorch_export.py

Requires torch and onnxscript (`pip install torch onnxscript`).
"""

from __future__ import annotations

import numpy as np
import onnx
import torch
from model_runtime import ModelRunner, ModelRunnerConfig
from poprt import Compiler, Converter


class Classifier(torch.nn.Module):
    """A convolution, a pool and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 16, 3, stride=2, padding=1),
            torch.nn.ReLU(),
            torch.nn.AdaptiveAvgPool2d(1),
            torch.nn.Flatten(),
            torch.nn.Linear(16, 10),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores, float32 [rows, 10], of pictures, float32 [rows, 3, 32, 32]."""
        return self.layers(x)


def main() -> None:
    """Print the largest difference between PyTorch and the simulated IPU."""
    torch.manual_seed(0)
    model = Classifier().eval()
    pictures = torch.rand(5, 3, 32, 32)
    torch.onnx.export(
        model,
        (pictures,),
        "classifier.onnx",
        input_names=["x"],
        output_names=["scores"],
        dynamic_shapes={"x": {0: torch.export.Dim("rows")}},
    )
    converted = Converter(batch_size=4).convert(onnx.load("classifier.onnx"))
    Compiler.compile(converted).export("classifier.popef")
    with ModelRunner("classifier.popef", ModelRunnerConfig(batching_dim=0)) as runner:
        scores = runner.execute({"x": pictures.numpy()})["scores"]
    expected = model(pictures).detach().numpy()
    print(f"largest difference: {np.abs(scores - expected).max():.1e}")


if __name__ == "__main__":
    main()
