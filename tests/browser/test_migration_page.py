"""The page of `poplar-triton migrate --html` in a browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from poplar_triton.migrate.graphs import SourceKind, SourceModel
from poplar_triton.migrate.output import make_report
from poplar_triton.migrate.repository import FoundModel
from poplar_triton.migrate.verdicts import Judged, Verdict
from report_pages import HOSTILE, show


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("migration")
    judged = [
        Judged(
            FoundModel(f"model_{number}", folder, 1),
            Verdict.COMPILE,
            todo="poprt --input_model `graph` https://example.org/graph",
            warnings=[HOSTILE],
        )
        for number in range(60)
    ]
    unreadable = SourceModel(Path("broken.onnx"), SourceKind.ONNX, fault=HOSTILE)
    file = folder / "page.html"
    file.write_text(make_report(Path("models"), judged, [unreadable], []), encoding="utf-8")
    return file


@pytest.mark.parametrize("width", [1280, 400])
def test_every_model_is_seen_and_the_page_fits_the_window(browser, page, width):
    show(browser, page, width=width)
    assert browser.run("return document.querySelectorAll('#models tbody tr').length") == 60
    boxes = browser.run("""return [...document.querySelectorAll(".scroll")]
        .map((box) => [box.scrollHeight, box.clientHeight]);""")
    assert all(height <= shown for height, shown in boxes)
    assert browser.run("return [innerWidth, document.documentElement.scrollWidth]") == [width] * 2


def test_notes_begin_with_the_model_in_bold_and_are_text(browser, page):
    show(browser, page)
    notes = browser.run("""return [...document.querySelectorAll("#todo li")]
        .map((item) => [item.querySelector("b").textContent, item.textContent]);""")
    assert notes[0][0] == "model_0/1"
    assert notes[0][1] == "model_0/1: poprt --input_model graph https://example.org/graph"
    assert notes[-1][0] == "broken.onnx (ONNX) cannot be read"
    assert browser.run("return document.querySelectorAll('main a, img, main script').length") == 0
    assert browser.run("return window.harmed === undefined")
    assert browser.read_console() == []
