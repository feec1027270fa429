"""The documentation site in a browser, opened as files as well as from a server."""

from __future__ import annotations

import functools
import http.server
import subprocess
import sys
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WIDE, NARROW = 1280, 400


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    words = ["build", "--strict", "--quiet", "--config-file", ".ci/mkdocs.yml", "--site-dir"]
    subprocess.run([sys.executable, "-m", "mkdocs", *words, str(folder)], cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def address(site):
    """Return the address of a server of the site."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def open_page(browser, page: str, width: int = WIDE) -> None:
    browser.resize(width, 1000)
    browser.open(page)
    browser.wait_for("return document.readyState == 'complete'")


@pytest.mark.parametrize("page", ["commands", "configuration"])
def test_names_in_tables_are_not_broken(site, browser, page):
    open_page(browser, (site / f"{page}.html").as_uri())
    broken = browser.run(
        "return [...document.querySelectorAll('td code')]"
        ".filter(code => /^[\\w.-]{1,30}$/.test(code.textContent))"
        ".filter(code => code.getClientRects().length != 1).map(code => code.textContent)"
    )
    assert broken == []


@pytest.mark.parametrize("page", ["configuration", "savedmodel", "api/popef"])
def test_tables_of_texts_fit_a_telephone(site, browser, page):
    open_page(browser, (site / f"{page}.html").as_uri(), NARROW)
    browser.wait_for("return document.querySelector('.md-typeset__scrollwrap') || 1")
    wide = browser.run(
        "return [...document.querySelectorAll('table[data-texts]')]"
        ".filter(table => table.getBoundingClientRect().right > innerWidth)"
        ".map(table => table.innerText.slice(0, 100))"
    )
    assert wide == []


def test_a_card_names_its_columns(site, browser):
    open_page(browser, (site / "configuration.html").as_uri(), NARROW)
    cells = browser.run(
        "return [...[...document.querySelectorAll('td:first-child')]"
        ".find(cell => cell.innerText == 'sim_threads').parentElement.children]"
        ".map(cell => [getComputedStyle(cell, '::before').content, cell.innerText])"
    )
    assert cells[0] == ["none", "sim_threads"]
    assert cells[2] == ['"default: "', "0"]


@pytest.mark.parametrize(("scheme", "light"), [("light", False), ("dark", True)])
def test_the_diagram_has_the_colours_of_the_page_and_fits(site, browser, scheme, light):
    browser.prefer(scheme)
    open_page(browser, (site / "index.html").as_uri(), NARROW)
    color = browser.run(
        "return getComputedStyle(document.querySelector('svg[role=img] text')).fill"
    )
    red = int(color.partition("(")[2].partition(",")[0])
    assert (red > 127) is light
    box = "document.querySelector('svg[role=img]').getBoundingClientRect()"
    assert browser.run(f"return {box}.right") <= NARROW
    browser.prefer("light")


def search(browser, words: str) -> list[str]:
    """Return the pages that the search finds, best first."""
    results = "[...document.querySelectorAll('.md-search-result__item a')]"
    browser.run(
        f"{results}.forEach(link => link.dataset.before = 1);"
        "const field = document.querySelector('.md-search__input'); field.focus();"
        "field.value = arguments[0]; field.dispatchEvent(new Event('keyup'));",
        words,
    )
    browser.wait_for(
        f"const found = {results}; return found.length > 0 && !found.some(link => link.dataset.before)"
    )
    links = browser.run(f"return {results}.map(link => link.href)")
    return [link.rpartition("/")[2].partition("?")[0].partition("#")[0] for link in links]


def test_the_search_works_in_pages_that_are_opened_as_files(site, browser):
    open_page(browser, (site / "index.html").as_uri())
    assert "configuration.html" in search(browser, "sim_memory_mib")


def test_the_search_finds_messages_and_names(address, browser):
    open_page(browser, f"{address}/index.html")
    for words, page in (
        ("out of memory", "errors.html"),
        ("request timeout expired", "errors.html"),
        ("unexpected shape for input 'x' for model 'm'", "errors.html"),
        ("poprt: error: model.onnx is not a valid ONNX model", "errors.html"),
        ("poplar_requests_total", "metrics.html"),
        ("--on-dead-stub", "operations.html"),
    ):
        assert search(browser, words)[0] == page, words
