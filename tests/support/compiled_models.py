"""Compilation of models that several tests of a run share: it takes half a second or more."""

from __future__ import annotations

from typing import Any

import onnx
from poprt import Compiler, CompilerOptions, Converter
from poprt.compile.executable import Executable

_compiled: dict[tuple[bytes, str], Executable] = {}


def compile_once(
    model: onnx.ModelProto,
    *,
    batch: int | None = 4,
    options: dict[str, Any] | None = None,
    **convert: Any,
) -> Executable:
    """Return the compiled model. Equal calls of a test run get the same one: copy it to change it."""
    key = (model.SerializeToString(deterministic=True), repr((batch, options, convert)))
    if key not in _compiled:
        converted = Converter(batch_size=batch, **convert).convert(model)
        _compiled[key] = Compiler.compile(
            converted,
            None,
            CompilerOptions.from_dict(options or {}),
            batch_axis=convert.get("batch_axis") or 0,
        )
    return _compiled[key]
