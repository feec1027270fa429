"""Tests of hints and their places: overlap, MultiConv, argument checks and their texts."""

import pytest

torch = pytest.importorskip("torch")

import poptorch  # noqa: E402

MODE = poptorch.OverlapMode.OverlapAccumulationLoop
X = torch.ones(2, 3)


def run(function, *args):
    options = poptorch.Options().showCompilationProgressBar(False)
    return poptorch.inferenceModel(function, options)(*args)


def test_overlap_directly_at_inputs_and_outputs_changes_nothing():
    def forward(inputs):
        x, y = poptorch.set_overlap_for_input([inputs["x"], inputs["y"]], MODE)
        return poptorch.set_overlap_for_output({"sum": x + y, "product": (x * y,)}, MODE)

    found = run(forward, {"x": X, "y": 2 * X})
    assert torch.equal(found["sum"], 3 * X)
    assert torch.equal(found["product"][0], 2 * X)


def double_return(x):
    y = x * 2
    return poptorch.set_overlap_for_output(y, MODE), y


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (
            lambda x: poptorch.set_overlap_for_input(x + 1, MODE),
            "set_overlap_for_input applied on a node which is not a tensor input",
        ),
        (
            lambda x: poptorch.set_overlap_for_input(x, MODE) + x,
            "set_overlap_for_input must be the only op applied to an input.* input input to",
        ),
        (
            lambda x: poptorch.set_overlap_for_output(x * 2, MODE) + 1,
            "set_overlap_for_output applied on a node which is not a tensor output",
        ),
        (double_return, "cannot be used with a tensor that is returned twice"),
    ],
)
def test_a_misplaced_overlap_mark_is_refused(function, text):
    with pytest.raises(poptorch.Error, match=text):
        run(function, X)


def nest(x):
    with poptorch.MultiConv(), poptorch.MultiConv():
        return convolve(x)


def leave_empty(x):
    with poptorch.MultiConv():
        return x + 1


def convolve(x):
    return torch.nn.functional.conv1d(x[None], torch.ones(1, 2, 1))


def test_a_multi_conv_counts_convolutions_only():
    def forward(x):
        with poptorch.MultiConv().planType(poptorch.MultiConvPlanType.Serial):
            return convolve(x), convolve(x)

    assert torch.equal(run(forward, X)[1], torch.full((1, 1, 3), 2.0))


@pytest.mark.parametrize(
    ("function", "text"), [(nest, "Nested poptorch.MultiConv"), (leave_empty, "at least one conv")]
)
def test_an_empty_or_nested_multi_conv_is_refused(function, text):
    with pytest.raises(poptorch.Error, match=text):
        run(function, X)
    run(convolve, X)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: poptorch.MultiConv().planType(1), AssertionError, "Invalid plan type!"),
        (lambda: poptorch.MultiConv().availableMemoryProportions("0.5"), AssertionError, "Invalid"),
        (lambda: poptorch.MultiConv().availableMemoryProportions([]), AssertionError, "Invalid"),
        (lambda: poptorch.MultiConv().partialsTypes(torch.int), ValueError, "Invalid partials"),
        (lambda: poptorch.MultiConv().enableConvDithering(1), ValueError, "list of bools"),
        (lambda: poptorch.MultiConv().cycleBackOff(1), AssertionError, "cycle back off"),
        (lambda: poptorch.nop(1), poptorch.Error, "nop must take a torch.tensor argument"),
        (lambda: poptorch.ipu_print_tensor(1), poptorch.Error, "ipu print tensor must take"),
        (lambda: poptorch.set_available_memory(1, 0.5), poptorch.Error, "You may only set"),
        (lambda: poptorch.recomputationCheckpoint(X, 1), ValueError, "All inputs must be tensors"),
        (lambda: poptorch.identity_loss(X, "max"), AssertionError, "Unsupported reduction type!"),
        (lambda: poptorch.NameScope(1), AssertionError, "Parameter to NameScope must be a string"),
        (lambda: poptorch.fps(X, (0, 2)), poptorch.Error, "`ptr` must be a list of integers"),
        (lambda: poptorch.fps(X, [0, 2], 1), poptorch.Error, "`ratio` must be of float type"),
        (lambda: poptorch.nearest(X, 1), poptorch.Error, "`nearest` must take a torch.tensor `y`"),
        (lambda: poptorch.dynamic_slice(X, 0, 1, 1, 1), poptorch.Error, "Slice start argument"),
        (
            lambda: poptorch.dynamic_slice(X, 0.0, X, 1, 1),
            poptorch.Error,
            "Dimension must be an integer",
        ),
        (
            lambda: poptorch.cond(X, abs, (X,), abs, [X]),
            ValueError,
            "then_inps and else_inps tensors to be a list",
        ),
        (
            lambda: poptorch.ctc_beam_search_decoder(1, X),
            poptorch.Error,
            "probs must be a torch.tensor argument",
        ),
    ],
)
def test_arguments_are_refused_with_poptorchs_texts(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_recomputation_checkpoints_keep_the_type_of_a_sequence():
    assert isinstance(poptorch.recomputationCheckpoint([X, X]), list)
    assert isinstance(poptorch.recomputationCheckpoint(X, X), tuple)


def test_the_compilation_time_needs_a_compilation_and_the_progress_bar():
    model = poptorch.inferenceModel(abs)
    with pytest.raises(poptorch.Error, match="Please compile the model before obtaining"):
        model.compilationTime()
    model(X)
    assert model.compilationTime().total_seconds() > 0
    silent = poptorch.inferenceModel(abs, poptorch.Options().showCompilationProgressBar(False))
    silent(X)
    with pytest.raises(poptorch.Error, match="Please set showCompilationProgressBar option"):
        silent.compilationTime()


def test_an_input_that_requires_a_gradient_is_detached_with_a_warning(capsys):
    run(abs, X.clone().requires_grad_())
    assert "because backward pass via inputs is not supported" in capsys.readouterr().err


def test_the_number_of_classes_of_one_hot_must_be_given():
    with pytest.raises(poptorch.Error, match="OneHot num classes must be specified"):
        run(torch.nn.functional.one_hot, torch.tensor([1, 2]))
