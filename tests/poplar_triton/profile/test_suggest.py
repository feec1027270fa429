"""Tests that the search for better options keeps its limit, finds what a search of all combinations
finds, and that its front and its best command are what they are said to be."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from poplar_triton.cli import main
from poplar_triton.profile import space
from poplar_triton.profile.report import Content, describe_page
from poplar_triton.profile.search import Search
from poplar_triton.profile.source import Estimator, ProfileSettings, open_source
from poplar_triton.profile.suggest import (
    MAX_SHOWN,
    Advice,
    advise,
    list_changes,
    print_advice,
    profile_batches,
)
from poplar_triton.trials import Trials
from poprt.terminal import make_console
from sample_models import make_model
from simipu import CompileError

F = TensorProto.FLOAT
ALL = 10_000
"""Limit that is above the number of combinations of each test."""


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    """Return the file of y = softmax(tanh(x) @ w)."""
    nodes = [
        helper.make_node("Tanh", ["x"], ["t"], name="squash"),
        helper.make_node("MatMul", ["t", "w"], ["m"], name="multiply"),
        helper.make_node("Softmax", ["m"], ["y"], name="softmax"),
    ]
    weight = {"w": np.random.default_rng(0).random((64, 96), np.float32)}
    model = make_model(nodes, {"x": (F, ["n", 64])}, {"y": (F, ["n", 96])}, weight)
    path = tmp_path_factory.mktemp("suggest") / "network.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture(scope="module")
def estimator(model_file):
    return Estimator(open_source(model_file))


class Small:
    """Estimator of a chip whose tiles have only `tile_bytes` of memory."""

    def __init__(self, estimator, tile_bytes):
        self._estimator, self._tile_bytes = estimator, tile_bytes

    def profile(self, settings):
        found = self._estimator.profile(settings)
        target = replace(found.estimate.target, bytes_per_tile=self._tile_bytes)
        return replace(found, estimate=replace(found.estimate, target=target))


class Scaled:
    """Estimator that knows one precision, in which fp16 makes the chip `factor` times as fast."""

    def __init__(self, estimator, factor):
        self._estimator, self._factor = estimator, factor

    def profile(self, settings):
        found = self._estimator.profile(replace(settings, precision="fp32"))
        if settings.precision == "fp32":
            return found
        target = found.estimate.target
        faster = replace(
            target,
            clock_hz=int(target.clock_hz * self._factor),
            host_bytes_per_second=target.host_bytes_per_second * self._factor,
        )
        return replace(found, estimate=replace(found.estimate, target=faster))


class Counting:
    """Estimator that keeps the settings that it profiled."""

    def __init__(self, estimator):
        self._estimator, self.settings = estimator, []

    def profile(self, settings):
        self.settings.append(settings)
        return self._estimator.profile(settings)


def search(estimator, settings, wish="throughput", limit=40, max_ipus=None):
    """Return a search that has ended."""
    base = estimator.profile(settings)
    trials = Trials(estimator.profile, CompileError, limit=limit, known=[(settings, base)])
    found = Search(trials, settings, base, wish, max_ipus)
    found.try_changes()
    found.try_combinations()
    return found


def try_all(estimator, settings, wish="throughput", limit=40):
    return advise(search(estimator, settings, wish, limit), lambda each: each.change)


def figures(profile):
    """Return the figures of which less is better."""
    result = profile.estimate
    return result.latency_seconds, -result.samples_per_second, result.peak_tile_bytes


@pytest.mark.parametrize("goal", ["latency", "throughput", "memory"])
def test_suggestions_were_tried_and_serve_the_goal(estimator, goal, capsys):
    settings = ProfileSettings("ipu21", 512, "fp32", {"partials_type": "float"})
    base = estimator.profile(settings)
    advice = try_all(estimator, settings, goal)
    assert (advice.goal, advice.num_left) == (goal, 0)
    assert advice.suggestions
    place = ("latency", "throughput", "memory").index(goal)
    gains = [1 / each.ratios[place] for each in advice.suggestions]
    assert gains == sorted(gains, reverse=True)
    assert min(gains) >= 1.02
    sizes = {each.settings.batch_size for each in advice.suggestions} - {512}
    assert sizes
    assert all((size < 512) == (goal != "throughput") for size in sizes)
    for each in advice.suggestions:
        again = estimator.profile(each.settings).estimate
        assert again.fits
        assert each.latency_ratio == again.latency_seconds / base.estimate.latency_seconds
        assert each.throughput_ratio == again.samples_per_second / base.estimate.samples_per_second
    options = [each.words[0] for each in advice.suggestions]
    assert len(set(options)) == len(options)
    for each in (*advice.suggestions, *advice.front):
        assert each.changes_results == bool({"--precision", "--partials_type"} & set(each.words))
    print_advice(advice, make_console())
    out = capsys.readouterr().out
    page = describe_page(Content(base, advice=advice))["advice"]
    assert [row["change"] for row in page["rows"]] == [each.change for each in advice.suggestions]
    assert len(page["front"]) == len(advice.front) > 1
    for each in (*advice.suggestions, *advice.front[:MAX_SHOWN]):
        assert each.change in out
    for label, told, command in advice.list_best():
        assert [label, told, command] in page["best"]
        assert f"{label}: {told}" in " ".join(out.split())
        assert f"  {command}\n" in out


@pytest.mark.parametrize("factor", [1.0, 1.01])
@pytest.mark.parametrize("goal", ["latency", "throughput"])
def test_changes_of_results_without_gain_are_not_suggested(estimator, goal, factor, capsys):
    advice = try_all(Scaled(estimator, factor), ProfileSettings("ipu21", 512, "fp32"), goal)
    assert advice.best_exact is None
    assert advice.best is None or not advice.best.suggestion.changes_results
    assert not any(each.changes_results for each in (*advice.suggestions, *advice.front))
    print_advice(advice, make_console())
    assert "changes the results" not in capsys.readouterr().out


def test_the_best_that_changes_the_results_says_by_how_much_it_wins(estimator, capsys):
    advice = try_all(Scaled(estimator, 3.0), ProfileSettings("ipu21", 4096, "fp32"), "throughput")
    assert advice.best.suggestion.changes_results
    exact = advice.best_exact.suggestion.throughput_ratio if advice.best_exact else 1.0
    ratio = advice.best.suggestion.throughput_ratio / exact
    assert ratio >= 1.02
    told = f"{ratio:.2f} times the samples/s of "
    print_advice(advice, make_console())
    out = " ".join(capsys.readouterr().out.split())
    (line,) = [figures for label, figures, _ in advice.list_best() if "changes" in label]
    assert told in line
    assert line in out
    rival = "the best that keeps the results" if advice.best_exact else "the command as it is"
    assert line.endswith(rival)


def test_nothing_is_best_that_is_not_better_than_the_command_as_it_is(estimator):
    settings = ProfileSettings("ipu21", 512, "fp32")
    best = search(estimator, settings, "throughput").find_best(exact=True)
    advice = try_all(Scaled(estimator, 1.0), best.settings, "throughput", limit=200)
    assert advice.best is None or advice.best.suggestion.throughput_ratio >= 1.02
    for _, figures, _ in advice.list_best():
        assert "times the samples/s of the command as it is" in figures


@pytest.mark.parametrize("words", [["--suggest"], ["--html", "page.html", "--max_profiles", "4"]])
def test_a_fixed_batch_is_reported_with_the_way_to_compare_others(
    model_file, words, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    command = ["profile", str(model_file), "--max_profiles", "9", *words]
    assert main([*command, "--input_shape", "x=8,64"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    page = tmp_path / "page.html"
    told = page.read_text() if page.exists() else out
    assert "Other batch sizes were not compared: input 'x': input_shape gives 8" in told
    assert "--input_shape x=-1,64" in told
    page.unlink(missing_ok=True)
    assert main([*command, "--input_shape", "x=-1,64", "--batch_size", "8"]) == 0
    told = page.read_text() if page.exists() else capsys.readouterr().out
    assert "were not compared" not in told


def test_suggestions_make_a_model_fit_if_any_setting_does(estimator):
    settings = ProfileSettings("ipu21", 4096, "fp32")
    needed = estimator.profile(settings).estimate.peak_tile_bytes
    advice = try_all(Small(estimator, needed - 1), settings)
    assert (advice.goal, advice.title) == ("fit", "To make it fit, try")
    fitting = [each.profile.estimate.fits for each in advice.suggestions]
    assert fitting[0]
    assert fitting == sorted(fitting, reverse=True), "first what fits"
    assert advice.best.suggestion.profile.estimate.fits
    advice = try_all(Small(estimator, 1024), settings)
    assert "none makes it fit" in advice.describe()
    assert (advice.best, advice.front) == (None, [])
    assert all(each.memory_ratio <= 0.98 for each in advice.suggestions)


def test_a_combination_makes_fit_what_no_single_change_does(estimator):
    settings = ProfileSettings("ipu21", 4096, "fp32")
    whole = search(estimator, settings, "memory")
    alone = min(each.figures[2] for each in whole.changes)
    best = whole.find_best()
    assert best.figures[2] < alone
    advice = try_all(Small(estimator, alone - 1), settings)
    assert not any(each.profile.estimate.fits for each in advice.suggestions)
    assert "no single change makes it fit, but a combination does" in advice.describe()
    assert len(advice.best.suggestion.combination) > 1
    assert all(each.profile.estimate.fits for each in advice.front)


@pytest.mark.parametrize(
    ("wish", "best"),
    [("latency", "--batch_size 1"), ("throughput", "--precision fp"), ("memory", "--batch_size 1")],
)
def test_among_the_changes_that_make_it_fit_the_goal_decides(estimator, wish, best):
    settings = ProfileSettings("ipu21", 4096, "fp32")
    needed = estimator.profile(settings).estimate.peak_tile_bytes
    advice = try_all(Small(estimator, needed - 1), settings, wish)
    assert advice.goal == "fit"
    assert advice.suggestions[0].change.startswith(best)


def test_trying_ends_after_the_number_of_profiles_that_is_allowed(estimator):
    settings = ProfileSettings("ipu21", 4, "fp16")
    base = estimator.profile(settings)
    for limit in (2, 30):
        counting = Counting(estimator)
        trials = Trials(counting.profile, CompileError, limit=limit)
        found = Search(trials, settings, base)
        found.try_changes()
        found.try_combinations()
        advice = advise(found, lambda each: each.change)
        assert len(counting.settings) == limit == advice.num_tried + advice.num_combinations
        changes = len(list(found.space.iter_choices()))
        assert advice.num_tried + advice.num_left == changes
        more = f"{advice.num_left} more changes and " if limit == 2 else ""
        combinations = f"{advice.num_combinations_left:,} more combinations"
        assert f"({more}{combinations} were not, because of --max_profiles)" in advice.describe()
        assert all(one != other for one, other in itertools.combinations(counting.settings, 2)), (
            "each settings are profiled once"
        )
    assert "no single change has an effect" in Advice("latency", [], 3, 0).describe()


def test_a_failure_counts_as_an_attempt_and_is_not_repeated(tmp_path):
    onnx.save(
        make_model([helper.make_node("Tanh", ["x"], ["y"])], {"x": (F, [4])}, {"y": (F, [4])}, {}),
        tmp_path / "static.onnx",
    )
    counting = Counting(Estimator(open_source(tmp_path / "static.onnx")))
    trials = Trials(counting.profile, CompileError, limit=1)
    failed = [trials.run(ProfileSettings(batch_size=8)) for _ in range(2)]
    assert len(counting.settings) == 1
    assert failed[0] is failed[1]
    assert failed[0].reason
    assert failed[0].result is None
    assert trials.run(ProfileSettings(batch_size=2)) is None
    found = search(counting, ProfileSettings(), limit=ALL)
    assert found.num_combinations_left == 0
    assert not any("batch_size" in dict(each.combination) for each in found.find_front())


SPACE = {
    "available_memory_proportion": (0.1, 0.6),
    "num_io_tiles": (0, 32),
    "batch_size": (256, 512, 1024, 2048, 4096, 8192),
    "precision": ("fp32", "fp16", "fp8", "fp8_weight"),
}
"""All values of the small space, the command's own among them."""


