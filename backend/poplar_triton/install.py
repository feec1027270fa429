"""Installation of the backend into the backend directory of an existing Triton server."""

from __future__ import annotations

import shutil
from pathlib import Path

from poplar_triton.errors import ServerError
from poplar_triton.serving.installation import backend_file


def install(backends: Path) -> Path:
    """Copy model.py to `backends`/poplar, replacing an earlier one, and return the file.

    The server's own Python runs it, so this project must be installed there. Raises ServerError
    unless `backends` holds the generic python backend that Python-based backends run on.
    """
    if not (backends / "python" / "libtriton_python.so").is_file():
        raise ServerError(
            f"{backends} does not contain python/libtriton_python.so; give the backend directory "
            "of a Triton server with the Python backend, in NVIDIA's images "
            "/opt/tritonserver/backends"
        )
    file = backends / "poplar" / "model.py"
    file.parent.mkdir(exist_ok=True)
    shutil.copyfile(backend_file(), file)
    return file
