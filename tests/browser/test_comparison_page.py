"""The page of `poplar-triton compare --html` in a browser."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from poplar_triton.compare.output import make_report
from poplar_triton.compare.systems import (
    MEASURED,
    MODELLED,
    Point,
    Spread,
    System,
    SystemComparison,
)
from report_pages import show
from simipu.chip.target import TARGETS

ADDRESS = "https://example.org/of-a-model"
HOSTILE = "</script><script>window.harmed = 1</script><img src=x onerror='window.harmed=1'>"


def make_comparison() -> SystemComparison:
    chip = [
        Point(1, 0.001, 1000.0, error="error"),
        Point(2, 0.0015, 1500.0, error="error"),
        Point(4, 0.003, 1600.0, fits=False, error="error"),
    ]
    cpu = [Point(1, 0.01, 100.0, spread=Spread(7, 0.008, 0.02))]
    power = TARGETS["ipu21"].power
    return SystemComparison(
        HOSTILE,
        "fp16",
        [
            System("c600", "C600", MODELLED, chip, power=power, num_ipus=1),
            System("cpu", HOSTILE, MEASURED, cpu, notes=[HOSTILE], energy_reason="unknown"),
            System("gpu", "GPU", MEASURED, reason=f"not measured: no GPU, `see` {ADDRESS}"),
        ],
        0.005,
        {"c600": 3.6},
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("comparison") / "comparison.html"
    file.write_text(make_report(make_comparison()), encoding="utf-8")
    return file


@pytest.fixture
def opened(browser, page):
    show(browser, page)
    return browser


def rows(browser, table: str) -> list[list[str]]:
    script = """return [...document.querySelectorAll("#" + arguments[0] + " tbody tr")]
        .map((row) => [...row.cells].map((cell) => cell.textContent));"""
    return browser.run(script, table)


def test_the_page_loads_nothing_else_and_runs_no_text_of_a_model(opened, page):
    assert opened.read_console() == []
    assert {each for each in opened.read_requests() if not each.startswith("data:")} == {
        page.as_uri()
    }
    assert opened.run("return window.harmed === undefined")
    assert opened.run("return document.querySelectorAll('img').length") == 0


def test_the_summary_has_a_row_for_each_system(opened):
    chip, cpu, gpu = rows(opened, "systems")
    assert chip[:6] == ["c600: C600", "modelled", "1 ms", "2", "1.5 ms", "1,500"]
    assert chip[6:9] == ["2", "1.5 ms", "1,500"], "within the limit of 5 ms"
    assert chip[9:] == ["8.4 mJ to 123 mJ", "0.667"]
    assert cpu[1:6] == ["measured", "10 ms", "1", "10 ms", "100"]
    assert cpu[6:] == ["none", "-", "-", "-", "-"]
    assert gpu[1:3] == ["none", "-"]
    notes = opened.run("return document.getElementById('notes').textContent")
    assert "gpu: not measured: no GPU" in notes


def test_a_curve_has_a_point_for_each_batch_size_with_crosses_stars_and_spread(opened):
    points = opened.run("""return [...document.querySelectorAll("#chart-curves .point")].map((each) => {
        const box = each.getBoundingClientRect();
        return [each.dataset.symbol, box.left + box.width / 2, box.top + box.height / 2, each.getAttribute("aria-label")];
        });""")
    assert [each[0] for each in points] == ["circle", "star", "cross", "circle"]
    along, down = (
        [math.log(value) for value in values]
        for values in ([1, 1.5, 3, 10], [1000, 1500, 1600, 100])
    )
    for place, logs in ((1, along), (2, down)):
        scale = (points[3][place] - points[0][place]) / (logs[3] - logs[0])
        shown = [points[0][place] + scale * (each - logs[0]) for each in logs]
        assert [each[place] for each in points] == pytest.approx(shown, abs=1.5)
    assert points[3][1] > points[0][1], "slower is to the right"
    assert points[3][2] > points[0][2], "faster is higher"
    assert points[0][3].startswith(
        "c600, modelled, batch 1: latency 1 ms; 1,000 samples/s; energy "
    )
    assert "7 calls, 8 ms to 20 ms" in points[3][3]
    scale = (points[3][1] - points[0][1]) / math.log(10)
    (spread,) = opened.run("""return [...document.querySelectorAll("#chart-curves .spread")]
        .map((each) => each.getBoundingClientRect()).map((box) => [box.left, box.right]);""")
    ends = [points[0][1] + scale * math.log(ms) for ms in (8, 20)]
    assert spread == pytest.approx(ends, abs=1.5), "latencies of eight of ten calls"
    legend = opened.run(
        "return [...document.querySelectorAll('.legend .whole')].map((each) => each.textContent)"
    )
    assert legend == ["c600, modelled", "cpu, measured"]


def test_a_point_is_described_under_the_mouse_as_text(opened):
    place = opened.run("""const point = document.querySelector("#chart-curves .point[data-symbol=star]");
        point.scrollIntoView({ block: "center", behavior: "instant" });
        const box = point.getBoundingClientRect();
        return [box.left + box.width / 2, box.top + box.height / 2];""")
    opened.move_to(*place)
    told = opened.wait_for(
        "const tip = document.getElementById('tip'); return !tip.hidden && tip.textContent"
    )
    assert "batch 2: latency 1.5 ms; 1,500 samples/s" in told
    assert opened.run("return window.harmed === undefined")


def test_all_points_are_listed_and_the_power_has_its_source(opened):
    assert len(rows(opened, "points")) == 4
    ((board, idle, typical, most, source),) = rows(opened, "powers")
    assert (board, idle, typical, most) == (
        "C600 card of 1 IPU",
        "12.6 W",
        "not published",
        "185 W",
    )
    assert "docs.graphcore.ai/projects/C600-datasheet" in source


def test_sources_are_links_and_addresses_from_elsewhere_are_text(opened):
    links = opened.run(
        "return [...document.querySelectorAll('main a')].map((link) => [link.href, link.textContent])"
    )
    sources = TARGETS["ipu21"].power.sources
    assert [address for address, _ in links] == [*sources, *sources], "in the notes and the table"
    assert all(address == text for address, text in links)
    assert ADDRESS in opened.run("return document.getElementById('notes').textContent")


def test_commands_in_sentences_are_code_without_backticks(opened):
    codes = opened.run(
        "return [...document.querySelectorAll('code')].map((code) => code.textContent)"
    )
    assert "poplar-triton profile" in codes
    assert "see" in codes
    assert "`" not in opened.run("return document.body.innerText")


def test_each_note_is_an_item_that_begins_with_its_systems(opened):
    notes = opened.run("""return [...document.querySelectorAll("#notes li")].map((item) =>
        [item.querySelector("b").textContent, getComputedStyle(item).display,
         item.nextElementSibling ? item.nextElementSibling.getBoundingClientRect().top
          - item.getBoundingClientRect().bottom : 9]);""")
    assert [name for name, _, _ in notes][-1] == "gpu"
    assert all(gap >= 4 for _, _, gap in notes), "the notes do not run together"


@pytest.mark.parametrize("width", [1280, 400])
def test_no_row_of_a_table_is_hidden_in_a_box_that_scrolls_down(browser, tmp_path, width):
    comparison = make_comparison()
    points = [Point(size, 0.001 * size, 1000.0, error="error") for size in range(1, 80)]
    systems = [replace(comparison.systems[0], points=points), *comparison.systems[1:]]
    file = tmp_path / "long.html"
    file.write_text(make_report(replace(comparison, systems=systems)), encoding="utf-8")
    show(browser, file)
    browser.resize(width, 600)
    boxes = browser.run("""return [...document.querySelectorAll(".scroll")]
        .map((box) => [box.scrollHeight, box.clientHeight]);""")
    assert max(height for height, _ in boxes) > 600
    assert all(height <= shown for height, shown in boxes)


@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_fits_the_window(opened, width):
    opened.resize(width, 1000)
    assert opened.wait_for(
        "return document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    )