def profile_all(estimator, sizes):
    """Return the settings and profiles of all combinations, without the search."""
    found = {}
    for proportion, tiles, size, precision in itertools.product(
        SPACE["available_memory_proportion"], SPACE["num_io_tiles"], sizes, SPACE["precision"]
    ):
        options = {"available_memory_proportion": proportion, "num_io_tiles": tiles}
        profile = estimator.profile(ProfileSettings("ipu21", size, precision, options))
        assert profile.estimate.fits
        found[proportion, tiles, size, precision] = profile
    return found


@pytest.fixture
def small_space(monkeypatch):
    for name, axis in (
        ("_PROPORTIONS", "available_memory_proportion"),
        ("_IO_TILES", "num_io_tiles"),
    ):
        monkeypatch.setattr(space, name, SPACE[axis])
    whole = space.make_space

    def make_space(*arguments):
        made = whole(*arguments)
        return replace(made, axes={axis: made.axes[axis] for axis in SPACE})

    monkeypatch.setattr("poplar_triton.profile.search.make_space", make_space)


@pytest.mark.slow
@pytest.mark.parametrize("goal", ["latency", "throughput", "memory"])
def test_the_search_finds_what_profiling_all_combinations_finds(estimator, goal, small_space):
    sizes = SPACE["batch_size"] if goal == "throughput" else (1, 128, 256, 512)
    every = profile_all(estimator, sizes)
    place = ("latency", "throughput", "memory").index(goal)
    best = min(figures(each)[place] for each in every.values())
    exact = min(figures(each)[place] for key, each in every.items() if key[3] == "fp32")
    settings = ProfileSettings("ipu21", 512, "fp32")
    whole = search(estimator, settings, goal, ALL)
    assert whole.num_changes + whole.num_combinations + 1 == len(every)
    assert (whole.num_changes_left, whole.num_combinations_left) == (0, 0)
    points = {figures(each) for each in every.values()}
    front = {
        point
        for point in points
        if not any(
            other != point and all(a <= b for a, b in zip(other, point, strict=True))
            for other in points
        )
    }
    assert {each.figures for each in whole.find_front()} == front
    assert len(whole.find_front()) == len(front), "equal figures are listed once"
    # Half of the combinations suffice for the best ones.
    for found in (whole, search(estimator, settings, goal, len(every) // 2)):
        assert found.find_best().figures[place] == best
        assert found.find_best(exact=True).figures[place] == exact


@pytest.mark.parametrize("limit", [1, 5, 18, 19, 25, 40])
@pytest.mark.parametrize("goal", ["latency", "throughput", "memory"])
def test_no_single_change_that_was_tried_is_better_than_the_best(estimator, goal, limit):
    found = search(estimator, ProfileSettings("ipu21", 512, "fp32"), goal, limit)
    place = ("latency", "throughput", "memory").index(goal)
    assert len(found.changes) == min(limit, found.num_changes)
    assert found.find_best().figures[place] <= min(each.figures[place] for each in found.changes)
    exact = [each.figures[place] for each in found.changes if not each.changes_results]
    assert found.find_best(exact=True).figures[place] <= min(exact)
    assert not found.find_best(exact=True).changes_results


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        (["--batch_size", "512"], []),
        (["--input-shape", "x=512,64", "--json", "--num_io_tiles=32"], ["x=512,64"]),
        (["--batch_size=64", "--partials_type", "float", "--target=bow"], ["--target=bow"]),
        (["--sweep", "target=bow,c600", "--sweep", "batch_size=512,1024"], ["--target=bow"]),
    ],
)
@pytest.mark.parametrize("goal", ["latency", "memory"])
def test_the_command_that_is_printed_has_the_figures(model_file, words, kept, goal, capsys):
    """The model follows the options in the call, so an option with several values would take it."""

    def profile(words):
        assert main(words) == 0
        found = json.loads(capsys.readouterr().out)
        return found[0] if isinstance(found, list) else found

    asked = ["--json", "--suggest", "--goal", goal, "--max_profiles", "25"]
    advice = profile(["profile", *words, *asked, str(model_file)])["advice"]
    for best in filter(None, (advice["best"], advice["best_exact"])):
        command = best["command"].split()
        assert command[:3] == ["poplar-triton", "profile", str(model_file)]
        assert not set(command) & {"--suggest", "--goal", "--json", "--sweep", "--max_profiles"}
        assert set(kept) <= set(command)
        names = [word.partition("=")[0] for word in command if word.startswith("--")]
        assert len(set(names)) == len(names), "no option is given twice"
        again = profile([*command[1:], "--json"])
        for name in ("latency_seconds", "samples_per_second", "peak_tile_bytes", "fits"):
            assert again[name] == best[name]
    assert advice["best"]
    assert advice["combinations_tried"] > 0


