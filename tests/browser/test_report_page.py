"""The report of `poplar-triton profile --html` in a browser: opened, clicked, searched, sorted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from poplar_triton.cli import main
from report_pages import HOSTILE, chain, show
from sample_models import make_model

F = TensorProto.FLOAT
HALF = ("--precision", "fp16")
FEW_PROFILES = 4
"""The number of profiles with other options, for pages whose advice is not looked at."""
HOVERED = """const shown = document.getElementById("tip");
    return !shown.hidden && shown.textContent;"""
CHARTS = (
    """return [...document.querySelectorAll("canvas, .bars, .curves")].map((each) => each.id)"""
)
NAMES = """return [...document.querySelectorAll("#time .names button")].map((each) => each.textContent)"""


def make_page(
    model, folder: Path, *words, name: str = "model.onnx", profiles: int = FEW_PROFILES
) -> Path:
    onnx.save(model, folder / name)
    page = folder / "report.html"
    options = ["--batch_size", 4, *HALF, "--html", page, "--max_profiles", profiles, *words]
    assert main(["profile", str(folder / name), *map(str, options)]) == 0
    return page


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Return the page of a chain with one node that costs more than the others, beside fp32."""
    folder = tmp_path_factory.mktemp("report")
    model = chain([f"layer_{i}" for i in range(70)])
    wide = helper.make_node("MatMul", ["t70", "wide"], ["y"], name="the_dearest")
    model.graph.node.append(wide)
    model.graph.initializer.append(
        onnx.numpy_helper.from_array(np.ones((64, 8192), np.float32), "wide")
    )
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", F, ["n", 8192]))
    return make_page(model, folder, "--compare", "precision=fp32", profiles=64)


@pytest.fixture
def opened(browser, page):
    """Show the page as a user with a light screen sees it."""
    show(browser, page)
    return browser


def rows(browser) -> list[list[str]]:
    script = """return [...document.querySelectorAll("#nodes tbody tr")]
        .map((row) => [...row.cells].map((cell) => cell.textContent));"""
    return browser.run(script)


def selected(browser) -> list[str]:
    script = """const row = document.querySelector('#nodes tr[aria-selected="true"]');
        return row && [...row.cells].map((cell) => cell.textContent);"""
    return browser.run(script)


def place_of_bar(browser, chart: str, node: int) -> tuple[float, float]:
    """Scroll to a chart and return a position over the foot of a node's column in the window."""
    script = """const chart = document.getElementById(arguments[0]);
        chart.scrollIntoView({ block: "center", behavior: "instant" });
        const box = chart.getBoundingClientRect(), { from, to } = chart.dataset;
        return [box.left + (arguments[1] + 0.5 - from) / (to - from) * box.width, box.bottom - 24];"""
    return tuple(browser.run(script, chart, node))


def search(browser, text: str) -> None:
    script = """const field = document.getElementById("search"); field.value = arguments[0];
        field.dispatchEvent(new Event("input"));"""
    browser.run(script, text)


def sort_by(browser, column: str) -> list[str]:
    """Click a column's head and return the column as it is then."""
    script = """const heads = [...document.querySelectorAll("#nodes th")];
        const place = heads.findIndex((head) => head.textContent === arguments[0]);
        heads[place].querySelector("button").click();
        const shown = [...document.querySelectorAll("#nodes tbody tr")];
        return shown.map((row) => row.cells[place].textContent);"""
    return browser.run(script, column)


def test_it_opens_without_a_word_on_the_console_and_asks_for_nothing(opened, page):
    assert opened.read_console() == []
    assert [each for each in opened.read_requests() if not each.startswith("data:")] == [
        page.as_uri()
    ]
    assert opened.run(CHARTS) == [
        "chart-nodes", "chart-types", "chart-causes", "chart-memory", "chart-live", "chart-comparison",
        "chart-latency", "chart-rate", "tile-map", "liveness", "exchange", "timeline",
    ]  # fmt: skip
    assert opened.run("""return [...document.querySelectorAll("section")].every((each) =>
        each.children.length > 1 && each.innerText.length > each.firstChild.innerText.length + 10)""")


