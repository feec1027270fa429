"""A sweep with a plot: throughput and latency over the batch size, on two chips.

    python examples/sweep_plot.py model.onnx [sweep.png]

Requires matplotlib. All figures are modelled; nothing runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import matplotlib.pyplot as plt

BATCHES, CHIPS = "1,2,4,8,16", "c600,bow"
COMMAND = [str(Path(sys.executable).with_name("poplar-triton")), "profile"]


def main() -> None:
    """Profile the model under each setting and draw the result."""
    model, *files = sys.argv[1:]
    words = ["--sweep", f"batch_size={BATCHES}", "--sweep", f"target={CHIPS}", "--json"]
    run = subprocess.run([*COMMAND, model, *words], check=True, stdout=subprocess.PIPE)
    figure, axes = plt.subplots(figsize=(7, 4))
    for chip in CHIPS.split(","):
        points = [each for each in json.loads(run.stdout) if each["target"] == chip]
        axes.plot(
            [1e3 * each["latency_seconds"] for each in points],
            [each["samples_per_second"] for each in points],
            marker="o",
            label=chip,
        )
        for each in points:
            print(
                f"{chip} batch {each['batch_size']}: {1e3 * each['latency_seconds']:.2f} ms, "
                f"{each['samples_per_second']:,.0f} samples/s"
            )
    axes.set(xlabel="latency (ms, modelled)", ylabel="samples/s (modelled)", ylim=0)
    axes.legend()
    figure.savefig(files[0] if files else "sweep.png", dpi=120)


if __name__ == "__main__":
    main()