def test_more_ipus_are_used_only_where_they_are_allowed(estimator):
    settings = ProfileSettings("ipu21", 512, "fp32")
    plain = search(estimator, settings, "memory", limit=30)
    assert "num_ipus" not in plain.space.axes
    found = search(estimator, settings, "memory", limit=30, max_ipus=4)
    assert found.space.axes["num_ipus"] == ((2, False), (2, True), (4, False), (4, True))
    pipelined = next(each for each in found.changes if "--enable_pipelining" in each.words)
    assert pipelined.words == ["--num_ipus", "2", "--enable_pipelining"]
    estimate = estimator.profile(
        replace(settings, options={"num_ipus": 2, "enable_pipelining": True})
    ).estimate
    assert pipelined.figures[0] == estimate.latency_seconds
    small = Small(estimator, 1024)
    assert search(small, settings, limit=2).space.axes["num_ipus"] == ((2, False), (2, True))
    piped = replace(settings, options={"num_ipus": 2, "enable_pipelining": True})
    fewer = search(estimator, piped, limit=2)
    assert fewer.space.axes["num_ipus"] == ((1, False),), "a pipeline cannot be turned off"


def test_the_own_and_the_advised_batch_sizes_are_plotted_whatever_the_limit(estimator):
    settings = ProfileSettings("ipu21", 24, "fp16")
    base = estimator.profile(settings)
    known = [(settings, base)]

    def plot(limit):
        trials = Trials(estimator.profile, CompileError, limit=limit, known=known)
        found = Search(trials, settings, base)
        found.try_changes()
        return found, profile_batches(trials, settings, list_changes(found), [1, 2, 24])

    found, batches = plot(ALL)
    advised = {each.profile.batch_size for each in list_changes(found)} - {24}
    assert advised, "a larger batch has more throughput"
    assert {each.batch_size for each in batches.profiles} == {1, 2, 24} | advised
    assert (batches.impossible, batches.left) == ({}, [])
    # No profile is left after the changes: what is known is plotted.
    _, batches = plot(found.num_changes)
    assert {each.batch_size for each in batches.profiles} == {24} | advised
    assert batches.left == [1, 2]


