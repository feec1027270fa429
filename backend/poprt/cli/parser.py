"""Parsers of the `poprt` command and of its sub-command `tf2onnx`, and the YAML files of `poprt`.

--config_yaml has its options by their long names, possibly for several models to fuse.
--manual_sharding_config has IPUs and stages by the names of nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from simipu.version import describe_poprt

from popef._tools.arguments import Parser, positive
from popef._tools.console import UsageError
from popef._tools.file_kinds import HEAD_BYTES, recognize_substitute
from popef._tools.text import did_you_mean, escape
from poprt._names import MAX_MODELS
from poprt.option_entry import FLAG, Form, Option, Takes
from poprt.option_table import OPTIONS

_EXAMPLES = (
    "poprt -i model.onnx --input_shape x=16,3,224,224 --precision fp16 --triton_model_dir "
    "models/mine",
    "poprt -i model.onnx --batch_size 8 --export_popef --output_dir out --compiler_options "
    "partials_type=float",
    "poprt -i model.onnx --show",
)


def make_parser() -> Parser:
    """Return the parser. It does not require a model; that is checked later."""
    parser = Parser(
        prog="poprt",
        description="Convert an ONNX model and compile it to PopEF for the simulated IPU.",
        version=describe_poprt(),
        examples=_EXAMPLES,
    )
    parser.checks_paths_itself = True
    for option in OPTIONS.values():
        option.add_to(parser)
    return parser


def make_tf2onnx_parser() -> Parser:
    """Return the parser of the options after `tf2onnx`, for --framework tensorflow.

    They come last on the command line.
    """
    parser = Parser(
        prog="poprt tf2onnx",
        description="Convert a TensorFlow model to ONNX. Names are tensor names (Identity:0) or "
        "names of "
        "the signature (output_0), separated by commas.",
        examples=(
            "poprt -i resnet_v2_50 --framework tensorflow --input_shape inputs=1,224,224,3 "
            "tf2onnx --saved_model --inputs_as_nchw inputs:0",
        ),
    )
    sides = "tensor names (default for a SavedModel: all of the signature)"
    transposed = "names of tensors to transpose from NHWC to NCHW"
    names = Takes(Form.VALUE, "NAMES")
    for option in (
        Option("saved_model", "the input model is a SavedModel (a folder always is)", FLAG),
        Option(
            "signature_def",
            "signature of the SavedModel (default: serving_default, or the only one)",
            default="",
        ),
        Option("tag", "tag of the SavedModel (default: serve)", default=""),
        Option("inputs", sides, names),
        Option("outputs", sides, names),
        Option(
            "opset",
            "opset of the ONNX model (default: %(default)s)",
            Takes(Form.VALUE, "N", positive),
            default=11,
        ),
        Option("inputs_as_nchw", transposed, names),
        Option("outputs_as_nchw", transposed, names),
    ):
        option.add_to(parser)
    return parser


_MAX_BYTES = 1 << 20
"""Maximum number of bytes of a file of options."""
_MAX_WORDS = 10_000
"""Maximum number of values of one option, and of entries of a sharding file."""
_Scalar = (str, int, float, bool)
_FUSION = "model_fusion"


def read_arguments(file: Path, parser: Parser) -> tuple[list[str], list[list[str]]]:
    """Return the command-line words for the options in `file`, and those for each model to fuse
    that it lists.

    Raises UsageError that names the file and the key.
    """
    content = _read(file)
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise UsageError(f"{file}: expected options by their names, found {type(content).__name__}")
    options = {key: value for key, value in content.items() if key != _FUSION}
    words = _list_words(file, options, parser.option_names() - {"--config_yaml"})
    return words, _read_models(file, content[_FUSION]) if _FUSION in content else []


def _read_models(file: Path, models: Any) -> list[list[str]]:
    if not isinstance(models, list) or not 1 <= len(models) <= MAX_MODELS:
        raise UsageError(f"{file}: {_FUSION}: expected a list of 1 to {MAX_MODELS} models")
    option_names = {option.long_name for option in OPTIONS.values() if option.belongs_to_a_model}
    words_by_model = []
    for number, model in enumerate(models):
        where = f"{file}: {_FUSION}: model {number}"
        if not isinstance(model, dict) or not isinstance(model.get("input_model"), str):
            raise UsageError(f"{where}: expected options by their names, input_model among them")
        odd = next((key for key in model if f"--{key}" not in option_names), None)
        if odd is not None:
            raise UsageError(
                f"{where}: {escape(repr(odd), 100)} cannot be set per model; move it outside "
                "model_fusion"
            )
        words_by_model.append(_list_words(file, model, option_names))
    return words_by_model


def _list_words(file: Path, options: Mapping[str, Any], known: Collection[str]) -> list[str]:
    words: list[str] = []
    for key, value in options.items():
        option = f"--{key}"
        if option not in known:
            raise UsageError(
                f"{file}: {escape(repr(key))} is no option of poprt{did_you_mean(option, known)}; "
                "see poprt --help"
            )
        words += _words(file, option, value)
    return words


def read_sharding(file: Path) -> tuple[dict[str, int], dict[str, int]]:
    """Return the IPUs and the stages by the names of nodes.

    The file is a list of maps with node, and device or stage or both. Raises UsageError that names
    the file and the entry. The pass checks whether the nodes' values are valid.
    """
    entries = _read(file)
    if not isinstance(entries, list) or not 1 <= len(entries) <= _MAX_WORDS:
        raise UsageError(
            f"{file}: expected a list of 1 to {_MAX_WORDS} maps with node, device and stage"
        )
    devices: dict[str, int] = {}
    stages: dict[str, int] = {}
    for number, entry in enumerate(entries):
        node: Any = entry.get("node") if isinstance(entry, dict) else None
        fits = (
            isinstance(node, str) and set(entry) <= {"node", "device", "stage"} and len(entry) > 1
        )
        numbers = [value for key, value in entry.items() if key != "node"] if fits else [None]
        if not all(isinstance(value, int) and not isinstance(value, bool) for value in numbers):
            raise UsageError(
                f"{file}: entry {number}: expected the name of a node and a whole number as "
                "device, as stage, or as both"
            )
        if node in devices or node in stages:
            raise UsageError(
                f"{file}: entry {number}: node {escape(repr(node), 100)} is listed twice"
            )
        for key, where in (("device", devices), ("stage", stages)):
            if key in entry:
                where[node] = entry[key]
    return devices, stages


def _read(file: Path) -> Any:
    # Imported here: it takes 20 ms, and few commands read YAML.
    import yaml

    try:
        with file.open("rb") as stream:
            text = stream.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise UsageError(f"{file}: expected at most {_MAX_BYTES} bytes of options")
        if substitute := recognize_substitute(text[:HEAD_BYTES]):
            raise UsageError(f"{file}: expected YAML, found {substitute}")
        content = yaml.safe_load(text)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(escape(str(error)).split())
        raise UsageError(f"{file} is not valid YAML: {reason}") from error
    return content


def _words(file: Path, option: str, value: Any) -> list[str]:
    if value is None or value is False or value == "":
        return []
    if value is True:
        return [option]
    if isinstance(value, dict):
        value = [f"{key}={item}" for key, item in _items(file, option, value)]
    values = value if isinstance(value, list) else [value]
    if len(values) > _MAX_WORDS or not all(isinstance(item, _Scalar) for item in values):
        raise UsageError(
            f"{file}: {option}: expected a value, or a list of values, found another structure"
        )
    return [option, *map(str, values)] if values else []


def _items(file: Path, option: str, value: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    for key, item in value.items():
        if not isinstance(item, _Scalar):
            raise UsageError(f"{file}: {option}: {key!r}: expected one value")
        yield key, item
