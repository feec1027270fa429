"""Run a script of PopTransformer unchanged, then print what its session took on the modelled clock.

    tests/conformance/poptransformer_session.py inference.py [HYDRA_OVERRIDE ...]

The session counts cycles, which a script's own options leave off. The last line is JSON: the cycles
of the last run, the chip and its clock.
"""

from __future__ import annotations

import importlib
import json
import runpy
import sys
from typing import Any

from simipu.chip.target import find_target

popart: Any = importlib.import_module("popart")
sessions: list[Any] = []


class CountingSession(popart.InferenceSession):  # type: ignore[misc]
    """InferenceSession that counts cycles and can be found after the script."""

    def __init__(self, *args: Any, **named: Any) -> None:
        named["userOptions"].instrumentWithHardwareCycleCounter = True
        super().__init__(*args, **named)
        sessions.append(self)
        self.chip = named["deviceInfo"].ipuVersion


def main() -> int:
    """Run the script and print the cycles."""
    popart.InferenceSession = CountingSession
    sys.argv = sys.argv[1:]
    sys.path[0] = ""  # the script's folder, in place of this one's
    runpy.run_path(sys.argv[0], run_name="__main__")
    (session,) = sessions
    clock = find_target(session.chip).clock_hz
    print(json.dumps({"cycles": session.getCycleCount(), "chip": session.chip, "clock_hz": clock}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
