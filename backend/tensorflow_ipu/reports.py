"""Reports of compiled computations: modelled time and memory, where the engine's options ask.

`autoReport.directory`, or the working folder, gets a folder `tf_report__DATE__PROCESS` for each
computation, with the profile that pva opens and `framework.json`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final

import onnx
import popart
import tensorflow as tf
from popart.session import reports
from poprt import CompilerOptions
from poprt.compile import Executable

from tensorflow_ipu.errors import IpuError

_FRAMEWORK: Final = "framework.json"
_folders: dict[str, str] = {}
"""Names of the folders by the names of the executables."""


def name_folder(executable: str) -> str:
    """Return the name of the folder with a computation's report; it stays the same.

    Args:
        executable: Name of the executable.

    Returns:
        The name.
    """
    if executable not in _folders:
        time = datetime.now().strftime("%Y-%m-%d__%H-%M-%S.%f")
        _folders[executable] = f"tf_report__{time}__{os.getpid()}"
    return _folders[executable]


def write_report(
    model: onnx.ModelProto,
    executable: Executable,
    options: CompilerOptions,
    name: str,
    engine: Mapping[str, str],
) -> None:
    """Write the report of a computation, if the engine's options ask for one.

    Args:
        model: The model that was compiled.
        executable: What it was compiled to.
        options: The compiler's options.
        name: Name of the executable.
        engine: The engine's options; POPLAR_ENGINE_OPTIONS overrides them.

    Raises:
        IpuError: If a file cannot be written, or POPLAR_ENGINE_OPTIONS is not valid.
    """
    shown = replace(options, show_compilation_progress_bar=False)
    try:
        folder = reports.write_profile(engine, executable, shown, name_folder(name), model)
    except popart.popart_runtime_error as error:
        raise IpuError(str(error)) from error
    if folder is None:
        return
    facts = {
        "ClusterName": name,
        "Date": datetime.now().isoformat(),
        "Framework": "tensorflow",
        "FrameworkVersion": tf.__version__,
        "NumIPUs": executable.executable.target.num_ipus,
        "Modelled": True,
    }
    try:
        (folder / _FRAMEWORK).write_text(json.dumps(facts), encoding="utf-8")
    except OSError as error:
        raise IpuError(f"the report {folder / _FRAMEWORK} cannot be written: {error}") from error
