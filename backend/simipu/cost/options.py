"""Options of the cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CostOptions:
    """Compiler options that affect time and memory, with their names and defaults in PopRT."""

    partials_type: str = "half"
    available_memory_proportion: float = 0.6
    num_io_tiles: int = 0
    batches_per_step: int = 1
    """Batches of a call, which share its fixed cost."""
    stream_buffering_depth: int = 1
    """Number of buffers of each stream, on the host. A run takes as long with one as with two, as
    far as published times show: those of Wide&Deep have two, and its transfers and the host's work
    follow one another."""
    use_128bit_conv_unit_load: bool = False
    enable_outlining: bool = True
    """Option that lets equal operators share their code, and calls layers that repeat."""
    num_ipus: int = 1
    """IPUs of a replica; the layers are spread over them."""
    virtual_graph_mode: str = "off"
    """Placement of nodes. manual: by the nodes' attribute `__ipu_number`; else the model spreads
    them."""
    virtual_graph_split_ratios: Sequence[float] = ()
    """Share of each IPU if the model spreads the nodes; the shares sum to 1. Empty: equal
    shares."""
    enable_pipelining: bool = False
    """Option that lets the IPUs work on successive batches at the same time; else one IPU works at
    a time."""
    replication_factor: int = 1
    """Copies of the model that run in parallel and share the host's link."""
