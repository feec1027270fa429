"""Tests that a profile's page, advice, comparison, trace and sweep table agree with its JSON."""

from __future__ import annotations

import base64
import itertools
import json
import logging
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from poplar_triton.cli import main
from poplar_triton.profile import command, report
from poplar_triton.profile.compare import (
    compare_nodes,
    compare_types,
    list_figures,
    print_comparison,
    print_sweep,
)
from poplar_triton.profile.report import Content, describe_page, make_report
from poplar_triton.profile.source import Estimator, ProfileSettings, open_source
from poplar_triton.profile.suggest import Batches
from poplar_triton.profile.trace import ALL_TILES, MEMORY, RECEIVED, make_trace
from poprt.performance import tiles_of
from poprt.performance.table import list_alive
from poprt.terminal import make_console
from sample_models import make_model

from popef._tools.arguments import Parser

F = TensorProto.FLOAT


@pytest.fixture(scope="module")
def estimator(tmp_path_factory):
    """Return the estimator of y = softmax(tanh(x) @ w)."""
    nodes = [
        helper.make_node("Tanh", ["x"], ["t"], name="squash"),
        helper.make_node("MatMul", ["t", "w"], ["m"], name="multiply"),
        helper.make_node("Softmax", ["m"], ["y"], name="<softmax>"),
    ]
    weight = {"w": np.random.default_rng(0).random((64, 96), np.float32)}
    model = make_model(nodes, {"x": (F, ["n", 64])}, {"y": (F, ["n", 96])}, weight)
    path = tmp_path_factory.mktemp("report") / "network.onnx"
    path.write_bytes(model.SerializeToString())
    return Estimator(open_source(path))


@pytest.fixture
def profile(estimator):
    return estimator.profile(ProfileSettings("ipu21", 4, "fp16"))


def crowded(profile, tile_bytes=1024):
    """Return the same profile for a chip whose tiles have only `tile_bytes` of memory."""
    estimate = profile.estimate
    return replace(
        profile,
        estimate=replace(estimate, target=replace(estimate.target, bytes_per_tile=tile_bytes)),
    )


def test_the_page_has_every_node_with_its_cycles(profile):
    nodes = describe_page(Content(profile))["nodes"]
    assert nodes["left_out"] == 0
    assert nodes["name"] == [step.name for step in profile.steps]
    assert [nodes["types"][i] for i in nodes["type"]] == [step.op_type for step in profile.steps]
    assert [nodes["plans"][i] for i in nodes["plan"]] == [
        s.work.plan or s.work.kind for s in profile.steps
    ]
    causes = zip(nodes["compute"], nodes["exchange"], nodes["sync"], strict=True)
    assert [sum(each) for each in causes] == [step.cycles for step in profile.steps]
    assert nodes["macs"] == [step.work.macs for step in profile.steps]
    assert nodes["ipu"] == [], "there is one"


def test_the_page_has_the_figures_of_the_estimate(profile):
    page, estimate = describe_page(Content(profile)), profile.estimate
    assert (page["title"], page["fits"]) == ("network", True)
    assert page["subject"] == "batch 4, fp16, half partials on C600 (ipu21)"
    figures = dict(page["figures"])
    assert figures["cycles"] == f"{estimate.cycles:,}"
    assert figures["samples/s"] == f"{estimate.samples_per_second:,.0f}"
    assert (
        figures["of the peak MAC rate"] == f"{profile.peak_share(4 * 64 * 96, estimate.cycles):.1%}"
    )
    amounts = [float(text.split()[0]) for _, text in page["latency"]]
    assert sum(amounts) == pytest.approx(float(page["latency_text"].split()[0]), abs=1e-9)
    assert [name for name, _ in page["latency"]] == ["chip", "transfers", "fixed cost of a call"]
    assert sum(page["causes"].values()) == estimate.total_cycles * estimate.target.num_tiles
    assert sum(sum(each[2:]) for each in page["types"]) == estimate.cycles
    memory = page["memory"]
    assert sum(memory["held"].values()) == memory["peak"] == estimate.peak_tile_bytes
    assert (
        memory["staying"][0] + max(step.live_bytes for step in estimate.operators) == memory["peak"]
    )
    assert [name for name, _ in memory["alive"]] == [name for name, _ in list_alive(estimate.peak)]
    assert (memory["node"], memory["io_tile"]) == (estimate.peak.node, 0)
    assert not describe_page(Content(crowded(profile)))["fits"]


