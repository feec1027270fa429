"""Code size of an operator on a tile, by the categories of Poplar's memory reports.

The numbers come from the profiles that graphcore/popliner prints of real compilations: a BERT-Large
of PopART whose layers share nothing, and an EfficientNet of TensorFlow (docs/ipu-performance.md,
section 8). Nothing here was fitted to whether a network fits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

_MESSAGE_BYTES = 12
"""Bytes of exchange code of a message at both ends together: 8 at the receiver (a source and a
pointer), 4 at the sender of a contiguous piece (osmarks/ipu-stack, the decoded instructions). The
length of the message does not matter."""
PIECE_BYTES = 64
"""Bytes that stay together when a tensor changes its layout. 32 bytes are a block of 16 channels of
halves, and two blocks are mostly neighbours. For the operands of BERT-Large's attention this gives
167 bytes of code; the profile has 176."""


@dataclass(frozen=True, slots=True)
class Code:
    """Bytes of code of a tile for one operator."""

    vertices: frozenset[tuple[str, int]] = frozenset()
    """Names and bytes of vertices. Their instructions exist once, and all operators share them."""
    state: int = 0
    """State of the vertices: their fields, and lists of the data that they process."""
    exchange: int = 0
    control: int = 0

    def __add__(self, other: Code) -> Code:
        """Return the code of both, one after the other."""
        return Code(
            self.vertices | other.vertices,
            self.state + other.state,
            self.exchange + other.exchange,
            self.control + other.control,
        )

    @property
    def vertex_bytes(self) -> int:
        """Bytes of the vertices' instructions."""
        return sum(size for _, size in self.vertices)

    def of_fullest(self, imbalance: float) -> Code:
        """Return the code of the fullest tile, where this is the mean: all vertices are on that
        tile."""
        state, exchange, control = (
            math.ceil(size * imbalance) for size in (self.state, self.exchange, self.control)
        )
        return Code(self.vertices, state, exchange, control)

    def with_messages(self, count: float) -> Code:
        """Return this code with the exchange of `count` more messages."""
        return self + Code(exchange=_MESSAGE_BYTES * math.ceil(count))

    def rearranging(self, num_bytes: int) -> Code:
        """Return this code with the exchange of `num_bytes` whose layout changes."""
        return self.with_messages(num_bytes / PIECE_BYTES)


NO_CODE = Code()


def _once(name: str, num_bytes: int) -> frozenset[tuple[str, int]]:
    return frozenset({(name, num_bytes)})


PRODUCT = Code(_once("product", 1_600), state=60, control=70)
"""Code of a product. BERT-Large: 1,135 to 1,612 bytes of vertices, 40 to 64 of state and 56 to 78
of control. Its exchange is counted by message."""
FIELD = PRODUCT + Code(_once("field", 600), state=60)
"""Code of a convolution with a larger kernel. EfficientNet: 52 to 161 bytes of state, 16 to 60 of
control, 2.2 to 2.8 kB of vertices including the addition that follows."""
SLIC_CODE, VMAC_CODE = (
    Code(_once(name, 3_000), state=900, control=70) for name in ("SLIC", "VMAC")
)
"""Code of EfficientNet's depthwise convolutions: 3 kB of vertices and 0.4 to 1.9 kB of state more
than a layer without."""

_WHOLE: Mapping[str, Code] = {
    "softmax": Code(_once("softmax", 1_560), 109, 69, 137),
    "norm": Code(_once("norm", 2_020), 150, 155, 177),
    "gather": Code(_once("gather", 800), 45, 216, 39),
}
"""Code of whole operators, from BERT-Large's rows; for its two lookups the mean."""
_STEP = Code(state=14, exchange=16, control=20)
"""Code of any other compute set with the exchange before it. BERT-Large's elementwise operators: 10
to 17, 0 to 29, 17 to 24 bytes."""
_ELEMENTWISE_BYTES, _OTHER_BYTES = 200, 600
"""Bytes of a vertex. Elementwise: 141 to 258 in BERT-Large. Reductions and pools: the size of their
rows in poplibs' benchmark, 0.3 to 1.4 kB with everything that belongs to them. Others: assumed."""


def code_of(kind: str, name: str, steps: int) -> Code:
    """Return the code of an operator of that kind that is no product. `name` distinguishes its
    vertices from others', `steps` is the number of its compute sets."""
    if kind in _WHOLE:
        return _WHOLE[kind]
    return Code(
        _once(name, _ELEMENTWISE_BYTES if kind == "elementwise" else _OTHER_BYTES),
        _STEP.state * steps,
        _STEP.exchange * steps,
        _STEP.control * steps,
    )
