"""Write docs/passes.md from the registry and the pipeline, with every registered pass.

`make docs` runs it; a test compares the file with what it would write.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from poprt.passes import Pass, get_registered_passes
from poprt.pipeline import CONVERSION, LOWERING, PREPARATION

FILE = Path(__file__).with_name("passes.md")
LISTS = (("converter", CONVERSION), ("compiler", PREPARATION), ("lowering", LOWERING))
HEAD = """\
<!-- Written by `make docs` from the registry (`backend/poprt/passes`) and the pipeline
(`backend/poprt/pipeline.py`); do not edit. -->

# Passes

The *converter* makes the converted graph of the given one,
the *compiler* looks at what it is handed once more, and *lowering* makes the placed graph. Each list
runs from top to bottom. A pass runs always, or where the option is set that switches it on; *ours* has
no namesake in PopRT.
"""
REAL = """\
By name, as `poprt --list_all_passes` has them. Those that run by an option or always can be listed in
`--passes`, too, and left out by `--skip_passes`."""


def make_text() -> str:
    """Return the complete text of the document."""
    known = get_registered_passes()
    lines = [HEAD]
    for title, names in LISTS:
        lines += [f"## {title.capitalize()}", "", "| pass | stage | runs | | what it does |"]
        lines += [
            "| --- | --- | --- | --- | --- |",
            *_make_rows(names, known, always=title == "compiler"),
            "",
        ]
    rows = _make_real_rows(known)
    lines += ["## All passes of the real tool", "", REAL, "", "| pass | runs | what it does |"]
    lines += ["| --- | --- | --- |", *rows, ""]
    return "\n".join(lines)


def _make_real_rows(known: dict[str, type[Pass]]) -> list[str]:
    """Return a row for every pass of the real tool, sorted by name."""
    in_order = {name for _, names in LISTS for name in names}
    rows = []
    for name, found in sorted(known.items()):
        if not found.info.is_ours:
            refusal = found.info.refusal
            runs = (
                "by `--passes` only" if name not in in_order else _describe_condition(found, False)
            )
            told = f"refused: {refusal}" if refusal else runs
            rows.append(f"| `{name}` | {told} | {'' if refusal else _describe(found)} |")
    return rows


def _make_rows(names: Iterable[str], known: dict[str, type[Pass]], *, always: bool) -> list[str]:
    return [_make_row(name, known[name], always) for name in names]


def _make_row(name: str, found: type[Pass], always: bool) -> str:
    ours = "ours" if found.info.is_ours else ""
    cells = (f"`{name}`", found.info.stage.name.lower(), _describe_condition(found, always), ours)
    return f"| {' | '.join(cells)} | {_describe(found)} |"


def _describe_condition(found: type[Pass], always: bool) -> str:
    info = found.info
    if always or info.default:
        return f"unless `{info.unless}`" if info.unless else "always"
    values = f" is {', '.join(sorted(info.values))}" if info.values else ""
    return f"`{info.option}`{values}" if info.option else "when asked for"


def _describe(found: type[Pass]) -> str:
    """Return the first sentence of the pass's docstring, in one line."""
    paragraph = " ".join((found.__doc__ or "").split("\n\n")[0].split())
    return paragraph.partition(". ")[0].removesuffix(".").replace("|", r"\|")


if __name__ == "__main__":
    FILE.write_text(make_text())
    print(f"wrote {FILE}")
