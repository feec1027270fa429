"""Child process that measures a model with ONNX Runtime: latencies and energy by batch size.

It imports neither the compiler nor the simulator. It reads `plan.json` in its working directory,
and writes a line of `results.jsonl` as soon as a batch size is measured, so that a crash or a
timeout leaves the results before it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

PLAN, RESULTS = Path("plan.json"), Path("results.jsonl")
_WARM_UP_SHARE = 0.2
"""Share of the time that is spent on calls that do not count: ONNX Runtime allocates in them."""
_MAX_CALLS = 100_000
"""Maximum number of measured calls: enough for any percentile, and a bound of the memory for their
times."""
_MICRO = 1e-6


def main() -> None:
    """Measure the model of `plan.json`."""
    plan = json.loads(PLAN.read_text(encoding="utf-8"))
    with RESULTS.open("w", encoding="utf-8") as results:

        def write(result: Mapping[str, Any]) -> None:
            results.write(f"{json.dumps(result)}\n")
            results.flush()

        try:
            session = _open_session(plan)
        except Exception as error:  # noqa: BLE001  ONNX Runtime raises many types; all are a reason
            write({"error": _tell(error)})
            return
        write({"providers": session.get_providers()})
        for batch in plan["batches"]:
            result = _try_batch(session, batch, plan["seconds"], Path(plan["rapl"]))
            write({"batch_size": batch["size"], **result})
            if result.get("median_seconds", 0) > plan["seconds"]:
                return


def _open_session(plan: Mapping[str, Any]) -> Any:
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = plan["threads"]
    return onnxruntime.InferenceSession(plan["model"], options, providers=[plan["provider"]])


def _try_batch(
    session: Any, batch: Mapping[str, Any], seconds: float, rapl: Path
) -> dict[str, Any]:
    import numpy as np

    try:
        feeds = {name: np.load(file) for name, file in batch["inputs"].items()}
        return _measure(lambda: session.run(None, feeds), seconds, rapl)
    except Exception as error:  # noqa: BLE001  ONNX Runtime raises many types; all are a reason
        return {"error": _tell(error)}


def _measure(call: Callable[[], object], seconds: float, rapl: Path) -> dict[str, Any]:
    """Call a function for some seconds, and at least twice; the calls of the warm-up do not
    count."""
    import numpy as np

    for _ in _repeat(_WARM_UP_SHARE * seconds):
        call()
    durations = []
    energy, start = read_joules(rapl), time.perf_counter()
    for _ in _repeat((1 - _WARM_UP_SHARE) * seconds):
        before = time.perf_counter()
        call()
        durations.append(time.perf_counter() - before)
    total = time.perf_counter() - start
    joules = subtract_joules(energy, read_joules(rapl))
    p10, median, p90 = np.percentile(durations, (10, 50, 90))
    return {
        "calls": len(durations),
        "total_seconds": total,
        "median_seconds": float(median),
        "p10_seconds": float(p10),
        "p90_seconds": float(p90),
        "joules": joules,
    }


def _repeat(seconds: float) -> Any:
    """Yield until the time is over, and at least once."""
    end = time.perf_counter() + seconds
    for number in range(_MAX_CALLS):
        if number and time.perf_counter() > end:
            return
        yield number


Counters = Mapping[str, tuple[float, float]]
"""Energy counter of each processor package in joules, and the value at which it starts again."""


def read_joules(folder: Path) -> Counters | None:
    """Return the energy counters of the processor packages; None if they cannot be read.

    Linux shows those of Intel's and AMD's processors as `intel-rapl:N`, often to root only.
    """
    joules = {}
    try:
        for zone in sorted(folder.glob("intel-rapl:*")):
            if (zone / "name").read_text().startswith("package"):
                texts = ((zone / name).read_text() for name in ("energy_uj", "max_energy_range_uj"))
                counter, wrap = (int(text) * _MICRO for text in texts)
                joules[zone.name] = counter, wrap
    except (OSError, ValueError):
        return None
    return joules or None


def subtract_joules(before: Counters | None, after: Counters | None) -> float | None:
    """Return the joules of all packages between two readings; a counter may have started again
    once."""
    if before is None or after is None or before.keys() != after.keys():
        return None
    return sum(
        after[zone][0] - start + (wrap if after[zone][0] < start else 0)
        for zone, (start, wrap) in before.items()
    )


def _tell(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
