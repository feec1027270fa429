"""The report's tiles in a browser: heat map, liveness, exchange, vertices, program, timeline."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from poplar_triton.profile import report
from report_pages import HOSTILE, chain, make_tile_page, show

F = TensorProto.FLOAT
CANVASES = ("tile-map", "liveness", "exchange", "timeline")


def looping_model():
    """Return a chain of products with a loop, in which one more runs three times."""
    model = chain([f"layer_{i}" for i in range(30)])
    nodes = [
        helper.make_node("MatMul", ["carried", "w0"], ["product"], name="looped"),
        helper.make_node("Identity", ["condition"], ["goes_on"]),
    ]
    inputs = [
        helper.make_tensor_value_info("number", TensorProto.INT64, []),
        helper.make_tensor_value_info("condition", TensorProto.BOOL, []),
        helper.make_tensor_value_info("carried", F, [4, 64]),
    ]
    outputs = [
        helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []),
        helper.make_tensor_value_info("product", F, [4, 64]),
    ]
    body = helper.make_graph(nodes, "body", inputs, outputs)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(3), "trips"))
    model.graph.node.append(
        helper.make_node("Loop", ["trips", "", "t30"], ["y"], name="again", body=body)
    )
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", F, ["n", 64]))
    return model


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_tile_page(looping_model(), tmp_path_factory.mktemp("tiles"))


@pytest.fixture(scope="module")
def made_for_two(tmp_path_factory):
    model = chain([f"layer_{i}" for i in range(12)], width=128)
    return make_tile_page(model, tmp_path_factory.mktemp("two"), options={"num_ipus": 2})


@pytest.fixture
def opened(browser, made):
    show(browser, made[0])
    return browser


@pytest.fixture
def tiles(made):
    return made[1]


def at(runs, tile):
    """Return a tile's value in runs of equal neighbours."""
    return [value for number, value in runs for _ in range(number)][tile]


def cells(browser, table: str) -> list[list[str]]:
    return browser.run(
        """return [...document.querySelectorAll(`#${arguments[0]} tbody tr`)]
        .map((row) => [...row.cells].map((cell) => cell.textContent))""",
        table,
    )


def enter(browser, field: str, value, event: str = "input") -> None:
    browser.run(
        """const field = document.getElementById(arguments[0]); field.value = arguments[1];
        field.dispatchEvent(new Event(arguments[2]));""",
        field,
        str(value),
        event,
    )


def press(browser, element: str, key: str, shift: bool = False) -> None:
    browser.run(
        """document.getElementById(arguments[0]).dispatchEvent(
        new KeyboardEvent("keydown", { key: arguments[1], shiftKey: arguments[2], bubbles: true, cancelable: true }))""",
        element,
        key,
        shift,
    )


def told(browser, element: str) -> str:
    return browser.run("return document.getElementById(arguments[0]).textContent", element)


def picture(browser, canvas: str) -> str:
    return browser.run("return document.getElementById(arguments[0]).toDataURL()", canvas)


def window(browser, canvas: str) -> tuple[float, float]:
    return tuple(
        browser.run(
            """const { from, to } = document.getElementById(arguments[0]).dataset;
        return [Number(from), Number(to)]""",
            canvas,
        )
    )


def box(browser, element: str) -> tuple[float, float, float, float]:
    """Scroll to an element and return its left, top, width and height in the window."""
    return tuple(
        browser.run(
            """const element = document.getElementById(arguments[0]);
        element.scrollIntoView({ block: "center", behavior: "instant" });
        const box = element.getBoundingClientRect();
        return [box.left, box.top, box.width, box.height];""",
            element,
        )
    )


def count_colours(browser, canvas: str) -> int:
    return browser.run(
        """const canvas = document.getElementById(arguments[0]);
        const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        return new Set(new Uint32Array(data.buffer)).size;""",
        canvas,
    )


def end_of(steps, i):
    return steps["start"][i] + sum(steps[phase][i] for phase in ("sync", "exchange", "compute"))


def test_every_canvas_is_drawn_without_a_word_on_the_console(opened, made):
    for canvas in CANVASES:
        assert count_colours(opened, canvas) > 2, canvas
    assert opened.read_console() == []
    asked = [each for each in opened.read_requests() if not each.startswith("data:")]
    assert asked == [made[0].as_uri()]


