"""What metadata says of the tensors that users feed and fetch: which anchors, which shapes."""

from __future__ import annotations

from .enums import TensorType
from .types import Anchor, Metadata


def user_anchors(metadata: Metadata, kind: TensorType) -> list[Anchor]:
    """The anchors of that type of the main programs, or without program information (older files)."""
    mains = set(metadata.programFlow().main())
    return [
        anchor
        for anchor in metadata.anchors()
        if anchor.type() == kind and (not anchor.programs() or mains.intersection(anchor.programs()))
    ]


def replica_shape(metadata: Metadata, anchor: Anchor) -> tuple[int, ...]:
    """The shape of an anchor's tensor on one replica: a replicated executable has the replicas as leading
    dimension."""
    shape = tuple(anchor.tensorInfo().shape())
    return shape[1:] if anchor.isPerReplica() and metadata.replicationFactor() > 1 else shape
