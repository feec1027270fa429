"""Search for bytes that break popef's promises, guided by coverage.

Usage: python tests/popef/fuzz_reader.py --seconds 60. The promises are `check` in
tests/support/popef_fuzzing.py. A file that breaks one is left as crash-* in the current folder.
"""

from __future__ import annotations

import argparse
import logging
import re
import sys
from pathlib import Path
from random import Random

import atheris

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

with atheris.instrument_imports(include=["popef"]):
    from popef_fuzzing import LIMITS, check, seed_files

from popef_mutations import mutate_file

CORPUS = Path(__file__).parents[2] / ".cache" / "popef-corpus"
_HEADER = re.escape(bytes(4) + b"\5" + bytes(3) + bytes(4) + b"\2\0\1\0")
"""Pattern of the start of every blob that popef or the reference library wrote: frame and root
pointer."""


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Mutate as libFuzzer does in half of the cases; otherwise damage the file with knowledge of
    the format."""
    random = Random(seed)
    if random.random() < 0.5:
        return atheris.Mutate(data, max_size)
    starts = [match.start() for match in re.finditer(_HEADER, data)]
    return mutate_file(data, random, starts or [0])[:max_size]


def main() -> None:
    """Search for as long as the arguments say; the exit status is not 0 if a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--seconds", type=int, default=60, help="how long to search")
    parser.add_argument(
        "--corpus",
        type=Path,
        default=CORPUS,
        help="folder of files to begin with, and to keep new ones in",
    )
    arguments = parser.parse_args()
    logging.getLogger("popef").setLevel(logging.CRITICAL)
    arguments.corpus.mkdir(parents=True, exist_ok=True)
    for i, data in enumerate(seed_files()):
        (arguments.corpus / f"seed-{i:02}").write_bytes(data)
    options = [
        f"-max_total_time={arguments.seconds}",
        f"-max_len={LIMITS.max_stream_bytes >> 2}",
        "-timeout=20",
        "-rss_limit_mb=2048",
    ]
    atheris.Setup([sys.argv[0], *options, str(arguments.corpus)], check, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
