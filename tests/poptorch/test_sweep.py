"""A bounded part of the sweep over PopTorch's supported operators, beside PyTorch.

`python -m tests.poptorch.sweep` runs all cases and prints the table.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.poptorch.sweep.operators import OPERATORS, is_known  # noqa: E402
from tests.poptorch.sweep.running import ESCAPED, WRONG, run  # noqa: E402

MAX_CASES = 16
"""Number of cases of an operator, which are spread over all of them."""


@pytest.mark.slow
@pytest.mark.parametrize("name", OPERATORS)
def test_each_operator_computes_what_pytorch_does_or_is_refused(name):
    cases = list(OPERATORS[name]())
    step = -(-len(cases) // MAX_CASES)
    wrong = {
        case.name: (outcome, cause)
        for case, outcome, cause in run(cases[::step])
        if outcome in (WRONG, ESCAPED) and not is_known(name, case.name)
    }
    assert not wrong


ZERO_SCALES = [
    (torch.addmm, (3, 3), (3, 4), (4, 3)),
    (torch.addmv, (3,), (3, 4), (4,)),
    (torch.addr, (3, 3), (3,), (3,)),
    (torch.baddbmm, (2, 3, 3), (2, 3, 4), (2, 4, 3)),
    (torch.addbmm, (3, 3), (2, 3, 4), (2, 4, 3)),
]


def compute(function, *args):
    import poptorch

    options = poptorch.Options().showCompilationProgressBar(False)
    return poptorch.inferenceModel(function, options)(*args)


@pytest.mark.parametrize(("function", "shape", "one", "other"), ZERO_SCALES)
def test_a_tensor_that_is_scaled_by_0_is_not_read(function, shape, one, other):
    given = torch.full(shape, torch.nan), torch.ones(one), torch.ones(other)
    found = compute(lambda x, y, z: function(x, y, z, beta=0), *given)
    torch.testing.assert_close(found, function(*given, beta=0))


def test_a_result_in_half_of_an_operator_in_float_is_half():
    x = torch.tensor([-1.0, 2.0]).half()
    assert compute(torch.abs, x).dtype is torch.half


def test_a_module_in_float_takes_inputs_in_double():
    layer, x = torch.nn.Linear(3, 2), torch.ones(1, 3, dtype=torch.double)
    torch.testing.assert_close(compute(layer, x), layer(x.float()).detach())


def test_a_masked_assignment_of_one_number_needs_no_number_of_elements():
    def assign(x):
        y = x.clone()
        y[x > 0] = 7.0
        return y

    x = torch.tensor([[1.0, -1.0], [0.0, 2.0]])
    torch.testing.assert_close(compute(assign, x), assign(x))


@pytest.mark.parametrize(
    ("size", "options", "text"),
    [
        ((1, 2, 4), {"mode": "linear", "scale_factor": 2}, "Unsupported upsample mode"),
        ((1, 2, 4, 4, 4), {"mode": "trilinear", "scale_factor": 2}, "Unsupported upsample mode"),
        ((1, 2, 4, 4), {"mode": "bilinear", "scale_factor": (2, 3)}, "Non-uniform bilinear"),
        ((1, 2, 4, 4), {"mode": "bilinear", "scale_factor": 1.5}, "non-integer factor"),
        (
            (1, 2, 4, 4),
            {"mode": "bicubic", "scale_factor": 2, "align_corners": True},
            "Only support align_corners=False",
        ),
    ],
)
def test_upsampling_that_poptorch_refuses_is_refused(size, options, text):
    import poptorch

    with pytest.raises(poptorch.Error, match=text):
        compute(torch.nn.Upsample(**options), torch.ones(size))
