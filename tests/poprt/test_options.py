"""Tests of the compiler's options: which values they accept, from each source."""

import dataclasses
import inspect
import re

import numpy as np
import pytest
from poprt import Compiler, CompilerOptions, Converter, options
from poprt.option_entry import Use
from poprt.option_table import OPTIONS
from simipu import CompileError, OutOfMemoryError


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"num_ipus": 0}, "num_ipus: expected 1 to 65536, found 0"),
        ({"num_io_tiles": -1}, "num_io_tiles: expected 0 to 1472, found -1"),
        ({"virtual_graph_mode": "hand"}, "supported: 'off', 'auto', 'manual'"),
        ({"enable_engine_caching": True}, "requires cache_path, a folder"),
        (
            {"num_ipus": 2, "virtual_graph_split_ratios": [0.5]},
            "one share for each of the num_ipus=2",
        ),
        ({"subgraph_copying_strategy": 7}, "subgraph_copying_strategy: expected 0 to 1"),
        ({"virtual_graph_split_ratios": "[0.5, 2]"}, r"expected numbers in \(0, 1\)"),
        ({"compilation_progress_logger": 3}, "expected a function, found 3"),
        ({"custom_transform_applier_settings": "{'Fwd0': 'X'}"}, "expected a list for each name"),
        ({"partials_type": "quarter"}, "supported: 'half', 'float'"),
        ({"num_ipu": 1}, "'num_ipu' is not known; did you mean num_ipus"),
        ({"available_memory_proportion": "2"}, "expected 0 to 1, found 2"),
        ({"constant_weights": "maybe"}, "expected a bool, found 'maybe'"),
    ],
)
def test_wrong_compiler_options_are_refused(values, reason):
    with pytest.raises(CompileError, match=reason):
        CompilerOptions.from_dict(values)


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        (
            "partials_type",
            "foo",
            "partials_type='foo' is not supported; supported: 'half', 'float'",
        ),
        ("available_memory_proportion", 5.0, r"expected 0 to 1, found 5.0"),
        ("available_memory_proportion", float("nan"), r"expected 0 to 1, found nan"),
        ("num_ipus", 0, "num_ipus: expected 1 to 65536, found 0"),
        ("num_ipus", True, "num_ipus: expected an int, found True"),
        ("num_ipus", "2", "num_ipus: expected an int, found '2'"),
        pytest.param(
            "num_ipus",
            10**5000,
            "expected 1 to 65536, found a number that is too long",
            id="a long number",
        ),
        ("num_io_tiles", -1, "num_io_tiles: expected 0 to 1472, found -1"),
        ("batches_per_step", 2.0, "batches_per_step: expected an int, found 2.0"),
        ("enable_outlining", "yes", "enable_outlining: expected a bool, found 'yes'"),
        ("virtual_graph_mode", None, "virtual_graph_mode: expected a str, found None"),
        ("engine_options", {"a": 1}, "engine_options: expected a str for each name"),
        ("ipu_version", "ipu\x1b3", r"ipu_version='ipu\\x1b3' is not supported"),
    ],
)
def test_options_are_checked_when_they_are_assigned(name, value, reason):
    made = CompilerOptions()
    with pytest.raises(CompileError, match=reason):
        setattr(made, name, value)
    assert made == CompilerOptions()


def test_options_that_do_not_go_together_are_refused_when_they_are_used(linear):
    made = CompilerOptions()
    made.enable_pipelining, made.num_ipus, made.batches_per_step = True, 4, 6
    converted = Converter(batch_size=4).convert(linear)
    with pytest.raises(CompileError, match="a multiple of the 4 stages of the pipeline, found 6"):
        Compiler.compile(converted, None, made)


