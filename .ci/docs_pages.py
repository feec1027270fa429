"""Hook of MkDocs: pages that stand outside docs/, links between them and docs/, and tables.

A page links to files as they lie in the repository, so that the links work there too. On the site
the pages below have the same path, without `docs/`. A link to another file of the repository
becomes its path as text, because the site has no copy of it.

GitHub removes the backslash of `\\|` from code in a table, Python-Markdown does not. Tables with
texts get the attribute `data-texts` and the columns' names in their cells, and code that is a name
gets `data-name`, for docs/site.css: on a narrow screen a row is a card, and no name is broken.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "deploy/README.md",
    "model_repository/README.md",
    "popef/FORMAT.md",
    "popef/README.md",
)
BOOSTS = {"errors.md": 1.2, "CHANGELOG.md": 0.3, "upstream.md": 0.3, "development.md": 0.3}
"""Weight of pages for the search, if it is not 1: a reader who searches uses the product."""
_MAX_CARD_COLUMNS = 6
"""More columns are figures, which are compared from row to row: such a table scrolls."""
_TEXT_LENGTH = 40
"""Characters of a cell that is a text: with fewer, the columns fit side by side."""
_WORDS_LENGTH = 20
"""Characters of an option with its value, or the like, that stays in one line."""
_NAME_LENGTH = 30
"""Characters of a name that a column holds: longer ones break behind `_`, `.`, `/` and `=`."""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that stand outside docs/."""
    for name in OUTSIDE:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Translate the links of a page from the repository's paths to the site's."""
    source = page.file.src_uri
    if source in BOOSTS:
        page.meta["search"] = {"boost": BOOSTS[source]}
    here = posixpath.dirname(source if source in OUTSIDE else f"docs/{source}")

    def translate(match: re.Match[str]) -> str:
        mark, text, target, anchor = match.groups(default="")
        if re.match(r"[a-z]+:", target):
            return match[0]
        path = posixpath.normpath(posixpath.join(here, target))
        if path == "README.md":
            path = "docs/index.md"
            anchor = ""
        on_site = path.removeprefix("docs/")
        if path not in OUTSIDE and files.get_file_from_path(on_site) is None:
            return f"{text} (`{path}`)" if f"`{path}`" != text else text
        link = posixpath.relpath(on_site, posixpath.dirname(source) or ".")
        return f"{mark}[{text}]({link}{anchor})"

    return _remove_backslashes(_LINK.sub(translate, markdown))


def _remove_backslashes(markdown: str) -> str:
    """Return a page whose code in tables has `|` instead of `\\|`."""

    def replace_in_row(row: re.Match[str]) -> str:
        return re.sub(r"`[^`\n]+`", lambda code: code[0].replace("\\|", "|"), row[0])

    return re.sub(r"^\|.*$", replace_in_row, markdown, flags=re.MULTILINE)


def on_page_content(html: str, **_: Any) -> str:
    """Return a page with marks on its tables for docs/site.css, and with its SVG images inside.

    Inside the page an image has the page's colours, also if the reader chose others than the
    system's.
    """
    html = re.sub(r"<table>.*?</table>", lambda table: _mark_table(table[0]), html, flags=re.DOTALL)
    return re.sub(r'<img [^>]*src="(?:\.\./)*(images/[\w-]+\.svg)"[^>]*>', _read_image, html)


def _read_image(match: re.Match[str]) -> str:
    return (ROOT / "docs" / match[1]).read_text()


def _mark_table(html: str) -> str:
    html = re.sub(r"<code>(.*?)</code>", _mark_code, html)
    heads = [_get_text(head) for head in re.findall(r"<th\b[^>]*>(.*?)</th>", html, re.DOTALL)]
    cells = map(_get_text, re.findall(r"<td\b[^>]*>(.*?)</td>", html, re.DOTALL))
    if len(heads) > _MAX_CARD_COLUMNS or max(map(len, cells), default=0) < _TEXT_LENGTH:
        return html
    names = itertools.cycle(heads)
    named = re.sub(r"<td\b", lambda _: f'<td data-column="{next(names)}"', html)
    return named.replace("<table>", "<table data-texts>", 1)


def _mark_code(match: re.Match[str]) -> str:
    text = match[1]
    places = "[,/=_.]" if len(_get_text(text)) > _NAME_LENGTH else ","
    text = re.sub(rf"(?<={places})(?=[^<>]+(?:<|$))", "<wbr>", text)
    is_name = "<wbr>" not in text and (" " not in text or len(text) <= _WORDS_LENGTH)
    return f"<code{' data-name' if is_name else ''}>{text}</code>"


def _get_text(html: str) -> str:
    return re.sub(r"<[^>]*>", "", html).strip().replace('"', "&quot;")
