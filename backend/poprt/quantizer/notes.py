"""8-bit options of `Converter(quantize=True)`, which stores them for the quantizer in the model's
metadata, under our own names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from simipu import CompileError

from poprt.passes.precision.eight_bits import Fp8Params

_PARAMS, _SKIP = "poprt.fp8_params", "poprt.fp8_skip_op_names"
_NAMES = {"fp8_params": _PARAMS, "fp8_skip_op_names": _SKIP}


@dataclass(frozen=True, slots=True)
class Notes:
    """The options fp8_params and fp8_skip_op_names; None if they were not given."""

    given_params: Fp8Params | None = None
    given_skip_op_names: frozenset[str] | None = None

    @property
    def params(self) -> Fp8Params:
        """The given fp8_params, or the defaults."""
        return self.given_params or Fp8Params()

    @property
    def skip_op_names(self) -> frozenset[str]:
        """The given fp8_skip_op_names, or the default."""
        return self.given_skip_op_names or frozenset()

    @staticmethod
    def of_options(options: Mapping[str, Any]) -> Notes:
        """Return the notes of these options. Raises CompileError for an unknown option."""
        unknown = sorted(set(options) - _NAMES.keys())
        if unknown:
            raise CompileError(f"options: expected {' or '.join(_NAMES)}, found {unknown[0]!r}")
        params, names = options.get("fp8_params"), options.get("fp8_skip_op_names")
        split = names.split(",") if isinstance(names, str) else names
        return Notes(
            Fp8Params.parse(params) if params else None,
            frozenset(filter(None, (str(name).strip() for name in split))) if split else None,
        )

    def over(self, others: Notes) -> Notes:
        """Return these notes, with missing values taken from `others`."""
        return Notes(
            self.given_params or others.given_params,
            self.given_skip_op_names or others.given_skip_op_names,
        )

    @staticmethod
    def leave(model: onnx.ModelProto, params: Fp8Params, skip_op_names: Collection[str]) -> None:
        """Write the options into a model."""
        Notes.take(model)
        formats = f"{params.input_format.name},{params.weight_format.name}"
        texts = {_PARAMS: f"{formats},{params.input_scale},{params.weight_scale}"}
        if skip_op_names:
            texts[_SKIP] = "\n".join(sorted(skip_op_names))
        model.metadata_props.extend(
            onnx.StringStringEntryProto(key=key, value=texts[key]) for key in texts
        )

    @staticmethod
    def take(model: onnx.ModelProto) -> Notes:
        """Remove the notes from a model and return them. Raises CompileError for damaged ones."""
        found = {entry.key: entry.value for entry in model.metadata_props}
        kept = [entry for entry in model.metadata_props if entry.key not in _NAMES.values()]
        del model.metadata_props[:]
        model.metadata_props.extend(kept)
        names = found.get(_SKIP)
        return Notes(
            Fp8Params.parse(found[_PARAMS]) if _PARAMS in found else None,
            frozenset(names.split("\n")) if names else None,
        )
