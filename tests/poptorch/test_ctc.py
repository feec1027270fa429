"""The loss of connectionist temporal classification, compared with torch's own."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from poptorch.errors import Error  # noqa: E402
from poptorch.translations.ctc import ctc_loss  # noqa: E402

STEPS, BATCH, CLASSES, LABELS = 8, 3, 5, 3


def draw(seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(STEPS, BATCH, CLASSES, generator=generator)
    targets = torch.randint(1, CLASSES - 1, (BATCH, LABELS), generator=generator)
    steps = torch.randint(LABELS, STEPS + 1, (BATCH,), generator=generator)
    lengths = torch.randint(0, LABELS + 1, (BATCH,), generator=generator)
    return torch.log_softmax(logits, 2), targets, steps, lengths


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"reduction": "none"},
        {"reduction": "sum", "zero_infinity": True},
        {"reduction": "none", "blank": CLASSES - 1, "zero_infinity": True},
    ],
)
@pytest.mark.parametrize("seed", range(10))
def test_losses_are_torchs_for_all_reductions_blanks_and_lengths(seed, options):
    given = draw(seed)
    expected = torch.nn.functional.ctc_loss(*given, **options)
    torch.testing.assert_close(ctc_loss(*given, **options), expected, rtol=1e-4, atol=1e-4)


def test_a_single_example_needs_no_batch():
    logs, targets, *_ = draw(0)
    given = logs[:, 0], targets[0], torch.tensor(STEPS), torch.tensor(LABELS)
    torch.testing.assert_close(ctc_loss(*given), torch.nn.functional.ctc_loss(*given))


def test_labels_joined_into_one_row_are_an_error():
    logs, targets, *lengths = draw(0)
    with pytest.raises(Error, match=r"targets has shape \[9\]; expected \[3, labels\]"):
        ctc_loss(logs, targets.reshape(-1), *lengths)