def check_tile(browser, tiles, ipu: int, tile: int) -> None:
    memory, cycles = tiles["memory"][ipu], tiles["cycles"][ipu]
    *categories, total = cells(browser, "tile-bytes")
    assert [(name, int(size.replace(",", ""))) for name, size, *_ in categories] == [
        (each["name"], at(each["tiles"], tile)) for each in memory["categories"]
    ]
    assert int(total[1].replace(",", "")) == at(memory["tiles"], tile)
    averages = [each["average"] for each in memory["categories"]]
    assert [row[3].startswith("average") for row in categories] == averages
    assert {name: int(value.replace(",", "")) for name, value in cells(browser, "tile-cycles")} == {
        cause: at(cycles[cause], tile) for cause in ("compute", "exchange", "sync", "host", "idle")
    }


def test_the_numbers_of_a_tile_are_those_of_the_json(opened, tiles):
    assert any(each["average"] for each in tiles["memory"][0]["categories"])
    for tile in (0, 63, 700, 1471):
        enter(opened, "tile-number", tile)
        check_tile(opened, tiles, 0, tile)
    enter(opened, "tile-number", 1472)
    assert told(opened, "tile-told") == "There are tiles 0 to 1471."


def test_a_click_and_the_arrow_keys_choose_a_tile(opened, tiles):
    left, top, width, _ = box(opened, "tile-map")
    opened.click_at(left + 2.5 * width / 64, top + 1.5 * width / 64)
    opened.wait_for("return document.getElementById('tile-number').value === '66'")
    check_tile(opened, tiles, 0, 66)
    for key, tile in (("ArrowLeft", 65), ("ArrowDown", 129), ("ArrowUp", 65), ("ArrowRight", 66)):
        press(opened, "tile-map", key)
        assert told(opened, "tile-told").startswith(f"IPU 0, tile {tile}: ")
        check_tile(opened, tiles, 0, tile)


def test_the_map_shows_the_chosen_category_in_its_own_colours(opened, tiles):
    pictures = {picture(opened, "tile-map")}
    (weights,) = [each for each in tiles["memory"][0]["categories"] if each["name"] == "weights"]
    for what in ("weights", "compute"):
        enter(opened, "tile-what", what, "change")
        pictures.add(picture(opened, "tile-map"))
    assert len(pictures) == 3
    enter(opened, "tile-what", "weights", "change")
    enter(opened, "tile-number", 5)
    kept = at(weights["tiles"], 5)
    shown = f"{kept} B" if kept < 1024 else "KiB"
    assert shown in told(opened, "tile-told")
    named = opened.run(
        "return [...document.querySelectorAll('#tile-what option')].map((each) => each.textContent)"
    )
    for each in tiles["memory"][0]["categories"]:
        assert each["name"] + (" (average)" if each["average"] else "") in named


def count_cell_colours(browser) -> int:
    """Return the number of colours in the middles of the cells."""
    return browser.run(
        """const canvas = document.getElementById("tile-map"), pen = canvas.getContext("2d"), found = new Set();
        const size = canvas.width / 64;
        for (let tile = 0; tile < 1472; tile++)
            found.add(pen.getImageData((tile % 64 + 0.4) * size, (Math.floor(tile / 64) + 0.4) * size, 1, 1).data.join());
        return found.size;"""
    )


def test_tiles_that_hold_nearly_the_same_have_different_colours_and_a_scale(opened, tiles):
    names = [each["name"] for each in tiles["memory"][0]["categories"]]
    for what in ("all that a tile holds", *names, "compute", "idle"):
        enter(opened, "tile-what", what, "change")
        memory, cycles = tiles["memory"][0], tiles["cycles"][0]
        by_name = {each["name"]: each["tiles"] for each in memory["categories"]}
        runs = by_name.get(what) or cycles.get(what) or memory["tiles"]
        values = {value for _, value in runs}
        scale = told(opened, "tile-scale")
        if len(values) == 1:
            assert scale.startswith("every tile: "), what
            continue
        assert count_cell_colours(opened) >= min(len(values), 3), what
        assert "smallest " in scale, what
        low, high = scale.partition("smallest ")[2].partition(";")[0].split(", largest ")
        assert not high.startswith(low), what


