"""Networks compared with ONNX Runtime's fp32: the precisions of each, and the goals for their
relative speed."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import inputs
import model_inputs
import model_table
import onnx
import repository
import synthetic
import weighted
from inputs import Row
from poplar_triton.recipes import fetch, read_recipes
from poprt import cli
from poprt.comparing import Findings
from rounds import Goal
from tritonclient.grpc.model_config_pb2 import ModelConfig

_OPTIONS = "--compiler_options"
_PARTIALS = "partials_type="


@dataclass(frozen=True, slots=True)
class Precision:
    """Options of poprt for a precision; `partials` are the compiler's, or its default.
    `accelerator`: what computes it instead of the CPU kernels."""

    precision: str
    goal: Goal
    partials: str = ""
    accelerator: str = ""


PRECISIONS = {
    "half": Precision("fp16", Goal(0.8)),
    "float": Precision("fp16", Goal(0.95), "float"),
    "fp8": Precision("fp8", Goal(0.65)),
    "fp32": Precision("fp32", Goal(1.0)),
    "openvino": Precision("fp32", Goal(1.0), accelerator="openvino"),
}
"""The first two are by their partials: fp16 both. The last one is fp32 on OpenVINO."""


def with_precision(arguments: Sequence[str], name: str) -> list[str]:
    """Return poprt's arguments for a model, with those of another precision in place of their
    own."""
    chosen = PRECISIONS[name]
    words = [word for word in arguments if not word.startswith(_PARTIALS)]
    for flag in ("--precision", _OPTIONS):
        if flag in words and (flag != _OPTIONS or _takes_none(words)):
            place = words.index(flag)
            del words[place : place + (1 if flag == _OPTIONS else 2)]
    words += ["--precision", chosen.precision]
    if not chosen.partials:
        return words
    if _OPTIONS not in words:
        words.append(_OPTIONS)
    place = words.index(_OPTIONS) + 1
    return [*words[:place], f"{_PARTIALS}{chosen.partials}", *words[place:]]


def _takes_none(arguments: Sequence[str]) -> bool:
    """Return whether nothing follows the flag of the compiler's options."""
    following = arguments[arguments.index(_OPTIONS) + 1 :]
    return not following or following[0].startswith("-")


@dataclass(frozen=True, slots=True)
class Network:
    """An ONNX file, the options of poprt except the precision, and the rows of a run. `make_rows`
    makes requests of a row for the compiled model."""

    file: Path
    arguments: Sequence[str] = ()
    rows: int = 1
    make_rows: Callable[[ModelConfig, int], list[Row]] = inputs.make_rows


def _exported(write: Callable[[Path, int], Path], batch: int) -> Callable[[Path], Network]:
    return lambda folder: Network(write(folder, batch), (), batch)


def _example(name: str) -> Callable[[Path], Network]:
    def find(_folder: Path) -> Network:
        (recipe,) = read_recipes(repository.EXAMPLES, [name])
        return Network(fetch(recipe, repository.CACHE), recipe.poprt)

    return find


def find_real(name: str) -> Network:
    """Return the real model of that name in models.json, without its half or fp8 settings."""
    (model,) = model_table.read_models([name])

    def make_rows(config: ModelConfig, num_rows: int) -> list[Row]:
        return [model_inputs.make_row(model, config, number) for number in range(num_rows)]

    return Network(model.fetch(), model.arguments(), make_rows=make_rows)


def _small(make: Callable[[], onnx.ModelProto], rows: int) -> Callable[[Path], Network]:
    def write(folder: Path) -> Network:
        onnx.save(make(), folder / "model.onnx")
        return Network(folder / "model.onnx", ("--batch_size", str(repository.BATCH_SIZE)), rows)

    return write


NETWORKS: dict[str, Callable[[Path], Network]] = {
    "resnet50": _exported(weighted.write_resnet50, 1),
    "bert_base": _exported(weighted.write_bert_base, 1),
    "bert_base_4": _exported(weighted.write_bert_base, 4),
    **{name: _example(name) for name in ("document_orientation", "text_recognition")},
    **{name: _example(name) for name in ("magika", "sentence_similarity")},
    "mlp": _small(synthetic.make_mlp, 1),
    "mlp_16": _small(synthetic.make_mlp, repository.BATCH_SIZE),
    "convnet": _small(synthetic.make_convnet, 1),
    "convnet_16": _small(synthetic.make_convnet, repository.BATCH_SIZE),
    "lstm": _small(synthetic.make_lstm, 1),
    "lstm_16": _small(synthetic.make_lstm, repository.BATCH_SIZE),
}
"""Functions that write each network, by name; a number in a name is the number of rows of a run."""


def compile_network(network: Network, precision: str, folder: Path) -> Path:
    """Compile into the model folder and return it. The effect of half on the outputs is not
    checked."""
    words = ["--input_model", str(network.file), *with_precision(network.arguments, precision)]
    words += ["--triton_model_dir", str(folder), "--output_dir", str(folder)]
    output = io.StringIO()
    with (
        patch("poprt.comparing.calibrate", return_value=Findings()),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(output),
    ):
        status = cli.main([*words, "--disable_compilation_progress_bar"])
    if status:
        raise SystemExit(f"benchmarks: poprt {' '.join(words)}: {output.getvalue()[-1000:]}")
    return folder
