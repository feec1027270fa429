"""The files, sections and commands that the documents name exist, and their commands are right."""

import re
from pathlib import Path

import make_commands
import pytest
from page_blocks import iter_commands

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("model_repository/*.md"),
        *ROOT.glob("popef/*.md"),
        *ROOT.glob("deploy/*.md"),
    ]
)
_TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def _anchors(document: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        if link.startswith(("http:", "https:")):
            continue
        name, _, anchor = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        assert target.exists(), link
        assert not anchor or anchor in _anchors(target), link


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_paths_of_the_repository_exist(document):
    for path in re.findall(
        r"`((?:backend|benchmarks|deploy|docs|popef|tests|\.ci)/[\w./]+)`", document.read_text()
    ):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_of_the_makefile_exist(document):
    text = document.read_text()
    for command in re.findall(r"`make (?:[A-Z]+=\S+ )*([a-z][a-z0-9-]*)", text):
        assert command in _TARGETS, command


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_have_the_options_that_the_documents_show(document):
    """Options behind `--` are tritonserver's, those behind `tf2onnx` tf2onnx's."""
    for program, *words in iter_commands(document, set(make_commands.PARSERS)):
        others = [words.index(each) for each in ("--", "tf2onnx") if each in words]
        make_commands.PARSERS[program]().parse_args(words[: min(others, default=None)])


def test_the_page_of_commands_is_that_of_the_parsers():
    assert make_commands.FILE.read_text() == make_commands.make_text(), "run `make docs`"


def test_each_page_is_in_the_navigation_of_the_site():
    navigation = (ROOT / ".ci" / "mkdocs.yml").read_text().partition("\nnav:")[2]
    pages = {str(path.relative_to(ROOT / "docs")) for path in ROOT.glob("docs/**/*.md")}
    assert {page for page in pages if f": {page}\n" not in navigation} == set()
