"""The cases of ONNX's backend test-suite, as arrays: inputs and expected outputs of each model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests

KINDS = ("node", "simple", "pytorch-operator", "pytorch-converted")
"""Kinds of cases whose models are part of the package; the others are fetched from the network."""
EXPANDED = "_expanded"
"""Ends the name of a case whose model has the body of a function in place of its operator."""

DataSet = tuple[list[Any], list[Any]]
"""Inputs and expected outputs, in the order of the graph: arrays, or values that represent
sequences."""


@dataclass(frozen=True, slots=True)
class Case:
    """One case of the suite, with the tolerance that it states."""

    name: str
    kind: str
    rtol: float
    atol: float
    source: Any

    def read(self) -> tuple[onnx.ModelProto, list[DataSet]]:
        """Return the model and its data sets."""
        if self.source.model is not None:
            model = self.source.model
            sets = [
                ([_array(x) for x in inputs], [_array(x) for x in outputs])
                for inputs, outputs in self._sets()
            ]
            return model, sets
        folder = Path(self.source.model_dir)
        model = onnx.load(folder / "model.onnx")
        folders = sorted(folder.glob("test_data_set_*"))
        graph = model.graph
        return model, [
            (_read(folder, "input", graph.input), _read(folder, "output", graph.output))
            for folder in folders
        ]

    def _sets(self) -> Sequence[tuple[Sequence[Any], Sequence[Any]]]:
        return self.source.data_sets or []


@lru_cache(maxsize=1)
def load_cases() -> tuple[Case, ...]:
    """Return every case of `KINDS`, in the order of their names."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        tests = [(kind, test) for kind in KINDS for test in load_model_tests(kind=kind)]
    cases = [Case(test.name, kind, test.rtol, test.atol, test) for kind, test in tests]
    return tuple(sorted(cases, key=lambda case: (KINDS.index(case.kind), case.name)))


def find_operator(case: Case) -> str:
    """Return the operator that a case is about, or its kind for a model of several."""
    name = case.name
    if name.endswith(EXPANDED):
        original = {case_.name: case_ for case_ in load_cases()}.get(name.removesuffix(EXPANDED))
        return find_operator(original) if original is not None else case.kind
    model, _ = case.read()
    nodes = [node for node in model.graph.node if node.op_type != "Constant"]
    if case.kind != "node" or not nodes:
        return model.graph.node[0].op_type if case.kind == "node" else case.kind
    return str(nodes[0].op_type)


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _read(folder: Path, side: str, values: Sequence[onnx.ValueInfoProto]) -> list[Any]:
    files = [folder / f"{side}_{number}.pb" for number in range(len(values))]
    return [_parse(file, value) for file, value in zip(files, values, strict=True) if file.exists()]


def _parse(file: Path, value: onnx.ValueInfoProto) -> Any:
    if value.type.HasField("sequence_type"):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(file.read_bytes()))
    if value.type.HasField("optional_type"):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(file.read_bytes()))
    return numpy_helper.to_array(onnx.TensorProto.FromString(file.read_bytes()))