REAL = """num_ipus ipu_version batches_per_step partials_type available_memory_proportion num_io_tiles
enable_model_fusion enable_prefetch_datastreams stream_buffering_depth enable_pad_conv_channel serialize_ir
serialized_ir_dest enable_gather_simplifier engine_options show_compilation_progress_bar
compilation_progress_logger custom_patterns custom_transform_applier_settings opaque_blobs
use_128bit_conv_unit_load enable_multi_stage_reduce enable_fast_reduce enable_outlining group_host_sync
rearrange_streams_on_host rearrange_anchors_on_host outline_threshold enable_non_stable_softmax
enable_pipelining enable_engine_caching cache_path constant_weights subgraph_copying_strategy
virtual_graph_mode virtual_graph_split_ratios time_limit_scheduler swap_limit_scheduler
transitive_closure_optimization_threshold create_host_transferable_tensor_with_offset
enable_efficient_overlap_io_topo_cons""".split()
"""Names of the fields of the real tool's class."""


def test_every_field_of_the_real_tool_is_there_and_the_others_are_ours():
    ours = {name for name, entry in options.COMPILER_OPTIONS.items() if entry.ours}
    assert {entry.name for entry in dataclasses.fields(CompilerOptions)} - ours == set(REAL)


def test_a_wrong_name_is_an_attribute_error():
    with pytest.raises(AttributeError):
        CompilerOptions().num_ipu = 2
    with pytest.raises(AttributeError, match="no option 'batch_siz'; did you mean batch_size"):
        _ = Converter().options.batch_siz


def test_values_are_taken_in_the_forms_that_scripts_write():
    made = CompilerOptions()
    made.outline_threshold = 5000
    made.time_limit_scheduler = 0
    made.opaque_blobs = {"name": "text"}
    made.custom_patterns = ("A", "B:0")
    made.num_ipus = np.int64(2)
    assert made.opaque_blobs == {"name": b"text"}
    assert (made.outline_threshold, made.custom_patterns, made.num_ipus) == (
        5000.0,
        ["A", "B:0"],
        2,
    )
    read = CompilerOptions.from_dict(
        {
            "custom_patterns": "A, B:0",
            "custom_transform_applier_settings": "{'Fwd0': ['X']}",
            "group_host_sync": "true",
        }
    )
    assert read.custom_patterns == ["A", "B:0"]
    assert read.custom_transform_applier_settings == {"Fwd0": ["X"]}
    assert read.group_host_sync is True


def test_ineffective_options_are_warned_of_and_changed_ones_checked(caplog):
    made = CompilerOptions(custom_patterns=["A"], serialize_ir=True)
    made.check()
    assert "custom_patterns changes nothing" in caplog.text
    assert "serialize_ir changes nothing" in caplog.text
    made.engine_options["a"] = 1
    with pytest.raises(CompileError, match="engine_options: expected a str"):
        made.check()


def test_an_executable_records_options_that_describe_the_program():
    made = CompilerOptions(num_ipus=2, cache_path="/x", show_compilation_progress_bar=False)
    made.compilation_progress_logger = print
    assert made.changed() == (("num_ipus", "2"),)


def test_errors_of_the_compiler_are_runtime_errors():
    assert issubclass(CompileError, RuntimeError)
    assert issubclass(OutOfMemoryError, RuntimeError)


def read_documented(kind):
    """Return the texts of a docstring's section Args, by argument."""
    found = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", inspect.getdoc(kind), re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def test_the_documentation_of_a_field_says_what_its_entry_says():
    documented = read_documented(CompilerOptions)
    for name, entry in options.COMPILER_OPTIONS.items():
        assert documented[name].startswith("no effect") == bool(entry.no_effect), name
        assert documented[name].endswith("; a warning.") == entry.warned, name
        assert bool(re.search(r"\bours\b", documented[name])) == entry.ours, name
    documented = read_documented(Converter)
    for entry in OPTIONS.values():
        if entry.argument:
            text = documented[entry.argument]
            assert text.startswith("unsupported") == bool(entry.refused), entry.name
            assert bool(re.search(r"\bours\b", text)) == (Use.OURS in entry.use), entry.name
