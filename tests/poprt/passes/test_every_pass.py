"""Tests that run every pass in one harness. A pass makes its intended change, changes nothing else,
works the same inside bodies, and changes nothing the second time. It never changes the model's
inputs or answers."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnxgraph import iter_nodes, rename
from oracles import unoptimised_session
from pass_cases import CASES, make_feeds
from poprt import pipeline
from poprt.passes import get_pass, get_registered_passes
from simipu import TARGETS
from simipu.numerics.lowering import lower

NAMES = sorted(CASES)


def run_pass(name, model):
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    given = CASES[name].arguments
    changed = get_pass(name, **(given(model) if callable(given) else given))(copy)
    if not CASES[name].makes_own:
        onnx.checker.check_model(changed)
    return changed


def count_operators(model):
    return {node.op_type for node in iter_nodes(model.graph)}


def answer(model, feeds):
    """Return the outputs of the model in order; it may contain operators of the chip."""
    lowered = lower(model, None)
    session = unoptimised_session(lowered)
    wanted = {value.name: value.type for value in session.get_inputs()}
    types = {"tensor(float16)": np.float16, "tensor(float)": np.float32, "tensor(int32)": np.int32}
    fed = {
        name: feeds[name].astype(types.get(kind, feeds[name].dtype))
        for name, kind in wanted.items()
    }
    return session.run(None, fed)


def check(case, model):
    if not case.invalid:
        onnx.checker.check_model(model)


def assert_done(case, model, changed):
    """Check that the pass has made its intended change."""
    before, after = count_operators(model), count_operators(changed)
    assert case.made <= after - before
    assert case.gone <= before - after
    if case.holds:
        assert not case.holds(model)
        assert case.holds(changed)


def find_feeds(name, model):
    case = CASES[name]
    return dict(case.feeds(model)) if case.feeds else make_feeds(model)


def assert_same(name, before, after):
    case = CASES[name]
    for expected, found in zip(before, after, strict=False):
        assert expected.shape == found.shape
        if case.changes_types:
            expected, found = np.asarray(expected, np.float64), np.asarray(found, np.float64)
        assert expected.dtype == found.dtype
        if case.tolerance:
            scale = max(1.0, float(np.abs(expected).max(initial=0)))
            np.testing.assert_allclose(found, expected, rtol=0, atol=case.tolerance * scale)
        else:
            np.testing.assert_array_equal(found, expected)


def borders(model):
    return [
        [(value.name, value.type.tensor_type.elem_type) for value in values]
        for values in (model.graph.input, model.graph.output)
    ]


def put_inside(model):
    """Return the same model with its nodes in both branches of an If. The weights move into the
    branches too."""
    graph, bodies = model.graph, []
    for kind in ("then", "else"):
        body = helper.make_graph([], kind, [], [])
        body.node.extend(graph.node)
        body.initializer.extend(graph.initializer)
        made = [name for node in graph.node for name in node.output] + [
            t.name for t in graph.initializer
        ]
        renames = {name: f"{kind}/{name}" for name in made if name}
        body.output.extend(graph.output)
        rename(body, renames)
        for each in (*body.initializer, *body.output):
            each.name = renames[each.name]
        for node in body.node:
            node.name = node.name and f"{kind}/{node.name}"
        bodies.append(body)
    made = helper.make_node(
        "If",
        ["which"],
        [value.name for value in graph.output],
        name="if",
        then_branch=bodies[0],
        else_branch=bodies[1],
    )
    which = helper.make_tensor_value_info("which", TensorProto.BOOL, [])
    outer = helper.make_graph([made], "outer", [*graph.input, which], graph.output)
    return onnx.ModelProto(
        ir_version=model.ir_version, opset_import=model.opset_import, graph=outer
    )


def test_every_pass_that_runs_has_a_case():
    runs = {
        name: found.info.is_ours
        for name, found in get_registered_passes().items()
        if not found.info.refusal and found.__module__.startswith("poprt.")
    }
    assert {name for name, is_ours in runs.items() if not is_ours} <= set(CASES) <= set(runs)


@pytest.mark.parametrize("name", NAMES)
def test_it_does_what_it_is_for(name):
    case, model = CASES[name], CASES[name].positive()
    check(case, model)
    assert_done(case, model, run_pass(name, model))


@pytest.mark.parametrize("name", NAMES)
def test_it_leaves_alone_what_is_not_its_business(name):
    model = CASES[name].negative()
    changed = run_pass(name, model)
    assert [str(node) for node in iter_nodes(changed.graph)] == [
        str(node) for node in iter_nodes(model.graph)
    ]
    assert sorted(t.name for t in changed.graph.initializer) == sorted(
        t.name for t in model.graph.initializer
    )


@pytest.mark.parametrize("name", [name for name in NAMES if not CASES[name].main_only])
def test_it_does_so_inside_a_body(name):
    case, model = CASES[name], put_inside(CASES[name].positive())
    check(case, model)
    changed = run_pass(name, model)
    assert_done(case, model, changed)
    feeds = {**find_feeds(name, CASES[name].positive()), "which": np.array(True)}
    expected = answer(CASES[name].positive() if case.invalid else model, feeds)
    assert_same(name, expected, answer(changed, feeds))


@pytest.mark.parametrize("name", NAMES)
def test_it_does_nothing_the_second_time(name):
    once = run_pass(name, CASES[name].positive())
    assert run_pass(name, once) == once


@pytest.mark.parametrize("name", [name for name in NAMES if not CASES[name].changes_borders])
def test_the_model_is_asked_and_answers_under_the_same_names(name):
    model = CASES[name].positive()
    assert borders(run_pass(name, model)) == borders(model)


@pytest.mark.parametrize("kind", ["positive", "negative"])
@pytest.mark.parametrize("name", NAMES)
def test_the_model_answers_the_same(name, kind):
    model = getattr(CASES[name], kind)()
    if CASES[name].asked_otherwise and kind == "positive":
        assert borders(run_pass(name, model)) != borders(model)
        return
    feeds = find_feeds(name, model)
    assert_same(name, answer(model, feeds), answer(run_pass(name, model), feeds))


@pytest.mark.parametrize("name", [name for name in NAMES if CASES[name].saves])
def test_passes_that_save_cycles_never_cost_more(name):
    model = CASES[name].positive()
    before, after = (
        pipeline.estimate(each, TARGETS["ipu2"]).cycles for each in (model, run_pass(name, model))
    )
    assert after <= before
