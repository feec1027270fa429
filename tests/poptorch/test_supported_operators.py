"""Operators of PopTorch's documented list, compiled and compared with PyTorch."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import poptorch  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from tests.poptorch.supported_operators import SECTIONS  # noqa: E402


class Group(torch.nn.Module):
    """A module of many calls: compiling one is quicker than compiling each."""

    def __init__(self, functions):
        super().__init__()
        self.functions = functions
        self.held = torch.nn.ModuleList(f for f in functions if isinstance(f, torch.nn.Module))

    def forward(self, inputs):
        pairs = zip(self.functions, inputs, strict=True)
        return [tree_leaves(function(*given)) for function, given in pairs]


def compute(calls):
    """Return the results of calls on the simulated IPU, flattened."""
    options = poptorch.Options().showCompilationProgressBar(False)
    group = Group([function for function, _ in calls]).eval()
    return poptorch.inferenceModel(group, options)([inputs for _, inputs in calls])


def find_failures(calls):
    """Return why calls fail that cannot be compiled alone, by name."""
    failures = {}
    for name, call in calls.items():
        try:
            compute([call])
        except Exception as error:  # noqa: BLE001 - whatever the call raises is its failure
            failures[name] = error
    return failures


def differ(found, expected):
    """Return whether results differ, after 64 bits have become 32."""
    try:
        torch.testing.assert_close(
            found,
            [x.to(y.dtype) if x.itemsize == 8 else x for x, y in zip(expected, found, strict=True)],
            rtol=1e-4,
            atol=1e-5,
            equal_nan=True,
        )
    except (AssertionError, ValueError):
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize("section", SECTIONS)
def test_each_operator_of_the_list_computes_what_pytorch_does(section):
    calls = SECTIONS[section]
    try:
        results = compute(list(calls.values()))
    except Exception as error:  # noqa: BLE001 - the calls are compiled alone to name the failing ones
        pytest.fail(f"{error}; alone: {find_failures(calls)}")
    pairs = zip(calls.items(), results, strict=True)
    wrong = [
        name
        for (name, (function, inputs)), found in pairs
        if differ(found, tree_leaves(function(*inputs)))
    ]
    assert not wrong
