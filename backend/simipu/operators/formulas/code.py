"""What the code of an operator takes of a tile, by the categories of Poplar's memory reports.

Read off the profiles that graphcore/popliner prints of real compilations: a BERT-Large of PopART whose
layers share nothing, and an EfficientNet of TensorFlow (docs/ipu-performance.md, section 8). Nothing here was
fitted to whether a network fits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

_MESSAGE_BYTES = 12
"""Of exchange code at both ends together: 8 where a message arrives (a source and a pointer), 4 where a
contiguous piece leaves (osmarks/ipu-stack, the decoded instructions). How long the message is does not
matter."""
PIECE_BYTES = 64
"""What stays together where a tensor changes its layout: 32 bytes are a block of 16 channels of halves, and
two of them mostly are neighbours (the operands of BERT-Large's attention: 167 bytes of code so, 176 in the
profile)."""


@dataclass(frozen=True, slots=True)
class Code:
    """Bytes of a tile for one operator."""

    vertices: frozenset[tuple[str, int]] = frozenset()
    """Names and bytes of vertices, whose instructions are there once, whoever else uses them."""
    state: int = 0
    """Of the vertices: their fields, and lists of what they work on."""
    exchange: int = 0
    control: int = 0

    def __add__(self, other: Code) -> Code:
        """Of both, one after the other."""
        return Code(
            self.vertices | other.vertices,
            self.state + other.state,
            self.exchange + other.exchange,
            self.control + other.control,
        )

    @property
    def vertex_bytes(self) -> int:
        """Of the vertices' instructions."""
        return sum(size for _, size in self.vertices)

    def of_fullest(self, imbalance: float) -> Code:
        """That of the fullest tile, where the means are given: all vertices are on it."""
        state, exchange, control = (
            math.ceil(size * imbalance) for size in (self.state, self.exchange, self.control)
        )
        return Code(self.vertices, state, exchange, control)

    def with_messages(self, count: float) -> Code:
        """With the exchange of so many messages more."""
        return self + Code(exchange=_MESSAGE_BYTES * math.ceil(count))

    def rearranging(self, num_bytes: int) -> Code:
        """With the exchange of so many bytes whose layout changes on their way."""
        return self.with_messages(num_bytes / PIECE_BYTES)


NO_CODE = Code()


def _once(name: str, num_bytes: int) -> frozenset[tuple[str, int]]:
    return frozenset({(name, num_bytes)})


PRODUCT = Code(_once("product", 1_600), state=60, control=70)
"""BERT-Large: 1,135 to 1,612 bytes of vertices, 40 to 64 of state and 56 to 78 of control. Its exchange is
counted by message."""
FIELD = PRODUCT + Code(_once("field", 600), state=60)
"""Of a convolution with a kernel further. EfficientNet: 52 to 161 bytes of state, 16 to 60 of control, 2.2 to
2.8 kB of vertices with the addition behind."""
SLIC_CODE, VMAC_CODE = (Code(_once(name, 3_000), state=900, control=70) for name in ("SLIC", "VMAC"))
"""EfficientNet's depthwise convolutions: 3 kB of vertices and 0.4 to 1.9 kB of state more than a layer
without."""

_WHOLE: Mapping[str, Code] = {
    "softmax": Code(_once("softmax", 1_560), 109, 69, 137),
    "norm": Code(_once("norm", 2_020), 150, 155, 177),
    "gather": Code(_once("gather", 800), 45, 216, 39),
}
"""BERT-Large's rows; of its two lookups the mean."""
_STEP = Code(state=14, exchange=16, control=20)
"""Of any other compute set with the exchange before it. BERT-Large's elementwise operators: 10 to 17, 0 to
29, 17 to 24 bytes."""
_ELEMENTWISE_BYTES, _OTHER_BYTES = 200, 600
"""Of a vertex. Elementwise 141 to 258 in BERT-Large; reductions and pools have the size of their rows in
poplibs' benchmark, 0.3 to 1.4 kB with all that belongs to them. Others: assumed."""


def code_of(kind: str, name: str, steps: int) -> Code:
    """Of an operator of that kind that is no product: `name` tells its vertices from others', `steps` are its
    compute sets."""
    if kind in _WHOLE:
        return _WHOLE[kind]
    return Code(
        _once(name, _ELEMENTWISE_BYTES if kind == "elementwise" else _OTHER_BYTES),
        _STEP.state * steps,
        _STEP.exchange * steps,
        _STEP.control * steps,
    )
