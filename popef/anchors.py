"""Tensors that users feed and fetch, as the metadata describes them: which anchors, which shapes,
and of which model.

Fused models are several models in one executable; the input `index` selects the model of each run.
The anchors alone identify a fused model, with the names that PopRT gives them. They are `index`,
one whole number, and `graph0/NAME` for the inputs and outputs of model 0, `graph1/NAME` for those
of model 1, and so on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .enums import DataType, TensorType
from .types import Anchor, Metadata


def user_anchors(metadata: Metadata, kind: TensorType) -> list[Anchor]:
    """Return the anchors of one type that belong to the main programs.

    An anchor without program information (older files) counts as one of the main programs'.

    Args:
        metadata: the metadata of the executable.
        kind: inputs or outputs.

    Returns:
        The anchors in the order of the metadata.
    """
    mains = set(metadata.programFlow().main())
    return [
        anchor
        for anchor in metadata.anchors()
        if anchor.type() == kind
        and (not anchor.programs() or mains.intersection(anchor.programs()))
    ]


def replica_shape(metadata: Metadata, anchor: Anchor) -> tuple[int, ...]:
    """Return the shape of an anchor's tensor on one replica.

    In a replicated executable the leading dimension of a per-replica anchor counts the replicas.

    Args:
        metadata: the metadata of the executable.
        anchor: one of its anchors.

    Returns:
        The shape without the dimension of the replicas.
    """
    shape = tuple(anchor.tensorInfo().shape())
    return shape[1:] if anchor.isPerReplica() and metadata.replicationFactor() > 1 else shape


INDEX = "index"
"""Name of the input that selects the model to run, from 0."""
_MEMBER = re.compile(r"graph(0|[1-9][0-9]{0,5})/.", re.DOTALL)
_WHOLE = (DataType.S32, DataType.S64)


@dataclass(frozen=True, slots=True)
class FusedModel:
    """One of the models of a fused model.

    Args:
        inputs: the anchor names of its inputs.
        outputs: the anchor names of its outputs.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def member_name(number: int, name: str) -> str:
    """Return the name that a tensor of one of the models has in the fused model.

    Args:
        number: the model, from 0.
        name: the tensor's name in that model.

    Returns:
        The anchor's name.

    Example:
        >>> import popef
        >>> popef.member_name(1, "logits")
        'graph1/logits'
    """
    return f"graph{number}/{name}"


def fused_models(metadata: Metadata) -> tuple[FusedModel, ...]:
    """Return the models of a fused model in order.

    Args:
        metadata: the metadata of the file's executable.

    Returns:
        The anchor names of each model; () if the file holds a single model.
    """
    inputs, outputs = (
        user_anchors(metadata, kind) for kind in (TensorType.INPUT, TensorType.OUTPUT)
    )
    selectors = [anchor for anchor in inputs if anchor.name() == INDEX]
    fits = len(selectors) == 1 and selectors[0].tensorInfo().dataType() in _WHOLE
    if not fits or replica_shape(metadata, selectors[0]) not in ((), (1,)):
        return ()
    names_by_model: dict[int, tuple[list[str], list[str]]] = {}
    for place, anchors in enumerate((inputs, outputs)):
        for name in (anchor.name() for anchor in anchors if anchor not in selectors):
            member = _MEMBER.match(name)
            if member is None:
                return ()
            names_by_model.setdefault(int(member[1]), ([], []))[place].append(name)
    if sorted(names_by_model) != list(range(len(names_by_model))):
        return ()
    return tuple(
        FusedModel(tuple(names_by_model[i][0]), tuple(names_by_model[i][1]))
        for i in range(len(names_by_model))
    )
