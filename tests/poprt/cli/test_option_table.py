"""Tests of the table of options: what follows from an entry, and which facts must agree."""

import dataclasses
import inspect
import re

import make_options
import onnx
import pytest
import shtab
from poplar_triton import recipes
from poprt import CompilerOptions, Converter, cli
from poprt.cli import conversion
from poprt.cli.parser import make_parser, read_arguments
from poprt.option_entry import FLAG, NODES, Form, Option, Use, read_converter_arguments
from poprt.option_table import OPTIONS
from poprt.options import ConverterOptions
from sample_models import linear_model

from popef._tools.options import UNSET

ENTRY = Option("keep_nodes", "nodes to keep as they are", NODES, Use.CONVERTER | Use.OURS)


@pytest.fixture
def added(monkeypatch, tmp_path):
    """Add an option in one place, and record what Converter gets instead of converting."""
    monkeypatch.setitem(OPTIONS, ENTRY.name, ENTRY)
    monkeypatch.chdir(tmp_path)
    onnx.save(linear_model(), tmp_path / "model.onnx")
    calls = []

    def convert(**arguments):
        calls.append(arguments.pop(ENTRY.name, None))
        return Converter(**arguments)

    monkeypatch.setattr(conversion, "Converter", convert)
    return calls


def test_an_entry_makes_parser_help_completion_and_document(added):
    parser = make_parser()
    assert parser.parse_args(["--keep_nodes", "a,b", "c"]).keep_nodes == ["a,b", "c"]
    assert parser.parse_args([]).keep_nodes == []
    assert "--keep_nodes NODE [NODE ...]" in parser.format_help()
    described = "nodes to keep as they are (comma separated; not in the real tool)"
    assert described in " ".join(parser.format_help().split())
    assert "--keep_nodes" in shtab.complete(parser, shell="bash")
    row = f"| `--keep_nodes` | `NODE ...` |  | ours | {described} |"
    assert row in make_options.make_text().splitlines()


@pytest.mark.parametrize("text", ["keep_nodes: [a, b]", "keep_nodes: 'a,b'"])
def test_an_entry_is_a_key_of_yaml_and_an_argument_of_the_converter(text, added, tmp_path):
    (tmp_path / "o.yaml").write_text(f"input_model: model.onnx\nbatch_size: 2\n{text}\n")
    assert cli.main(["--config_yaml", "o.yaml"]) == 0
    assert cli.main(["-i", "model.onnx", "--batch_size", "2", "--keep_nodes", "a,", "b"]) == 0
    assert cli.main(["-i", "model.onnx", "--batch_size", "2"]) == 0
    assert added == [["a", "b"], ["a", "b"], None]


def test_an_option_of_the_converter_is_one_of_each_model_to_fuse(added, tmp_path):
    (tmp_path / "o.yaml").write_text("model_fusion: [{input_model: m, keep_nodes: [a]}]")
    assert read_arguments(tmp_path / "o.yaml", make_parser())[1] == [
        ["--input_model", "m", "--keep_nodes", "a"]
    ]


def test_a_refused_entry_is_an_error_that_says_why(monkeypatch, capsys):
    refused = Option("melt", takes=FLAG, refused="chips stay solid")
    monkeypatch.setitem(OPTIONS, "melt", refused)
    with pytest.raises(SystemExit) as ended:
        cli.main(["-i", "model.onnx", "--melt"])
    assert ended.value.code == 2
    assert "--melt is not supported: chips stay solid" in capsys.readouterr().err


def test_entries_name_arguments_and_fields_that_exist():
    arguments = inspect.signature(Converter.__init__).parameters
    fields = {each.name for each in dataclasses.fields(CompilerOptions)}
    for name, entry in OPTIONS.items():
        assert entry.name == name
        assert not entry.argument or entry.argument in arguments, name
        assert Use.COMPILER not in entry.use or name in fields, name
        assert not entry.turns_off or entry.turns_off in fields, name
        assert Use.PROFILE not in entry.use or Use.CONVERTER in entry.use, name


def test_every_argument_of_the_converter_is_an_option_with_its_default():
    arguments = dict(inspect.signature(Converter.__init__).parameters)
    assert arguments.keys() - {"self", "logger"} == {
        entry.argument for entry in OPTIONS.values()
    } - {""}
    made = ConverterOptions()
    for name, entry in ConverterOptions.OPTIONS.items():
        if name != "origin_model":
            assert entry.kind.read(arguments[name].default) == getattr(made, name), name


def test_defaults_of_command_and_converter_agree():
    """One differs, as in the real tool: the command's scales of 8 bits. remap_mode has no default in
    the command, which can therefore say whether it is given."""
    given = read_converter_arguments(OPTIONS.values(), make_parser().parse_args([]))
    assert given.pop("fp8_params") == "F143,F143,-1,-1"
    assert Converter(**given).options == Converter().options == ConverterOptions()
    other = {name for name, entry in OPTIONS.items() if entry.converter_default is not UNSET}
    assert other == {"fp8_params", "remap_mode"}


def test_the_help_tells_the_default_of_the_field_that_gets_the_value():
    told = {
        name: re.search(r"\(default: ([\d.]+)\)", entry.help)
        for name, entry in OPTIONS.items()
        if Use.COMPILER in entry.use
    }
    found = {name: float(match[1]) for name, match in told.items() if match}
    assert found == {name: getattr(CompilerOptions(), name) for name in found}
    assert {"available_memory_proportion", "batches_per_step", "num_io_tiles"} <= found.keys()


def test_recipes_set_nothing_that_reads_or_writes_a_file():
    risky = {name for name, each in OPTIONS.items() if each.takes.form in (Form.PATH, Form.FOLDER)}
    risky |= {name for name, each in OPTIONS.items() if "FILE" in (each.takes.metavar or "")} | {
        "output_model"
    }
    assert not {f"--{name}" for name in risky} & set(recipes.POPRT_OPTIONS)
