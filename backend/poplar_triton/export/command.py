"""Arguments of `poplar-triton export`, and the writing of what it exports."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from onnxgraph import ModelWriter, find_opset, write_with_data
from poprt.cli import LIMITS, supervised
from poprt.triton import encode_config, make_scratch_folder

from popef._tools.arguments import Parser, positive
from popef._tools.console import UsageError, naming, print_line
from popef._tools.staging import place_file
from popef._tools.text import escape, find_name_fault
from poplar_triton.errors import ExportError
from poplar_triton.export import openvino
from poplar_triton.export.check import AnswerComparison, compare, open_onnx
from poplar_triton.export.graph import EXACT, FAST, ORT_DOMAIN, make_exported
from poplar_triton.export.settings import (
    BACKENDS,
    ONNX,
    ONNXRUNTIME,
    OPENVINO,
    ExportedConfig,
    make_settings,
)
from poplar_triton.export.source import ExportSource, open_source

EXAMPLES = (
    "poplar-triton export models/magika leaving/magika --to onnxruntime",
    "poplar-triton export models/magika leaving/magika --to openvino",
    "poplar-triton export models/magika magika.onnx --to onnx --numerics exact",
)
_CONFIG = "config.pbtxt"
_SUFFIX = ".onnx"
_SCRATCH = ".poplar-export-"


def add_arguments(parser: Parser) -> None:
    """Give `parser` the arguments that `run` reads."""
    add = parser.add_argument
    model_help = "model folder of a Triton repository, whose newest version counts, or PopEF file"
    parser.add_path("model", reads="path", type=Path, metavar="MODEL", help=model_help)
    output_help = "model folder to write; with --to onnx, the file"
    parser.add_path("output", writes="path", type=Path, metavar="OUTPUT", help=output_help)
    to_help = (
        "model folder for Triton's backend onnxruntime or openvino, or one ONNX file "
        "(default: %(default)s)"
    )
    add("--to", choices=(*BACKENDS, ONNX), default=ONNXRUNTIME, help=to_help)
    numerics_help = (
        "fast: the exported graph computes in fp32; exact: it also rounds to half and fp8 where "
        "the chip does, by standard operators, which takes longer (default: %(default)s)"
    )
    add("--numerics", choices=(FAST, EXACT), default=FAST, help=numerics_help)
    batch_help = "maximum number of rows in a call of the exported model (default: as today)"
    add("--max_batch_size", type=positive, metavar="N", help=batch_help)
    add("--force", action="store_true", help="replace files that are there")
    add("--no_check", action="store_true", help="write the model without comparing its answers")
    add("--json", action="store_true", help="machine-readable")
    for option in LIMITS:
        option.add_to(parser)


def run(options: argparse.Namespace) -> int:
    """Run the command in a child process with limits."""
    if options.max_batch_size and options.to != ONNXRUNTIME:
        raise UsageError(
            f"--max_batch_size: expected --to {ONNXRUNTIME}, found --to {options.to}; the others "
            "take any number of rows"
        )
    return supervised(_run)(options)


@dataclass(slots=True)
class Export:
    """What is written, and how its answers compare."""

    files: dict[str, str] = field(default_factory=dict)
    """What each written file is."""
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    comparison: AnswerComparison | None = None


def _run(options: argparse.Namespace) -> int:
    output: Path = options.output
    _check_output(output, options.to, force=options.force)
    if options.to == OPENVINO:
        openvino.import_openvino()
    source = open_source(options.model)
    with naming(output):
        output.absolute().parent.mkdir(parents=True, exist_ok=True)
        with make_scratch_folder(output.absolute().parent, _SCRATCH) as scratch:
            done = _export(options, source, scratch)
    _tell(options, source, done)
    return 0


def _check_output(output: Path, to: str, *, force: bool) -> None:
    """Raise ExportError for an output that cannot be what was asked for, or that would replace
    something without --force."""
    is_folder = to != ONNX
    if fault := find_name_fault(output.absolute().name):
        raise ExportError(f"{escape(output)}: the name of the output: {fault}; choose another")
    if output.exists() and output.is_dir() != is_folder:
        expected, found_kind = ("folder", "file") if is_folder else ("file", "folder")
        raise ExportError(
            f"{escape(output)}: expected a {expected} for --to {to}, found a {found_kind}"
        )
    if not is_folder and output.suffix != _SUFFIX:
        raise ExportError(f"{escape(output)}: expected a file that ends in {_SUFFIX} for --to {to}")
    if force or not output.exists():
        return
    if not is_folder or any(output.iterdir()):
        raise ExportError(
            f"{escape(output)}: exists and is not empty; choose another, or --force to replace "
            "its files"
        )


def _export(options: argparse.Namespace, source: ExportSource, scratch: Path) -> Export:
    """Write everything into the scratch folder, compare, and move it to the output."""
    done, to, output = Export(), options.to, options.output.absolute()
    settings = None
    if to != ONNX:
        settings = make_settings(source, output.name, to, options.max_batch_size)
        done.left_out, done.notes = settings.left_out, settings.notes
    if to == OPENVINO and options.numerics == EXACT and source.is_narrow:
        raise ExportError(
            f"model {source.name!r} computes in half or fp8, and OpenVINO leaves out the graph's "
            f"roundings to them: expected --numerics {FAST}, or --to {ONNXRUNTIME} for the chip's "
            "answers"
        )
    domains = (ORT_DOMAIN,) if to == ONNXRUNTIME else ()
    model = make_exported(source, options.numerics, domains)
    name = output.name if to == ONNX else "model.onnx"
    files = _write_onnx(model, scratch, name)
    threads = source.state.parameters.sim_threads
    if to == OPENVINO:
        openvino.convert(scratch / name, scratch / "model.xml")
        files = {"model.bin": "weights", "model.xml": "model, OpenVINO"}
        opened = openvino.open_files(scratch / "model.xml", threads)
    else:
        opened = open_onnx(scratch / name, threads)
    if not options.no_check:
        done.comparison = compare(source, *opened, options.numerics)
    folder = output.parent if to == ONNX else output / str(source.version)
    _place(scratch, folder, files, done)
    if settings is not None:
        _place_settings(settings, scratch, output, done)
    if options.numerics == FAST and source.is_narrow:
        done.notes.append(
            "the model computes in half or fp8 on the chip, and the exported graph in fp32: its "
            "answers lack the chip's rounding; --numerics exact has it"
        )
    return done


def _write_onnx(model: onnx.ModelProto, folder: Path, name: str) -> dict[str, str]:
    """Write a model, with its weights in a file of their own if one file cannot hold them."""
    files = {name: f"model, opset {find_opset(model)}"}
    writer = ModelWriter(model)
    with (folder / name).open("wb") as file:
        if writer.size <= onnx.checker.MAXIMUM_PROTOBUF:
            writer.write(file)
            return files
        location = f"{name}.data"
        with (folder / location).open("wb") as data:
            write_with_data(model, file, data, location)
    return {location: "weights", **files}


def _place(scratch: Path, folder: Path, files: Mapping[str, str], done: Export) -> None:
    """Move files into a folder, in their order."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, what in files.items():
        size = (scratch / name).stat().st_size
        place_file(scratch / name, folder / name)
        done.files[str(folder / name)] = f"{what}, {size:,} bytes" if what else f"{size:,} bytes"


