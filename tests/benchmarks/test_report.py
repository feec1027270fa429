"""Tables of the benchmarks, and the document that they are written into."""

from __future__ import annotations

from pathlib import Path

import report
from rich.console import Console


def test_a_table_fills_its_section_of_a_document_and_no_other(tmp_path: Path) -> None:
    document = tmp_path / "speed.md"
    document.write_text(
        "before\n<!-- half 1 -->\nold\n<!-- end -->\nbetween\n<!-- half 2 -->\nkept\n<!-- end -->\n"
    )
    table = report.make_table("a title", "network", "goal")
    table.add_row("mlp", "≥ 0.80 [red]missed[/] 0/7")
    console = Console(record=True)
    report.show(console, {"half 1": table, "absent": table}, document)
    assert document.read_text() == (
        "before\n<!-- half 1 -->\n| network | goal |\n| --- | --- |\n| mlp | ≥ 0.80 missed 0/7 |\n"
        "<!-- end -->\nbetween\n<!-- half 2 -->\nkept\n<!-- end -->\n"
    )
    assert console.export_text().count("a title") == 2