def test_each_ipu_has_its_own_map(browser, made_for_two):
    page, tiles = made_for_two
    show(browser, page)
    assert len(tiles["memory"]) == 2
    for ipu in (0, 1):
        enter(browser, "tile-ipu", ipu, "change")
        enter(browser, "tile-number", 11)
        assert told(browser, "tile-told").startswith(f"IPU {ipu}, tile 11: ")
        check_tile(browser, tiles, ipu, 11)
    assert [row[0] for row in cells(browser, "balance")] == ["0", "1"]
    assert browser.read_console() == []


@pytest.mark.parametrize("canvas", ["liveness", "exchange", "timeline"])
def test_zooming_changes_what_is_drawn_and_all_brings_it_back(opened, canvas):
    whole, before = window(opened, canvas), picture(opened, canvas)
    left, top, width, height = box(opened, canvas)
    opened.drag(left + width / 4, top + height / 3, width / 4)
    low, high = window(opened, canvas)
    length = whole[1] - whole[0]
    assert low == pytest.approx(length / 4, abs=length / 100)
    assert high == pytest.approx(length / 2, abs=length / 100)
    dragged = picture(opened, canvas)
    assert dragged != before
    press(opened, canvas, "+")
    closer = window(opened, canvas)
    assert low < closer[0] < closer[1] < high
    assert picture(opened, canvas) not in (before, dragged)
    press(opened, canvas, "ArrowRight", shift=True)
    assert window(opened, canvas)[0] > closer[0]
    press(opened, canvas, "-")
    press(opened, canvas, "Home")
    assert window(opened, canvas) == whole
    assert picture(opened, canvas) == before
    names = opened.run(
        """return [...document.getElementById(arguments[0]).closest("section")
        .querySelectorAll(".bar button")].map((each) => each.getAttribute("aria-label"))""",
        canvas,
    )
    zoom = next(name for name in names if name.startswith("Zoom in"))
    opened.run("document.querySelector(`[aria-label='${arguments[0]}']`).click()", zoom)
    now = window(opened, canvas)
    assert now[1] - now[0] < length


def test_the_variables_alive_at_a_step_are_listed_the_largest_first(opened, tiles):
    variables, steps = tiles["variables"], tiles["steps"]
    held = {"weight", "constant"}
    for step in (0, 21, len(steps["name"]) - 1):
        enter(opened, "alive-step", step + 1)
        found = cells(opened, "variables")
        columns = zip(
            *(variables[key] for key in ("name", "kind", "bytes", "first", "last")), strict=True
        )
        alive = [
            (name, size)
            for name, kind, size, first, last in columns
            if first <= step <= last and variables["kinds"][kind] not in held
        ]
        assert alive
        assert [(row[0], int(row[2].replace(",", ""))) for row in found] == sorted(
            alive, key=lambda each: -each[1]
        )
        assert steps["name"][step] in told(opened, "liveness-told")
    opened.run("document.getElementById('alive-held').click()")
    enter(opened, "alive-search", "W1")
    names = [row[0] for row in cells(opened, "variables")]
    assert names
    assert all("w1" in name.lower() for name in names)
    assert {row[1] for row in cells(opened, "variables")} <= held


def test_a_node_that_is_chosen_on_one_chart_is_shown_on_all(opened, tiles):
    hot = tiles["hot_spots"][0]
    rows = cells(opened, "hot-spots")
    assert [row[0] for row in rows] == [
        tiles["steps"]["name"][each["step"]] for each in tiles["hot_spots"]
    ]
    opened.run("document.querySelector('#hot-spots button').click()")
    name = tiles["steps"]["name"][hot["step"]]
    for canvas in ("liveness", "exchange", "timeline"):
        assert told(opened, f"{canvas}-told").startswith(f"{hot['step'] + 1} {name} · "), canvas
    assert f"{tiles['steps']['compute'][hot['step']]:,}" in told(opened, "timeline-told")
    press(opened, "timeline", "ArrowRight")
    assert told(opened, "exchange-told").startswith(f"{hot['step'] + 2} ")


