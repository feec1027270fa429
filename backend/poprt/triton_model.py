"""Writes a Triton model folder: config.pbtxt, 1/name_map.json and the PopEF files.

What a user may have edited is kept: an existing config.pbtxt or name_map.json is never overwritten.
"""

from __future__ import annotations

import json
from pathlib import Path

import popef
from poprt.compiler import Executable

VERSION = "1"
BATCHES_PER_REQUEST = 1_000
"""The guide's example: max_batch_size is 1000 times the compiled batch; the backend splits and joins."""


def write_triton_model(compiled: Executable, folder: Path) -> list[str]:
    """Write the model folder `folder` and return a line per file: what was written, what was kept."""
    version = folder / VERSION
    version.mkdir(parents=True, exist_ok=True)
    compiled.export(version / "executable.popef", version / "weights.popef")
    lines = [f"wrote {version / 'executable.popef'}"]
    if compiled.weights:
        lines.append(f"wrote {version / 'weights.popef'}")
    else:
        (version / "weights.popef").unlink(missing_ok=True)
    anchors = _user_anchors(compiled)
    names = {anchor.name(): anchor.name() for anchor in anchors}
    lines.append(_write_new(version / "name_map.json", json.dumps(names, indent=4) + "\n"))
    lines.append(_write_new(folder / "config.pbtxt", make_config(folder.name, compiled, version / "name_map.json")))
    return lines


def _write_new(file: Path, text: str) -> str:
    if file.exists():
        return f"kept {file}"
    file.write_text(text, encoding="utf-8")
    return f"wrote {file}"


def _user_anchors(compiled: Executable) -> list[popef.Anchor]:
    return [anchor for anchor in compiled.metadata.anchors() if anchor.name() not in compiled.weights]


def make_config(name: str, compiled: Executable, name_map: Path) -> str:
    """The text of config.pbtxt for a compiled model, in the friendly names of the file `name_map`.

    Requests are batched only where rows are proven to be independent and Triton can batch them, along the first axis; else
    dims are the compiled shape, with -1 along another axis of independent rows.
    """
    friendly = json.loads(name_map.read_text(encoding="utf-8"))
    anchors, rows = _user_anchors(compiled), compiled.rows
    compiled_batch = popef.batch_size([anchor.tensorInfo().shape() for anchor in anchors])
    batched = rows.dependence is None and not rows.batch_axes and compiled_batch > 0
    batch = compiled_batch if batched else 0
    blocks = [f'name: "{name}"', 'backend: "poplar"', f"max_batch_size: {batch * BATCHES_PER_REQUEST}"]
    if batched:
        blocks.append("dynamic_batching {}")
    for field, kind in (("input", popef.TensorType.INPUT), ("output", popef.TensorType.OUTPUT)):
        tensors = [_tensor(friendly, anchor, rows, batched) for anchor in anchors if anchor.type() == kind]
        blocks.append(f"{field} [\n" + ",\n".join(tensors) + "\n]")
    blocks.append('parameters [\n    {\n        key: "synchronous_execution"\n        value: { string_value: "1" }\n    }\n]')
    blocks.append("instance_group [{ kind: KIND_CPU }]")
    return "\n".join(blocks) + "\n"


def _tensor(friendly: dict[str, str], anchor: popef.Anchor, rows: popef.RowFacts, batched: bool) -> str:
    info = anchor.tensorInfo()
    sizes = list(info.shape()[1 if batched else 0 :])
    if rows.dependence is None and rows.batch_axes:
        sizes[rows.axis(anchor.name())] = -1
    dims = [str(size) for size in sizes] or ["1"]
    # Triton has scalars in batches only; without a batch a scalar is a tensor of one element.
    reshape = "\n        reshape: { shape: [ ] }" if batched and len(info.shape()) == 1 else ""
    return (
        f'    {{\n        name: "{friendly.get(anchor.name(), anchor.name())}"\n'
        f"        data_type: {_triton_type(info)}\n"
        f"        dims: [ {', '.join(dims)} ]{reshape}\n    }}"
    )


def _triton_type(info: popef.TensorInfo) -> str:
    """float16 is TYPE_FP16, int8 is TYPE_INT8, bool is TYPE_BOOL."""
    return "TYPE_" + popef.popefTypeToNumpyDType(info.dataType()).name.upper().replace("FLOAT", "FP")
