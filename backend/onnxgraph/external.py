"""Files of external data that an ONNX model refers to, and their checks.

Each must be in the model's folder, be a regular file, and have the required size.
"""

from __future__ import annotations

import contextlib
import stat
from pathlib import Path

import onnx
from onnx import TensorProto

from onnxgraph.errors import GraphError
from onnxgraph.tensors import count_bytes, iter_tensors
from popef._tools.text import escape


def find_data(tensor: TensorProto, folder: Path) -> tuple[Path, int]:
    """Return the file with the external data of `tensor`, of a model in `folder`, and their offset.

    Raises FileNotFoundError if there is no such file. Raises GraphError if it is outside of
    `folder`, is a device or a pipe, or does not hold data of the tensor's size.
    """
    told = {entry.key: entry.value for entry in tensor.external_data}
    location, size = told.get("location", ""), count_bytes(tensor)
    where = (
        f"external data of weight {escape(tensor.name, 100)!r}, location {escape(location, 100)!r}"
    )
    mode: int | None = None
    try:
        file = Path(folder, location).resolve()
        inside = bool(location) and file.is_relative_to(folder.resolve())
        # Not `exists`, which from Python 3.14 on hides that a name is too long.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            mode = file.stat().st_mode
    except (OSError, ValueError) as error:  # a name that is too long, or holds NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise GraphError(
            f"{where}: expected the name of a file, found one that no file can have ({reason})"
        ) from None
    if not inside:
        raise GraphError(
            f"{where}: expected a file inside the model's folder {folder}; the data of a model "
            "stand beside it"
        )
    if mode is None:
        raise FileNotFoundError(
            f"{where}: there is no such file in {folder}; put it beside the model"
        )
    if not stat.S_ISREG(mode):
        raise GraphError(f"{where}: expected a regular file, found a folder, a device or a pipe")
    try:
        offset, length = int(told.get("offset", 0)), int(told.get("length", size))
    except ValueError:
        raise GraphError(f"{where}: expected numbers for offset and length, found {told}") from None
    if offset < 0 or length != size or offset + size > file.stat().st_size:
        raise GraphError(
            f"{where}: expected {size} bytes for shape {list(tensor.dims)}, found length {length} "
            f"at offset {offset} of {file.stat().st_size} bytes; the data belong to another model, "
            "or are not whole"
        )
    return file, offset


def bring_in(tensor: TensorProto, folder: Path) -> None:
    """Read the external data of `tensor` into it; raises like `find_data`."""
    file, offset = find_data(tensor, folder)
    with file.open("rb") as opened:
        opened.seek(offset)
        data = opened.read(count_bytes(tensor))
    tensor.raw_data = data
    tensor.data_location = TensorProto.DEFAULT
    del tensor.external_data[:]


def bring_all_in(model: onnx.ModelProto, folder: Path) -> None:
    """Read the external data of every tensor of `model`; raises like `find_data`."""
    for tensor, _ in iter_tensors(model.graph):
        if tensor.data_location == TensorProto.EXTERNAL:
            bring_in(tensor, folder)
