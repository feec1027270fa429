"""What the operators of Graphcore's published libraries compute, by functions of torch.

Each library is a shared object of machine code and a wrapper in Python that calls custom_op with a
type, a domain and attributes. A body here takes the place of the machine code. Libraries that only
training uses are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from onnxgraph import CHIP_DOMAIN
from torch._higher_order_ops import while_loop

from poptorch.errors import Error
from poptorch.operators.custom_ops import register_custom_op_body

_NO_CLASS = torch.iinfo(torch.int32).max
"""Class of the places that Nms leaves empty."""
_NIBBLES = (12, 8, 4, 0)
"""Bits at which the four numbers of a packed word begin, the first number highest."""


@register_custom_op_body("RemapCE", CHIP_DOMAIN)
@register_custom_op_body("CopyTensor", CHIP_DOMAIN)
@register_custom_op_body("AutogradProxy", CHIP_DOMAIN)
def _copy(x: Any, *_: Any, **__: Any) -> Any:
    """Return the first input: these operators move it between tiles, or change gradients only."""
    return x.clone()


@register_custom_op_body("LeakyRelu", "custom.ops")
def _leaky_relu(x: Any, alpha: float = 0.01) -> Any:
    return torch.nn.functional.leaky_relu(x, alpha)


@register_custom_op_body("FastGatherLastDim", "poptorch.custom_ops")
def _fast_gather_last_dim(x: Any, index: Any, *_: Any, **__: Any) -> Any:
    return torch.gather(x, -1, index.to(torch.int64))


@register_custom_op_body("L1Distance", CHIP_DOMAIN)
def _l1_distance(x: Any, y: Any, **_: Any) -> Any:
    return torch.cdist(x.float(), y.float(), p=1).to(x.dtype)


@register_custom_op_body("L2Distance", CHIP_DOMAIN)
def _l2_distance(x: Any, y: Any, **_: Any) -> Any:
    return torch.cdist(x.float(), y.float(), p=2).to(x.dtype)


@register_custom_op_body("GroupQuantizeDecompress", "optimum.custom_ops")
def _group_quantize_decompress(x: Any, scale: Any, bias: Any, **_: Any) -> Any:
    """Return x[row, group, 4 * word + i] = number i of a word * scale + bias, in rows.

    A word of 16 bits holds four numbers of four bits. Words are signed here, and shifting keeps
    the sign, but the mask takes only the lowest four bits.
    """
    rows, groups, words = x.shape
    wide = x.to(torch.int32)
    numbers = torch.stack([(wide >> shift) & 15 for shift in _NIBBLES], -1)
    values = numbers.reshape(rows, groups, 4 * words).to(scale.dtype)
    return (values * scale + bias).reshape(rows, groups * words * 4)


@register_custom_op_body("StaticSparseMatmul", CHIP_DOMAIN)
def _static_sparse_matmul(x: Any, mode: str, **matrix: Any) -> Any:
    """Return matrix @ x or x @ matrix; block indices are in units of elements."""
    dense = _fill_matrix(**matrix, step=1).to(x.dtype)
    if mode not in ("sparse_dense", "dense_sparse"):
        raise Error(
            f"StaticSparseMatmul: mode is {mode!r}; expected 'sparse_dense' or 'dense_sparse'"
        )
    return dense @ x if mode == "sparse_dense" else x @ dense


@register_custom_op_body("StaticDynSparse", CHIP_DOMAIN)
def _static_dyn_sparse(x: Any, **matrix: Any) -> Any:
    """Return matrix @ x; block indices are in units of blocks."""
    return _fill_matrix(**matrix, step=matrix["block_size"]).to(x.dtype) @ x


def _fill_matrix(
    n_rows: int,
    n_cols: int,
    block_size: int,
    rows: Sequence[int],
    cols: Sequence[int],
    values: Sequence[float],
    step: int,
) -> Any:
    """Return a matrix with square blocks; the first is at step * (rows[0], cols[0])."""
    blocks = torch.tensor(values, dtype=torch.float32).reshape(-1, block_size, block_size)
    matrix = torch.zeros(n_rows, n_cols)
    for row, column, block in zip(rows, cols, blocks, strict=True):
        top, left = row * step, column * step
        matrix[top : top + block_size, left : left + block_size] = block
    return matrix


@register_custom_op_body("Nms", CHIP_DOMAIN)
def _nms(
    scores: Any,
    boxes: Any,
    threshold: float = 0.5,
    scoreThreshold: float = -torch.finfo(torch.float32).max,
    numDetections: int = 100,
    sigma: float = 0.0,
    **_: Any,
) -> Any:
    """Return indices, scores, boxes, classes and their number, for each image.

    scores is [images, boxes, classes]; boxes is [images, boxes, 4], from corner to corner. Each
    turn takes the best pair of a box and a class, and then lowers the scores which that class has
    for boxes that overlap: to the least number, or by exp(-overlap^2 / sigma).
    The chip's code stops when one image of a batch has no more detections; here, images of a
    batch do not depend on each other.
    """
    images, num_boxes, num_classes = scores.shape
    least = torch.finfo(scores.dtype).min
    flat_places = torch.arange(num_boxes * num_classes).unsqueeze(0)
    slots = torch.arange(numDetections).unsqueeze(0)

    def is_on(turn: Any, *_: Any) -> Any:
        return turn < numDetections

    def take_best(turn: Any, left: Any, best_places: Any, best_scores: Any) -> Any:
        flat = left.reshape(images, -1)
        best = torch.argmax(flat, 1, keepdim=True)
        score = torch.gather(flat, 1, best)
        rows = torch.div(best, num_classes, rounding_mode="floor")
        box = torch.gather(boxes, 1, rows.unsqueeze(-1).expand(-1, 1, 4))
        is_slot = (slots == turn) & (score.float() > scoreThreshold)
        best_places = torch.where(is_slot, best.to(torch.int32), best_places)
        best_scores = torch.where(is_slot, score, best_scores)
        left = torch.where(flat_places == best, least, flat).reshape(left.shape)
        overlap = _overlap(boxes, box).unsqueeze(-1)
        classes = torch.arange(num_classes).reshape(1, 1, -1)
        is_same = classes == (best % num_classes).unsqueeze(-1)
        if sigma:
            lowered = left * torch.exp(-(overlap * overlap) / sigma).to(left.dtype)
            is_lowered = is_same & (left > scoreThreshold)
        else:
            lowered = torch.full_like(left, least)
            is_lowered = is_same & (left > scoreThreshold) & (overlap > threshold)
        return turn + 1, torch.where(is_lowered, lowered, left), best_places, best_scores

    start = (
        torch.tensor(0),
        scores.clone(),
        torch.full((images, numDetections), -1, dtype=torch.int32),
        torch.zeros(images, numDetections, dtype=scores.dtype),
    )
    _, _, best_places, best_scores = while_loop(is_on, take_best, start)
    is_found = best_places >= 0
    rows = torch.div(best_places, num_classes, rounding_mode="floor")
    places = torch.where(is_found, rows, 0).to(torch.int64)
    best_boxes = torch.gather(boxes, 1, places.unsqueeze(-1).expand(-1, -1, 4))
    return (
        torch.where(is_found, rows, -1),
        best_scores,
        torch.where(is_found.unsqueeze(-1), best_boxes, 0.0).to(boxes.dtype),
        torch.where(is_found, best_places % num_classes, _NO_CLASS).to(torch.int32),
        is_found.sum(1).to(torch.int32),
    )


def _overlap(boxes: Any, box: Any) -> Any:
    """Return the area that boxes share with a box, of the area that both cover."""
    x1, y1, x2, y2 = boxes.float().unbind(-1)
    left, top, right, bottom = box.float().unbind(-1)
    width = torch.clamp(torch.minimum(x2, right) - torch.maximum(x1, left), min=0)
    height = torch.clamp(torch.minimum(y2, bottom) - torch.maximum(y1, top), min=0)
    shared = width * height
    both = (x2 - x1) * (y2 - y1) + (right - left) * (bottom - top) - shared
    return shared / both
