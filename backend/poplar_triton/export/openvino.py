"""OpenVINO: conversion of an exported model to its files, and answers from it.

The package openvino is optional.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from poplar_triton.errors import ExportError
from poplar_triton.export.check import Answers, Run


def convert(file: Path, target: Path) -> None:
    """Convert an ONNX file into `target`, model.xml, and the model.bin beside it.

    Weights stay float. Raises ExportError without the package, and for a model that it cannot
    convert.
    """
    openvino = import_openvino()
    try:
        openvino.save_model(openvino.convert_model(file), target, compress_to_fp16=False)
    except Exception as error:  # its errors have no common base but that of Python
        raise ExportError(f"OpenVINO cannot convert the model: {error}") from error


def open_files(file: Path, threads: int) -> tuple[str, Run]:
    """Return OpenVINO's name, and a function that runs the model of model.xml with it."""
    openvino = import_openvino()
    settings: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32"}
    if threads:
        settings["INFERENCE_NUM_THREADS"] = threads
    try:
        compiled = openvino.Core().compile_model(file, "CPU", settings)
    except Exception as error:  # see convert
        raise ExportError(f"OpenVINO cannot load the exported model: {error}") from error

    def run(request: Answers) -> Answers:
        outputs = compiled(request)
        return {output.any_name: outputs[output] for output in compiled.outputs}

    return f"OpenVINO {openvino.get_version().partition('-')[0]}", run


def import_openvino() -> Any:
    """Return the package. Raises ExportError that says how to install it."""
    try:
        from simipu.engines.openvino_package import openvino
    except ImportError as error:
        raise ExportError(
            "--to openvino needs the package openvino: install the extra [openvino] (pip install "
            "openvino), or export --to onnxruntime, whose backend runs OpenVINO as an execution "
            "accelerator"
        ) from error
    return openvino
