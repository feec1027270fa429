"""The command popef_dump: text, JSON, and failures in one line."""

import json
import subprocess
import sys

import pytest


def dump(*arguments):
    command = [sys.executable, "-m", "popef.dump", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def path(tmp_path, small_file):
    file = tmp_path / "small.popef"
    file.write_bytes(small_file)
    return file


def test_metadata_only_leaves_out_the_other_blobs(path):
    text = dump("-m", path).stdout
    assert "Read Metadata" in text
    assert "Read Executable" not in text


def test_json_names_every_blob(path):
    done = dump("--json", path)
    assert done.returncode == 0, done.stderr
    text = json.dumps(json.loads(done.stdout))
    for kind in ("metadata", "poplarExecutable", "opaque", "dataTensor", "dataFeed"):
        assert kind in text


def test_all_shows_the_values(path):
    assert len(dump("--all", path).stdout) > len(dump(path).stdout)


def test_failures_are_one_line_and_a_status(tmp_path):
    (tmp_path / "bad").write_bytes(b"not PopEF at all")
    for arguments, status in ((["none"], 1), ([tmp_path / "bad"], 1), ([], 2)):
        done = dump(*arguments)
        assert done.returncode == status
        assert "Traceback" not in done.stderr
        assert status == 2 or len(done.stderr.splitlines()) == 1