@pytest.mark.slow
def test_passes_are_tried_on_a_transformer(tmp_path):
    """The scores have 49 keys, which attention_padding makes 64."""
    nodes = [
        helper.make_node("MatMul", ["q", "k"], ["s"], name="scores"),
        helper.make_node("Softmax", ["s"], ["p"]),
        helper.make_node("MatMul", ["p", "v"], ["y"], name="values"),
    ]
    inputs = {"q": (F, [64, 49, 32]), "k": (F, [64, 32, 49]), "v": (F, [64, 49, 32])}
    onnx.save(make_model(nodes, inputs, {"y": (F, [64, 49, 32])}, {}), tmp_path / "m.onnx")
    estimator = Estimator(open_source(tmp_path / "m.onnx"))
    settings = ProfileSettings("ipu21", None, "fp16", converter={"used_passes": ["pre_scale"]})
    found = search(estimator, settings, limit=ALL)
    passes = {
        each.change: each.settings.converter["used_passes"]
        for each in found._iter_made()
        if each.words[:1] == ["--passes"]
    }
    others = ("fused_attention", "attention_padding", "matmul_rotary_embedding")
    names = [
        ["pre_scale", *some]
        for count in (1, 2, 3)
        for some in itertools.combinations(others, count)
    ]
    assert passes == {f"--passes {','.join(each)}": each for each in names}
