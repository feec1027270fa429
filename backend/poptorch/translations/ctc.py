"""Loss of connectionist temporal classification; torch computes it only with values at hand."""

from __future__ import annotations

from typing import Any, Final

import torch

from poptorch.errors import Error

_NEVER: Final = -1e30
"""Logarithm of the probability of what cannot be: finite, so that differences of two are zero."""


def ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:
    """Return the loss, by the forward variables over the labels with blanks between them.

    A path is in state s of `- a - b -` after a step if it was there, or in s - 1, before it; or in
    s - 2, if that is another label. Its probability is that of the step's class.

    Args:
        log_probs: Logarithms of probabilities, [steps, batch, classes] or [steps, classes].
        targets: Labels, [batch, labels] or, for one example, [labels].
        input_lengths: Number of steps of each example.
        target_lengths: Number of labels of each example.
        blank: Class of the blank.
        reduction: "none", "mean" or "sum".
        zero_infinity: Whether the loss is zero where no path exists.

    Raises:
        Error: If the labels of several examples are joined into one row.
    """
    is_single = log_probs.dim() == 2  # noqa: PLR2004 - without a batch
    if is_single:
        log_probs, targets = log_probs.unsqueeze(1), targets.reshape(1, -1)
    batch = log_probs.shape[1]
    if targets.dim() != 2:  # noqa: PLR2004
        raise Error(
            f"ctc_loss: targets has shape {list(targets.shape)}; expected [{batch}, labels], "
            "because lengths are known at run time only"
        )
    lengths = [
        torch.as_tensor(size).reshape(-1).to(torch.int64)
        for size in (input_lengths, target_lengths)
    ]
    losses = -_find_likelihoods(
        log_probs.float(), targets.to(torch.int64), lengths[0], lengths[1], blank
    )
    infinite = losses > -_NEVER / 2
    losses = torch.where(infinite, 0.0 if zero_infinity else torch.inf, losses)
    losses = losses.to(log_probs.dtype)
    if reduction == "mean":
        return (losses / lengths[1].clamp(min=1)).mean()
    if reduction == "sum":
        return losses.sum()
    return losses[0] if is_single else losses


def _find_likelihoods(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int
) -> Any:
    """Return the logarithms of the labels' probabilities."""
    steps, batch, _ = log_probs.shape
    blanks = torch.full_like(targets, blank)
    first = torch.full((batch, 1), blank)
    states = torch.cat([first, torch.stack([targets, blanks], 2).reshape(batch, -1)], 1)
    num_states = states.shape[1]
    skips = torch.cat([torch.zeros(batch, 2, dtype=torch.bool), _may_skip(states, blank)], 1)
    emitted = torch.gather(log_probs, 2, states.expand(steps, batch, num_states))
    is_start = torch.arange(num_states) < 2  # noqa: PLR2004 - the first blank or label
    alpha = torch.where(is_start, emitted[0], _NEVER)
    for step in range(1, steps):
        padded = torch.cat([torch.full((batch, 2), _NEVER), alpha], 1)
        before = [alpha, padded[:, 1:-1], torch.where(skips, padded[:, :-2], _NEVER)]
        moved = torch.logsumexp(torch.stack(before), 0) + emitted[step]
        alpha = torch.where((input_lengths > step).unsqueeze(1), moved, alpha)
    end = (2 * target_lengths).unsqueeze(1)
    last = torch.gather(alpha, 1, end)
    label = torch.gather(alpha, 1, (end - 1).clamp(min=0))
    label = torch.where(end > 0, label, _NEVER)
    return torch.logsumexp(torch.cat([last, label], 1), 1)


def _may_skip(states: Any, blank: int) -> Any:
    """Return where a path may leave out the blank before a label: after another label."""
    return (states[:, 2:] != blank) & (states[:, 2:] != states[:, :-2])