class Scripts(HTMLParser):
    """Parser that finds what a browser takes for scripts in a page, and the other elements."""

    def __init__(self, page):
        super().__init__()
        self.scripts, self.tags, self._inside = [], [], False
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append((dict(attributes), ""))

    def handle_endtag(self, tag):
        self._inside = self._inside and tag != "script"

    def handle_data(self, data):
        if self._inside:
            attributes, text = self.scripts[-1]
            self.scripts[-1] = attributes, text + data


def test_the_page_is_one_file_whose_names_are_no_markup(tmp_path):
    name = "</script><script>alert('$x_y$')</script><!--<img src=x>&amp;"
    model = make_model(
        [helper.make_node("Tanh", ["x"], ["y"], name=name)], {"x": (F, [4])}, {"y": (F, [4])}, {}
    )
    onnx.save(model, tmp_path / "a <b> & $title.onnx")
    profile = Estimator(open_source(tmp_path / "a <b> & $title.onnx")).profile(
        ProfileSettings(precision="fp32")
    )
    text = make_report(Content(profile))
    found = Scripts(text)
    (kind, data), *own = found.scripts
    assert kind["type"] == "application/json"
    assert json.loads(data)["nodes"]["name"] == [name]
    assert "img" not in found.tags
    drawing = [script for _, script in own]
    assert drawing == [report._page(name) for name in (*report._SHARED, *report._SCRIPTS)]
    assert "<title>a &lt;b&gt; &amp; $title on C600 (ipu21)</title>" in text
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert "default-src 'none'" in policy
    assert all(report._digest(script) in policy for script in drawing)
    assert policy.count("sha256-") == len(drawing), "the document is no script"
    assert not re.search(r"<(link|iframe|object|embed|base)|(src|href)=[\"'](?!#)", text)


def test_the_nodes_of_a_page_are_the_dearest_where_all_would_be_too_many(profile, monkeypatch):
    whole = len(json.dumps(report._columns(profile.steps, profile)))
    monkeypatch.setattr(report, "_MAX_NODES_BYTES", whole - 1)
    nodes = describe_page(Content(profile))["nodes"]
    assert nodes["left_out"] == len(profile.steps) - len(nodes["name"]) > 0
    dearest = {step.name for step in profile.dearest(len(nodes["name"]))}
    assert set(nodes["name"]) == dearest
    assert nodes["name"] == [step.name for step in profile.steps if step.name in dearest], (
        "in order"
    )


def inflate(text):
    return json.loads(zlib.decompress(base64.b64decode(text)))


def test_the_tiles_of_a_page_are_those_of_the_profile(profile):
    tiles = tiles_of(profile).as_json()
    assert describe_page(Content(profile))["tiles"] == ""
    page = describe_page(Content(profile, tiles=tiles))
    assert inflate(page["tiles"]) == json.loads(json.dumps(tiles))


def test_names_beside_the_tiles_can_be_shown_and_notes_are_kept():
    document = {
        "notes": ["a sentence " * 30],
        "steps": {"name": ["\x1b[31m" + "x" * 5000], "start": [0]},
        "program": {"kind": "Loop", "name": "\x9b", "children": [{"name": "</script>"}]},
    }
    shown = inflate(report.encode_tiles(document))
    assert shown["notes"] == document["notes"]
    (name,) = shown["steps"]["name"]
    assert name.startswith(r"\x1b[31mxxx")
    assert len(name) < 200
    assert shown["steps"]["start"] == [0]
    assert shown["program"]["name"] == r"\x9b"
    assert shown["program"]["children"][0]["name"] == "</script>"


