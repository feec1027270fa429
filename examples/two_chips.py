"""Two chips compared: what would a model take on a C600 and on a Bow, and which part differs?

    python examples/two_chips.py model.onnx [batch size]

All figures are modelled; nothing runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

COMMAND = [str(Path(sys.executable).with_name("poplar-triton")), "profile"]


def main() -> None:
    """Print the parts of the latency on both chips."""
    model, *batch = sys.argv[1:]
    words = [
        "--batch_size",
        *(batch or ["4"]),
        "--target",
        "c600",
        "--compare",
        "target=bow",
        "--json",
    ]
    run = subprocess.run([*COMMAND, model, *words], check=True, stdout=subprocess.PIPE)
    c600 = json.loads(run.stdout)
    bow = c600["comparison"]["with"]
    print(f"{'':16}{c600['chip']:>16}{bow['chip']:>16}")
    for name in c600["latency_parts"]:
        row = [f"{1e6 * each['latency_parts'][name]:,.1f} us" for each in (c600, bow)]
        print(f"{name.removesuffix('_seconds'):16}{row[0]:>16}{row[1]:>16}")
    row = [f"{each['samples_per_second']:,.0f}" for each in (c600, bow)]
    print(f"{'samples/s':16}{row[0]:>16}{row[1]:>16}")


if __name__ == "__main__":
    main()
