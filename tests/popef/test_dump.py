"""popef_dump prints what the real tool prints."""

import json
import re
import subprocess
import sys
from pathlib import Path


def dump(*arguments):
    command = [sys.executable, "-m", "popef.dump", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_every_line_of_listing_1_1_is_printed(listing_file):
    done = dump(listing_file)
    assert done.returncode == 0, done.stderr
    without_stamps = re.sub(r"(?m)^\[\d\d:\d\d:\d\d\.\d{3}\] \[popef:cpp\] \[debug\] ", "", done.stdout)
    assert without_stamps == Path(__file__).with_name("listing_1_1.txt").read_text()
    assert len(re.findall(r"(?m)^\[\d\d:\d\d:\d\d\.\d{3}\] \[popef:cpp\] \[debug\] Read|start end", done.stdout)) == 9


def test_the_metadata_can_be_had_alone(listing_file):
    done = dump("-m", listing_file)
    assert json.loads(done.stdout)["programFlow"] == {"load": ["0"], "main": ["1"], "save": ["2"]}


def test_json_is_for_machines(listing_file):
    blobs = json.loads(dump("--json", listing_file).stdout)
    assert [(blob["type"], blob["start"], blob["end"]) for blob in blobs] == [
        ("opaque", 0, 432),
        ("poplarExecutable", 432, 38172683),
        ("metadata", 38172683, 38173251),
    ]


def test_failures_are_one_line_and_a_status(tmp_path):
    (tmp_path / "bad").write_bytes(b"not PopEF at all")
    for arguments, status in ((["none"], 1), ([tmp_path / "bad"], 1), ([], 2)):
        done = dump(*arguments)
        assert done.returncode == status
        assert "Traceback" not in done.stderr
        assert status == 2 or len(done.stderr.splitlines()) == 1
