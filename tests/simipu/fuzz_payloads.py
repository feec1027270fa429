"""Damage executables' payloads, and load and run the results.

Usage: python tests/simipu/fuzz_payloads.py --seconds 60. The program prints the outcomes of the
payloads. It leaves a payload as payload-* in the current folder if the outcome is neither answers
nor one of our errors, or if the payload kills the process. `--first` is the number of the first
payload; the same numbers make the same payloads.
"""

from __future__ import annotations

import argparse
import faulthandler
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from payload_fuzzing import check_payload, iter_damaged, seed_payloads


def main() -> int:
    """Search for as long, or as often, as the arguments say; return 1 if a payload breaks a
    promise."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1e9, help="how long to search")
    parser.add_argument("--count", type=int, default=sys.maxsize, help="how many payloads")
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--isolated", action="store_true", help="compute in a child process")
    arguments = parser.parse_args()
    faulthandler.enable()
    for payload in seed_payloads():
        assert check_payload(payload) in ("answers", "RunTimeoutError")
    outcomes: Counter[str] = Counter()
    found, slowest, end = 0, 0.0, time.monotonic() + arguments.seconds
    for number, payload in enumerate(
        iter_damaged(arguments.first, arguments.count), arguments.first
    ):
        if time.monotonic() > end:
            break
        file = Path(f"payload-{number}")
        file.write_bytes(payload)
        start = time.monotonic()
        try:
            outcomes[check_payload(payload, isolated=arguments.isolated)] += 1
        except Exception as error:  # noqa: BLE001  anything but an error of ours is a finding
            found += 1
            print(f"{file}: {type(error).__name__}: {str(error)[:300]!r}", flush=True)
            continue
        slowest = max(slowest, time.monotonic() - start)
        file.unlink()
    peak = next(
        line
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    print(
        f"{sum(outcomes.values())} payloads, {found} findings, slowest {slowest:.1f} s, "
        f"{' '.join(peak.split())}"
    )
    print(", ".join(f"{name} {count}" for name, count in outcomes.most_common()))
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