def test_its_figures_are_those_of_the_json_and_add_up(opened, page, capsys):
    assert main(["profile", str(page.parent), "--batch_size", "4", *HALF, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    figures = opened.run(
        "return [...document.querySelectorAll('#latency b')].map((each) => each.textContent)"
    )
    *parts, total = [float(figure.split()[0]) for figure in figures]
    assert sum(parts) == pytest.approx(total, abs=1e-6)
    assert {figure.split()[1] for figure in figures} == {"us"}
    assert total == pytest.approx(1e6 * told["latency_seconds"], abs=0.06)
    text = opened.run("return document.body.innerText")
    assert f"{told['cycles']:,}" in text
    assert f"{told['samples_per_second']:,.0f}" in text
    assert "batch 4, fp16, half partials on C600 (ipu21)" in text
    assert "validat" in text


def test_the_dearest_nodes_are_named_on_the_chart(opened):
    names = opened.run(NAMES)
    assert len(names) == 5
    assert any("the_dearest" in name for name in names)
    opened.run("""[...document.querySelectorAll("#time .names button")]
        .find((each) => each.textContent.includes("the_dearest")).click()""")
    assert "the_dearest" in selected(opened)[1]


@pytest.mark.parametrize("chart", ["chart-nodes", "chart-live"])
def test_a_click_on_a_bar_shows_its_node_in_the_table(opened, chart):
    last = (
        opened.run(
            "return JSON.parse(document.getElementById('data').textContent).nodes.name.length"
        )
        - 1
    )
    search(opened, "no such node")
    assert rows(opened) == []
    opened.click_at(*place_of_bar(opened, chart, last))
    opened.wait_for("return document.querySelector('#nodes tr[aria-selected=\"true\"]')")
    found = selected(opened)
    assert found[0] == str(last + 1)
    assert "the_dearest" in found[1]
    assert "the_dearest" in opened.run("return document.getElementById('detail').textContent")
    opened.wait_for("""const box = document.querySelector('#nodes tr[aria-selected="true"]')
        .getBoundingClientRect(); return box.top >= 0 && box.bottom <= innerHeight;""")


def test_a_column_is_as_high_as_its_node_takes_cycles(opened):
    script = """const { nodes } = JSON.parse(document.getElementById("data").textContent);
        const canvas = document.getElementById("chart-nodes"), pen = canvas.getContext("2d");
        return nodes.name.map((_, i) => {
            const x = Math.floor((i + 0.2) * canvas.width / nodes.name.length);
            let height = 0;
            for (let y = canvas.height - 24; pen.getImageData(x, y, 1, 1).data[3]; y--) height++;
            return [nodes.compute[i] + nodes.exchange[i] + nodes.sync[i], height + 3];
        });"""
    columns = opened.run(script)[10:]  # scale values are written over the first ones
    most, highest = max(columns)
    assert highest > 200
    for cycles, height in columns:
        assert height == pytest.approx(highest * cycles / most, abs=3)


def test_a_node_is_described_under_the_mouse(opened):
    opened.move_to(*place_of_bar(opened, "chart-nodes", 0))
    text = opened.wait_for(HOVERED)
    assert "layer_0" in text
    assert "cycles" in text


def test_a_drag_zooms_and_a_double_click_goes_back(opened):
    window = """const { from, to } = document.getElementById("chart-nodes").dataset;
        return [Number(from), Number(to)]"""
    before = opened.run(window)
    opened.run(
        "document.getElementById('chart-nodes').scrollIntoView({block: 'center', behavior: "
        "'instant'})"
    )
    box = opened.run("""const box = document.getElementById('chart-nodes').getBoundingClientRect();
        return [box.left, box.top, box.width, box.height]""")
    opened.drag(box[0] + box[2] / 3, box[1] + box[3] / 2, box[2] / 3)
    low, high = opened.wait_for(
        f"const found = (() => {{ {window} }})(); return found[0] > 10 && found"
    )
    assert before[0] < low < high < before[1]
    opened.run(
        """document.getElementById("chart-nodes").dispatchEvent(new MouseEvent("dblclick"))"""
    )
    assert opened.run(window) == before


def test_a_click_on_an_operator_type_lists_its_nodes(opened):
    place = """const row = [...document.querySelectorAll("#chart-types button")].find((each) => each.textContent.startsWith("Tanh ("));
        row.scrollIntoView({ block: "center", behavior: "instant" });
        const box = row.getBoundingClientRect();
        return [box.left + box.width / 2, box.top + box.height / 2];"""
    opened.click_at(*opened.run(place))
    opened.wait_for("return !document.getElementById('type').hidden")
    assert {row[2] for row in rows(opened)} == {"Tanh"}
    opened.run("document.getElementById('type').click()")
    assert {row[2] for row in rows(opened)} > {"Tanh"}


def test_the_table_is_searched_sorted_and_turned(opened):
    assert [row[0] for row in rows(opened)] == [str(i) for i in range(1, 101)]
    search(opened, "LAYER_6 matmul")
    assert {row[1].split("/")[0] for row in rows(opened)} == {
        "layer_6",
        *(f"layer_6{i}" for i in range(10)),
    }
    search(opened, "")
    down = [int(cycles.replace(",", "")) for cycles in sort_by(opened, "cycles")]
    assert down == sorted(down, reverse=True)
    assert "the_dearest" in rows(opened)[0][1]
    up = [int(cycles.replace(",", "")) for cycles in sort_by(opened, "cycles")]
    assert up == sorted(up)
    assert up[0] < down[0]
    assert sort_by(opened, "node") == sorted(row[1] for row in rows(opened))
    opened.run("document.querySelector('[aria-label=\"Next page\"]').click()")
    assert 0 < len(rows(opened)) <= 100
    assert "101 to" in opened.run("return document.getElementById('told').textContent")


def test_it_is_dark_where_the_user_wants_it_dark_at_once(opened, page):
    colours = """const luminance = (text) => text.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0);
        return [luminance(getComputedStyle(document.body).backgroundColor),
            luminance(getComputedStyle(document.querySelector("#chart-latency text")).fill)];"""
    bright = opened.run(colours)
    assert bright[0] > 600 > 400 > bright[1]
    opened.prefer("dark")
    opened.wait_for(
        f"const [page, ink] = (() => {{ {colours} }})(); return page < 150 && ink > 400"
    )
    assert opened.read_console() == []


def test_it_is_printed_light_and_no_wider_than_paper(opened):
    look = """const last = [...document.querySelectorAll("#time .names button")].at(-1).getBoundingClientRect();
        const chart = document.getElementById("chart-nodes");
        return [getComputedStyle(document.body).backgroundColor, chart.width, chart.clientWidth,
            Math.max(...[...document.querySelectorAll("section")].map((each) => each.offsetWidth)),
            last.right <= chart.getBoundingClientRect().right + 1];"""
    opened.prefer("dark")
    before = opened.run(look)
    opened.run("dispatchEvent(new Event('beforeprint'))")
    paper, drawn, chart, section, inside = opened.run(look)
    assert (
        min(map(int, re.findall(r"\d+", paper)))
        > 200
        > max(map(int, re.findall(r"\d+", before[0])))
    )
    assert drawn == chart < section == 700
    assert inside
    opened.run("dispatchEvent(new Event('afterprint'))")
    assert opened.run(look) == before


def test_two_profiles_stand_side_by_side(opened):
    script = """return [...document.querySelectorAll("#both tbody tr")]
        .map((row) => [...row.cells].map((cell) => cell.textContent))"""
    figures = {name: values for name, *values in opened.run(script)}
    assert set(figures) >= {"latency", "chip", "transfers", "samples/s", "cycles", "fullest tile"}
    assert float(figures["cycles"][2]) > 1, "fp32 takes longer"
    bars = opened.run("""return [...document.querySelectorAll("#chart-comparison .bar-lines")].map((each) =>
        [...each.querySelectorAll(".bar-part")].map((part) => part.getBoundingClientRect().width))""")
    assert all(len(widths) == 2 for widths in bars)
    assert bars[0][1] > bars[0][0], "fp32 takes longer"
    differing = opened.run("return document.querySelectorAll('#differences tbody tr').length")
    assert 70 < differing <= 500


DEEP = [
    f"/model/encoder/layer.{i}/attention/self/{part}/MatMul"
    for i in range(30)
    for part in ("query", "key_value")
]


@pytest.fixture(scope="module")
def deep_page(tmp_path_factory):
    """Return the page of nodes with long names, and a last one with no place to break."""
    folder = tmp_path_factory.mktemp("deep")
    return make_page(chain([*DEEP, "x" * 150]), folder, "--compare", "precision=fp32")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_is_wider_than_the_window(browser, deep_page, scheme, width):
    show(browser, deep_page, scheme, width)
    browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    browser.run("document.querySelector('#nodes tbody tr:last-child').click()")
    assert browser.run("return [innerWidth, document.documentElement.scrollWidth]") == [width] * 2
    # What is hidden by a box that cuts off is not seen by the scroll width.
    beyond = browser.run("""return [...document.querySelectorAll("text, p, h1, h2, h3, a, .figure, .names button, .bar-name, .bar-end")]
        .filter((each) => !each.closest(".scroll") && each.getBoundingClientRect().width)
        .filter((each) => { const box = each.getBoundingClientRect(), by = each.closest(".plot, .curves, .bars, body")
            .getBoundingClientRect(); return box.right > by.right + 1 || box.left < by.left - 1; })
        .map((each) => each.textContent)""")
    assert beyond == []


def test_a_chart_is_drawn_anew_for_another_width(browser, deep_page):
    show(browser, deep_page)
    browser.resize(400, 1000)
    browser.wait_for("""const right = document.getElementById("chart-nodes").getBoundingClientRect().right;
        return right < 400 && [...document.querySelectorAll("#time .names button")]
            .every((each) => each.getBoundingClientRect().right <= right);""")
    # The other charts are drawn after it.
    browser.wait_for("return document.documentElement.scrollWidth === 400;")


def test_the_labels_of_nodes_keep_what_tells_them_apart(browser, deep_page):
    show(browser, deep_page, width=400)
    labels = browser.run(NAMES)
    assert len(labels) == len(set(labels)) == 5
    for label in labels:
        assert len(label) <= 34
        pattern = ".*".join(re.escape(part) for part in label.split("…"))
        (name,) = [name for name in DEEP if re.fullmatch(pattern, name)]
        assert all(f"/{part}" in name for part in label.split("…") if part), "parts are whole"


@pytest.mark.parametrize("width", [400, 1280])
def test_names_are_broken_between_their_parts_only(browser, deep_page, width):
    """Each run of letters and digits of a name stands in one line."""
    show(browser, deep_page, width=width)
    broken = browser.run(r"""const found = [];
        for (const cell of document.querySelectorAll("#nodes td:nth-child(2), #alive td.text")) {
            const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
            while (walker.nextNode()) for (const word of walker.currentNode.data.matchAll(/[\p{L}\d]+/gu)) {
                const range = document.createRange();
                range.setStart(walker.currentNode, word.index);
                range.setEnd(walker.currentNode, word.index + word[0].length);
                if (new Set([...range.getClientRects()].map((box) => box.top)).size > 1) found.push(word[0]);
            }
        }
        return found;""")
    assert broken == []
    lines = browser.run("""const cell = document.querySelector("#nodes td:nth-child(2)"), range = document.createRange();
        range.selectNodeContents(cell);
        return new Set([...range.getClientRects()].map((box) => box.top)).size;""")
    assert lines > 1 or width > 400, "they are long enough to be broken"


@pytest.mark.parametrize("width", [400, 1280])
def test_the_head_of_the_table_stays_in_view(browser, deep_page, width):
    show(browser, deep_page, width=width)
    tops = browser.run("""const box = document.getElementById("nodes").parentElement;
        box.scrollIntoView({ block: "end", behavior: "instant" });
        box.scrollTop = box.scrollHeight;
        const head = document.querySelector("#nodes th").getBoundingClientRect();
        const seen = document.elementFromPoint(head.left + head.width / 2, head.top + head.height / 2);
        return [box.scrollTop, head.top - box.getBoundingClientRect().top, head.top, Boolean(seen.closest("th"))];""")
    assert tops[0] > 100, "the table is longer than its box"
    assert tops[1] == pytest.approx(0, abs=2)
    assert tops[2] >= 0
    assert tops[3], "no row covers it"


def test_a_share_of_the_tile_is_the_same_in_chart_and_table_and_terminal(browser, tmp_path, capsys):
    wide = chain([f"layer_{i}" for i in range(4)], width=256)
    page = make_page(wide, tmp_path, "--batch_size", "262144")
    told = capsys.readouterr().out
    show(browser, page)
    table = dict(
        browser.run("""return [...document.querySelectorAll("#held tbody tr")]
        .map((row) => [row.cells[0].textContent, row.cells[2].textContent])""")
    )
    parts = browser.run(
        "return document.querySelector('#chart-memory .bar-lines').ariaLabel"
    ).split("; ")
    chart = [(part.split(":")[0], re.search(r"[\d.]+%", part)[0]) for part in parts]
    assert {"weights", "peak"} < set(table)
    assert chart
    for name, share in chart:
        assert table[name] == share
    for name, share in table.items():
        (line,) = [line for line in told.splitlines() if re.match(rf"│ {name}\b", line)]
        assert line.split("│")[3].strip() == share
    types = browser.run("""const told = (which) => [...document.querySelectorAll("#chart-types " + which)].map((each) => each.textContent);
        const shares = told(".bar-end");
        return told(".bar-name").map((name, i) => [name.split(" ")[0], shares[i]])""")
    assert types
    for name, share in types:
        (line,) = [line for line in told.splitlines() if re.match(rf"│ {name} +│ +\d+ │", line)]
        assert line.split("│")[4].strip() == share


def test_names_of_strangers_are_text_everywhere(browser, tmp_path):
    model = chain([HOSTILE, "<b>bold</b>", "%{x} <extra></extra>", "‮\x1b[31m", "x" * 5000])
    page = make_page(model, tmp_path, "--compare", "target=bow", name="<i>&'\"$title.onnx")
    show(browser, page)
    assert browser.read_console() == []
    assert browser.run("return window.harmed") is None
    assert browser.run("return document.title").startswith("<i>&'\"$title on C600")
    assert browser.run("return document.querySelector('h1').textContent") == "<i>&'\"$title"
    shown = [row[1] for row in rows(browser)]
    assert any(HOSTILE in name for name in shown)
    assert any("<b>bold</b>" in name for name in shown)
    assert all(len(name) < 250 for name in shown)
    assert (
        browser.run(
            "return document.querySelectorAll('img, b b, #nodes td b, script[src], main "
            "script').length"
        )
        == 0
    )
    for node in range(len(shown)):
        browser.move_to(1, 1)
        browser.move_to(*place_of_bar(browser, "chart-nodes", node))
        text = browser.wait_for(HOVERED)
        assert "cycles" in text
    assert browser.run("return window.harmed") is None
    assert [each for each in browser.read_requests() if not each.startswith("data:")] == [
        page.as_uri()
    ]


def test_a_model_that_computes_nothing_has_no_empty_charts(browser, tmp_path):
    kind = {"x": (F, [4, 8])}, {"y": (F, [4, 8])}
    onnx.save(
        make_model([helper.make_node("Identity", ["x"], ["y"])], *kind, {}), tmp_path / "model.onnx"
    )
    page = tmp_path / "report.html"
    assert main(["profile", str(tmp_path / "model.onnx"), "--html", str(page)]) == 0
    show(browser, page)
    assert browser.read_console() == []
    assert browser.run(
        "return [...document.querySelectorAll('section')].map((each) => each.id)"
    ) == [
        "summary",
        "memory",
        "advice",
        "batches",
        "tiles",
        "alive-over-time",
        "program",
        "method",
    ]
    assert "Not drawn: batch 1, 2, 8, 16, which failed" in browser.run(
        "return document.getElementById('batches').textContent"
    )


def test_nodes_say_on_which_of_several_chips_they_are(browser, tmp_path):
    page = make_page(chain([f"layer_{i}" for i in range(8)]), tmp_path, "--num_ipus", "2")
    show(browser, page)
    assert browser.read_console() == []
    assert set(sort_by(browser, "IPU")) == {"0", "1"}
    assert "2 x C600 (ipu21)" in browser.run(
        "return document.getElementById('subject').textContent"
    )
    assert browser.run("return document.querySelectorAll('#ipus tbody tr').length") == 2


def test_a_graph_of_many_nodes_is_a_page_of_bounded_size(browser, made_of_many):
    page, _ = made_of_many
    assert page.stat().st_size < 5_000_000
    show(browser, page)
    assert browser.run("return document.querySelectorAll('#nodes tbody tr').length") == 100
    told = re.search(
        r"The ([\d,]+) cheapest are not listed", browser.run("return document.body.innerText")
    )
    assert told
    assert browser.read_console() == []