def test_names_are_shortened_where_the_tiles_would_be_too_large_and_at_last_left_out(monkeypatch):
    names = np.random.default_rng(0).integers(97, 123, (200, 150), np.uint8)
    document = {"notes": [], "steps": {"name": [bytes(row).decode() for row in names]}}
    whole = report.encode_tiles(document)
    assert inflate(whole) == document
    monkeypatch.setattr(report, "_MAX_TILES_BYTES", len(whole) - 1)
    shortened = report.encode_tiles(document)
    assert len(shortened) < len(whole)
    kept = zip(inflate(shortened)["steps"]["name"], document["steps"]["name"], strict=True)
    assert all(name[:20] == whole[:20] and len(name) < 100 for name, whole in kept)
    monkeypatch.setattr(report, "_MAX_TILES_BYTES", 100)
    assert report.encode_tiles(document) == "-"


def test_a_long_name_is_cut_and_a_control_character_written_out(profile):
    estimate = profile.estimate
    first = replace(estimate.operators[0], name="\x1b[31m" + "x" * 5000)
    changed = replace(
        profile, estimate=replace(estimate, operators=(first, *estimate.operators[1:]))
    )
    (name, *_) = describe_page(Content(changed))["nodes"]["name"]
    assert name.startswith(r"\x1b[31mxxx")
    assert len(name) < 200


def test_the_batch_sizes_are_plotted_in_order_and_the_missing_ones_are_named(estimator, profile):
    other = estimator.profile(ProfileSettings("ipu21", 8, "fp16"))
    page = describe_page(Content(profile, Batches([other, profile], {3: "odd", 5: "odd"}, [16])))
    assert [each["batch"] for each in page["batches"]["points"]] == [4, 8]
    assert page["batches"]["missing"] == (
        "Not drawn: batch 16, because of --max_profiles; batch 3, 5, which failed (batch 3: odd)."
    )
    assert describe_page(Content(profile))["batches"] == {"points": [], "missing": ""}


def test_a_sweep_is_a_row_for_each_point_on_the_page_and_in_the_terminal(
    estimator, profile, capsys
):
    points = [profile, estimator.profile(ProfileSettings("bow", 2, "fp32"))]
    listed = describe_page(Content(profile, sweep=points))["sweep"]
    print_sweep(points, make_console())
    shown = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    arithmetics = ("fp16, half partials", "fp32")
    for row, line, point, arithmetic in zip(listed, shown, points, arithmetics, strict=True):
        cells = [cell.strip() for cell in line.strip("│").split("│")]
        estimate = point.estimate
        assert row["line"] == f"{point.chip}, {arithmetic}"
        assert (row["cycles"], row["peak"], row["fits"]) == (
            estimate.cycles,
            estimate.peak_tile_bytes,
            True,
        )
        named = [
            point.target.name,
            arithmetic,
            str(point.batch_size),
            f"{estimate.cycles:,}",
        ]
        rate = f"{estimate.samples_per_second:,.0f}"
        kib = f"{estimate.peak_tile_bytes / 1024:,.0f} KiB"
        assert cells == ["network", *named, row["latency_text"], rate, kib, "yes"]


def test_two_profiles_are_compared_by_figure_type_and_node(estimator, profile, capsys):
    other = estimator.profile(ProfileSettings("ipu21", 8, "fp32"))
    types = compare_types(profile, other)
    assert sum(each.first or 0 for each in types) == profile.estimate.cycles
    assert sum(each.second or 0 for each in types) == other.estimate.cycles
    assert [abs(each.change) for each in types] == sorted(
        (abs(each.change) for each in types), reverse=True
    )
    nodes = compare_nodes(profile, other)
    assert all(each.change for each in nodes)
    assert sum(each.change for each in nodes) == other.estimate.cycles - profile.estimate.cycles
    assert compare_nodes(profile, profile) == []
    assert compare_nodes(profile, other, 1) == nodes[:1]
    assert [ratio for *_, ratio in list_figures(profile, profile)] == [1.0] * len(
        list_figures(profile, profile)
    )
    print_comparison(profile, other, make_console())
    out = capsys.readouterr().out
    assert "A: network, batch 4, fp16, half partials on C600 (ipu21)" in out
    assert "B: network, batch 8, fp32 on C600 (ipu21)" in out
    both = describe_page(Content(profile, other=other))["comparison"]
    assert [[name, a, b] for name, _, a, b in both["types"]] == [
        [e.name, e.first, e.second] for e in types
    ]


