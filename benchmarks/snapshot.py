"""Writes what users see of this checkout into a folder of texts: profiles, listings, files and
answers of models, as they are, or as hashes. Two folders that `diff -r` finds equal are of two
checkouts that behave alike.

    benchmarks/snapshot.py FOLDER [--published FOLDER] [--models REPOSITORY]

Models are the examples, built, and whatever ONNX files `--published` has, each in a folder of its
own with a `case.json` beside it (`precision`, `target`, `options` by the names of PopRT), which are
profiled only. Everything runs through the commands that this interpreter has installed and through
`model_runtime`, so that the script of one revision also looks at another. Answers are equal on one
machine only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
from model_runtime import ModelRunner, ModelRunnerConfig
from onnx import ModelProto, TensorProto, helper, numpy_helper, save
from published import converter_options

BIN = Path(sys.executable).parent
KNOWN_OPTIONS = {
    "partials_type": "--partials_type",
    "available_memory_proportion": "--available_memory_proportion",
    "num_io_tiles": "--num_io_tiles",
    "batches_per_step": "--batches_per_step",
}
"""Options of the published runs that `poplar-triton profile` takes with a value."""
_NAMES = {"used_passes": "passes"}
"""Arguments of the converter that commands call otherwise."""
PIPELINE = ["--num_ipus", "2", "--enable_pipelining", "--json"]
PRECISIONS = ("fp32", "fp16", "fp8", "fp8_weight")


def main() -> None:
    """Write the folder."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--published", type=Path)
    parser.add_argument("--models", type=Path, default=Path("model_repository"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    for case in sorted(options.published.glob("*/case.json")) if options.published else ():
        write_case(case, options.folder / "published")
    for file in sorted(options.models.glob("*/1/*.popef")):
        write_executable(file, options.folder / file.parent.parent.name)
    for precision in PRECISIONS:
        write_small(precision, options.folder / f"small_{precision}")


def run(command: str, *arguments: str | Path) -> str:
    """Return the output of a command, including its errors."""
    listed = [str(BIN / command), *map(str, arguments)]
    done = subprocess.run(listed, capture_output=True, text=True, check=False)
    return f"{done.stdout}{done.stderr}status {done.returncode}\n"


def write_case(case: Path, folder: Path) -> None:
    """Write the profile of a network whose times are published."""
    folder.mkdir(exist_ok=True)
    description = json.loads(case.read_text())
    arguments = [
        "--precision",
        description["precision"],
        "--target",
        description["target"],
        "--top",
        "1000",
    ]
    for name, option in KNOWN_OPTIONS.items():
        if name in description["options"]:
            arguments += [option, str(description["options"][name])]
    for name, value in converter_options(description["options"]).items():
        arguments.append("--" + _NAMES.get(name, name))
        arguments += [] if value is True else [",".join(value)]
    if description["options"].get("use_128bit_conv_unit_load"):
        arguments.append("--use_128bit_conv_unit_load")
    for name, further in (("nodes", []), ("figures", ["--json"]), ("pipeline", PIPELINE)):
        text = run("poplar-triton", "profile", case.parent / "model.onnx", *arguments, *further)
        (folder / f"{case.parent.name}.{name}").write_text(text)


def write_executable(file: Path, folder: Path) -> None:
    """Write profile, listing, hash and answers of a compiled model."""
    folder.mkdir(exist_ok=True)
    (folder / f"{file.name}.sha256").write_text(
        hashlib.sha256(file.read_bytes()).hexdigest() + "\n"
    )
    listing = re.sub(
        r"^\[[\d:.]+\] ", "", run("popef_dump", file), flags=re.MULTILINE
    )  # the time of day
    (folder / f"{file.name}.dump").write_text(listing)
    if file.name != "weights.popef":
        (folder / "profile.txt").write_text(run("poplar-triton", "profile", file, "--top", "1000"))
        (folder / "answers.sha256").write_text(
            hash_answers([file, *file.parent.glob("weights.popef")])
        )


def hash_answers(files: list[Path]) -> str:
    """Return a line per output and number of rows, for inputs that are the same in every
    checkout."""
    lines = []
    with ModelRunner(list(map(str, files)), ModelRunnerConfig(batching_dim=0)) as runner:
        for seed, rows in enumerate((1, 3, 16)):
            random = np.random.default_rng(seed)
            inputs = {}
            for anchor in runner.getExecuteInputs():
                shape = [rows, *list(anchor.shape)[1:]] if anchor.shape else []
                drawn = random.uniform(
                    0, 50 if np.dtype(anchor.numpy_data_type()).kind in "iu" else 1, shape
                )
                inputs[anchor.name] = drawn.astype(anchor.numpy_data_type())
            try:
                answers = runner.execute(inputs)
            except Exception as error:  # noqa: BLE001  what it says is a part of the snapshot
                lines.append(f"{rows} rows: {type(error).__name__}: {error}")
                continue
            for name, value in sorted(answers.items()):
                lines.append(
                    f"{rows} rows: {name} {value.shape} "
                    f"{hashlib.sha256(value.tobytes()).hexdigest()}"
                )
    return "\n".join(lines) + "\n"


def write_small(precision: str, folder: Path) -> None:
    """Compile and describe a net with a convolution, products, attention, and a reduction."""
    folder.mkdir()
    source = folder / "source.onnx"
    save(make_small(), source)
    compiled = folder / "executable.popef"
    output = run(
        "poprt", "--input_model", source, "--export_popef", "--output_dir", folder,
        "--precision", precision, "--ipu_version", "ipu21", "--show_profile",
    )  # fmt: skip
    (folder / "poprt.txt").write_text(output.replace(str(folder), "FOLDER"))
    if compiled.exists():
        (folder / "answers.sha256").write_text(hash_answers([compiled]))
        (folder / "executable.sha256").write_text(
            hashlib.sha256(compiled.read_bytes()).hexdigest() + "\n"
        )
        compiled.unlink()
    source.unlink()


def make_small() -> ModelProto:
    """Return a net for eight rows of 16 x 16 pictures with 8 channels."""
    random = np.random.default_rng(7)

    def weight(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array((random.standard_normal(shape) / 4).astype(np.float32), name)

    weights = [weight("k", 32, 8, 3, 3), weight("w", 32, 64), weight("v", 64, 64), weight("b", 64)]
    weights += [weight("g", 64, 10), weight("c", 10)]
    weights.append(numpy_helper.from_array(np.array([8, 32, 64], np.int64), "to"))
    nodes = [
        helper.make_node("Conv", ["x", "k"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["y"], ["z"]),
        helper.make_node("MaxPool", ["z"], ["p"], kernel_shape=[4, 2], strides=[4, 2]),
        helper.make_node("Reshape", ["p", "rows"], ["q"]),
        helper.make_node("MatMul", ["q", "w"], ["r"]),
        helper.make_node("Add", ["r", "b"], ["s"]),
        helper.make_node("Erf", ["s"], ["t"]),
        helper.make_node("MatMul", ["t", "v"], ["u"]),
        helper.make_node("Transpose", ["u"], ["ut"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["u", "ut"], ["scores"]),
        helper.make_node("Softmax", ["scores"], ["weights"], axis=-1),
        helper.make_node("MatMul", ["weights", "u"], ["context"]),
        helper.make_node("ReduceMean", ["context"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("Gemm", ["mean", "g", "c"], ["logits"]),
    ]
    weights.append(numpy_helper.from_array(np.array([8, -1, 32], np.int64), "rows"))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 8, 16, 16])]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [8, 10])]
    graph = helper.make_graph(nodes, "small", inputs, outputs, weights[:6] + weights[7:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)


if __name__ == "__main__":
    main()
