"""Description of a model for the operators: the tensors of one call, in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from types import MappingProxyType

from model_runtime import DataDesc, LaunchPolicy, Session, SessionConfig, describe_anchor

import popef
from poplar_serving.errors import ExportError

Path = str | PathLike[str]

TYPE_NUMBERS: Mapping[str, int] = MappingProxyType(
    {"float32": 1, "int32": 3, "uint8": 4, "int8": 6, "float16": 19}
)
"""Types that Graphcore's operators accept, by TensorFlow's numbers (types.proto)."""


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """Inputs and outputs of every call, each of one compiled batch."""

    inputs: tuple[DataDesc, ...]
    outputs: tuple[DataDesc, ...]


def read_description(paths: Path | Sequence[Path]) -> ModelDescription:
    """Return the description of the model in some PopEF files, without taking a device or computing
    anything.

    Raises ExportError for a model that the operators cannot run, and what a Session raises for
    files that are not a model.
    """
    session = Session(paths, SessionConfig(policy=LaunchPolicy.Deferred))
    _check_weights(session)
    return describe_session(session)


def describe_session(session: Session) -> ModelDescription:
    """Return the description of a model that is already open."""
    metadata = session.model().metadata
    fused = popef.fused_models(metadata)
    if fused:
        raise ExportError(
            f"expected one model, found {len(fused)} fused models, of which a call could run "
            "only one; export each one separately"
        )
    described = ModelDescription(
        tuple(describe_anchor(metadata, anchor) for anchor in session.getUserInputAnchors()),
        tuple(describe_anchor(metadata, anchor) for anchor in session.getUserOutputAnchors()),
    )
    for kind, tensors in (("input", described.inputs), ("output", described.outputs)):
        for tensor in tensors:
            type_number(kind, tensor)
    return described


def type_number(kind: str, tensor: DataDesc) -> int:
    """Return TensorFlow's number of a tensor's type. Raises ExportError for types that the
    operators do not accept."""
    name = tensor.numpy_data_type().name
    if name not in TYPE_NUMBERS:
        raise ExportError(
            f"{kind} {tensor.name!r}: expected {', '.join(TYPE_NUMBERS)}, found {name}; compile "
            "the model with a supported type (poprt converts int64 to int32)"
        )
    return TYPE_NUMBERS[name]


def _check_weights(session: Session) -> None:
    model = session.model()
    names = {tensor.info.name() for tensor in model.tensors}
    programs = [session.executable.program(index) for index in model.metadata.programFlow().load()]
    missing = sorted({stream.tensor for program in programs for stream in program.streams} - names)
    if missing:
        raise ExportError(
            f"the model loads {len(missing)} weights that are in none of the given files, for "
            f"example {missing[0]!r}; add the file with the weights, such as weights.popef"
        )
