"""Write the tables of docs/configuration.md and docs/metrics.md from the code: the parameters, the
options of the backend, and the metrics.

`make docs` runs it; a test compares the files with what it would write.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from triton_poplar.parameters import BACKEND_OPTIONS, PARAMETERS, describe_parameters
from triton_poplar.statistics import describe_metrics

_FOLDER = Path(__file__).parent
TABLES = {
    _FOLDER / "configuration.md": (
        describe_parameters(PARAMETERS),
        describe_parameters(BACKEND_OPTIONS),
    ),
    _FOLDER / "metrics.md": (describe_metrics(),),
}
"""Tables of each file, in their order."""


def make_texts() -> Iterator[tuple[Path, str]]:
    """Yield each file with its complete text. A table in it begins with the head of the new one."""
    for file, tables in TABLES.items():
        old, text = file.read_text(), ""
        for table in tables:
            head = table.partition("\n")[0]
            before, _, after = old.partition(f"{head}\n")
            text += before + table
            old = re.sub(r"\A(?:\|.*\n)*(?:\|.*\Z)?", "\n", after)
        yield file, text + old


if __name__ == "__main__":
    for file, text in make_texts():
        file.write_text(text)
        print(f"wrote {file}")
