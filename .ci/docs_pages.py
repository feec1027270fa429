"""Hook of MkDocs: pages that stand outside docs/, and links between them and docs/.

A page links to files as they lie in the repository, so that the links work there too. On the site
the pages below have the same path, without `docs/`. A link to another file of the repository
becomes its path as text, because the site has no copy of it.
"""

from __future__ import annotations

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
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that stand outside docs/."""
    for name in OUTSIDE:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Translate the links of a page from the repository's paths to the site's."""
    source = page.file.src_uri
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

    return _LINK.sub(translate, markdown)
