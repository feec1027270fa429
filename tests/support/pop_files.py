"""A profile of two IPUs with four tiles each, written by hand: every figure can be checked on paper.

    step  0 multiply   IPU 0   sync 10, exchange 20, compute 70 on 3 tiles
          1 view       IPU 0   nothing
          2 loop       IPU 0   sync 5; inside it:
          3 add        IPU 0   compute 15 on 4 tiles
          4 to_1       IPU 1   sync 10, exchange 40: a copy from IPU 0
          5 activate   IPU 1   sync 10, compute 20 on 1 tile

The steps take 200 cycles. The host transfers 300 bytes in and 100 bytes out in 80 cycles.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TILES, TILE_BYTES = 4, 1000
STEP_CYCLES, HOST_CYCLES = 200, 80


def make_profile() -> dict[str, Any]:
    """Return the document of the profile."""
    part: dict[str, Any] = {"name": "", "children": []}
    transfer: dict[str, Any] = {"kind": "StreamCopy", "first": None, "last": None, "children": []}
    inside = {**part, "kind": "Execute", "first": 3, "last": 3}
    children = [
        {**transfer, "name": "host to device", "bytes": 300},
        {**part, "kind": "Execute", "first": 0, "last": 1},
        {"kind": "Loop", "name": "loop", "first": 2, "last": 3, "children": [inside]},
        {**part, "kind": "Execute", "first": 4, "last": 5},
        {**transfer, "name": "device to host", "bytes": 100},
    ]
    return {
        "modelled": True,
        "version": 1,
        "model": "toy",
        "ipu_version": 2,
        "replication_factor": 3,
        "num_ipus": 2,
        "tiles_per_ipu": TILES,
        "io_tiles": 0,
        "tile_bytes": TILE_BYTES,
        "clock_hz": 1_000_000,
        "memory": [
            _memory([600, 600, 500, 1100], 400),
            _memory([100, 100, 100, 100], 50),
        ],
        "steps": {
            "types": ["MatMul", "Reshape", "Loop", "Add", "IpuCopy", "Relu"],
            "vertex_types": ["product", "Add half", "Relu half"],
            "name": ["multiply", "view", "loop", "add", "to_1", "activate"],
            "type": [0, 1, 2, 3, 4, 5],
            "ipu": [0, 0, 0, 0, 1, 1],
            "sender": [-1, -1, -1, -1, 0, -1],
            "sync": [10, 0, 5, 0, 10, 10],
            "exchange": [20, 0, 0, 0, 40, 0],
            "compute": [70, 0, 0, 15, 0, 20],
            "tiles": [3, 0, 4, 4, 4, 1],
            "vertex": [0, -1, -1, 1, -1, 2],
            "live_bytes": [900, 900, 700, 800, 30, 40],
            "received_bytes": [60, 0, 0, 0, 512, 0],
        },
        "variables": {
            "kinds": ["weight", "constant", "input", "tensor", "handed on"],
            "name": ["w", "one", "x", "product", "sum", "received", "y"],
            "kind": [0, 1, 2, 3, 3, 3, 3],
            "bytes": [640, 4, 300, 512, 512, 30, 100],
            "ipu": [0, 0, 0, 0, 0, 1, 1],
            "first": [-1, -1, -1, 0, 3, 4, 5],
            "last": [6, 6, 0, 3, 4, 5, 6],
        },
        "cycles": [
            {"ipu": 0, **_runs(compute=85, exchange=20, sync=35, host=HOST_CYCLES, idle=60)},
            {"ipu": 1, **_runs(compute=20, exchange=40, sync=35, host=HOST_CYCLES, idle=105)},
        ],
        "program": {
            "kind": "Sequence",
            "name": "main",
            "first": 0,
            "last": 5,
            "children": children,
        },
    }


def write_profile(folder: Path, document: dict[str, Any] | None = None) -> Path:
    """Write a profile, by default that of this module, as `profile.pop`; return the file."""
    file = folder / "profile.pop"
    file.write_text(json.dumps(make_profile() if document is None else document))
    return file


def _memory(tiles: list[int], live: int) -> dict[str, Any]:
    code = [("vertex code", 20), ("vertex state", 5), ("control code", 3)]
    rest = live + sum(size for _, size in code)
    weights = {"name": "weights", "tiles": [[1, tile - rest] for tile in tiles]}
    even = [{"name": name, "tiles": [[TILES, size]]} for name, size in [("live", live), *code]]
    return {"tiles": [[1, tile] for tile in tiles], "categories": [weights, *even]}


def _runs(**causes: int) -> dict[str, list[list[int]]]:
    return {cause: [[TILES, cycles]] for cause, cycles in causes.items()}
