"""Tensors that users feed and fetch, as the metadata describes them: which anchors, which
shapes."""

from __future__ import annotations

from .enums import TensorType
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
