"""A profile's page, plots and table of a sweep say what its JSON says."""

from __future__ import annotations

import itertools
import re
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from commands.profile import command, report
from commands.profile.profiler import Profiler, Settings
from commands.profile.source import open_source
from commands.profile.sweep import print_sweep
from commands.profile.trace import make_trace
from onnx import TensorProto, helper
from poprt.terminal import make_console
from sample_models import make_model

from popef.arguments import Parser

F = TensorProto.FLOAT
PLOTS = ("layers", "operators", "causes", "memory", "batches")


@pytest.fixture(scope="module")
def profiler(tmp_path_factory):
    """Of y = softmax(tanh(x) @ w)."""
    nodes = [
        helper.make_node("Tanh", ["x"], ["t"], name="squash"),
        helper.make_node("MatMul", ["t", "w"], ["m"], name="multiply"),
        helper.make_node("Softmax", ["m"], ["y"], name="<softmax>"),
    ]
    weight = {"w": np.random.default_rng(0).random((64, 96), np.float32)}
    model = make_model(nodes, {"x": (F, ["n", 64])}, {"y": (F, ["n", 96])}, weight)
    path = tmp_path_factory.mktemp("report") / "network.onnx"
    path.write_bytes(model.SerializeToString())
    return Profiler(open_source(path))


@pytest.fixture
def profile(profiler):
    return profiler.profile(Settings("ipu21", 4, "fp16"))


@pytest.fixture
def page(monkeypatch):
    """The page of some profiles, with a mark for each plot: drawing takes seconds."""
    plots = SimpleNamespace(
        **{f"plot_{name}": lambda given, name=name: f"[{name} {type(given).__name__}]" for name in PLOTS}
    )
    monkeypatch.setattr("commands.profile.plots", plots, raising=False)
    monkeypatch.setitem(sys.modules, "commands.profile.plots", plots)
    return report.make_report


