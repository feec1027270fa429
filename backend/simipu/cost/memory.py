"""Memory of a tile, by the categories of Poplar's memory reports, and the node at its peak."""

from __future__ import annotations

from dataclasses import dataclass

from simipu.operators.formulas.code import Code

STACK_BYTES = 1_760
HOST_EXCHANGE_BYTES = 289
"""Stack and host exchange code of a tile. Together they are what a dense layer's profile has
besides its own categories, 2,049 bytes (ipu_tensorflow_addons, Mk2). The second is the value from
an addition's profile (the TensorFlow documentation's report, Mk1; section 8)."""


@dataclass(frozen=True, slots=True)
class IpuCost:
    """Share of one IPU in a run: cycles, and bytes of the fullest of the tiles that compute."""

    cycles: int
    weight_bytes: int
    """Bytes that are always in memory: weights, constants, and a second copy of a layer's weights
    if layers share code."""
    code: Code
    live_bytes: int
    """Bytes at the peak: tensors, and the operands that the operator there copies."""
    handed_bytes: int = 0
    """Bytes that a pipeline's stage passes on and receives meanwhile."""
    io_tile_bytes: int = 0
    """Bytes of an I/O tile, if there are any: the next inputs and the last outputs, beside its
    code."""

    def by_memory(self) -> dict[str, int]:
        """Return the bytes of the fullest tile at the peak, by category."""
        return {
            "weights": self.weight_bytes,
            "live": self.live_bytes,
            "handed on": self.handed_bytes,
            "vertex code": self.code.vertex_bytes,
            "vertex state": self.code.state,
            "internal exchange code": self.code.exchange,
            "control code": self.code.control,
            "host exchange code": HOST_EXCHANGE_BYTES,
            "stack": STACK_BYTES,
        }

    @property
    def code_bytes(self) -> int:
        """Bytes of code: what every program has, and what its operators add."""
        own = self.code.vertex_bytes + self.code.state + self.code.exchange + self.code.control
        return own + HOST_EXCHANGE_BYTES + STACK_BYTES

    @property
    def peak_tile_bytes(self) -> int:
        """Bytes of the fullest tile that computes, at the peak."""
        return sum(self.by_memory().values())

    @property
    def fullest_tile_bytes(self) -> int:
        """Bytes of the fullest tile at the peak, or of an I/O tile if that holds more."""
        return max(self.peak_tile_bytes, self.io_tile_bytes)


@dataclass(frozen=True, slots=True)
class Peak:
    """Node at which most memory is in use, and its contents. Bytes are per tile."""

    ipu: int
    node: str
    op_type: str
    temporary_bytes: int
    """Bytes that the node copies for itself."""
    tensors: tuple[tuple[str, int], ...]
    """Largest tensors alive at the node, largest first, without the weights."""