def test_nodes_of_one_name_are_compared_together(profile):
    first = profile.steps[0]
    estimate = replace(profile.estimate, operators=(first, first))
    twice = replace(profile, estimate=estimate)
    found = {each.name: each for each in compare_nodes(profile, twice)}
    assert found[first.name].second == 2 * first.cycles
    assert found[profile.steps[1].name].second is None


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
        steps = max(1, step.work.steps)
        assert mine[-1]["args"]["step"] == f"{steps} of {steps}"
        compute = [event["args"]["cycles"] for event in mine if event["cat"] == "compute"]
        assert max(compute) - min(compute) <= 1
        first = [event["cat"] for event in mine if event["args"]["step"].startswith("1 of ")]
        assert first == [cause for cause in ("sync", "exchange", "compute") if cause in first]


def test_the_counters_of_a_trace_are_the_memory_and_the_bytes_of_the_exchange(profile):
    found: dict[str, list[tuple[float, int]]] = {}
    for event in make_trace(profile)["traceEvents"]:
        if event["ph"] == "C":
            found.setdefault(event["name"], []).append((event["ts"], event["args"]["bytes"]))
    for name, attribute in (*MEMORY.items(), (ALL_TILES, "tensor_bytes")):
        values = [value for _, value in found[name]]
        assert values == [*(getattr(step, attribute) for step in profile.steps), 0]
    times = [time for time, _ in found[ALL_TILES]]
    assert times == sorted(times)
    # A tile receives 4 bytes a cycle; the counter falls to 0 where an exchange ends.
    received = [value for _, value in found[RECEIVED]]
    assert sum(received) == 4 * sum(step.work.exchange for step in profile.steps)
    assert received[1::2] == [0] * (len(received) // 2)


def test_neighbours_of_a_sweep_share_the_converted_graph():
    """A conversion takes longer than an estimate, and only the last converted graphs are kept."""
    parser = Parser(prog="profile")
    command.add_arguments(parser)
    axes = {"batch_size": "8,2", "target": "c600,bow", "precision": "fp32,fp16"}
    words = [word for name, values in axes.items() for word in ("--sweep", f"{name}={values}")]
    points = command._points(parser.parse_args(["m.onnx", *words]))
    assert len(points) == 8
    converted = [(point.batch_size, point.precision) for point in points]
    assert sum(a != b for a, b in itertools.pairwise(converted)) == 3
    # One axis keeps the order in which the user gave it.
    points = command._points(parser.parse_args(["m.onnx", *words[:2]]))
    assert [point.batch_size for point in points] == [8, 2]


def test_trials_do_not_repeat_warnings(tmp_path, caplog):
    """Every conversion raises an epsilon that half precision cannot represent."""
    nodes = [
        helper.make_node("Add", ["x", "c"], ["a"]),
        helper.make_node("Sqrt", ["a"], ["y"]),
    ]
    held = {"c": np.full(1, 1e-12, np.float32)}
    onnx.save(
        make_model(nodes, {"x": (F, ["n", 64])}, {"y": (F, ["n", 64])}, held), tmp_path / "m.onnx"
    )
    told = []
    half = ["--precision", "fp16"]
    for words in (half, [*half, "--suggest"]):
        caplog.clear()
        assert main(["profile", str(tmp_path / "m.onnx"), "--batch_size", "4", *words]) == 0
        told.append([record.getMessage() for record in caplog.records])
    assert len(told[0]) == 1
    assert told[0] == told[1]
    assert not logging.root.manager.disable
