"""Effects of the chip's types on values: `lower` converts a placed graph to the computed graph,
which ONNX Runtime runs with exactly these effects, using `simipu.kernels` if they are available.
This package knows nothing of cycles."""

from typing import TYPE_CHECKING

from popef._tools.lazy import make_lazy

if TYPE_CHECKING:
    from simipu.numerics.public import *  # noqa: F403
else:
    __getattr__, __dir__ = make_lazy(__name__)
