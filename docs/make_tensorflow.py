"""Write docs/tensorflow-options.md from the tables of IPUConfig and of TF_POPLAR_FLAGS.

`make docs` runs it; a test compares the file with what it would write.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from pathlib import Path
from typing import Any

from make_options import make_row
from tensorflow_ipu.config.flags import FLAGS
from tensorflow_ipu.config.table import ATTRIBUTES

from popef._tools.options import Option

FILE = Path(__file__).with_name("tensorflow-options.md")
HEAD = """\
<!-- Written by `make docs` from backend/tensorflow_ipu/config/table.py and flags.py; do not edit. -->

# Options of TensorFlow for the IPU

Names and defaults are those of the SDK 3.4.
"""
ATTRIBUTES_HEAD = """\
`ipu.config.IPUConfig` has these attributes. Others raise ValueError, and values of other types TypeError. Those without an effect are
accepted; all of them are in the message that `ipu.config.get_ipu_config` returns.
"""
FLAGS_HEAD = """\
The environment variable TF_POPLAR_FLAGS has flags, separated by blanks: `--name=value`, or `--name` for true. If it does not begin
with a dash, it names a file that has them. An unknown flag, or a wrong value, ends the process with one line.
"""


def make_text() -> str:
    """Return the complete text of the document."""
    lines = [HEAD, "## IPUConfig", "", ATTRIBUTES_HEAD]
    lines += ["| attribute | default | meaning | effect |", "| --- | --- | --- | --- |"]
    lines += [*_rows(ATTRIBUTES, ""), "", "## TF_POPLAR_FLAGS", "", FLAGS_HEAD]
    lines += ["| flag | default | meaning | effect |", "| --- | --- | --- | --- |"]
    lines += _rows(FLAGS, "--")
    return "\n".join(lines) + "\n"


def _rows(options: dict[str, Any], prefix: str) -> Iterable[str]:
    for name, option in options.items():
        yield make_row(
            f"`{prefix}{name}`", f"`{_describe(option)}`", option.help, option.effect or "none"
        )


def _describe(option: Option) -> str:
    default = option.default
    if isinstance(default, frozenset):
        return "none"
    return (
        f"{type(default).__name__}.{default.name}" if isinstance(default, Enum) else repr(default)
    )


if __name__ == "__main__":
    FILE.write_text(make_text())
    print(f"wrote {FILE}")
