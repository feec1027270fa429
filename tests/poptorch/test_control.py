"""poptorch.cond and poptorch.for_loop as If and Loop nodes, compared with the module itself."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from onnxgraph import iter_nodes  # noqa: E402
from poptorch import Error, ops  # noqa: E402
from poptorch.capture import control  # noqa: E402

from tests.poptorch.test_capture import run  # noqa: E402

X = torch.tensor([[0.5, -1.0, 2.0], [1.5, 0.25, -3.0]])


def count_nodes(captured, op_type):
    return sum(node.op_type == op_type for node in iter_nodes(captured.model.graph))


class Branches(torch.nn.Module):
    """A branch within a branch; branches read parameters and tensors of the code around them."""

    def __init__(self):
        super().__init__()
        self.then, self.other = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)

    def forward(self, outer, inner, x):
        doubled = x * 2

        def then(x):
            nested = control.cond(inner, lambda y: self.other(y), [x], lambda y: y - 1, [x])
            return self.then(x) + doubled, nested[0]

        def other(x):
            x.add_(1)
            return self.other(x), x

        return [*control.cond(outer, then, [x], other, [x]), x]


@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("inner", [True, False])
def test_nested_branches_are_if_nodes_and_one_of_them_is_computed(outer, inner):
    model = Branches()
    flags = torch.tensor([outer]), torch.tensor(inner)
    captured, found, _ = run(model, *flags, X)
    torch.testing.assert_close(
        found, model(*flags, X.clone()) if outer else [model.other(X + 1), X + 1, X]
    )
    assert count_nodes(captured, "If") == 2
    assert not {"Gemm", "MatMul", "Add"} & {node.op_type for node in captured.model.graph.node}


def test_branches_that_only_pass_tensors_on_keep_them_apart():
    def swap(flag, x, y):
        return control.cond(flag, lambda a, b: (a, b), [x, y], lambda a, b: (b, a), [x, y])

    for flag in (True, False):
        _, found, _ = run(swap, torch.tensor(flag), X, X + 1)
        torch.testing.assert_close(found, swap(torch.tensor(flag), X, X + 1))


class Loop(torch.nn.Module):
    """A loop whose body reads a parameter, a tensor from outside, and takes a branch."""

    def __init__(self, turns):
        super().__init__()
        self.linear, self.turns = torch.nn.Linear(3, 3), turns

    def forward(self, x):
        mean = x.mean()

        def body(x, count):
            step = control.cond(x.sum() > 0, lambda y: y * 0.5, [x], lambda y: -y, [x])[0]
            return torch.tanh(self.linear(x)) + mean + step, count.add_(1)

        return control.for_loop(self.turns, body, [x, torch.zeros(2)])


@pytest.mark.parametrize("turns", [3, control.MAX_UNROLLED, control.MAX_UNROLLED + 1, 5000])
def test_loops_of_many_turns_are_loop_nodes_and_compute_what_unrolled_ones_do(turns):
    torch.manual_seed(0)
    model = Loop(turns)
    captured, found, _ = run(model, X)
    torch.testing.assert_close(found, model(X), rtol=1e-4, atol=1e-5)
    assert count_nodes(captured, "Loop") == int(turns > control.MAX_UNROLLED)


def test_a_loop_within_a_loop_runs_as_often_as_both_say():
    def nested(x):
        def body(x):
            return control.for_loop(20, lambda y: y + 1, [x])

        return control.for_loop(30, body, [x])

    captured, found, _ = run(nested, X)
    torch.testing.assert_close(found, [X + 600])
    assert count_nodes(captured, "Loop") == 2


def test_each_turn_of_a_loop_draws_its_own_numbers_and_one_drawn_before_stays():
    def model(x):
        before = torch.rand(3)

        def body(_, drawn, place):
            row = torch.rand(1, 3)
            return before, torch.where(place == 0, torch.cat([drawn[1:], row]), drawn), place

        last, rows, _ = control.for_loop(40, body, [before, torch.zeros(40, 3), x * 0])
        return before, last, rows

    _, (before, last, rows), _ = run(model, torch.zeros(1))
    torch.testing.assert_close(before, last)
    assert len(rows.unique(dim=0)) == 40


def test_bodies_that_change_or_print_what_is_not_their_own_are_errors():
    class Counting(torch.nn.Module):
        def __init__(self, turns):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))
            self.turns = turns

        def body(self, x):
            self.count += 1
            return x + self.count

        def forward(self, x):
            return control.for_loop(self.turns, self.body, [x])

    run(Counting(2), X, state={"count": torch.zeros(1)})
    with pytest.raises(Error, match=r"for_loop: the body changes a tensor of shape \[1\]"):
        run(Counting(100), X)
    with pytest.raises(Error, match="prints a tensor"):
        run(lambda x: control.for_loop(100, ops.ipu_print_tensor, [x]), X)


def test_bodies_of_other_shapes_or_types_are_errors():
    with pytest.raises(Error, match=r"result 0 is torch.float32 \[2, 3\] .* \[1, 3\]"):
        run(lambda x: control.cond(x.sum() > 0, lambda y: y, [x], lambda y: y[:1], [x]), X)
    with pytest.raises(Error, match=r"float32, and its result torch\.int32"):
        run(lambda x: control.for_loop(100, lambda y: y.int(), [x]), X)