def test_a_click_on_the_timeline_reads_the_node_that_runs_then(opened, tiles):
    steps = tiles["steps"]
    longest = max(range(len(steps["name"])), key=lambda i: end_of(steps, i) - steps["start"][i])
    left, top, width, _ = box(opened, "timeline")
    middle = (steps["start"][longest] + end_of(steps, longest)) / 2
    opened.click_at(left + width * middle / window(opened, "timeline")[1], top + 10)
    opened.wait_for(
        "return document.getElementById('timeline-told').textContent.startsWith(arguments[0])",
        f"{longest + 1} {steps['name'][longest]} · ",
    )


def test_the_vertices_are_those_of_the_json(opened, tiles):
    shown = [(row[0], *row[1:4], row[5]) for row in cells(opened, "vertex-types")]
    keys = ("nodes", "executions", "cycles", "bytes")
    assert shown == [
        (each["name"], *(f"{each[key]:,}" for key in keys)) for each in tiles["vertices"]
    ]


def test_the_program_opens_down_to_the_nodes_of_a_loop(opened, tiles):
    script = """const tree = document.getElementById("program-tree");
        for (let found; (found = [...tree.querySelectorAll("details:not([open])")]).length;)
            for (const each of found) { each.open = true; each.dispatchEvent(new Event("toggle")); }
        return tree.textContent;"""
    text = opened.run(script)
    loops = [each for each in tiles["program"]["children"] if each["kind"] == "Loop"]
    assert loops
    assert "Loop again" in text
    assert text.count("StreamCopy") == 2
    looped = [i for i, depth in enumerate(tiles["steps"]["depth"]) if depth == 1]
    for i in looped:
        assert f"{i + 1} {tiles['steps']['name'][i]}" in text


def test_a_node_is_found_by_name_among_20000(browser, made_of_many):
    page, tiles = made_of_many
    show(browser, page)
    steps = tiles["steps"]
    (i,) = [i for i, name in enumerate(steps["name"]) if name.endswith("node_12345")]
    before = picture(browser, "timeline")
    enter(browser, "timeline-search", "E_12345")
    press(browser, "timeline-search", "Enter")
    assert told(browser, "timeline-told").startswith(f"{i + 1} ")
    assert "node_12345 · Tanh · " in told(browser, "timeline-told"), "the end of the name is kept"
    low, high = window(browser, "timeline")
    assert low <= steps["start"][i] < end_of(steps, i) <= high
    assert high - low < 100 * (end_of(steps, i) - steps["start"][i])
    assert picture(browser, "timeline") != before
    assert browser.read_console() == []


def test_names_of_strangers_are_text_in_the_charts_of_tiles(browser, tmp_path):
    page, _ = make_tile_page(chain([HOSTILE, "<b>bold</b>", "‮\x1b[31m", "x" * 5000]), tmp_path)
    show(browser, page, width=400)
    browser.run(
        """document.querySelectorAll("details").forEach((each) => { each.open = true; });
        document.getElementById("alive-held").click();"""
    )
    for step in range(1, 9):
        enter(browser, "alive-step", step)
    assert browser.run("return window.harmed") is None
    assert browser.run("return document.querySelectorAll('img, main script, td b b').length") == 0
    assert browser.run("return [innerWidth, document.documentElement.scrollWidth]") == [400] * 2
    assert browser.read_console() == []


def test_the_canvases_are_drawn_anew_in_the_dark(opened):
    before = {canvas: picture(opened, canvas) for canvas in CANVASES}
    opened.prefer("dark")
    for canvas in CANVASES:
        opened.wait_for(
            "return document.getElementById(arguments[0]).toDataURL() !== arguments[1]",
            canvas,
            before[canvas],
        )


def test_a_report_says_why_it_has_no_tiles(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "_MAX_TILES_BYTES", 10)
    page, _ = make_tile_page(chain(["a", "b"]), tmp_path)
    show(browser, page)
    assert "too large" in told(browser, "tiles")
    assert browser.run("return document.querySelectorAll('#tiles canvas, #steps').length") == 0