def tables(page: str) -> list[list[list[str]]]:
    return [
        [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", table)]
        for table in re.findall(r"<table>(.*?)</table>", page, re.DOTALL)
    ]


def figures(page: str) -> dict[str, str]:
    return {
        label: value for value, label in re.findall(r"<div><b[^>]*>(.*?)</b>(.*?)</div>", page, re.DOTALL)
    }


def test_the_page_lists_every_operator_with_its_cycles(profile, page):
    (table,) = tables(page(profile, [profile]))
    head, *rows = table
    assert head[:7] == ["node", "operator", "plan", "cycles", "share", "compute", "exchange"]
    assert head[7:] == ["sync", "MACs", "of peak", "tiles", "steps", "live KiB"]
    assert [row[1] for row in rows] == [step.op_type for step in profile.steps]
    assert any("&lt;softmax&gt;" in row[0] for row in rows)
    for row, step in zip(rows, profile.steps, strict=True):
        numbers = [int(cell.replace(",", "")) for cell in (row[3], *row[5:8])]
        assert numbers == [step.cycles, step.work.compute, step.work.exchange, step.sync_cycles]
        assert numbers[0] == sum(numbers[1:])
        assert float(row[4].rstrip("%")) == pytest.approx(
            100 * step.cycles / profile.estimate.cycles, abs=0.06
        )
        assert [int(cell) for cell in row[10:12]] == [step.work.tiles, step.work.steps]
        assert row[12] == f"{step.live_bytes / 1024:,.0f}"
        # A product has a plan, and a share of the chip's rate; the others have neither.
        assert bool(row[8]) == bool(row[9]) == bool(step.work.macs)
    (product,) = (row for row, step in zip(rows, profile.steps, strict=True) if step.work.macs)
    macs = 4 * 64 * 96
    assert product[8] == f"{macs / 1000:.3g} k"
    rate = macs / (int(product[3].replace(",", "")) * profile.peak_macs_per_cycle)
    assert product[9] == f"{rate:.1%}"


def test_the_page_begins_with_the_figures_of_the_estimate(profile, page):
    text = page(profile, [profile])
    estimate = profile.estimate
    assert "<h1>network on C600 (ipu21)</h1>" in text
    assert "batch 4, fp16; " in text
    assert "num_io_tiles=0" in text
    found = figures(text)
    assert found["cycles"] == f"{estimate.cycles:,}"
    assert found["samples/s"] == f"{estimate.samples_per_second:,.0f}"
    assert found["of the peak MAC rate"] == f"{profile.peak_share(4 * 64 * 96, estimate.cycles):.1%}"
    assert found["of 624 KiB of a tile: fits"] == f"{estimate.peak_tile_bytes / 1024:,.0f} KiB"
    assert 'class="bad"' not in text


def crowded(profile):
    """The same on a chip whose tiles hold next to nothing."""
    estimate = profile.estimate
    return replace(profile, estimate=replace(estimate, target=replace(estimate.target, bytes_per_tile=1024)))


def test_what_does_not_fit_is_marked(profile, page):
    text = page(crowded(profile), [profile], [crowded(profile), profile])
    assert "of 1 KiB of a tile: does not fit" in figures(text)
    assert text.count('<b class="bad">') == 1
    assert [row[-1] for row in tables(text)[0][1:]] == ["no", "yes"]


def test_batch_sizes_are_compared_where_there_are_several(profiler, profile, page):
    other = profiler.profile(Settings("ipu21", 8, "fp16"))
    assert "[batches" not in page(profile, [profile])
    assert "nothing to compare" in page(profile, [profile])
    assert "[batches list]" in page(profile, [profile, other])
    # A sweep over chips alone leaves the report's own batch sizes.
    bow = profiler.profile(Settings("bow", 4, "fp16"))
    assert "[batches list]" in page(profile, [profile, other], (profile, bow))
    assert "[batches tuple]" in page(profile, [profile], (profile, other))
    assert "Sweep" not in page(profile, [profile])


def test_a_sweep_is_a_row_for_each_point_on_the_page_and_in_the_terminal(profiler, profile, page, capsys):
    points = [profile, profiler.profile(Settings("bow", 2, "fp32"))]
    head, *rows = tables(page(profile, points, points))[0]
    assert head == ["target", "precision", "batch", "cycles", "latency", "samples/s", "KiB of a tile", "fits"]
    print_sweep(points, make_console())
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    for row, line, point in zip(rows, shown, points, strict=True):
        cells = [cell.strip() for cell in line.strip("│").split("│")]
        estimate = point.estimate
        kib = f"{estimate.peak_tile_bytes / 1024:,.0f}"
        latency = row[4]
        assert latency.endswith(" us")
        assert float(latency[:-3]) == pytest.approx(1e6 * estimate.latency_seconds, rel=0.006)
        rate = f"{estimate.samples_per_second:,.0f}"
        name = [point.target.name, point.precision, str(point.batch_size), f"{estimate.cycles:,}"]
        assert row == [*name, latency, rate, kib, "yes"]
        assert cells == ["network", *name, latency, rate, f"{kib} KiB", "yes"]


def test_the_steps_of_a_node_are_numbered_and_share_its_cycles_evenly(profile):
    document = make_trace(profile)
    named = [event["args"]["name"] for event in document["traceEvents"] if event["ph"] == "M"]
    assert named == ["network: one tile of C600 (ipu21), modelled", "sync", "exchange", "compute"]
    assert document["otherData"]["batch_size"] == 4
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    for step in profile.steps:
        mine = [event for event in events if event["name"] == step.name]
        assert sum(event["args"]["cycles"] for event in mine) == step.cycles
        assert {event["args"]["operator"] for event in mine} == {step.op_type}
        assert mine[-1]["args"]["step"] == f"{step.work.steps} of {step.work.steps}"
        compute = [event["args"]["cycles"] for event in mine if event["cat"] == "compute"]
        assert max(compute) - min(compute) <= 1
        first = [event["cat"] for event in mine if event["args"]["step"].startswith("1 of ")]
        assert first == [cause for cause in ("sync", "exchange", "compute") if cause in first]


def test_neighbours_of_a_sweep_share_the_converted_graph():
    """A conversion takes longer than an estimate, and only the last is kept."""
    parser = Parser(prog="profile")
    command.add_arguments(parser)
    axes = {"batch_size": "8,2", "target": "c600,bow", "precision": "fp32,fp16"}
    words = [word for name, values in axes.items() for word in ("--sweep", f"{name}={values}")]
    points = command._points(parser.parse_args(["m.onnx", *words]))
    assert len(points) == 8
    converted = [(point.batch_size, point.precision) for point in points]
    assert sum(a != b for a, b in itertools.pairwise(converted)) == 3
    # One axis stays in the order in which it was asked for.
    points = command._points(parser.parse_args(["m.onnx", *words[:2]]))
    assert [point.batch_size for point in points] == [8, 2]


@pytest.fixture
def plots(monkeypatch):
    """The plots, as figures that are not drawn."""
    pytest.importorskip("matplotlib")
    from commands.profile import plots

    monkeypatch.setattr(plots, "_svg", lambda figure, name: figure)
    return plots


def test_memory_over_the_tiles_is_that_of_the_fullest_and_of_those_beside_it(tmp_path, plots):
    widths = (64, 2048, 64, 64, 64)
    nodes = [helper.make_node("MatMul", [f"t{i}", f"w{i}"], [f"t{i + 1}"]) for i in range(4)]
    weights = {f"w{i}": np.ones((widths[i], widths[i + 1]), np.float32) for i in range(4)}
    model = make_model(nodes, {"t0": (F, ["n", 64])}, {"t4": (F, ["n", 64])}, weights)
    (tmp_path / "chain.onnx").write_bytes(model.SerializeToString())
    profile = Profiler(open_source(tmp_path / "chain.onnx")).profile(
        Settings("ipu21", 4, "fp16", {"num_io_tiles": 32, "num_ipus": 2})
    )
    edges, layers = plots._memory_over_tiles(profile)
    ipus = len(profile.estimate.ipus)
    assert edges[0] == 0
    assert edges[-1] == 1472 * ipus
    assert edges == sorted(set(edges))
    widths = np.diff(edges)
    heights = np.sum([values for _, values in layers], axis=0)
    assert profile.estimate.ipus[0].by_memory() != profile.estimate.ipus[1].by_memory()
    for number, ipu in enumerate(profile.estimate.ipus):
        mine = [1472 * number <= start < 1472 * (number + 1) for start in edges[:-1]]
        assert heights[mine].max() == pytest.approx(sum(ipu.by_memory().values()) / 1024)
        fullest = max((step for step in profile.steps if step.ipu == number), key=lambda s: s.live_bytes)
        assert widths[mine][0] == min(fullest.work.tiles, 1472 - 32)
    assert widths[heights == 0].tolist() == [32] * ipus, "what I/O tiles hold is not modelled"
    assert {cause for cause, _ in layers} == {*profile.estimate.by_memory(), "copies"}


def test_the_plots_of_nodes_and_types_hold_all_cycles(profile, plots):
    (axes,) = plots.plot_layers(profile).axes
    tops = [collection.get_paths()[0].vertices[:, 1].max() for collection in axes.collections]
    assert max(tops) == max(step.cycles for step in profile.steps) < axes.get_ylim()[1]
    ranked = sorted(range(len(profile.steps)), key=lambda i: -profile.steps[i].cycles)
    assert axes.get_xlim() == (-0.5, len(profile.steps) - 0.5)
    assert axes.get_ylim()[0] == 0
    marks = {int(text.get_text()): text.xy for text in axes.texts}
    assert [marks[rank][0] for rank in sorted(marks)] == ranked[:5]
    (axes,) = plots.plot_operators(profile).axes
    total = sum(bar.get_width() for bar in axes.patches)
    assert total == profile.estimate.cycles
    assert sum(float(text.get_text().strip(" %")) for text in axes.texts) == pytest.approx(100, abs=0.3)
    (axes,) = plots.plot_causes(profile).axes
    assert sum(bar.get_width() for bar in axes.patches) == pytest.approx(1)
    causes = profile.estimate.by_cause()
    assert axes.get_xlim() == (0, 1)
    bars = {f"{bar.get_width():.0%}": bar.get_x() + bar.get_width() / 2 for bar in axes.patches}
    assert axes.texts
    for text in axes.texts:
        assert text.xy[0] == pytest.approx(bars[text.get_text()]), "in the middle of its bar"
    labels = [label for label in (bar.get_label() for bar in axes.containers) if label]
    assert labels == [
        f"{cause} {cycles / sum(causes.values()):.1%}" for cause, cycles in causes.items() if cycles
    ]


def test_a_model_that_computes_nothing_has_plots_of_its_transfers(tmp_path, plots):
    node = helper.make_node("Identity", ["x"], ["y"])
    model = make_model([node], {"x": (F, [4, 8])}, {"y": (F, [4, 8])}, {})
    (tmp_path / "idle.onnx").write_bytes(model.SerializeToString())
    profile = Profiler(open_source(tmp_path / "idle.onnx")).profile(Settings())
    assert profile.estimate.cycles == 0
    (axes,) = plots.plot_causes(profile).axes
    assert sum(bar.get_width() for bar in axes.patches) == pytest.approx(1)
    assert not plots.plot_operators(profile).axes[0].patches


def test_every_plot_has_the_pages_style(profile, plots):
    drawn = [plots.plot_layers, plots.plot_operators, plots.plot_causes, plots.plot_memory]
    for figure in [*(draw(profile) for draw in drawn), plots.plot_batches([profile])]:
        for axes in figure.axes:
            assert not axes.spines["top"].get_visible()
            assert not axes.spines["right"].get_visible()
            assert axes.xaxis.label.get_fontsize() == 9
            assert axes.get_legend() is None or not axes.get_legend().get_frame_on()


@pytest.mark.parametrize("fits", [True, False])
def test_the_plot_of_memory_has_the_line_of_what_a_tile_has(profile, plots, fits):
    profile = profile if fits else crowded(profile)
    over_tiles, over_nodes = plots.plot_memory(profile).axes
    tile = profile.target.bytes_per_tile / 1024
    assert [line.get_ydata()[0] for line in over_tiles.lines] == [tile]
    assert [line.get_ydata()[0] for line in over_nodes.lines] == ([] if fits else [tile])
    assert over_tiles.get_ylim()[1] > max(tile, profile.estimate.peak_tile_bytes / 1024)
    assert over_tiles.get_xlim() == (0, 1472)
    peak = max(each.get_paths()[0].vertices[:, 1].max() for each in over_nodes.collections)
    assert peak == pytest.approx(profile.estimate.peak_tile_bytes / 1024)


def test_the_plot_of_batch_sizes_has_a_line_for_each_chip_and_precision(profiler, plots):
    def points(target):
        return [profiler.profile(Settings(target, size, "fp16")) for size in (8, 2)]

    one = points("ipu21")
    latency, rate = plots.plot_batches([*one, crowded(profiler.profile(Settings("ipu21", 4, "fp16")))]).axes
    for axes, read in (
        (latency, lambda estimate: 1e3 * estimate.latency_seconds),
        (rate, lambda estimate: estimate.samples_per_second),
    ):
        line, *markers = axes.lines
        assert line.get_xdata().tolist() == [2, 4, 8]
        assert line.get_ydata()[2] == pytest.approx(read(one[0].estimate))
        assert [marker.get_marker() for marker in markers] == ["o", "X", "o"], "a cross: does not fit"
        assert len(axes.texts) == 3
        assert axes.get_ylim()[1] > max(line.get_ydata())
        assert axes.get_legend() is None
    two = plots.plot_batches([*one, *points("bow")]).axes
    for axes in two:
        assert [text.get_text() for text in axes.get_legend().get_texts()] == ["ipu21 fp16", "bow fp16"]
        assert not axes.texts
