"""EmbeddingBag and one_hot, which torch's exporter writes with sequences or not at all."""

from __future__ import annotations

from typing import Any, Final

import torch

from poptorch.errors import Error

_SUM: Final = 0
_MEAN: Final = 1
"""Modes of EmbeddingBag; the third, 2, is the maximum."""


def embedding_bag(
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,  # noqa: ARG001 # of gradients
    mode: int = _SUM,
    sparse: bool = False,  # noqa: ARG001 # of gradients
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> tuple[Any, Any, Any, Any]:
    """Return the sum, mean or maximum of the rows of each bag, and torch's numbers about them.

    The bag of an index is the last one that begins at its place or before it. Indices of padding
    go into a further bag, which is cut off, so they count in no bag. An empty bag is 0.

    Args:
        weight: The rows, [rows, features].
        indices: Indices of all bags, [indices].
        offsets: Place at which each bag begins, [bags].
        scale_grad_by_freq: Accepted; there are no gradients.
        mode: 0 for sums, 1 for means, 2 for maxima.
        sparse: Accepted; there are no gradients.
        per_sample_weights: Factor of each row, or None.
        include_last_offset: Whether the last offset is the end of the last bag.
        padding_idx: Row that counts in no bag, or None.
    """
    bags = offsets.shape[0] - int(include_last_offset)
    places = torch.arange(indices.shape[0], dtype=offsets.dtype)
    starts = offsets[:bags]
    bag = (starts.unsqueeze(0) <= places.unsqueeze(1)).sum(1) - 1
    if padding_idx is not None:
        bag = torch.where(indices == padding_idx % weight.shape[0], bags, bag)
    rows = torch.index_select(weight, 0, indices)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    nothing = torch.zeros(bags + 1, weight.shape[1], dtype=rows.dtype)
    ones = torch.ones(indices.shape[0], dtype=torch.int32)
    counts = torch.zeros(bags + 1, dtype=torch.int32).index_add(0, bag, ones)
    if mode in (_SUM, _MEAN):
        bags_of_rows = nothing.index_add(0, bag, rows)
    else:
        bags_of_rows = nothing.index_reduce(0, bag, rows, "amax", include_self=False)
    if mode == _MEAN:
        bags_of_rows = bags_of_rows / counts.clamp(min=1).unsqueeze(1).to(bags_of_rows.dtype)
    return bags_of_rows[:bags], bag, counts[:bags], counts[:bags]


def one_hot(x: Any, num_classes: int = -1) -> Any:
    """Return the one-hot rows of class numbers, [..., classes].

    Args:
        x: Class numbers.
        num_classes: Number of classes.
    """
    classes = torch.arange(num_classes, dtype=x.dtype)
    return (x.unsqueeze(-1) == classes).to(torch.int64)


def check_one_hot(tensor: Any, num_classes: int = -1) -> Any:
    """Call torch's one_hot; the number of classes must be known before the run.

    Args:
        tensor: Class numbers.
        num_classes: Number of classes.

    Raises:
        Error: If the number of classes is not given.
    """
    if num_classes == -1:
        raise Error(
            "OneHot num classes must be specified and must be constant.", "poptorch_cpp_error"
        )
    return torch.nn.functional.one_hot(tensor, num_classes)
