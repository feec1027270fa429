"""What is in a PopEF file? Anchors, programs, target and weights, with the popef library alone.

python examples/read_popef.py executable.popef [weights.popef ...]
"""

from __future__ import annotations

import sys

import popef


def main() -> None:
    """Print what the files contain."""
    reader = popef.Reader()
    for file in sys.argv[1:]:
        reader.parseFile(file)
    for metadata in reader.metadata():
        print(f"{metadata.executable}: {metadata.numIpus} IPU(s), {metadata.engineOptions or '{}'}")
        for anchor in metadata.anchors:
            info = anchor.tensorInfo
            print(f"  {anchor.type.name:12} {anchor.name}: {info.dataType.name} {info.shape}")
    for tensor in reader.tensors():
        info = tensor.info.tensorInfo
        print(f"weight {tensor.info.name}: {info.dataType.name} {info.shape}")
    print(f"{len(reader.executables())} executable(s), {len(reader.tensors())} tensor(s)")


if __name__ == "__main__":
    main()
