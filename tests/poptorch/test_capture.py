"""Captured modules, compared with the modules themselves by ONNX Runtime."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import onnx  # noqa: E402
import onnxruntime  # noqa: E402
import poptorch  # noqa: E402
from poptorch import arguments, ops  # noqa: E402
from poptorch.capture import control  # noqa: E402
from poptorch.capture.capture import Captured, capture  # noqa: E402
from poptorch.errors import Error  # noqa: E402
from poptorch.operators.custom_ops import custom_op, register_custom_op_body  # noqa: E402
from poptorch.operators.tracing import isRunningOnIpu  # noqa: E402
from poptorch.translations import graph_text  # noqa: E402
from poptorch.translations.aten import narrow  # noqa: E402

LABELS = torch.tensor([0, 3, 4, 1])


def run(model, *args, state=None, **keywords):
    """Return the capture, the results, and the new values of state by name."""
    forward = model.forward if isinstance(model, torch.nn.Module) else model
    bound = arguments.bind(forward, args, keywords)
    captured = capture(model, bound)
    return captured, *compute(captured, bound, state or {})


def compute(captured: Captured, bound, state):
    onnx.checker.check_model(captured.model, full_check=True)
    session = onnxruntime.InferenceSession(captured.model.SerializeToString())
    feeds = {
        name: narrow(tensor).numpy()
        for name, (_, tensor) in zip(captured.inputs, bound.iter_tensors(), strict=True)
    }
    feeds |= {name: narrow(tensor).numpy() for name, tensor in state.items()}
    names = [each.name for each in captured.model.graph.output]
    values = dict(zip(names, map(torch.tensor, session.run(names, feeds)), strict=True))
    tensors = [
        captured.constants[place] if name is None else values[name]
        for place, name in enumerate(captured.outputs)
    ]
    changed = {each.buffer or each.argument: values[each.output] for each in captured.state}
    return captured.rebuild(tensors), changed


def assert_same(model, *args):
    _, found, _ = run(model, *args)
    torch.testing.assert_close(found, model(*args), check_dtype=False, rtol=1e-4, atol=1e-5)


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.linear = torch.nn.Linear(3, 4)
        self.tied = torch.nn.Linear(3, 4)
        self.tied.weight = self.linear.weight

    def forward(self, x, places):
        self.count += 1
        places["old"].add_(2)
        y = self.linear(x) + self.tied(x) + self.count
        device = "ipu" if isRunningOnIpu() else None
        return {"y": y, "fixed": (torch.ones(2, device=device) * 2, [places["old"]])}


def test_weights_keep_their_names_and_tied_ones_the_first_name():
    captured, _, _ = run(
        Counter(), torch.ones(2, 3), {"old": torch.ones(2)}, state={"count": torch.zeros(1)}
    )
    names = {each.name for each in captured.model.graph.initializer}
    assert {"linear.weight", "linear.bias", "tied.bias"} <= names
    assert "tied.weight" not in names
    assert captured.inputs == ("input", "input/1")


def test_results_keep_their_structure_and_changed_tensors_are_state():
    model, x, old = Counter(), torch.randn(2, 3), torch.randn(2)
    count = torch.full((1,), 4.0)
    _, found, changed = run(model, x, {"old": old}, state={"count": count})
    model.count.fill_(4)
    expected = model(x, {"old": old.clone()})
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(changed, {"count": torch.full((1,), 5.0), 1: old + 2})


def test_capturing_leaves_the_module_and_its_arguments_alone():
    model, old = Counter(), torch.ones(2)
    run(model, torch.ones(2, 3), {"old": old}, state={"count": torch.zeros(1)})
    assert model.count.tolist() == [0]
    assert type(model.count) is torch.Tensor
    assert old.tolist() == [1, 1]


@pytest.mark.parametrize("dtype", [torch.float, torch.half])
def test_batch_norm_in_training_keeps_its_running_statistics(dtype):
    model = torch.nn.BatchNorm1d(4).train().to(dtype)
    x = torch.randn(8, 4).to(dtype)
    start = {"num_batches_tracked": model.num_batches_tracked.clone()}
    _, found, changed = run(model, x, state=start)
    bound = 1e-5 if dtype is torch.float else 2e-3
    torch.testing.assert_close(found, model(x).detach(), atol=bound, rtol=bound)
    assert changed.keys() == {"num_batches_tracked"}


@pytest.mark.parametrize("affine", [True, False])
def test_groups_of_group_norm_can_be_every_nth_channel(affine):
    norm = torch.nn.GroupNorm(2, 6, affine=affine)
    if affine:
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    options = poptorch.Options()
    options._Popart.set("groupNormStridedChannelGrouping", True)
    x = torch.randn(3, 6, 5)
    found = poptorch.inferenceModel(norm, options)(x)
    centred = [each - each.mean((1, 2), keepdim=True) for each in (x[:, ::2], x[:, 1::2])]
    scaled = [
        each / (each.square().mean((1, 2), keepdim=True) + norm.eps).sqrt() for each in centred
    ]
    wanted = torch.stack(scaled, 2).reshape(3, 6, 5)
    if affine:
        wanted = wanted * norm.weight[:, None] + norm.bias[:, None]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_half_activations_run_with_float_parameters():
    x = torch.randn(2, 4)
    model = torch.nn.Linear(4, 3)
    _, found, _ = run(model, x.half())
    assert found.dtype == torch.half
    torch.testing.assert_close(found.float(), model(x), atol=5e-3, rtol=5e-3)


def test_float_activations_run_with_half_parameters():
    x = torch.randn(2, 4)
    model = torch.nn.Linear(4, 3)
    expected = model(x)
    _, found, _ = run(model.half(), x)
    assert found.dtype == torch.float
    torch.testing.assert_close(found, expected, atol=5e-3, rtol=5e-3)


def test_a_branch_on_a_tensors_value_is_an_error():
    with pytest.raises(Error, match="depends on the value of a tensor"):
        run(lambda x: x if x.sum() > 0 else -x, torch.ones(2))


def test_an_exception_of_forward_is_raised_as_it_is():
    def forward(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(forward, torch.ones(2))


class Rebinding(torch.nn.Module):
    def __init__(self, remove):
        super().__init__()
        self.register_buffer("y", torch.zeros(1))
        self.remove = remove

    def forward(self, x):
        if self.remove:
            del self.y
        else:
            self.y = x
        return x + 1


@pytest.mark.parametrize(("remove", "text"), [(True, "is removed"), (False, "is reassigned")])
def test_a_buffer_that_is_removed_or_rebound_is_an_error(remove, text):
    with pytest.raises(Error, match=f"Buffer y {text}"):
        run(Rebinding(remove), torch.ones(1))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.cdist(x, x[:2]),
        lambda x: torch.cdist(x, x[:2], p=1.0),
        torch.median,
        lambda x: tuple(torch.median(x, 1, keepdim=True)),
        lambda x: tuple(torch.kthvalue(x, 2, 0)),
        lambda x: torch.cumprod(x, 1),
        lambda x: tuple(torch.sort(x, stable=True, descending=True)),
        lambda x: torch.argsort(x, stable=True),
        lambda x: torch.bincount((x > 0).long().reshape(-1), minlength=2),
        lambda x: torch.lgamma(3 * x),
        lambda x: torch.mvlgamma(torch.abs(x) + 2, 2),
        lambda x: torch.digamma(3 * x),
        lambda x: torch.erfinv(torch.tanh(x)),
        lambda x: (x > 0) + (x < -1),
        lambda x: torch.zeros_like(x).scatter(1, torch.tensor([[2, 0], [1, 3]]), x),
        lambda x: torch.ones_like(x).scatter_reduce(1, (x > 0).long(), x, "mean"),
        lambda x: torch.nn.functional.adaptive_max_pool1d(x[None], 3),
        lambda x: torch.nn.functional.rrelu(x),
        lambda x: torch.hypot(x, 2 * x),
        lambda x: 1.5 - (x > 0).long(),
        lambda x: (x.squeeze(1), x[:, :1].squeeze(1)),
        lambda x: torch.searchsorted(torch.tensor([-1.0, 0.0, 1.0]), x),
        *(
            lambda x, given=given: torch.nn.functional.cross_entropy(x, LABELS, **given)
            for given in (
                {"label_smoothing": 0.1},
                {"label_smoothing": 0.2, "reduction": "sum"},
                {"label_smoothing": 0.2, "weight": torch.arange(1.0, 6.0)},
                {"label_smoothing": 0.2, "ignore_index": 3},
            )
        ),
        lambda x: torch.nn.functional.cross_entropy(x, torch.softmax(x, 1), label_smoothing=0.1),
    ],
)
def test_operators_without_an_onnx_form_are_translated(function):
    assert_same(function, torch.randn(4, 5))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.split(x, 3, 1),
        lambda x: torch.split(x, [1, 3, 1], 1),
        lambda x: torch.chunk(x, 2, -1),
        lambda x: torch.tensor_split(x, 3, 1),
        lambda x: torch.unbind(x, 1),
    ],
)
def test_parts_of_a_tensor_are_slices_and_no_sequence_of_tensors(function):
    x = torch.arange(20.0).reshape(4, 5)
    captured, found, _ = run(function, x)
    torch.testing.assert_close(found, function(x))
    kinds = {each.op_type for each in captured.model.graph.node}
    assert not {each for each in kinds if "Sequence" in each}


def test_windows_start_where_a_tensor_says_and_wrap_around():
    x, start = torch.arange(8.0), torch.tensor([6])
    _, found, _ = run(lambda x, start: ops.dynamic_slice(x, 0, start, 4, 1), x, start)
    assert found.tolist() == [6, 7, 0, 1]
    _, found, _ = run(lambda x, start: ops.dynamic_update(x, -torch.ones(4), 0, start, 4), x, start)
    assert found.tolist() == [-1, -1, 2, 3, 4, 5, -1, -1]


@pytest.mark.parametrize("flag", [True, False])
def test_cond_takes_the_branch_of_the_condition_at_run_time(flag):
    def forward(flag, x):
        return control.cond(flag, lambda x: x * 2, [x], lambda x: x + 1, [x])[0]

    assert_same(forward, torch.tensor([flag]), torch.ones(3))


def test_a_loop_feeds_its_results_back():
    assert_same(lambda x: control.for_loop(5, lambda x: x * 2, [x]), torch.ones(2))


def test_a_loop_over_no_list_is_an_error():
    with pytest.raises(ValueError, match="Object is not list"):
        control.for_loop(1, lambda x: x, torch.ones(1))


def test_ctc_decodes_the_likeliest_labels():
    scores = torch.full((5, 1, 4), -10.0)
    for step, label in enumerate([1, 1, 0, 2, 3]):
        scores[step, 0, label] = -0.001
    _, (_, lengths, labels), _ = run(
        lambda p, n: ops.ctc_beam_search_decoder(p, n, beam_width=4), scores, torch.tensor([5])
    )
    assert lengths.tolist() == [[3]]
    assert labels[0, 0, :3].tolist() == [1, 2, 3]


def test_points_are_sampled_and_found():
    points = torch.randn(7, 3)
    assert_same(lambda x: ops.fps(x, [0, 4, 7], 0.5), points)
    _, found, _ = run(lambda x, y: ops.nearest(x, y), points, points[:3])
    assert found.tolist() == torch.cdist(points, points[:3]).argmin(1).tolist()


def test_a_custom_operator_needs_a_definition():
    x = torch.ones(2)
    with pytest.raises(Error, match="register_custom_op_body"):
        custom_op([x], "Unknown", "my.ops", 1, [x])

    @register_custom_op_body("Cube", "my.ops")
    def cube(x, scale):
        return scale * x**3

    assert_same(lambda x: custom_op([x], "Cube", "my.ops", 1, [x], {"scale": 2.0}), 3 * x)


def test_a_custom_operators_attribute_beyond_float_is_an_error():
    with pytest.raises(Error, match="too low for a Popart float"):
        custom_op([], "Cube", "my.ops", 1, [], {"scale": -1.7e308})
    with pytest.raises(ValueError, match="non-ASCII"):
        custom_op([], "Cube", "my.ops", 1, [], {"scale": "\u1f00"})


def test_printed_tensors_are_further_outputs():
    captured, found, _ = run(lambda x: ops.ipu_print_tensor(x * 2, "mine") + 1, torch.ones(1))
    assert found.tolist() == [3]
    assert [each.title for each in captured.prints.values()] == ["mine"]


class Counted(torch.nn.Module):
    """A module with tensors that are no buffers, one of them changed by the input."""

    def __init__(self):
        super().__init__()
        self.calls = torch.tensor([0], dtype=torch.int64)
        self.total = torch.zeros(())

    def forward(self, x):
        self.calls += 1
        self.total += x.sum()
        return x * self.calls + self.total


def test_a_tensor_that_is_no_buffer_changes_once():
    module = Counted()
    model = poptorch.inferenceModel(module)
    assert model(torch.ones(2)).tolist() == model(torch.ones(2)).tolist() == [3, 3]
    assert module.calls.tolist() == [1]
    assert module.total.item() == 0


def test_a_tensor_of_the_cpu_is_an_error_until_it_is_moved():
    def forward(x, move):
        index = torch.LongTensor([1, 0])
        return torch.index_select(x, 0, index.to("ipu") if move else index)

    model = poptorch.inferenceModel(forward)
    with pytest.raises(poptorch.Error, match=r"shape=\[2\], dtype=Long\)"):
        model.compile(torch.ones(2), False)
    assert model(torch.tensor([3.0, 4.0]), True).tolist() == [4, 3]


def test_available_memory_is_that_of_the_product_before_a_bias(monkeypatch):
    def forward(x, w, b):
        y = poptorch.set_available_memory(torch.relu(x @ w + b), 0.3)
        return torch.tanh(y), poptorch.set_available_memory(y * 2, 0.4)

    nodes = []

    def keep(title, graph, operators):
        nodes.extend(operators)

    monkeypatch.setattr(graph_text, "log_graph", keep)
    model = poptorch.inferenceModel(forward)
    found = model(torch.ones(2, 3), torch.ones(3, 2), torch.ones(2))
    hints = [each.input[0] for each in nodes if each.op_type == "set_available_memory"]
    assert [name.partition(":")[0] for name in hints] == ["MatMul", "Mul"]
    assert torch.allclose(found[1], torch.full((2, 2), 8.0))


class Gate(torch.nn.Module):
    """A module whose result depends on a branch on its input's values, and that counts calls."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(2, 2)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        self.calls += 1
        y = self.linear(x) + self.calls
        if bool(x.sum() > 0):
            return y * 2
        return y - 1


def test_a_module_of_torchscript_keeps_its_branches_weights_and_state():
    model = poptorch.inferenceModel(torch.jit.script(Gate()))
    expected = torch.jit.script(Gate())
    expected.load_state_dict(model.state_dict())
    for x in (torch.ones(3, 2), -torch.ones(3, 2)):
        torch.testing.assert_close(model(x), expected(x).detach())
    model.copyWeightsToHost()
    assert model.calls.tolist() == [2]


def test_a_module_of_torchscript_that_cannot_be_converted_is_named():
    class Texts(torch.nn.Module):
        def forward(self, x):
            return x + len(str(x.sum()))

    model = poptorch.inferenceModel(torch.jit.script(Texts()))
    with pytest.raises(poptorch.Error, match="module of TorchScript cannot be captured"):
        model(torch.ones(2))