def _place_settings(settings: ExportedConfig, scratch: Path, output: Path, done: Export) -> None:
    """Copy the files that the configuration names, and write the configuration, which a server
    reads, last."""
    for name, file in settings.files.items():
        copy = scratch / os.path.basename(name)
        shutil.copyfile(file, copy)
        _place(scratch, (output / name).parent, {copy.name: ""}, done)
    (scratch / _CONFIG).write_text(encode_config(settings.config), encoding="utf-8")
    _place(scratch, output, {_CONFIG: ""}, done)


def _tell(options: argparse.Namespace, source: ExportSource, done: Export) -> None:
    if options.json:
        print(json.dumps(_as_json(source, done), indent=2))
        return
    for line in _iter_lines(source, done):
        print_line(line)


def _iter_lines(source: ExportSource, done: Export) -> Iterator[str]:
    for file, what in done.files.items():
        yield f"wrote {file} ({what})"
    yield from (f"left out: {entry}" for entry in done.left_out)
    yield from (f"note: {note}" for note in done.notes)
    if done.comparison is None:
        yield "answers: not compared (--no-check)"
        return
    same, served = done.comparison.same, done.comparison.served
    yield (
        f"answers: {done.comparison.engine} {_describe(same.greatest)} this project's runtime with "
        f"the same rounding ({same.num_rows} generated rows)"
    )
    if served is not None:
        today = source.state.parameters.sim_numerics
        yield (
            f"answers: {done.comparison.engine} {_describe(served.greatest)} the model as it is "
            f"served today (sim_numerics {today})"
        )


def _describe(difference: float) -> str:
    if not difference:
        return "equals"
    return f"differs by {difference:.2g} of an output's largest value from"


def _as_json(source: ExportSource, done: Export) -> dict[str, Any]:
    comparison = None
    if done.comparison is not None:
        same, served = done.comparison.same, done.comparison.served
        comparison = {
            "engine": done.comparison.engine,
            "rows": same.num_rows,
            "same_rounding": same.worst,
            "as_served": same.worst if served is None else served.worst,
        }
    return {
        "model": source.name,
        "files": done.files,
        "left_out": done.left_out,
        "notes": done.notes,
        "comparison": comparison,
    }
