"""What lies on a tile, by the categories of Poplar's memory reports, and where most does."""

from __future__ import annotations

from dataclasses import dataclass

from simipu.operators.formulas.code import Code

STACK_BYTES = 1_760
HOST_EXCHANGE_BYTES = 289
"""Together what a dense layer's profile has beside its own categories, 2,049 bytes (ipu_tensorflow_addons,
Mk2); the second as an addition's says it (the TensorFlow documentation's report, Mk1; section 8)."""


@dataclass(frozen=True, slots=True)
class IpuCost:
    """What one of the IPUs has of a run: cycles, and bytes of the fullest of the tiles that compute."""

    cycles: int
    weight_bytes: int
    """What is always there: weights, constants, and a second copy of a layer's where layers share code."""
    code: Code
    live_bytes: int
    """At the peak: tensors, and what the operator there copies."""
    handed_bytes: int = 0
    """Of a pipeline's stage: what it hands on and is handed meanwhile."""
    io_tile_bytes: int = 0
    """Of an I/O tile, where there are any: the next inputs and the last outputs, beside its code."""

    def by_memory(self) -> dict[str, int]:
        """Bytes of the fullest tile at the peak, by what they hold."""
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
        """What every program has, and what its operators add to that."""
        own = self.code.vertex_bytes + self.code.state + self.code.exchange + self.code.control
        return own + HOST_EXCHANGE_BYTES + STACK_BYTES

    @property
    def peak_tile_bytes(self) -> int:
        """Bytes of the fullest tile that computes, at the peak."""
        return sum(self.by_memory().values())

    @property
    def fullest_tile_bytes(self) -> int:
        """The same, or of an I/O tile where that holds more."""
        return max(self.peak_tile_bytes, self.io_tile_bytes)


@dataclass(frozen=True, slots=True)
class Peak:
    """The node at which most is alive, and what that is. Bytes of a tile."""

    ipu: int
    node: str
    op_type: str
    temporary_bytes: int
    """What the node copies for itself."""
    tensors: tuple[tuple[str, int], ...]
    """The largest tensors alive there, largest first, without the weights."""
