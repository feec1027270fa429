"""The profile that `poprt --show_profile` prints of what it compiled."""

from __future__ import annotations

import re

import onnx
from poprt import cli


def test_poprt_shows_the_profile_of_what_it_compiled(linear, tmp_path, capsys):
    onnx.save(linear, tmp_path / "linear.onnx")
    arguments = [
        "--input_model",
        tmp_path / "linear.onnx",
        "--batch_size",
        2,
        "--export_popef",
        "--output_dir",
        tmp_path,
        "--show_profile",
    ]
    assert cli.main(list(map(str, arguments))) == 0
    out = capsys.readouterr().out
    (cycles,) = re.findall(r"modelled\): (\d+) cycles", out)
    assert f"modelled: {int(cycles):,} cycles" in " ".join(out.split())
