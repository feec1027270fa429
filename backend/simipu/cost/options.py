"""What the cost model is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CostOptions:
    """The compiler options that time and memory depend on, by their names and defaults in PopRT."""

    partials_type: str = "half"
    available_memory_proportion: float = 0.6
    num_io_tiles: int = 0
    batches_per_step: int = 1
    """Batches that a call brings, which share its fixed cost."""
    stream_buffering_depth: int = 1
    """Buffers of each stream, on the host. A run takes as long with one as with two, as far as published
    times tell: those of Wide&Deep have two, and its transfers and the host's work follow one another."""
    use_128bit_conv_unit_load: bool = False
    enable_outlining: bool = True
    """Whether equal operators share their code, and layers that repeat are called."""
    num_ipus: int = 1
    """IPUs of a replica, over which the layers are spread."""
    virtual_graph_mode: str = "off"
    """manual: nodes are where their attribute `__ipu_number` says; else the model spreads them."""
    virtual_graph_split_ratios: Sequence[float] = ()
    """What each IPU gets where the model spreads the nodes, of 1 in all; none: all the same."""
    enable_pipelining: bool = False
    """The IPUs work on batches that follow one another; otherwise one IPU works at a time."""
    replication_factor: int = 1
    """Copies of the model that run side by side and share the host's link."""
