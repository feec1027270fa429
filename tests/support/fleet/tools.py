"""The programs of other projects that a fleet of servers consists of, as `make deploy-tools` gets
them."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[3] / ".cache" / "deploy-tools" / "bin"


@dataclass(frozen=True, slots=True)
class Tools:
    """Path of each program."""

    envoy: Path
    haproxy: Path
    helm: Path
    prometheus: Path
    promtool: Path
    weed: Path


def find_tools() -> Tools:
    """Return the programs; raises FileNotFoundError that names the missing ones and says how to get
    them."""
    programs = {field.name: FOLDER / field.name for field in fields(Tools)}
    missing = [name for name, path in programs.items() if not os.access(path, os.X_OK)]
    if missing:
        raise FileNotFoundError(
            f"{', '.join(missing)}: not in {FOLDER}; `make deploy-tools` gets them"
        )
    return Tools(**programs)
